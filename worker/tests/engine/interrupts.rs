//! Events while a long prompt is computed: requests, queries and disconnected clients wait for a micro-batch, not for a
//! batch.
//!
//! Every long prompt here is one batch of many micro-batches, so an event that waited for a batch would be handled only
//! after the prompt.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use warmpath_bench::model::Preset;
use warmpath_common::ids::{SlotId, Token};
use warmpath_worker::engine::{EngineConfig, EngineHandle, EngineUpdate, EntryPage, PrefixCache, Switch};

use super::support::{Answering, Ask, adapter, applied, ask, config, model, start, stop, tokens, until};

/// Tokens of a micro-batch.
const UBATCH_TOKENS: u32 = 16;
/// Tokens of a prompt that is one batch of 100 micro-batches.
const LONG_TOKENS: usize = 1600;
/// Tokens of a short prompt, which is a part of a micro-batch.
const SHORT_TOKENS: usize = 10;
/// Maximum number of long prompts that are tried.
const LONG_PROMPTS_MAX: u32 = 20;
/// Maximum number of attempts beside one of them.
const ROUNDS_MAX: u32 = 20;
/// Minimum number of attempts that must finish while long prompts are computed; if they waited for a batch, none would.
const MEANWHILE_MIN: usize = 3;
/// Maximum number of steps of the fastest of many attempts: the current micro-batch, the request's own one, and one
/// that passed between two reads of the counter.
const STEPS_MAX: u64 = 3;

fn two_slots(preset: Preset) -> EngineConfig {
    EngineConfig {
        n_slots: 2,
        context_tokens_total: 2 * 2048,
        batch_tokens: 2048,
        ubatch_tokens: UBATCH_TOKENS,
        ..config(preset)
    }
}

/// Submits a long prompt and returns when a part of it is computed.
async fn begin_long(engine: &EngineHandle, seed: u32) -> Answering {
    let n_before = engine.counters().prefill_tokens;
    let long = ask(&tokens(seed, LONG_TOKENS), 1).submit(engine).unwrap();
    until("the long prompt has begun", || engine.counters().prefill_tokens > n_before).await;
    long
}

/// Repeats something beside a long prompt; returns the number of steps that each repetition took.
async fn meanwhile(engine: &EngineHandle, (seed, what): (u32, &mut impl AsyncFnMut(u32))) -> Vec<u64> {
    let _long = begin_long(engine, seed).await;
    let mut steps = Vec::new();
    for round in 0..ROUNDS_MAX {
        let n_steps = engine.counters().steps;
        what(1000 * seed + round).await;
        let is_long_done = engine.slots().iter().all(|slot| slot.prompt_tokens != LONG_TOKENS as u32);
        if is_long_done {
            break;
        }
        steps.push(engine.counters().steps - n_steps);
    }
    steps
}

/// Checks that something is done within few steps beside long prompts. On a busy machine, a prompt may end earlier.
async fn check_meanwhile(engine: &EngineHandle, mut what: impl AsyncFnMut(u32)) {
    let mut steps = Vec::new();
    for seed in 1..=LONG_PROMPTS_MAX {
        steps.extend(meanwhile(engine, (seed, &mut what)).await);
        if steps.len() >= MEANWHILE_MIN && steps.iter().any(|n_steps| *n_steps <= STEPS_MAX) {
            return;
        }
    }
    panic!("number of steps beside {LONG_PROMPTS_MAX} prompts of 100 micro-batches: {steps:?}");
}

async fn check_short_requests(config: EngineConfig, change: impl Fn(&mut Ask)) {
    let (engine, _updates) = start(config);
    let ask_short = async |seed| {
        let mut short = ask(&tokens(seed, SHORT_TOKENS), 1);
        change(&mut short);
        assert_eq!(short.answer(&engine).await.tokens.len(), 1);
    };
    check_meanwhile(&engine, ask_short).await;
    stop(engine).await;
}

#[tokio::test]
async fn a_short_request_starts_within_two_micro_batches_beside_a_long_prompt() {
    for kv_unified in [Switch::Off, Switch::On] {
        check_short_requests(EngineConfig { kv_unified, ..two_slots(Preset::Tiny) }, |_| {}).await;
    }
    for preset in [Preset::TinySwa, Preset::TinyHybrid] {
        check_short_requests(two_slots(preset), |short| short.cache_prompt = false).await;
    }
}

#[tokio::test]
async fn a_short_request_with_another_adapter_starts_within_two_micro_batches_too() {
    let config = EngineConfig { adapters: vec![adapter(Preset::Tiny, 11)], ..two_slots(Preset::Tiny) };
    check_short_requests(config, |short| short.adapter = applied(0)).await;
}

#[tokio::test]
async fn cache_queries_are_answered_between_two_micro_batches() {
    let (engine, _updates) = start(two_slots(Preset::Tiny));
    let look = async |_| drop(engine.cache_view(EntryPage { after: None, entries_max: 10 }).await.unwrap());
    check_meanwhile(&engine, look).await;
    stop(engine).await;
}

#[tokio::test]
async fn the_prompt_of_a_disconnected_client_is_computed_no_further_and_its_computed_part_is_reused() {
    for (preset, kv_unified) in
        [(Preset::Tiny, Switch::Off), (Preset::Tiny, Switch::On), (Preset::TinySwa, Switch::Off)]
    {
        let (engine, _updates) = start(EngineConfig { kv_unified, ..two_slots(preset) });
        let (seed, n_computed) = give_up_long(&engine).await;
        let again = ask(&tokens(seed, LONG_TOKENS), 5).answer(&engine).await;
        assert_eq!(u64::from(again.cached_tokens()), n_computed);
        let mut cold = ask(&tokens(seed, LONG_TOKENS), 5);
        cold.cache_prompt = false;
        assert_eq!(again.tokens, cold.answer(&engine).await.tokens);
        stop(engine).await;
    }
}

/// Begins a long prompt and disconnects; returns the prompt's seed and how many of its tokens were computed.
async fn give_up_long(engine: &EngineHandle) -> (u32, u64) {
    for seed in 1..=LONG_PROMPTS_MAX {
        let n_before = engine.counters().prefill_tokens;
        drop(begin_long(engine, seed).await);
        let n_steps = engine.counters().steps;
        until("its slot is free", || engine.counters().busy_slots == 0).await;
        let counters = engine.counters();
        assert!(counters.steps - n_steps <= 1, "{} steps for a client that had disconnected", counters.steps - n_steps);
        let n_computed = counters.prefill_tokens - n_before;
        if n_computed < LONG_TOKENS as u64 {
            assert_eq!(n_computed % u64::from(UBATCH_TOKENS), 0);
            return (seed, n_computed);
        }
    }
    panic!("{LONG_PROMPTS_MAX} prompts were computed completely after their clients had disconnected");
}

#[tokio::test]
async fn a_request_with_the_same_prefix_starts_once_the_prefix_is_computed() {
    let (engine, mut updates) = start(two_slots(Preset::Tiny));
    let mut leader = ask(&tokens(1, LONG_TOKENS), 1).submit(&engine).unwrap();
    let shared: Vec<Token> = [tokens(1, 320), tokens(2, 20)].concat();
    let follower = ask(&shared, 1).answer(&engine).await;
    assert!(follower.cached_tokens() >= 320 - engine.facts().block_size_tokens, "{follower:?}");
    leader.tokens(1).await;
    stop(engine).await;
    let mut ran_together = false;
    while let Some(update) = updates.recv().await {
        ran_together |= matches!(update, EngineUpdate::Step { load, .. } if load.busy_slots.len() == 2);
    }
    assert!(ran_together, "the request waited until the leader's prompt was computed completely");
}

#[tokio::test]
async fn prompts_that_end_in_one_batch_begin_to_answer_together() {
    for kv_unified in [Switch::Off, Switch::On] {
        let patient = EngineConfig { gather_max: super::support::PATIENCE, kv_unified, ..two_slots(Preset::Tiny) };
        let (engine, _updates) = start(patient);
        let on_the_way = [engine.announce(), engine.announce()];
        let mut answering = Vec::new();
        for (n_prompt, coming) in [50, 300].into_iter().zip(on_the_way) {
            answering.push(ask(&tokens(n_prompt, n_prompt as usize), 4).submit(&engine).unwrap());
            drop(coming);
        }
        for answer in answering {
            assert_eq!(answer.answer().await.tokens.len(), 4);
        }
        let counters = engine.counters();
        assert_eq!(
            (counters.prefill_tokens, counters.passed_tokens_max),
            (350, 0),
            "one response waited for the other"
        );
        stop(engine).await;
    }
}

/// Random requests that arrive and end at random moments of each other's batches.
struct Crowd {
    rng: ChaCha8Rng,
    systems: Vec<Vec<Token>>,
}

impl Crowd {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let systems = [500, 200, 30].map(|n| tokens(rng.random(), n)).to_vec();
        Self { rng, systems }
    }

    fn ask(&mut self) -> Ask {
        let system = &self.systems[self.rng.random_range(0..self.systems.len())];
        let n_shared = self.rng.random_range(1..=system.len());
        let own = match self.rng.random_bool(0.5) {
            true => self.rng.random_range(1..40),
            false => self.rng.random_range(100..450),
        };
        let prompt = [&system[..n_shared], &tokens(self.rng.random(), own)].concat();
        let mut ask = ask(&prompt, self.rng.random_range(0..8));
        ask.last_message_token = Some(n_shared as u32);
        ask.cache_prompt = self.rng.random_bool(0.9);
        ask.wanted_slot = self.rng.random_bool(0.2).then_some(SlotId(1));
        ask
    }

    /// Waits until the engine has done up to `steps_max` further steps, or is idle.
    async fn pause(&mut self, engine: &EngineHandle, steps_max: u64) {
        let until_steps = engine.counters().steps + self.rng.random_range(0..=steps_max);
        until("the engine has done the steps or is idle", || {
            let counters = engine.counters();
            counters.steps >= until_steps || (counters.busy_slots, counters.queued) == (0, 0)
        })
        .await;
    }
}

async fn check_crowd(preset: Preset, seed: u64, change: impl Fn(&mut EngineConfig)) {
    let mut warm = EngineConfig {
        model: model(preset, 1),
        n_slots: 4,
        context_tokens_total: 4 * 1024,
        batch_tokens: 1024,
        ubatch_tokens: 16,
        ..config(preset)
    };
    change(&mut warm);
    let cold =
        EngineConfig { n_slots: 1, context_tokens_total: 1024, prefix_cache: PrefixCache::Disabled, ..warm.clone() };
    let ((warm, _updates), (cold, _cold_updates)) = (start(warm), start(cold));
    let mut crowd = Crowd::new(seed);
    let (mut n_left, mut n_reused) = (0, 0);
    for _ in 0..8 {
        let mut staying = Vec::new();
        let mut leaving: Vec<Answering> = Vec::new();
        for _ in 0..6 {
            let ask = crowd.ask();
            let answering = ask.submit(&warm).unwrap();
            match crowd.rng.random_bool(0.35) {
                true => leaving.push(answering),
                false => staying.push((ask, answering)),
            }
            crowd.pause(&warm, 12).await;
            if crowd.rng.random_bool(0.4) && leaving.pop().is_some() {
                n_left += 1;
            }
        }
        drop(leaving);
        for (ask, answering) in staying {
            let answer = answering.answer().await;
            n_reused += u32::from(answer.cached_tokens() > 0);
            let expected = ask.answer(&cold).await;
            assert_eq!(answer.tokens, expected.tokens, "{preset:?} {seed}: {ask:?}");
            assert_eq!(answer.finished().reason, expected.finished().reason);
        }
    }
    until("it rests", || (warm.counters().busy_slots, warm.counters().queued) == (0, 0)).await;
    let counters = warm.counters();
    assert_eq!((counters.failed, counters.decode_failures), (0, 0));
    assert!(
        n_left > 0 && n_reused > 3,
        "{n_left} disconnected early and {n_reused} reused state, which is too few to prove anything"
    );
    stop(warm).await;
    stop(cold).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_whatever_requests_start_and_end_within_a_batch() {
    for (seed, kv_unified) in [(1, Switch::Off), (2, Switch::On)] {
        check_crowd(Preset::Tiny, seed, |config| config.kv_unified = kv_unified).await;
        check_crowd(Preset::TinySwa, seed, |config| config.kv_unified = kv_unified).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_within_batches_of_state_that_cannot_be_rewound() {
    check_crowd(Preset::TinyRecurrent, 3, |_| {}).await;
    check_crowd(Preset::TinyHybrid, 4, |_| {}).await;
    check_crowd(Preset::TinyHybrid, 5, |config| config.kv_unified = Switch::On).await;
}
