//! Tests of a stock server: which blocks are assumed, corrected and dropped, the load, the speed, and the source of
//! token counts.

use std::cmp::Ordering;
use std::time::Duration;

use super::rates::RATE_AGE_MAX;
use super::*;
use crate::fleet::WorkerView;
use crate::routing::choose::{Candidate, Policy, PromptView, TieBreak, add_pressure, choose, worker_load};
use crate::routing::cost::{Speeds, Unreported};
use crate::testing::worker;

const BLOCK: u32 = 16;
const LIMITS: AssumedCacheLimits = AssumedCacheLimits { blocks_max: 1000, blocks_expected: 100 };

const MODEL: Fingerprint = Fingerprint([1; 32]);
const OTHER: Fingerprint = Fingerprint([2; 32]);

fn placed(fingerprint: Fingerprint, tokenizer_source: TokenizerSource) -> Placed {
    let (identity, residence) = (String::new(), Residence::Loaded);
    Placed { fingerprint, tokenizer_source, block_size_tokens: BLOCK, limits: LIMITS, identity, residence }
}

struct World {
    server: StockServer,
    now: Instant,
    n_sent: u32,
    /// Blocks that the index would have.
    told: std::collections::HashSet<BlockKey>,
}

/// Returns a chain; all chains have the same first `shared` blocks.
fn chain(nth: u64, shared: u64, len: u64) -> Vec<BlockKey> {
    (0..len).map(|at| BlockKey(if at < shared { at } else { (nth + 1) << 32 | at })).collect()
}

fn usage(prompt: u32, cached: u32) -> Usage {
    Usage { prompt_tokens: Some(prompt), cached_tokens: Some(cached), ..Usage::default() }
}

impl World {
    fn new(tokenizer_source: TokenizerSource) -> Self {
        let mut server = StockServer::default();
        server.placed(2, vec![placed(MODEL, tokenizer_source)]);
        let now = Instant::now();
        server.take_updates(now);
        Self { server, now, n_sent: 0, told: Default::default() }
    }

    fn pass(&mut self, ms: u64) -> Instant {
        self.now += Duration::from_millis(ms);
        self.now
    }

    /// Sends a prompt of whole blocks and five tokens; all its assumed blocks are expected to be reused.
    fn send(&mut self, keys: &[BlockKey]) -> ServerRequestId {
        self.send_to(MODEL, keys)
    }

    fn send_to(&mut self, model: Fingerprint, keys: &[BlockKey]) -> ServerRequestId {
        self.n_sent += 1;
        let known = keys.iter().take_while(|key| self.told.contains(key)).count() as u32;
        let sending = SentRequest {
            model,
            keys: keys.to_vec(),
            n_tokens: keys.len() as u32 * BLOCK + 5,
            block_size_tokens: BLOCK,
            cached_tokens: known * BLOCK,
            is_countable: true,
        };
        let id = RequestId::new(&format!("r{}", self.n_sent)).expect("visible ASCII");
        self.server.sent(&id, sending, self.now)
    }

    fn end(&mut self, id: ServerRequestId, usage: Usage) -> Option<ReuseReport> {
        let reused = self.server.ended(id, Some(ResponseEnd { usage, is_complete: true, n_events: 0, at: self.now }));
        self.take_updates();
        reused
    }

    fn take_updates(&mut self) -> Updates {
        let updates = self.server.take_updates(self.now);
        if updates.is_forgotten {
            self.told.clear();
        }
        for change in &updates.changes {
            match change {
                Change::Stored(run) => self.told.extend(&run.keys),
                Change::Removed(keys) => self.told.retain(|key| !keys.contains(key)),
                Change::Accepted(_) => {}
            }
        }
        updates
    }

    /// Sends a prompt of which the server reuses `cached` blocks; returns the outcome of the prediction.
    fn ask(&mut self, keys: &[BlockKey], cached: u32) -> Option<Ordering> {
        let id = self.send(keys);
        self.server.begun(id, self.now);
        self.take_updates();
        let n_tokens = keys.len() as u32 * BLOCK + 5;
        self.end(id, usage(n_tokens, cached * BLOCK)).map(|reused| reused.outcome)
    }

    fn known(&self, keys: &[BlockKey]) -> usize {
        keys.iter().take_while(|key| self.told.contains(key)).count()
    }
}

#[test]
fn computed_prompts_are_assumed_cached_and_others_are_not() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    let (chat, sibling) = (chain(0, 4, 10), chain(1, 4, 10));
    let refused = world.send(&chat);
    assert_eq!(world.server.ended(refused, None), None);
    world.take_updates();
    assert_eq!(world.known(&chat), 0, "it was refused");
    assert_eq!(world.ask(&chat, 0), Some(Ordering::Equal));
    assert_eq!((world.known(&chat), world.known(&sibling)), (10, 4));
    assert_eq!(world.ask(&sibling, 4), Some(Ordering::Equal));
    assert_eq!(world.ask(&chain(0, 4, 14), 10), Some(Ordering::Equal));
    assert_eq!(world.ask(&chain(2, 4, 10), 6), Some(Ordering::Greater));
}

#[test]
fn a_miss_of_an_idle_server_shows_that_it_keeps_less() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    let chats: Vec<_> = (0..4).map(|nth| chain(nth, 2, 10)).collect();
    for (nth, chat) in chats.iter().enumerate() {
        world.ask(chat, if nth == 0 { 0 } else { 2 });
    }
    assert_eq!(world.ask(&chats[0], 5), Some(Ordering::Less));
    assert_eq!(world.told.len(), 34, "half of it was reused, so a sibling may have replaced the rest");
    assert_eq!(world.ask(&chats[1], 2), Some(Ordering::Less));
    let known: Vec<_> = chats.iter().map(|chat| world.known(chat)).collect();
    assert_eq!(known, [10, 10, 5, 10], "34 were held, 24 of them used since: 29 remain");
}

#[test]
fn state_that_a_running_request_holds_and_does_not_share_is_no_miss() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    let (chat, sibling) = (chain(0, 8, 10), chain(1, 8, 10));
    let running = world.send(&chat);
    world.server.begun(running, world.now);
    world.take_updates();
    assert_eq!(world.ask(&sibling, 0), Some(Ordering::Less));
    assert_eq!((world.known(&chat), world.known(&sibling)), (10, 10));
}

#[test]
fn the_state_of_a_lost_server_is_dropped_and_late_answers_restore_nothing() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    let (early, late) = (chain(0, 2, 10), chain(1, 2, 10));
    world.ask(&early, 0);
    let running = world.send(&late);
    world.server.lost();
    assert!(world.take_updates().is_forgotten);
    world.server.begun(running, world.now);
    world.end(running, usage(165, 160));
    assert_eq!((world.known(&early), world.known(&late)), (0, 0));
    world.ask(&late, 0);
    assert_eq!(world.known(&late), 10);
}

#[test]
fn the_load_is_this_router_s_requests_and_the_server_s_other_ones() {
    let mut world = World::new(TokenizerSource::Text);
    let ids: Vec<_> = (0..3).map(|nth| world.send(&chain(nth, 0, 10))).collect();
    let updates = world.take_updates();
    assert_eq!(updates.accepted.len(), 3);
    let load = updates.load;
    assert_eq!((load.running_prefill_tokens, load.queued_prefill_tokens), (330, 165));
    assert_eq!((load.busy_slots.len(), load.n_queued, load.n_decoding), (2, 1, 0));
    assert_eq!(load.free_cells, 100 * 16);
    world.server.begun(ids[0], world.now);
    let load = world.take_updates().load;
    assert_eq!((load.running_prefill_tokens, load.n_decoding, load.free_cells), (165, 1, 90 * 16));
    assert!(!world.server.observed(ServerStatus { n_running: 2, n_waiting: 4, progress: None }));
    assert_eq!(world.take_updates().load.n_queued, 4, "three requests of other clients wait");
    ids.into_iter().for_each(|id| assert_eq!(world.server.ended(id, None), None));
    world.server.observed(ServerStatus { n_running: 1, n_waiting: 0, progress: None });
    let load = world.take_updates().load;
    assert_eq!((load.busy_slots.len(), load.n_queued, load.n_decoding), (1, 0, 1));
}

#[test]
fn a_counter_that_falls_or_vanishes_shows_a_restart() {
    let mut server = StockServer::default();
    let mut observe = |progress| server.observed(ServerStatus { progress, ..ServerStatus::default() });
    let counts = [None, Some(5), Some(9), Some(9), Some(3), None, None, Some(1)];
    assert_eq!(counts.map(&mut observe), [false, false, false, false, true, true, false, false]);
}

#[test]
fn speed_is_learnt_from_timings_or_from_the_first_token_of_an_undisturbed_stream() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    let rates = |world: &World| world.server.load(world.now).rates;
    let stream = |world: &mut World, wait_ms| {
        let id = world.send(&chain(0, 0, 10));
        let at = world.pass(wait_ms);
        world.server.begun(id, at);
        let at = world.pass(90);
        world.server.ended(id, Some(ResponseEnd { usage: usage(165, 65), is_complete: true, n_events: 10, at }));
    };
    let disturbing = world.send(&[]);
    stream(&mut world, 1);
    assert_eq!(rates(&world).prefill_tokens_per_s, None, "another request ran beside it");
    assert_eq!(rates(&world).decode_step_ms, Some(10.0));
    world.server.ended(disturbing, None);
    stream(&mut world, 200);
    assert_eq!(rates(&world).prefill_tokens_per_s, Some(500.0));
    assert_eq!(rates(&world).answer_tokens, Some(10.0));

    let mut world = World::new(TokenizerSource::Vocabulary);
    let id = world.send(&[]);
    world.server.begun(id, world.now);
    let said = Usage { prefill_ms: Some(5.0), decode_step_ms: Some(7.0), completion_tokens: Some(3), ..usage(5, 0) };
    world.end(id, said);
    assert_eq!(rates(&world).prefill_tokens_per_s, None, "five tokens are too few");
    assert_eq!((rates(&world).decode_step_ms, rates(&world).answer_tokens), (Some(7.0), Some(3.0)));
    let id = world.send(&chain(0, 0, 10));
    world.server.begun(id, world.now);
    world.end(id, Usage { prefill_ms: Some(100.0), ..usage(165, 0) });
    assert_eq!(rates(&world).prefill_tokens_per_s, Some(1650.0));
}

#[test]
fn the_time_of_an_answer_without_timings_is_divided_between_prompt_and_answer() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    world.ask(&[], 0);
    let answer = |world: &mut World, ms| {
        let id = world.send(&chain(0, 0, 10));
        let at = world.pass(ms);
        world.server.begun(id, at);
        world.end(id, Usage { completion_tokens: Some(10), ..usage(165, 0) });
        let rates = world.server.load(world.now).rates;
        (rates.prefill_tokens_per_s, rates.decode_step_ms)
    };
    assert_eq!(answer(&mut world, 325), (Some(1000.0), Some(16.0)));
    world.pass(RATE_AGE_MAX.as_millis() as u64);
    assert_eq!(answer(&mut world, 9000), (None, None), "the server may have loaded its model");
    assert_eq!(answer(&mut world, 325), (Some(1000.0), Some(16.0)));
}

#[test]
fn the_first_answer_after_a_silence_a_restart_or_an_unloading_is_no_rate() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    let stream = |world: &mut World, wait_ms| {
        let id = world.send(&chain(0, 0, 10));
        let at = world.pass(wait_ms);
        world.server.begun(id, at);
        world.server.ended(id, Some(ResponseEnd { usage: usage(165, 0), is_complete: true, n_events: 9, at }));
        world.server.load(world.now).rates.prefill_tokens_per_s
    };
    assert_eq!(stream(&mut world, 8165), None, "the first answer of all");
    assert_eq!(stream(&mut world, 165), Some(1000.0));
    world.server.lost();
    assert_eq!(stream(&mut world, 8165), Some(1000.0));
    let unloaded = Placed { residence: Residence::Unloaded, ..placed(MODEL, TokenizerSource::Vocabulary) };
    world.server.placed(2, vec![unloaded]);
    assert_eq!(stream(&mut world, 8165), Some(1000.0));
    assert_eq!(stream(&mut world, 165), Some(1000.0));
    world.pass(RATE_AGE_MAX.as_millis() as u64);
    assert_eq!(stream(&mut world, 8165), None, "the old rate is dropped, too");
    // What is sent while the model is loaded waits for it, too.
    world.pass(RATE_AGE_MAX.as_millis() as u64);
    let first = world.send(&chain(0, 0, 10));
    let second = world.send(&chain(1, 0, 10));
    let at = world.pass(8165);
    for id in [first, second] {
        world.server.begun(id, at);
        world.server.ended(id, Some(ResponseEnd { usage: usage(165, 0), is_complete: true, n_events: 9, at }));
    }
    assert_eq!(world.server.load(world.now).rates.prefill_tokens_per_s, None);
    assert_eq!(stream(&mut world, 165), Some(1000.0));
}

/// Two servers, of which the first is five times as fast, and one client that sends prompt after prompt.
struct Pair {
    worlds: [World; 2],
    n_prompts: u64,
    /// Recent work of each, by which ties break.
    recent_tokens: [f64; 2],
}

impl Pair {
    fn new() -> Self {
        let worlds = [World::new(TokenizerSource::Text), World::new(TokenizerSource::Text)];
        Self { worlds, n_prompts: 0, recent_tokens: [0.0; 2] }
    }

    /// Returns the server that the router chooses for a prompt that neither has cached.
    fn choose(&self) -> usize {
        let loads = self.worlds.each_ref().map(|world| world.server.load(world.now));
        let assumed = Speeds::assumed(loads.iter().map(|load| &load.rates));
        let [first, second] = loads;
        let views = [WorkerView { load: first, ..worker(0) }, WorkerView { load: second, ..worker(1) }];
        let score = |(view, recent_tokens)| {
            let load = worker_load(view, Unreported::default(), assumed, view.measured_at);
            Candidate { recent_tokens, ..Candidate::score(view, PromptView::Estimated { n_tokens: 165 }, BLOCK, load) }
        };
        let mut candidates: Vec<_> = views.iter().zip(self.recent_tokens).map(score).collect();
        add_pressure(&mut candidates, 0.0);
        let ties = TieBreak { last: None, first_new_block: self.n_prompts };
        choose(Policy::PredictedTtft, &candidates, ties).expect("there are candidates").worker.idx.0 as usize
    }

    fn pass(&mut self, ms: u64) {
        for world in &mut self.worlds {
            world.pass(ms);
        }
    }

    /// Has a server answer a prompt, with usage but without times, after so much time besides that of its speed.
    fn answer(&mut self, idx: usize, besides_ms: u64) {
        self.n_prompts += 1;
        self.recent_tokens = self.recent_tokens.map(|tokens| tokens * 0.8);
        self.recent_tokens[idx] += 165.0;
        let id = self.worlds[idx].send(&chain(self.n_prompts, 0, 10));
        let ms = besides_ms + [165, 825][idx];
        self.pass(ms);
        let world = &mut self.worlds[idx];
        world.server.begun(id, world.now);
        self.pass(90);
        let (world, usage) = (&mut self.worlds[idx], Usage { completion_tokens: Some(10), ..usage(165, 0) });
        let at = world.now;
        world.server.ended(id, Some(ResponseEnd { usage, is_complete: true, n_events: 12, at }));
        world.take_updates();
    }

    /// Returns how many of 60 prompts the fast server gets.
    fn share_of_fast(&mut self) -> usize {
        let chosen = (0..60).map(|_| {
            let idx = self.choose();
            self.answer(idx, 0);
            idx
        });
        chosen.filter(|idx| *idx == 0).count()
    }
}

#[test]
fn a_fast_server_gets_its_share_again_after_it_has_loaded_a_model() {
    const START_MS: u64 = 8000;
    let mut pair = Pair::new();
    pair.answer(0, START_MS);
    assert!(pair.share_of_fast() > 50, "after the first start");
    pair.answer(0, START_MS);
    assert!(pair.share_of_fast() > 50, "after a delay between other prompts");
    pair.pass(600_000);
    pair.answer(0, START_MS);
    assert!(pair.share_of_fast() > 50, "after a silence");
    pair.worlds[0].server.lost();
    pair.answer(0, START_MS);
    assert!(pair.share_of_fast() > 50, "after a restart");
}

#[test]
fn an_answer_that_is_cut_off_does_not_count_in_the_average_length() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    let id = world.send(&chain(0, 0, 10));
    world.server.begun(id, world.now);
    let at = world.pass(50);
    world.server.ended(id, Some(ResponseEnd { usage: Usage::default(), is_complete: false, n_events: 6, at }));
    let rates = world.server.load(world.now).rates;
    assert_eq!((rates.answer_tokens, rates.decode_step_ms), (None, Some(10.0)));
}

#[test]
fn by_text_the_reused_share_is_compared_with_a_tolerance_of_some_blocks() {
    let mut world = World::new(TokenizerSource::Text);
    let keys = chain(0, 0, 40);
    let n_tokens = 645;
    let ask = |world: &mut World, cached| {
        let id = world.send(&keys);
        world.server.begun(id, world.now);
        world.take_updates();
        // The server counts half as many tokens as this router.
        world.end(id, usage(n_tokens / 2, cached))
    };
    ask(&mut world, 0);
    let near = ask(&mut world, 300).expect("it was compared");
    assert_eq!((near.outcome, near.predicted_tokens, near.cached_tokens), (Ordering::Equal, 319, 300));
    assert_eq!(ask(&mut world, 100).expect("it was compared").outcome, Ordering::Less);
}

#[test]
fn a_vocabulary_that_counts_differently_three_times_in_a_row_is_reported_once() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    let mut ask = |counted| {
        let id = world.send(&chain(0, 0, 10));
        world.server.begun(id, world.now);
        world
            .server
            .ended(id, Some(ResponseEnd { usage: usage(counted, 0), is_complete: true, n_events: 0, at: world.now }));
        world.take_updates().differing == [MODEL]
    };
    assert_eq!([166, 166, 165, 166, 166, 166, 166].map(&mut ask), [false, false, false, false, false, true, false]);
}

#[test]
fn an_answer_that_does_not_report_reuse_is_not_compared() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    let chat = chain(0, 0, 10);
    for _ in 0..2 {
        let id = world.send(&chat);
        world.server.begun(id, world.now);
        world.take_updates();
        assert_eq!(world.end(id, Usage { prompt_tokens: Some(165), ..Usage::default() }), None);
    }
    assert_eq!(world.known(&chat), 10);
}

#[test]
fn nothing_is_remembered_if_tokens_are_counted_differently() {
    let mut world = World::new(TokenizerSource::Load);
    world.ask(&chain(0, 0, 10), 0);
    assert!(world.told.is_empty());
    let mut world = World::new(TokenizerSource::Vocabulary);
    for (model, block_size_tokens) in [(MODEL, 2 * BLOCK), (OTHER, BLOCK)] {
        let keys = chain(0, 0, 10);
        let (n_tokens, cached_tokens, is_countable) = (320, 0, true);
        let sending = SentRequest { model, keys, n_tokens, block_size_tokens, cached_tokens, is_countable };
        let id = world.server.sent(&RequestId::new("r").expect("visible ASCII"), sending, world.now);
        world.server.begun(id, world.now);
        world.take_updates();
        assert!(world.told.is_empty(), "its tokens are of another model");
    }
}

#[test]
fn more_changes_than_the_queue_holds_drop_everything() {
    let limits = AssumedCacheLimits { blocks_max: CHANGED_KEYS_MAX + 10, blocks_expected: CHANGED_KEYS_MAX + 10 };
    let mut world = World::new(TokenizerSource::Vocabulary);
    world.server.placed(2, vec![Placed { limits, ..placed(MODEL, TokenizerSource::Vocabulary) }]);
    world.take_updates();
    let half = CHANGED_KEYS_MAX as u64 / 2;
    for (nth, is_forgotten) in [(0, false), (1, true)] {
        let id = world.send(&chain(nth, 0, half + 1));
        world.server.begun(id, world.now);
        assert_eq!(world.server.is_forgotten, is_forgotten);
    }
    assert!(world.take_updates().changes.is_empty() && world.told.is_empty());
}

#[test]
fn each_model_of_a_server_has_its_own_assumed_cache() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    let small = AssumedCacheLimits { blocks_max: 30, blocks_expected: 30 };
    let other = Placed { limits: small, ..placed(OTHER, TokenizerSource::Text) };
    world.server.placed(2, vec![placed(MODEL, TokenizerSource::Vocabulary), other]);
    let (chat, others) = (chain(0, 0, 10), chain(1, 0, 10));
    world.ask(&chat, 0);
    for nth in 1..6 {
        let id = world.send_to(OTHER, &chain(nth, 0, 10));
        world.server.begun(id, world.now);
        world.take_updates();
        world.end(id, Usage::default());
    }
    assert_eq!((world.known(&chat), world.known(&others)), (10, 0), "a flood of one model evicts nothing of the other");
    assert_eq!(world.known(&chain(5, 0, 10)), 10);
}

#[test]
fn changes_of_one_model_leave_the_other_models_alone() {
    let prepare = || {
        let mut world = World::new(TokenizerSource::Vocabulary);
        world.server.placed(2, [MODEL, OTHER].map(|model| placed(model, TokenizerSource::Vocabulary)).to_vec());
        world.ask(&chain(0, 0, 10), 0);
        let id = world.send_to(OTHER, &chain(1, 0, 10));
        world.server.begun(id, world.now);
        world.end(id, usage(165, 0));
        world
    };
    let same = placed(MODEL, TokenizerSource::Vocabulary);
    let swapped = Placed { identity: "another".into(), ..placed(OTHER, TokenizerSource::Vocabulary) };
    let unloaded = Placed { residence: Residence::Unloaded, ..placed(OTHER, TokenizerSource::Vocabulary) };
    for models in [vec![same.clone()], vec![same.clone(), swapped], vec![same.clone(), unloaded]] {
        let mut world = prepare();
        world.server.placed(2, models);
        assert!(!world.take_updates().is_forgotten);
        assert_eq!((world.known(&chain(0, 0, 10)), world.known(&chain(1, 0, 10))), (10, 0));
    }
    // A request in flight when its model is removed must not restore any blocks.
    let mut world = prepare();
    let id = world.send_to(OTHER, &chain(2, 0, 10));
    world.server.placed(2, vec![same]);
    world.server.begun(id, world.now);
    assert_eq!(world.end(id, usage(165, 0)), None);
    assert_eq!(world.known(&chain(2, 0, 10)), 0);
}

#[test]
fn a_server_is_idle_ten_seconds_after_its_last_request() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    assert_eq!(world.server.activity(world.now), Activity::Idle);
    let id = world.send(&chain(0, 0, 10));
    let much_later = world.pass(60_000);
    assert_eq!(world.server.activity(much_later), Activity::Recent, "the request is still there");
    world.server.ended(id, None);
    let almost = world.pass(9_999);
    assert_eq!(world.server.activity(almost), Activity::Recent);
    let idle = world.pass(1);
    assert_eq!(world.server.activity(idle), Activity::Idle);
}

#[test]
fn a_load_that_is_not_read_counts_as_none_and_no_restart_is_seen() {
    let mut world = World::new(TokenizerSource::Vocabulary);
    let busy = ServerStatus { n_running: 2, n_waiting: 1, progress: Some(40) };
    assert!(!world.server.observed(busy));
    assert_eq!(world.take_updates().load.n_queued, 1);
    world.server.unobserved();
    let load = world.take_updates().load;
    assert_eq!((load.n_queued, load.n_decoding), (0, 0));
    assert!(!world.server.observed(ServerStatus { progress: Some(41), ..busy }));
    assert!(world.server.observed(ServerStatus { progress: Some(2), ..busy }));
}
