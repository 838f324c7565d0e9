//! Simultaneous requests with one long prefix: followers wait for the leader, start from its state, and replace it.
//!
//! The leader's prompt takes many small batches, so that the followers arrive while it is computed. Not here: which
//! request waits for which (`slot_plan`'s tests), random traffic (`property`).

use std::time::Instant;

use tokio::task::JoinSet;
use warmpath_bench::model::Preset;
use warmpath_common::ids::Token;
use warmpath_worker::engine::{EngineConfig, EngineHandle, PrefixCache, Switch};

use super::support::{Answering, Ask, ask, config, start, stop, tokens, until};

const N_PREFIX: usize = 1200;
const N_FOLLOWERS: u64 = 3;

/// Settings in which state is shared in different ways: by marking cells, by copying buffers, through the store.
const SETTINGS: [(Preset, Switch); 6] = [
    (Preset::Tiny, Switch::Off),
    (Preset::Tiny, Switch::On),
    (Preset::TinySwa, Switch::Off),
    (Preset::TinyHybrid, Switch::Off),
    (Preset::TinyHybrid, Switch::On),
    (Preset::TinyRecurrent, Switch::Off),
];

fn small_batches(preset: Preset, kv_unified: Switch) -> EngineConfig {
    EngineConfig {
        n_slots: 4,
        context_tokens_total: 4 * 1536,
        batch_tokens: 64,
        ubatch_tokens: 32,
        kv_unified,
        ..config(preset)
    }
}

/// Returns one of the requests that share their first tokens.
fn member(n: u32) -> Ask {
    ask(&[tokens(1, N_PREFIX), tokens(100 + n, 20)].concat(), 24)
}

fn cold(config: &EngineConfig) -> EngineConfig {
    EngineConfig {
        n_slots: 1,
        context_tokens_total: 1536,
        batch_tokens: 512,
        ubatch_tokens: 512,
        prefix_cache: PrefixCache::Disabled,
        ..config.clone()
    }
}

/// Submits a leader and its followers, and waits until the followers wait for the leader.
async fn begin(engine: &EngineHandle) -> (Answering, Vec<Answering>) {
    let mut leader = member(0).submit(engine).unwrap();
    let followers = (1..=N_FOLLOWERS as u32).map(|n| member(n).submit(engine).unwrap()).collect();
    leader.next().await;
    until("all followers wait", || engine.counters().prefix_waits == N_FOLLOWERS).await;
    (leader, followers)
}

/// A router sends the leader first and expects its prefix to be cached for the follower, but the follower arrives
/// first.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_follower_that_arrives_first_waits_for_its_leader() {
    for (preset, kv_unified) in SETTINGS {
        let config = small_batches(preset, kv_unified);
        let (engine, _updates) = start(config.clone());
        let (cold, _cold_updates) = start(cold(&config));
        let mut follower = member(1);
        follower.expected_tokens = N_PREFIX as u32 / 16 * 16;
        let (follower, leader) = (follower.submit(&engine).unwrap(), member(0).submit(&engine).unwrap());
        let (leader, follower) = (leader.answer().await, follower.answer().await);
        assert_eq!(leader.cached_tokens(), 0, "{preset:?} {kv_unified:?}");
        assert!(follower.cached_tokens() >= N_PREFIX as u32 / 32 * 32, "{preset:?} {kv_unified:?}: {follower:?}");
        assert_eq!(leader.tokens, member(0).answer(&cold).await.tokens, "{preset:?} {kv_unified:?}");
        assert_eq!(follower.tokens, member(1).answer(&cold).await.tokens, "{preset:?} {kv_unified:?}");
        stop(engine).await;
        stop(cold).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_follower_whose_leader_never_arrives_starts_alone() {
    let config = small_batches(Preset::Tiny, Switch::Off);
    let (engine, _updates) = start(config.clone());
    let (cold, _cold_updates) = start(cold(&config));
    let mut follower = member(1);
    follower.expected_tokens = N_PREFIX as u32 / 16 * 16;
    let answer = follower.answer(&engine).await;
    assert_eq!(answer.cached_tokens(), 0);
    assert_eq!(answer.tokens, member(1).answer(&cold).await.tokens);
    stop(engine).await;
    stop(cold).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn followers_wait_for_the_leader_and_start_from_its_state() {
    for (preset, kv_unified) in SETTINGS {
        let config = small_batches(preset, kv_unified);
        let (engine, _updates) = start(config.clone());
        let (cold, _cold_updates) = start(cold(&config));
        let (leader, followers) = begin(&engine).await;
        let leader = leader.answer().await;
        assert_eq!(leader.cached_tokens(), 0);
        assert_eq!(leader.tokens, member(0).answer(&cold).await.tokens, "{preset:?} {kv_unified:?}");
        for (n, follower) in (1..).zip(followers) {
            let follower = follower.answer().await;
            assert!(follower.cached_tokens() >= N_PREFIX as u32 / 32 * 32, "{preset:?} {kv_unified:?}: {follower:?}");
            assert_eq!(follower.tokens, member(n).answer(&cold).await.tokens, "{preset:?} {kv_unified:?}");
        }
        let counters = engine.counters();
        assert!(counters.prefill_tokens <= N_PREFIX as u64 + 4 * 40, "{counters:?}");
        assert!(counters.prefix_wait_us > 0, "{counters:?}");
        assert_eq!(counters.failed_starts, 0);
        stop(engine).await;
        stop(cold).await;
    }
}

/// A prompt has priority by its length, so the leader alone would come after the other prompt.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_prefix_that_a_follower_waits_for_has_the_priority_of_its_own_length() {
    let (engine, _updates) = start(small_batches(Preset::Tiny, Switch::On));
    let prefix = tokens(1, 300);
    let leader = ask(&[&prefix[..], &tokens(2, 1100)].concat(), 1).submit(&engine).unwrap();
    let follower = ask(&[&prefix[..], &tokens(3, 20)].concat(), 1).submit(&engine).unwrap();
    let other = ask(&tokens(4, 700), 1).submit(&engine).unwrap();
    let end = async |answering: Answering| {
        assert!(answering.answer().await.finished.is_some());
        Instant::now()
    };
    let (follower, other, _) = tokio::join!(end(follower), end(other), end(leader));
    assert!(follower <= other, "the follower waited for the other prompt");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn each_cancelled_leader_is_replaced_by_a_follower() {
    for (preset, kv_unified) in [SETTINGS[0], SETTINGS[4], SETTINGS[5]] {
        let config = small_batches(preset, kv_unified);
        let (engine, _updates) = start(config.clone());
        let (cold, _cold_updates) = start(cold(&config));
        let (leader, mut followers) = begin(&engine).await;
        drop(leader);
        let mut next = followers.remove(0);
        next.next().await;
        drop(next);
        for (n, follower) in (2..).zip(followers) {
            let follower = follower.answer().await;
            assert_eq!(follower.tokens, member(n).answer(&cold).await.tokens, "{preset:?} {kv_unified:?}");
        }
        let counters = engine.counters();
        assert_eq!((counters.finished, counters.failed), (2, 0));
        assert!(counters.prefill_tokens < N_PREFIX as u64 * 3 / 2, "tokens were computed twice: {counters:?}");
        stop(engine).await;
        stop(cold).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn disconnected_followers_do_not_disturb_the_leader() {
    let config = small_batches(Preset::Tiny, Switch::Off);
    let (engine, _updates) = start(config.clone());
    let (cold, _cold_updates) = start(cold(&config));
    let (leader, followers) = begin(&engine).await;
    drop(followers);
    let leader = leader.answer().await;
    assert_eq!(leader.tokens, member(0).answer(&cold).await.tokens);
    let counters = engine.counters();
    assert_eq!((counters.finished, counters.cancelled, counters.queued), (1, N_FOLLOWERS, 0));
    stop(engine).await;
    stop(cold).await;
}

/// Requests that have been answered.
#[derive(Debug, PartialEq)]
enum Who {
    Sibling,
    Stranger,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_unrelated_request_is_not_delayed_by_a_steady_stream_of_siblings() {
    let config = EngineConfig { n_slots: 2, ..small_batches(Preset::Tiny, Switch::Off) };
    let (engine, _updates) = start(config);
    let mut answered = JoinSet::new();
    let prefix: Vec<Token> = tokens(1, 600);
    let sibling = |n: u32| ask(&[prefix.clone(), tokens(n, 20)].concat(), 8);
    let submit = |answered: &mut JoinSet<Who>, (ask, who): (Ask, Who)| {
        let answering = ask.submit(&engine).unwrap();
        answered.spawn(async move {
            answering.answer().await.finished();
            who
        });
    };
    for n in 0..4 {
        submit(&mut answered, (sibling(100 + n), Who::Sibling));
    }
    submit(&mut answered, (ask(&tokens(2, 300), 8), Who::Stranger));
    let mut n_siblings = 0;
    while answered.join_next().await.unwrap().unwrap() == Who::Sibling {
        n_siblings += 1;
        submit(&mut answered, (sibling(200 + n_siblings), Who::Sibling));
    }
    assert!(
        n_siblings <= 6,
        "{n_siblings} siblings were answered before the unrelated request, and only 4 of them arrived before it"
    );
    while answered.join_next().await.is_some() {}
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn copying_from_a_slot_that_decodes_leaves_both_right() {
    for (preset, kv_unified) in SETTINGS {
        let config = small_batches(preset, kv_unified);
        let (engine, _updates) = start(config.clone());
        let (cold, _cold_updates) = start(cold(&config));
        let prefix = tokens(1, 300);
        let mut lending = ask(&prefix, 1000).submit(&engine).unwrap();
        lending.tokens(12).await;
        let (slot, answer) = (lending.so_far().started.unwrap().slot, lending.so_far().tokens.clone());
        let mut borrowed = Vec::new();
        for (n_answer, n_suffix) in [(0, 20), (0, 70), (10, 5)] {
            let prompt = [prefix.clone(), answer[..n_answer].to_vec(), tokens(7, n_suffix)].concat();
            let borrower = ask(&prompt, 30).answer(&engine).await;
            assert!(borrower.cached_tokens() >= 288, "{preset:?} {kv_unified:?}: {borrower:?}");
            assert_ne!(borrower.started.unwrap().slot, slot, "the slot that was copied has ended");
            borrowed.push((prompt, borrower.tokens));
        }
        let n_lent = lending.so_far().tokens.len() + 20;
        lending.tokens(n_lent).await;
        borrowed.push((prefix, lending.so_far().tokens.clone()));
        drop(lending);
        for (prompt, answer) in borrowed {
            let expected = ask(&prompt, answer.len() as u32).answer(&cold).await;
            assert_eq!(answer, expected.tokens, "{preset:?} {kv_unified:?}");
        }
        assert_eq!(engine.counters().failed_starts, 0);
        stop(engine).await;
        stop(cold).await;
    }
}
