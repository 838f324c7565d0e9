//! Sequences that run at the same time: shared steps, the queue, clients that disconnect.

use warmpath_bench::model::Preset;
use warmpath_common::ids::SlotId;
use warmpath_worker::engine::{EngineConfig, FinishReason, Switch};

use super::support::{PATIENCE, ask, config, start, stop, tokens, until};

fn slots(n_slots: u16, context_tokens: u32) -> EngineConfig {
    EngineConfig { n_slots, context_tokens_total: u32::from(n_slots) * context_tokens, ..config(Preset::Tiny) }
}

/// Runs a stream beside a long prompt; returns the largest number of prompt tokens between two tokens of the stream.
async fn most_between_tokens(ubatch_tokens: u32, kv_unified: Switch) -> u64 {
    let (engine, _updates) = start(EngineConfig { ubatch_tokens, kv_unified, ..slots(2, 4352) });
    let mut stream = ask(&tokens(1, 20), 4000).submit(&engine).unwrap();
    stream.tokens(3).await;
    let n_before = engine.counters().decode_tokens;
    let mut long = ask(&tokens(2, 4000), 4).submit(&engine).unwrap();
    long.tokens(1).await;
    let counters = engine.counters();
    let n_meanwhile = counters.decode_tokens - n_before;
    assert!(n_meanwhile >= 4000 / u64::from(ubatch_tokens), "the stream got only {n_meanwhile} tokens meanwhile");
    assert_eq!(stream.so_far().finished, None);
    drop(stream);
    assert_eq!(long.answer().await.tokens.len(), 4);
    stop(engine).await;
    counters.passed_tokens_max
}

#[tokio::test]
async fn a_long_prompt_never_takes_more_than_a_micro_batch_from_a_running_stream() {
    // In a common batch, the stream's token takes one place of the micro-batch; in alternating batches, the prompt has
    // all.
    assert_eq!(most_between_tokens(64, Switch::On).await, 63);
    assert_eq!(most_between_tokens(64, Switch::Off).await, 64);
}

#[tokio::test]
async fn sequences_decode_in_one_batch() {
    let (engine, _updates) = start(slots(3, 512));
    let asks = [1, 2, 3].map(|seed| ask(&tokens(seed, 20), 100).submit(&engine).unwrap());
    for answering in asks {
        assert_eq!(answering.answer().await.finished().completion_tokens, 100);
    }
    let counters = engine.counters();
    assert_eq!((counters.prefill_tokens, counters.decode_tokens, counters.finished), (60, 297, 3));
    assert!(counters.steps < 200, "{} steps for 297 tokens: the steps were not shared", counters.steps);
    stop(engine).await;
}

#[tokio::test]
async fn requests_wait_in_the_order_of_their_arrival() {
    let (engine, _updates) = start(slots(1, 4096));
    let mut first = ask(&tokens(1, 20), 4000).submit(&engine).unwrap();
    first.tokens(1).await;
    let mut second = ask(&tokens(2, 20), 4000).submit(&engine).unwrap();
    let third = ask(&tokens(3, 20), 2).submit(&engine).unwrap();
    until("two requests wait", || engine.counters().queued == 2).await;
    drop(first);
    second.tokens(1).await;
    assert_eq!(engine.counters().queued, 1, "the third overtook the second");
    drop(second);
    assert_eq!(third.answer().await.tokens.len(), 2);
    stop(engine).await;
}

#[tokio::test]
async fn a_client_that_disconnects_frees_its_slot_within_one_step() {
    let (engine, _updates) = start(slots(1, 4096));
    for n_prompt in [20, 3000] {
        let mut leaving = ask(&tokens(1, n_prompt), 4000).submit(&engine).unwrap();
        while leaving.so_far().started.is_none() {
            leaving.next().await;
        }
        drop(leaving);
        let n_steps = engine.counters().steps;
        until("the slot is free", || engine.counters().busy_slots == 0).await;
        let n_more = engine.counters().steps - n_steps;
        assert!(n_more <= 1, "{n_more} steps were computed for a client that had disconnected");
    }
    let answer = ask(&tokens(1, 20), 2).answer(&engine).await;
    assert_eq!(answer.finished().reason, FinishReason::Length);
    assert_eq!(engine.counters().cancelled, 2);
    stop(engine).await;
}

#[tokio::test]
async fn a_waiting_request_is_removed_when_its_client_disconnects() {
    let (engine, _updates) = start(slots(1, 4096));
    let mut running = ask(&tokens(1, 20), 4000).submit(&engine).unwrap();
    running.tokens(1).await;
    let waiting = ask(&tokens(2, 20), 4000).submit(&engine).unwrap();
    until("one waits", || engine.counters().queued == 1).await;
    drop(waiting);
    until("none waits", || engine.counters().queued == 0).await;
    assert_eq!(engine.counters().busy_slots, 1);
    drop(running);
    stop(engine).await;
}

#[tokio::test]
async fn a_second_turn_computes_only_its_new_tokens() {
    let (engine, _updates) = start(slots(3, 1024));
    let first = ask(&tokens(1, 100), 50).answer(&engine).await;
    assert_eq!(first.cached_tokens(), 0);
    let other = ask(&tokens(2, 80), 5).answer(&engine).await;
    let turn: Vec<_> = [tokens(1, 100), first.tokens.clone(), tokens(3, 30)].concat();
    let second = ask(&turn, 5).answer(&engine).await;
    // The last token of a response is not computed.
    assert_eq!(second.cached_tokens(), 149);
    assert_eq!(second.started.unwrap().slot, first.started.unwrap().slot);
    assert_ne!(other.started.unwrap().slot, first.started.unwrap().slot);
    stop(engine).await;
}

#[tokio::test]
async fn a_request_without_the_cache_reuses_no_state_and_leaves_none() {
    let (engine, _updates) = start(slots(1, 1024));
    let mut request = ask(&tokens(1, 100), 5);
    request.cache_prompt = false;
    for _ in 0..2 {
        assert_eq!(request.answer(&engine).await.cached_tokens(), 0);
        until("the slot is empty", || engine.counters().held_tokens == 0).await;
    }
    request.cache_prompt = true;
    assert_eq!(request.answer(&engine).await.cached_tokens(), 0);
    request.cache_prompt = false;
    assert_eq!(request.answer(&engine).await.cached_tokens(), 0);
    stop(engine).await;
}

#[tokio::test]
async fn tenants_share_nothing() {
    let (engine, _updates) = start(slots(2, 1024));
    let mut request = ask(&tokens(1, 100), 5);
    for (salt, n_cached) in [(0, 0), (1, 0), (0, 99), (1, 99)] {
        request.salt = salt;
        assert_eq!(request.answer(&engine).await.cached_tokens(), n_cached);
    }
    stop(engine).await;
}

#[tokio::test]
async fn a_requested_slot_is_used_if_no_other_slot_is_better() {
    let (engine, _updates) = start(slots(3, 1024));
    let mut request = ask(&tokens(1, 100), 5);
    request.wanted_slot = Some(SlotId(2));
    assert_eq!(request.answer(&engine).await.started.unwrap().slot, SlotId(2));
    request.wanted_slot = Some(SlotId(1));
    let again = request.answer(&engine).await;
    assert_eq!((again.started.unwrap().slot, again.cached_tokens()), (SlotId(2), 99));
    stop(engine).await;
}

#[tokio::test]
async fn requests_that_come_together_start_in_one_step() {
    let patient = EngineConfig { gather_max: PATIENCE, ..config(Preset::Tiny) };
    let (engine, _updates) = start(patient);
    let mut on_the_way: Vec<_> = (0..3).map(|_| engine.announce()).collect();
    let mut answering = Vec::new();
    for n in 0..3 {
        answering.push(ask(&tokens(n, 40), 1).submit(&engine).unwrap());
        drop(on_the_way.pop());
    }
    for answer in answering {
        assert_eq!(answer.answer().await.tokens.len(), 1);
    }
    assert_eq!(engine.counters().steps, 1);
    stop(engine).await;
}

#[tokio::test]
async fn requests_wait_only_briefly_for_others_to_arrive() {
    let (engine, _updates) = start(config(Preset::Tiny));
    let _never = engine.announce();
    assert_eq!(ask(&tokens(1, 40), 4).answer(&engine).await.tokens.len(), 4);
    stop(engine).await;
}
