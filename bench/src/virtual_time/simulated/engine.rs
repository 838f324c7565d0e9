//! A simulated engine: queues requests, runs steps of virtual time, and returns tokens and reports as the real one.
//!
//! Production code makes the decisions: the slot plan chooses a request's slot and the request that it waits for, the
//! batch plan divides each step, the chunk index finds, keeps and evicts state, and the averages give the reported
//! speed. Modelled instead: a step takes the time of its prompt tokens at the engine's rate, plus that of one decoding
//! step if anything decodes. As in the engine's thread, requests that arrive during a step are admitted when it ends.
//! A batch is one step, where the real engine has one for each micro-batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use warmpath_common::ids::{SlotId, Token};
use warmpath_common::summary::Load;
use warmpath_worker_core::batches::batch_plan::{BatchLimits, RunningSequence, Work, plan};
use warmpath_worker_core::reports::pending_prefills::AnnouncementId;
use warmpath_worker_core::reports::rates::{Averages, StepCounts};
use warmpath_worker_core::reports::summary_writer::EngineUpdate;
use warmpath_worker_core::slots::slot_plan::{SlotDecision, SlotPlan};
use warmpath_worker_core::store::chunk_index::ChunkId;

use super::kv::{Kv, KvSizes, Prompt};

/// Size and speed of an engine.
#[derive(Debug, Clone, Copy)]
pub struct EngineSettings {
    /// Sizes of the KV state.
    pub kv: KvSizes,
    /// Number of tokens that one cell stands for: 1, or more where only whole blocks matter.
    pub tokens_per_cell: u32,
    /// Size of a batch.
    pub batch: BatchLimits,
    /// Prefill speed at the start of a prompt. Units: prompt tokens per second.
    pub prefill_tokens_per_s: f64,
    /// Number of tokens behind which the prefill speed is half of that at the start, since attention reads all of them;
    /// infinity for the same speed everywhere.
    pub half_speed_tokens: f64,
    /// Time of a step that decodes. Units: milliseconds.
    pub decode_step_ms: f64,
    /// Time to bring one token's KV state into a slot. Units: milliseconds.
    pub restore_ms_per_token: f64,
    /// Whether steps that only decode are one event, up to the next end or arrival of a request.
    pub joins_decode_steps: bool,
}

impl EngineSettings {
    /// Returns the time to compute `n_tokens` of a prompt behind its first `n_before`. Units: milliseconds.
    pub fn prefill_ms(&self, n_before: u32, n_tokens: u32) -> f64 {
        let slowdown = 1.0 + (f64::from(n_before) + f64::from(n_tokens) / 2.0) / self.half_speed_tokens;
        f64::from(n_tokens) / self.prefill_tokens_per_s * 1e3 * slowdown
    }
}

/// A request, as the engine receives it.
#[derive(Debug, Clone)]
pub struct Job {
    /// Number of the request, unique in the run; also that of its early announcement.
    pub id: u64,
    /// Its prompt.
    pub prompt: Arc<Prompt>,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Length of the answer.
    pub answer_tokens: u32,
}

/// Progress of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Its first token has been sent.
    First {
        /// Number of prompt tokens that were reused.
        cached_tokens: u32,
    },
    /// Its response is complete.
    Last {
        /// The response; empty if the engine makes no tokens.
        answer: Vec<Token>,
    },
}

/// Returns a token of an answer from the cells of its prompt and the token's index.
pub type NextToken = Box<dyn Fn(&[Token], u32) -> Token>;

/// Engine of one worker.
pub struct Engine {
    settings: EngineSettings,
    kv: Kv,
    /// Source of the answers' tokens; without it, answers have a length only and leave no state.
    next_token: Option<NextToken>,
    averages: Averages,
    /// Requests that have arrived since the running step began, with the times of their arrival.
    inbox: Vec<(Job, Duration)>,
    queue: VecDeque<Queued>,
    running: Vec<Running>,
    step: Option<Step>,
    /// Time to restore the state of the sequences that have started since the last step. Units: milliseconds.
    restore_ms: f64,
    updates: Vec<EngineUpdate>,
}

/// A request that waits for a slot, or for another request that computes its prefix.
#[derive(Debug)]
struct Queued {
    job: Job,
    arrived: Duration,
    /// Number of prompt tokens that were expected to be cached when it was queued.
    n_cached: u32,
    /// Chunks that are read from disk for it.
    fetched_chunks: Vec<ChunkId>,
    /// End of the last read; `None` if it never waited for the disk.
    reads_until: Option<Duration>,
}

#[derive(Debug)]
struct Running {
    job: Job,
    slot: SlotId,
    /// Number of the prompt's cells that are computed.
    n_cells: usize,
    arrived: Duration,
    n_cached: u32,
    /// Number of the prompt's tokens that are computed or cached.
    n_computed: u32,
    n_answered: u32,
    answer: Vec<Token>,
}

impl Running {
    fn remaining_tokens(&self) -> u32 {
        self.job.prompt_tokens - self.n_computed
    }
}

/// Work of the engine until the end of the step.
#[derive(Debug)]
struct Step {
    /// Slots with the number of tokens that they compute.
    shares: Vec<(SlotId, u32)>,
    /// Number of times that the shares are computed in a row; more than one only if all of them decode.
    n_repeats: u32,
    /// Time of one repetition.
    time: Duration,
    /// Part of `time` that restored stored state, which the measured speed does not include.
    restore: Duration,
    start: Duration,
}

impl Step {
    fn end(&self) -> Duration {
        self.start + self.time * self.n_repeats
    }
}

impl Engine {
    /// Returns an engine without any state.
    pub fn new(settings: EngineSettings, next_token: Option<NextToken>) -> Self {
        let tokens_per_cell = f64::from(settings.tokens_per_cell);
        let prefill_ms_per_cell = 1e3 / settings.prefill_tokens_per_s * tokens_per_cell;
        Self {
            settings,
            kv: Kv::new(settings.kv, prefill_ms_per_cell, settings.restore_ms_per_token * tokens_per_cell),
            next_token,
            averages: Averages::default(),
            inbox: Vec::new(),
            queue: VecDeque::new(),
            running: Vec::new(),
            step: None,
            restore_ms: 0.0,
            updates: Vec::new(),
        }
    }

    /// Returns the KV state.
    pub fn kv(&self) -> &Kv {
        &self.kv
    }

    /// Returns the KV state, to be changed besides the requests; [`Engine::report`] then reports the changes.
    pub fn kv_mut(&mut self) -> &mut Kv {
        &mut self.kv
    }

    /// Makes every further step slower.
    pub fn slow_down(&mut self, factor: f64) {
        self.settings.prefill_tokens_per_s /= factor;
        self.settings.decode_step_ms *= factor;
    }

    /// Takes a request; returns the end of the running step if that has changed.
    pub fn submit(&mut self, job: Job, now: Duration) -> Option<Duration> {
        self.inbox.push((job, now));
        self.wake(now)
    }

    /// Returns when the next read from disk for a waiting request ends, if that is after `now`; [`Engine::wake`] is to
    /// be called then.
    pub fn next_read(&self, now: Duration) -> Option<Duration> {
        self.queue.iter().filter_map(|waiting| waiting.reads_until).filter(|until| *until > now).min()
    }

    /// Admits the requests that can start now, or at the end of the running repetition of a step; returns the end of
    /// the running step if that has changed.
    pub fn wake(&mut self, now: Duration) -> Option<Duration> {
        if let Some(step) = &mut self.step {
            // A sequence of decoding steps ends with the one that runs now.
            let n_begun = (now - step.start).as_nanos() / step.time.as_nanos().max(1) + 1;
            let n_repeats = u32::try_from(n_begun).unwrap_or(u32::MAX).min(step.n_repeats);
            let is_cut = n_repeats < step.n_repeats;
            step.n_repeats = n_repeats;
            return is_cut.then(|| step.end());
        }
        self.admit(now)
    }

    /// Removes a request, at whatever point it is.
    pub fn cancel(&mut self, id: u64, now: Duration) {
        if let Some(idx) = self.running.iter().position(|running| running.job.id == id) {
            let Running { job, slot, .. } = self.running.remove(idx);
            self.kv.end(&job.prompt, slot, millis(now));
        } else if self.requests().any(|waiting| waiting == id) {
            self.inbox.retain(|(job, _)| job.id != id);
            if let Some(idx) = self.queue.iter().position(|waiting| waiting.job.id == id) {
                let fetched_chunks = self.queue.remove(idx).map(|waiting| waiting.fetched_chunks);
                self.kv.release(fetched_chunks.unwrap_or_default());
            }
            self.updates.push(EngineUpdate::Resolved(AnnouncementId(id)));
        } else {
            return;
        }
        if self.step.is_none() {
            self.admit(now);
        }
    }

    /// Returns when the running step ends; `None` if nothing runs.
    pub fn step_end(&self) -> Option<Duration> {
        self.step.as_ref().map(Step::end)
    }

    /// Ends the running step; returns the progress of its requests and the end of the next step.
    pub fn end_step(&mut self, now: Duration) -> (Vec<(u64, Progress)>, Option<Duration>) {
        let step = self.step.take().expect("a step's end is only scheduled for a step");
        self.measure(&step);
        let mut progress = Vec::new();
        for (slot, n_tokens) in &step.shares {
            // A cancelled request has no sequence.
            let Some(idx) = self.running.iter().position(|running| running.slot == *slot) else { continue };
            progress.extend(self.advance(idx, n_tokens * step.n_repeats, now));
        }
        let is_complete = |running: &Running| running.n_answered >= running.job.answer_tokens;
        let (complete, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.running).into_iter().partition(is_complete);
        self.running = running;
        for Running { job, slot, n_answered, answer, .. } in complete {
            self.kv.end(&job.prompt, slot, millis(now));
            self.averages.answer_ended(n_answered);
            progress.push((job.id, Progress::Last { answer }));
        }
        (progress, self.admit(now))
    }

    /// Returns the requests that wait or run.
    pub fn requests(&self) -> impl Iterator<Item = u64> {
        let running = self.running.iter().map(|running| running.job.id);
        let queue = self.queue.iter().map(|waiting| waiting.job.id);
        running.chain(queue).chain(self.inbox.iter().map(|(job, _)| job.id))
    }

    /// Returns the number of requests that wait.
    pub fn n_waiting(&self) -> usize {
        self.queue.len() + self.inbox.len()
    }

    /// Reports the changes of the KV state and the load.
    pub fn report(&mut self) {
        self.report_step(Vec::new());
    }

    /// Takes the reports since the last call.
    pub fn take_updates(&mut self) -> Vec<EngineUpdate> {
        std::mem::take(&mut self.updates)
    }

    fn report_step(&mut self, counted_requests: Vec<AnnouncementId>) {
        let (changes, load) = (self.kv.take_changes(), self.load());
        self.updates.push(EngineUpdate::Step { changes, load, counted: counted_requests });
    }

    fn load(&self) -> Load {
        let queued_tokens = self.queue.iter().map(|waiting| u64::from(waiting.job.prompt_tokens - waiting.n_cached));
        Load {
            queued_prefill_tokens: queued_tokens.sum(),
            running_prefill_tokens: self.running.iter().map(|running| u64::from(running.remaining_tokens())).sum(),
            n_queued: u32::try_from(self.queue.len()).unwrap_or(u32::MAX),
            n_decoding: self.running.iter().filter(|running| running.remaining_tokens() == 0).count() as u32,
            busy_slots: self.running.iter().map(|running| running.slot).collect(),
            free_cells: self.kv.free_cells() * u64::from(self.settings.tokens_per_cell),
            draining: false,
            rates: self.averages.rates(),
        }
    }

    /// Queues the requests that have arrived since the last step, starts those that can start, in the order of their
    /// arrival, and begins the next step; returns its end.
    fn admit(&mut self, now: Duration) -> Option<Duration> {
        let mut counted_requests = Vec::new();
        self.kv.take_disk_events(now);
        for (job, arrived) in std::mem::take(&mut self.inbox) {
            counted_requests.push(AnnouncementId(job.id));
            let n_cached = self.kv.n_usable(&job.prompt) * self.settings.tokens_per_cell;
            self.queue.push_back(Queued { job, arrived, n_cached, fetched_chunks: Vec::new(), reads_until: None });
        }
        let (mut idx, mut started) = (0, Vec::new());
        while idx < self.queue.len() && self.running.len() < usize::from(self.settings.kv.n_slots) {
            let waiting = &mut self.queue[idx];
            if waiting.reads_until.is_some_and(|until| until > now) {
                idx += 1;
                continue;
            }
            match self.kv.plan(&waiting.job.prompt) {
                SlotDecision::NoSlot => break,
                SlotDecision::WaitFor { slot, n_tokens } => {
                    self.kv.want_checkpoint(slot, n_tokens);
                    idx += 1;
                }
                SlotDecision::Fetch(chunks) => {
                    waiting.reads_until = Some(self.kv.fetch(&chunks, now));
                    waiting.fetched_chunks.extend(chunks);
                    idx += 1;
                }
                SlotDecision::Start(plan) => {
                    let waiting = self.queue.remove(idx).expect("the index is below the length");
                    started.push(AnnouncementId(waiting.job.id));
                    self.start(waiting, &plan, now);
                }
            }
        }
        let end = self.begin_step(now);
        self.report_step(counted_requests);
        self.updates.extend(started.into_iter().map(EngineUpdate::Resolved));
        end
    }

    fn start(&mut self, waiting: Queued, plan: &SlotPlan, now: Duration) {
        let Queued { job, arrived, fetched_chunks, .. } = waiting;
        self.kv.start(&job.prompt, plan, millis(now));
        self.kv.release(fetched_chunks);
        let n_cached = plan.start.n_tokens() * self.settings.tokens_per_cell;
        self.restore_ms += f64::from(n_cached) * self.settings.restore_ms_per_token;
        self.averages.prompt(job.prompt_tokens - n_cached);
        self.running.push(Running {
            job,
            slot: plan.slot,
            n_cells: plan.start.n_tokens() as usize,
            arrived,
            n_cached,
            n_computed: n_cached,
            n_answered: 0,
            answer: Vec::new(),
        });
    }

    fn begin_step(&mut self, now: Duration) -> Option<Duration> {
        debug_assert!(self.step.is_none(), "one step at a time");
        let work = |n_tokens| if n_tokens == 0 { Work::Decode } else { Work::Prefill { n_tokens, ends: true } };
        let sequences: Vec<RunningSequence> = self
            .running
            .iter()
            .map(|running| RunningSequence {
                slot: running.slot,
                work: work(running.remaining_tokens()),
                waited: now - running.arrived,
                passed_tokens: 0,
            })
            .collect();
        if sequences.is_empty() {
            return None;
        }
        let n_decoding = sequences.iter().filter(|sequence| sequence.work == Work::Decode).count();
        let shares: Vec<(SlotId, u32)> = plan(&sequences, self.settings.batch, self.averages.pace(), self.queue.len())
            .into_iter()
            .map(|share| (share.slot, share.n_tokens))
            .collect();
        let is_joined = self.settings.joins_decode_steps && n_decoding == sequences.len();
        let n_repeats = if is_joined { self.n_decode_steps() } else { 1 };
        let decode_ms = if n_decoding > 0 { self.settings.decode_step_ms } else { 0.0 };
        let ms = shares.iter().map(|(slot, n_tokens)| self.prefill_ms(*slot, *n_tokens)).sum::<f64>() + decode_ms;
        let restore_ms = std::mem::take(&mut self.restore_ms);
        let time = Duration::from_secs_f64((ms + restore_ms) / 1e3);
        let restore = Duration::from_secs_f64(restore_ms / 1e3);
        Some(self.step.insert(Step { shares, n_repeats, time, restore, start: now }).end())
    }

    /// Returns the time of a share of a step, without that of decoding.
    fn prefill_ms(&self, slot: SlotId, n_tokens: u32) -> f64 {
        let prefilling = self.running.iter().find(|running| running.slot == slot && running.remaining_tokens() > 0);
        prefilling.map_or(0.0, |running| self.settings.prefill_ms(running.n_computed, n_tokens))
    }

    /// Returns how many steps the running sequences decode before the first of them ends.
    fn n_decode_steps(&self) -> u32 {
        let remaining = |running: &Running| running.job.answer_tokens - running.n_answered;
        self.running.iter().map(remaining).min().unwrap_or(1)
    }

    fn measure(&mut self, step: &Step) {
        let is_decoding = |slot: SlotId| self.running.iter().any(|r| r.slot == slot && r.n_answered > 0);
        let (decode, prefill): (Vec<_>, Vec<_>) = step.shares.iter().partition(|(slot, _)| is_decoding(*slot));
        let n_prefill = prefill.iter().map(|(_, n_tokens)| n_tokens).sum();
        for _ in 0..step.n_repeats {
            self.averages.step(StepCounts::undrafted(n_prefill, decode.len() as u32), step.time - step.restore);
        }
    }

    /// Gives a sequence the tokens that a step has computed; returns its progress once its prompt is complete.
    fn advance(&mut self, idx: usize, n_tokens: u32, now: Duration) -> Option<(u64, Progress)> {
        let running = &mut self.running[idx];
        if running.n_answered > 0 {
            self.decode(idx, n_tokens, now);
            return None;
        }
        running.n_computed += n_tokens;
        let is_complete = running.remaining_tokens() == 0;
        let tokens = &running.job.prompt.tokens;
        let n_cells = (running.n_computed / self.settings.tokens_per_cell) as usize;
        // The last cell may stand for fewer tokens.
        let n_cells = if is_complete { tokens.len() } else { n_cells };
        self.kv.extend(running.slot, &tokens[running.n_cells..n_cells], millis(now));
        running.n_cells = n_cells;
        let progress = (running.job.id, Progress::First { cached_tokens: running.n_cached });
        is_complete.then(|| {
            self.decode(idx, 1, now);
            progress
        })
    }

    /// Adds tokens to an answer; each one but the last is in the slot as well.
    fn decode(&mut self, idx: usize, n_tokens: u32, now: Duration) {
        let Running { job, slot, n_answered, answer, .. } = &mut self.running[idx];
        *n_answered += n_tokens;
        let Some(next_token) = &self.next_token else { return };
        for _ in 0..n_tokens {
            if let Some(last) = answer.last() {
                self.kv.extend(*slot, &[*last], millis(now));
            }
            answer.push(next_token(&self.kv.cells(*slot)[..job.prompt.tokens.len()], answer.len() as u32));
        }
    }
}

fn millis(now: Duration) -> u64 {
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
