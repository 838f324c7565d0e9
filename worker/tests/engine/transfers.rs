//! State that is sent from one engine to another: responses are those of an engine that computes everything.
//!
//! Not here: the connection between two workers, and peers that send wrong data (`tests/http/kv_transfer`), the records
//! (`store::exchange`).

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::sync::oneshot;
use warmpath_bench::model::Preset;
use warmpath_common::ids::Token;
use warmpath_worker::engine::{
    CacheType, CostSource, EngineConfig, EngineHandle, FetchOrder, PeerOffer, PeerSpeed, PrefixCache, RunEnd,
    SENDS_MAX, SendError, Switch,
};
use warmpath_worker::store::exchange::RunReader;
use warmpath_worker_core::store::restore_costs::Costs;

use super::support::{Answer, Answering, Ask, ask, config, start, stop, tokens, until};
use super::tiers::store;

/// Block size of these engines.
const BLOCK: usize = 32;

/// Returns the costs of a machine that takes this many milliseconds per token and restores state in no time.
pub fn slow(prefill_ms_per_token: f64) -> CostSource {
    CostSource::Given(Costs {
        prefill_ms_per_token,
        copy_ms_per_token: Some(0.0001),
        export_ms_per_token: Some(0.0001),
        import_ms_per_byte: 0.0,
        read_ms_per_byte: 0.0,
        suffix_rounding: None,
    })
}

/// Returns the configuration of an engine that sends and fetches state rather than compute it.
pub fn base() -> EngineConfig {
    EngineConfig {
        n_slots: 3,
        context_tokens_total: 3 * 1024,
        block_size_tokens: BLOCK as u32,
        costs: slow(100.0),
        store: store(64 << 20, None),
        ..config(Preset::Tiny)
    }
}

/// Returns the configuration of an engine without a cache.
fn cold(config: &EngineConfig) -> EngineConfig {
    EngineConfig { prefix_cache: PrefixCache::Disabled, ..config.clone() }
}

/// Returns the offer of a prompt's whole blocks at `from`, and transfers the blocks that `to` orders.
pub fn offer(from: &EngineHandle, to: &EngineHandle, prompt: &[Token]) -> Option<PeerOffer> {
    let (order, ordered) = oneshot::channel::<FetchOrder>();
    let n_blocks = prompt.len() / to.facts().block_size_tokens as usize;
    let (from, to) = (from.clone(), to.clone());
    tokio::spawn(async move {
        let Ok(order) = ordered.await else { return };
        bring(&from, &order, &to).await;
        order.inbox.end(Duration::from_millis(1));
        to.wake();
    });
    let speed = PeerSpeed { ms_per_byte: 0.0, latency_ms: 0.0 };
    Some(PeerOffer { n_blocks, speed, order })
}

async fn bring(from: &EngineHandle, order: &FetchOrder, to: &EngineHandle) {
    let last = order.run.blocks[order.run.blocks.len() - 1];
    let Ok(run) = from.run_to(vec![RunEnd { last, n_blocks: order.run.blocks.len() }]).await else { return };
    let identity = from.facts().exchange.unwrap().identity;
    let mut reader = RunReader::new(order.run.clone());
    for part in &run.parts {
        let head = part.head(identity).unwrap();
        for bytes in [&head[..], &part.payload[part.bytes.clone()]] {
            let Ok(received) = reader.push(bytes) else { return };
            received.into_iter().for_each(|received| order.inbox.push(received));
            to.wake();
        }
    }
}

fn ram(answer: &Answer) -> u32 {
    answer.started.unwrap().cached.ram
}

fn fetched_bytes(answer: &Answer) -> Option<u64> {
    answer.started.unwrap().fetched.map(|fetched| fetched.n_bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_stay_the_same_where_a_prefix_comes_from_another_engine() {
    for (kv_unified, flash_attn, kind) in [
        (Switch::Off, Switch::Off, CacheType::F16),
        (Switch::On, Switch::Off, CacheType::F16),
        (Switch::On, Switch::On, CacheType::Q8_0),
        (Switch::Off, Switch::On, CacheType::Q8_0),
    ] {
        let config = EngineConfig { kv_unified, flash_attn, cache_type_k: kind, cache_type_v: kind, ..base() };
        let what = format!("{kv_unified:?} {flash_attn:?} {kind:?}");
        let (holder, _holder_updates) = start(config.clone());
        let (other, _other_updates) = start(config.clone());
        let (cold, _cold_updates) = start(cold(&config));
        let prompt = tokens(1, 300);
        ask(&prompt, 8).answer(&holder).await;

        let beside: Vec<Ask> = (0..2).map(|n| ask(&tokens(10 + n, 80), 120)).collect();
        let mut running: Vec<Answering> = beside.iter().map(|ask| ask.submit(&other).unwrap()).collect();
        for answering in &mut running {
            answering.tokens(2).await;
        }
        let longer = ask(&[&prompt[..], &tokens(2, 20)].concat(), 40);
        let moved = longer.submit_with(&other, offer(&holder, &other, &longer.prompt[..300])).unwrap().answer().await;
        let token_bytes = other.facts().exchange.unwrap().token_bytes;
        assert_eq!((ram(&moved), fetched_bytes(&moved)), (288, Some(288 * token_bytes)), "{what}");
        assert_eq!(moved.tokens, longer.answer(&cold).await.tokens, "{what}");
        for (ask, answering) in beside.iter().zip(running) {
            assert_eq!(answering.answer().await.tokens, ask.answer(&cold).await.tokens, "{what}");
        }
        // Fetched state is used like any other: a later request starts from it, and a third engine gets it.
        let again = ask(&[&prompt[..200], &tokens(3, 20)].concat(), 20);
        let answer = again.answer(&other).await;
        assert!(answer.cached_tokens() >= 192, "{what}: {answer:?}");
        assert_eq!(answer.tokens, again.answer(&cold).await.tokens, "{what}");
        assert_eq!(other.counters().failed_starts, 0, "{what}");
        for engine in [holder, other, cold] {
            stop(engine).await;
        }
    }
}

/// Fetches all prefixes that an engine lists into another one, as a router orders it; returns the tokens of each
/// prefix.
async fn prefetch_all(from: &EngineHandle, to: &EngineHandle) -> Vec<Vec<Token>> {
    let prefixes = from.hot_prefixes(usize::MAX).await.unwrap();
    let listed = prefixes.iter().map(|prefix| prefix.tokens.clone()).collect();
    for prefix in prefixes {
        let end = to.cache_totals().ram.n_tokens;
        let (order, ordered) = oneshot::channel();
        let speed = PeerSpeed { ms_per_byte: 0.0, latency_ms: 0.0 };
        to.prefetch(prefix, u64::MAX, PeerOffer { n_blocks: usize::MAX, speed, order });
        let Ok(order) = ordered.await else { continue };
        let n_tokens = order.run.tokens.len() as u64;
        bring(from, &order, to).await;
        order.inbox.end(Duration::from_millis(1));
        to.wake();
        until("the prefix is stored", || to.cache_totals().ram.n_tokens >= end + n_tokens).await;
    }
    listed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_stay_the_same_where_prefixes_are_fetched_ahead_of_requests() {
    for (kv_unified, flash_attn, kind) in
        [(Switch::Off, Switch::Off, CacheType::F16), (Switch::On, Switch::On, CacheType::Q8_0)]
    {
        let config = EngineConfig { kv_unified, flash_attn, cache_type_k: kind, cache_type_v: kind, ..base() };
        let what = format!("{kv_unified:?} {flash_attn:?} {kind:?}");
        let (holder, _holder_updates) = start(config.clone());
        let (other, _other_updates) = start(config.clone());
        let (cold, _cold_updates) = start(cold(&config));
        let system = tokens(99, 100);
        let prompts: Vec<Vec<Token>> = (0..5).map(|n| [&system[..], &tokens(n, 200)].concat()).collect();
        // There are more prompts than slots: some are stored, some are only in slots.
        for prompt in &prompts {
            ask(prompt, 8).answer(&holder).await;
        }
        let secret = Ask { cache_prompt: false, ..ask(&tokens(50, 300), 100) };
        let mut running = secret.submit(&holder).unwrap();
        running.tokens(2).await;
        let long = ask(&tokens(60, 100), 200);
        let mut beside = long.submit(&other).unwrap();
        beside.tokens(2).await;
        let listed = prefetch_all(&holder, &other).await;
        assert_eq!(prefetch_all(&holder, &other).await, listed, "{what}: nothing is fetched twice");
        assert!(listed.iter().all(|tokens| !tokens.starts_with(&secret.prompt[..BLOCK])), "{what}");
        for prompt in &prompts {
            let longer = ask(&[&prompt[..], &tokens(7, 20)].concat(), 20);
            let answer = longer.answer(&other).await;
            assert_eq!((answer.cached_tokens() >= 288, fetched_bytes(&answer)), (true, None), "{what} {answer:?}");
            assert_eq!(answer.tokens, longer.answer(&cold).await.tokens, "{what}");
        }
        let foreign = Ask { salt: 1, ..ask(&prompts[0], 20) };
        assert_eq!(foreign.answer(&other).await.cached_tokens(), 0, "{what}: another tenant");
        assert_eq!(beside.answer().await.tokens, long.answer(&cold).await.tokens, "{what}");
        drop(running);
        assert_eq!(other.counters().failed_starts, 0, "{what}");
        for engine in [holder, other, cold] {
            stop(engine).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_without_room_or_stored_or_faster_to_compute_are_not_prefetched() {
    let (holder, _holder_updates) = start(base());
    let (other, _other_updates) = start(base());
    ask(&tokens(1, 300), 2).answer(&holder).await;
    let prefix = holder.hot_prefixes(usize::MAX).await.unwrap().remove(0);
    let is_ordered = async |room_bytes, ms_per_byte, to: &EngineHandle| {
        let (order, ordered) = oneshot::channel();
        let speed = PeerSpeed { ms_per_byte, latency_ms: 0.0 };
        to.prefetch(prefix.clone(), room_bytes, PeerOffer { n_blocks: 9, speed, order });
        ordered.await.is_ok()
    };
    let n_bytes = 288 * other.facts().exchange.unwrap().token_bytes;
    assert!(!is_ordered(n_bytes - 1, 0.0, &other).await, "there is no room");
    assert!(!is_ordered(n_bytes, 1e6, &other).await, "it is faster to compute");
    assert!(!is_ordered(n_bytes, 0.0, &holder).await, "the state is already stored");
    assert!(is_ordered(n_bytes, 0.0, &other).await);
    stop(holder).await;
    stop(other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_engine_sends_its_state_until_the_handover_ends() {
    let (holder, _holder_updates) = start(base());
    let (other, _other_updates) = start(base());
    let prompt = tokens(1, 300);
    ask(&prompt, 8).answer(&holder).await;
    let (handed_over, done) = oneshot::channel::<()>();
    let drained = tokio::spawn({
        let holder = holder.clone();
        async move { holder.drain(Duration::from_secs(3600), async { drop(done.await) }).await }
    });
    until("it drains", || ask(&prompt, 1).submit(&holder).is_err()).await;
    assert_eq!(prefetch_all(&holder, &other).await.len(), 1);
    assert!(!drained.is_finished());
    drop(handed_over);
    drained.await.unwrap();
    let answer = ask(&prompt, 8).answer(&other).await;
    assert!(answer.cached_tokens() >= 288, "{answer:?}");
    stop(other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_is_sent_from_a_running_slot_without_changing_it() {
    for kv_unified in [Switch::Off, Switch::On] {
        let config = EngineConfig { kv_unified, ..base() };
        let (holder, _holder_updates) = start(config.clone());
        let (other, _other_updates) = start(config.clone());
        let (cold, _cold_updates) = start(cold(&config));
        let prompt = tokens(1, 200);
        let long = ask(&prompt, 200);
        let mut running = long.submit(&holder).unwrap();
        running.tokens(2).await;
        assert_eq!(holder.counters().saves, 0);
        let moved = long.submit_with(&other, offer(&holder, &other, &prompt)).unwrap().answer().await;
        assert_eq!(ram(&moved), 192, "{kv_unified:?}");
        let expected = long.answer(&cold).await.tokens;
        assert_eq!(moved.tokens, expected, "{kv_unified:?}");
        assert_eq!(running.answer().await.tokens, expected, "{kv_unified:?}");
        assert!(holder.counters().saves > 0);
        for engine in [holder, other, cold] {
            stop(engine).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_that_is_only_on_disk_is_sent_and_stored_blocks_are_not_requested() {
    let folder = tempfile::tempdir().unwrap();
    // The holder's chunks are smaller than the other's.
    let with_disk = EngineConfig { store: store(600 << 10, Some(&folder)), ..base() };
    let prompt = tokens(1, 300);
    let (holder, _updates) = start(with_disk.clone());
    ask(&prompt, 2).answer(&holder).await;
    stop(holder).await;
    let (holder, _holder_updates) = start(with_disk);
    let (other, _other_updates) = start(base());
    let (cold, _cold_updates) = start(cold(&base()));
    ask(&prompt[..100], 1).answer(&other).await;
    until("the prefix is stored", || other.cache_totals().ram.n_tokens >= 96).await;

    let longer = ask(&[&prompt[..], &tokens(2, 20)].concat(), 40);
    let moved = longer.submit_with(&other, offer(&holder, &other, &longer.prompt[..300])).unwrap().answer().await;
    let token_bytes = other.facts().exchange.unwrap().token_bytes;
    assert_eq!((moved.cached_tokens(), fetched_bytes(&moved)), (288, Some((288 - 96) * token_bytes)));
    assert_eq!(moved.tokens, longer.answer(&cold).await.tokens);
    for engine in [holder, other, cold] {
        stop(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_with_one_prefix_wait_for_one_transfer() {
    let (holder, _holder_updates) = start(base());
    let (other, _other_updates) = start(base());
    let prompt = tokens(1, 300);
    ask(&prompt, 2).answer(&holder).await;
    let (order, ordered) = oneshot::channel();
    let speed = PeerSpeed { ms_per_byte: 0.0, latency_ms: 0.0 };
    let peer = Some(PeerOffer { n_blocks: 9, speed, order });
    let first = ask(&prompt, 4).submit_with(&other, peer).unwrap();
    let order = ordered.await.expect("the blocks are ordered");
    let second = ask(&[&prompt[..290], &tokens(2, 9)].concat(), 4).submit_with(&other, offer(&holder, &other, &prompt));
    // A request that needs no transfer does not wait.
    ask(&tokens(5, 100), 4).answer(&other).await;
    bring(&holder, &order, &other).await;
    order.inbox.end(Duration::from_millis(1));
    other.wake();
    let (first, second) = (first.answer().await, second.unwrap().answer().await);
    assert_eq!((ram(&first), fetched_bytes(&first).is_some()), (288, true));
    assert!(second.cached_tokens() >= 288 && fetched_bytes(&second).is_none(), "{second:?}");
    stop(holder).await;
    stop(other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_transfer_is_abandoned_and_one_without_waiting_requests_ends() {
    let config = EngineConfig { costs: slow(0.05), ..base() };
    let (other, _updates) = start(config.clone());
    let (cold, _cold_updates) = start(cold(&config));
    let prompt = tokens(1, 300);
    let silent = || {
        let (order, ordered) = oneshot::channel();
        let speed = PeerSpeed { ms_per_byte: 0.0, latency_ms: 0.0 };
        (Some(PeerOffer { n_blocks: 9, speed, order }), ordered)
    };
    let (peer, ordered) = silent();
    let answer = ask(&prompt, 20).submit_with(&other, peer).unwrap().answer().await;
    assert_eq!((answer.cached_tokens(), fetched_bytes(&answer)), (0, Some(0)));
    assert_eq!(answer.tokens, ask(&prompt, 20).answer(&cold).await.tokens);
    ordered.await.expect("it was ordered").inbox.closed().await;
    stop(other).await;

    let (other, _updates) = start(base());
    let (peer, ordered) = silent();
    let leaving = ask(&prompt, 20).submit_with(&other, peer).unwrap();
    let order = ordered.await.expect("it is ordered");
    drop(leaving);
    order.inbox.closed().await;
    until("nothing waits", || other.counters().queued == 0).await;
    stop(other).await;
    stop(cold).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_is_not_exchanged_between_salts_or_layouts_or_without_the_cache() {
    let (holder, _holder_updates) = start(base());
    let (other, _other_updates) = start(base());
    let flash = EngineConfig { flash_attn: Switch::On, kv_unified: Switch::On, ..base() };
    let (flash, _flash_updates) = start(flash);
    let (cold, _cold_updates) = start(cold(&base()));
    let prompt = tokens(1, 300);
    let expected = ask(&prompt, 20).answer(&cold).await.tokens;
    ask(&prompt, 2).answer(&holder).await;
    let salted = Ask { salt: 1, ..ask(&prompt, 20) };
    let answer = salted.submit_with(&other, offer(&holder, &other, &prompt)).unwrap().answer().await;
    assert_eq!((answer.cached_tokens(), fetched_bytes(&answer)), (0, Some(0)));
    assert_eq!(answer.tokens, expected);
    let uncached = Ask { cache_prompt: false, ..ask(&prompt, 20) };
    let answer = uncached.submit_with(&other, offer(&holder, &other, &prompt)).unwrap().answer().await;
    assert_eq!((answer.cached_tokens(), fetched_bytes(&answer)), (0, None));
    let answer = ask(&prompt, 20).submit_with(&flash, offer(&holder, &flash, &prompt)).unwrap().answer().await;
    assert_eq!((answer.cached_tokens(), fetched_bytes(&answer)), (0, Some(0)));
    // State of a request without the cache is not sent while it runs.
    let secret = Ask { cache_prompt: false, ..ask(&tokens(7, 300), 200) };
    let mut running = secret.submit(&holder).unwrap();
    running.tokens(2).await;
    let peer = offer(&holder, &other, &secret.prompt);
    let answer = ask(&secret.prompt, 4).submit_with(&other, peer).unwrap().answer().await;
    assert_eq!((answer.cached_tokens(), fetched_bytes(&answer)), (0, Some(0)));
    drop(running);
    for engine in [holder, other, flash, cold] {
        stop(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_whose_state_cannot_be_split_into_blocks_exchange_none() {
    for preset in [Preset::TinySwa, Preset::TinyRecurrent, Preset::TinyHybrid] {
        let (engine, _updates) = start(EngineConfig { model: config(preset).model, ..base() });
        assert_eq!(engine.facts().exchange, None, "{preset:?}");
        let prompt = tokens(1, 300);
        let answer = ask(&prompt, 2).submit_with(&engine, offer(&engine, &engine, &prompt)).unwrap().answer().await;
        assert_eq!(fetched_bytes(&answer), None, "{preset:?}");
        stop(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_run_more_than_the_limit_is_refused_until_another_has_been_sent() {
    let (engine, _updates) = start(base());
    let prompt = tokens(1, 100);
    ask(&prompt, 2).answer(&engine).await;
    let (order, ordered) = oneshot::channel();
    let speed = PeerSpeed { ms_per_byte: 0.0, latency_ms: 0.0 };
    let (other, _other_updates) = start(base());
    let waits = ask(&prompt, 2).submit_with(&other, Some(PeerOffer { n_blocks: 3, speed, order })).unwrap();
    let order: FetchOrder = ordered.await.unwrap();
    let run = |n_blocks| vec![RunEnd { last: order.run.blocks[2], n_blocks }];
    let mut runs = Vec::new();
    for _ in 0..SENDS_MAX {
        runs.push(engine.run_to(run(3)).await.expect("there is a place"));
    }
    assert_eq!(engine.run_to(run(3)).await.err(), Some(SendError::Busy));
    runs.pop();
    assert_eq!(engine.run_to(run(2)).await.expect("there is a place").parts[0].record.first_block, 1);
    order.inbox.end(Duration::ZERO);
    other.wake();
    waits.answer().await;
    stop(engine).await;
    stop(other).await;
}

/// Conversations move between two engines that request any state from each other that the other may have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_stay_the_same_where_conversations_move_between_engines() {
    for (seed, kv_unified, ram_bytes) in [(1, Switch::Off, 64 << 20), (2, Switch::On, 900 << 10)] {
        let config = EngineConfig { kv_unified, store: store(ram_bytes, None), ..base() };
        let (first, _first_updates) = start(config.clone());
        let (second, _second_updates) = start(config.clone());
        let (cold, _cold_updates) = start(cold(&config));
        let engines = [first, second];
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let system = tokens(99, 90);
        let mut conversations: Vec<Vec<Token>> = (0..4).map(|n| [&system[..], &tokens(n, 40)].concat()).collect();
        // Tokens whose state some engine has.
        let mut n_held = vec![0; conversations.len()];
        let mut n_bytes = 0;
        for round in 0..12 {
            let mut asked = Vec::new();
            for idx in 0..3 {
                let conversation = (round + idx) % conversations.len();
                let here = rng.random_range(0..2);
                let question = ask(&conversations[conversation], rng.random_range(1..12));
                let peer = offer(&engines[1 - here], &engines[here], &question.prompt[..n_held[conversation]]);
                asked.push((conversation, question.submit_with(&engines[here], peer).unwrap(), question));
            }
            for (conversation, answering, question) in asked {
                let answer = answering.answer().await;
                assert_eq!(answer.tokens, question.answer(&cold).await.tokens, "{seed} {round} {question:?}");
                n_bytes += fetched_bytes(&answer).unwrap_or(0);
                let text = &mut conversations[conversation];
                text.extend(&answer.tokens);
                n_held[conversation] = text.len() - 1;
                text.extend(tokens(rng.random_range(0..1000), 30));
                if text.len() > 700 {
                    text.truncate(200);
                    n_held[conversation] = 200;
                }
            }
        }
        assert!(n_bytes > 100_000, "{seed}: only {n_bytes} bytes moved");
        for engine in &engines {
            assert_eq!(engine.counters().failed_starts, 0, "{seed}");
        }
        for engine in engines {
            stop(engine).await;
        }
        stop(cold).await;
    }
}
