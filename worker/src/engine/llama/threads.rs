//! The number of threads that compute a step.
//!
//! Where the system does not report how long threads wait for a processor, steps are computed with the configured
//! threads. Not here: the choice of the number (`warmpath_worker_core::batches::compute_threads`).

use std::time::{Duration, Instant};

use llama_cpp_2::context::LlamaContext;
use llama_cpp_sys_2 as sys;
use warmpath_worker_core::batches::compute_threads::{ComputeThreads, ThreadWaits, TimedStep};

use super::raw_context;
use crate::engine::config::EngineConfig;
use crate::engine::processors::{ProcessorWaits, since};

/// Tokens of a step from which its time is proportional to them. Source: below, reading the weights takes a part of the
/// time.
const MANY_TOKENS: u32 = 32;

/// Kind of the steps with many tokens; those with few are a kind for each number of tokens.
const MANY: u32 = u32::MAX;

/// Threads of a context's steps. Steps with many tokens have a choice of their own: their threads wait for each other
/// seldom, so more of them may be worth while.
#[derive(Debug)]
pub(crate) struct StepThreads {
    many: KindThreads,
    few: KindThreads,
    waits: ProcessorWaits,
    /// Whether the last step had many tokens, and the waits when steps of its kind, or their window, began.
    last: (bool, Option<Duration>),
    /// Waits of the last window that has ended, until they are taken.
    waits_of_step: Option<ThreadWaits>,
    /// Threads for steps with one token, and for other steps: as configured, and as set.
    configured_threads: (u16, u16),
    set: (u16, u16),
}

/// Threads of steps with many or few tokens.
#[derive(Debug, Clone)]
struct KindThreads {
    choice: ComputeThreads,
    /// Waits in the window in progress, up to the last step of the other kind.
    waited: Duration,
}

impl StepThreads {
    /// Returns the threads of a context that was made with a configuration.
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let configured_threads = (config.n_threads(), config.n_threads_batch());
        let choice = ComputeThreads::new(configured_threads.0.max(configured_threads.1));
        let few = KindThreads { choice, waited: Duration::ZERO };
        let (waits, last) = (ProcessorWaits::default(), (false, None));
        Self { many: few.clone(), few, waits, last, waits_of_step: None, configured_threads, set: configured_threads }
    }

    /// Runs `decode`, which computes a batch of this many tokens, with as many threads as are fastest.
    pub(crate) fn decode<T>(
        &mut self,
        context: &mut LlamaContext<'_>,
        n_tokens: u32,
        decode: impl FnOnce(&mut LlamaContext<'_>) -> T,
    ) -> T {
        let has_many = n_tokens >= MANY_TOKENS;
        let (was_many, began) = self.last;
        let [kind, other] = if has_many { [&mut self.many, &mut self.few] } else { [&mut self.few, &mut self.many] };
        // Waits count for the kind of step in which they were.
        if has_many != was_many || kind.choice.begins_window() {
            let total = self.waits.total();
            if has_many != was_many {
                other.waited += since(total, began).unwrap_or_default();
            }
            if kind.choice.begins_window() {
                kind.waited = Duration::ZERO;
            }
            self.last = (has_many, total);
        }
        let n_threads = kind.choice.get();
        let wanted_threads = (self.configured_threads.0.min(n_threads), self.configured_threads.1.min(n_threads));
        if wanted_threads != std::mem::replace(&mut self.set, wanted_threads) {
            set_threads(context, wanted_threads.0, wanted_threads.1);
        }
        let began = Instant::now();
        let result = decode(context);
        let end = Instant::now();
        let took = end - began;
        let step = match n_tokens {
            0..MANY_TOKENS => TimedStep { kind: n_tokens, work: 1, took },
            MANY_TOKENS.. => TimedStep { kind: MANY, work: n_tokens, took },
        };
        let (waits, began, before) = (&mut self.waits, self.last.1, kind.waited);
        let time_waited = || Some(before + since(waits.total(), began)?);
        self.waits_of_step = kind.choice.step(step, end, time_waited).or(self.waits_of_step);
        result
    }

    /// Returns the waits of the last window that has ended, once.
    pub(crate) fn take_waits(&mut self) -> Option<ThreadWaits> {
        self.waits_of_step.take()
    }
}

pub(super) fn set_threads(context: &mut LlamaContext<'_>, threads: u16, threads_batch: u16) {
    // SAFETY: the context is alive, and computes nothing while it is borrowed mutably.
    unsafe { sys::llama_set_n_threads(raw_context(context).as_ptr(), threads.into(), threads_batch.into()) };
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use warmpath_bench::model::real::smollm2;
    use warmpath_bench::model::{Preset, cache::cached_model};
    use warmpath_common::ids::{SlotId, Token};

    use super::*;
    use crate::engine::config::Switch;
    use crate::engine::llama::{Llama, Logits, load};

    /// Returns the likeliest tokens after a prompt for each of two slots, with a number of threads for each step.
    fn answers(config: &EngineConfig, threads: impl Fn(u16) -> u16) -> Vec<[Token; 2]> {
        let model = load(config, Box::new(|_| true)).unwrap();
        let mut llama = Llama::open(&model, config).unwrap();
        let slots = [SlotId(0), SlotId(1)];
        // Beyond 512 cells, flash attention of one token divides the cells among the threads.
        let n_prompt = 520;
        let mut rows = [0; 2];
        for position in 0..n_prompt {
            for slot in slots {
                let token = 5 + (position * 7 + u32::from(slot.0) * 3) % 90;
                let logits = if position + 1 == n_prompt { Logits::Wanted } else { Logits::Unwanted };
                rows[usize::from(slot.0)] = llama.push(slot, position, token, logits);
            }
        }
        let mut answers = Vec::new();
        for step in 0..16 {
            llama.set_threads(threads(step), threads(step));
            llama.decode().unwrap();
            let next = rows.map(|row| {
                let logits = llama.logits(row);
                (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as Token
            });
            llama.reset_batch();
            for slot in slots {
                let idx = usize::from(slot.0);
                rows[idx] = llama.push(slot, n_prompt + u32::from(step), next[idx], Logits::Wanted);
            }
            answers.push(next);
        }
        answers
    }

    #[test]
    fn answers_do_not_depend_on_the_number_of_threads_nor_on_its_changes() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models"));
        let made = [Preset::Tiny, Preset::TinySwa, Preset::TinyHybrid];
        let made = made.map(|preset| cached_model(preset, 1, folder).unwrap());
        for model in made.into_iter().chain([smollm2().unwrap()]) {
            for (flash_attn, kv_unified) in [(Switch::Off, Switch::Off), (Switch::On, Switch::On)] {
                let config = EngineConfig {
                    model: model.clone(),
                    n_slots: 2,
                    context_tokens_total: 2 * 1024,
                    batch_tokens: 1200,
                    threads: 4,
                    flash_attn,
                    kv_unified,
                    ..EngineConfig::default()
                };
                let expected = answers(&config, |_| 1);
                assert_eq!(
                    answers(&config, |step| [4, 1, 2, 1][usize::from(step % 4)]),
                    expected,
                    "{}",
                    model.display()
                );
            }
        }
    }
}
