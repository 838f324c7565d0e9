//! Every way to restore state: random traffic with more conversations than slots, little memory, a disk tier, restarts.
//!
//! As in `property`, but with settings that make prefixes leave the slots and return all the time; each run asserts
//! that state was restored in the intended ways. Not here: sharing between simultaneous requests (`sharing`), damage
//! (`faults`).

use std::time::Duration;

use warmpath_bench::model::Preset;
use warmpath_common::block_hash::{BlockHash, block_hash};
use warmpath_common::ids::Token;
use warmpath_worker::engine::{CacheType, CostSource, DiskConfig, EngineConfig, PrefixCache, StoreConfig, Switch};

use super::property::{Life, Used, compare};
use super::support::{ask, config, start, stop, tokens};

/// Returns a store with so many bytes of memory that evicts and writes without delay.
pub fn store(ram_bytes: u64, disk: Option<&tempfile::TempDir>) -> StoreConfig {
    let disk = disk.map(|folder| DiskConfig { dir: folder.path().to_owned(), bytes: 64 << 20 });
    StoreConfig { ram_bytes, disk, min_hold: Duration::ZERO }
}

fn life(preset: Preset, seed: u64) -> Life {
    Life { preset, seed, n_waves: 16, restart_every: 0, answer_tokens: 0..20 }
}

/// Leaves the engine two slots fewer, so that conversations evict each other.
fn crowd(config: &mut EngineConfig) {
    config.n_slots = 2;
    config.context_tokens_total = 2 * 1024;
    // If computing seemed cheap for a moment, the engine would not restore state.
    config.costs = CostSource::Assumed;
}

fn assert_used(used: Used, counts: &[(&str, u64)]) {
    for (name, n) in counts {
        assert!(*n > 0, "{name} never happened: {used:?}");
    }
    assert_eq!(used.failed_starts, 0, "plans could not be carried out: {used:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_when_memory_holds_only_part_of_a_conversation() {
    let used = compare(life(Preset::Tiny, 11), |config| {
        crowd(config);
        config.store = store(800 << 10, None);
    });
    let used = used.await;
    assert_used(used, &[("import", used.ram_tokens), ("save", used.saves), ("restore", used.restores)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_when_most_state_comes_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let used = compare(life(Preset::Tiny, 12), |config| {
        crowd(config);
        config.kv_unified = Switch::On;
        config.flash_attn = Switch::On;
        (config.cache_type_k, config.cache_type_v) = (CacheType::Q8_0, CacheType::Q8_0);
        config.store = store(300 << 10, Some(&folder));
    });
    let used = used.await;
    assert_used(used, &[("read", used.disk_tokens), ("save", used.saves), ("restore", used.restores)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_across_restarts() {
    for (seed, kv_unified) in [(13, Switch::Off), (14, Switch::On)] {
        let folder = tempfile::tempdir().unwrap();
        let used = compare(Life { restart_every: 4, ..life(Preset::Tiny, seed) }, |config| {
            crowd(config);
            config.kv_unified = kv_unified;
            config.store = store(8 << 20, Some(&folder));
        });
        let used = used.await;
        assert_used(used, &[("read", used.disk_tokens), ("save", used.saves)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_with_stored_state_of_a_sliding_window() {
    for (seed, kv_unified) in [(15, Switch::Off), (16, Switch::On)] {
        let folder = tempfile::tempdir().unwrap();
        let used = compare(Life { restart_every: 8, ..life(Preset::TinySwa, seed) }, |config| {
            crowd(config);
            config.kv_unified = kv_unified;
            config.store = store(900 << 10, Some(&folder));
        });
        let used = used.await;
        assert_used(used, &[("save", used.saves), ("checkpoint", used.checkpoint_uses), ("read", used.disk_tokens)]);
    }
}

#[cfg_attr(
    any(feature = "cuda", feature = "metal", feature = "rocm", feature = "vulkan"),
    ignore = "random weights tie so closely that a GPU's rounding decides"
)]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_where_state_resumes_at_checkpoints() {
    for (preset, seed) in [(Preset::TinyRecurrent, 17), (Preset::TinyHybrid, 18), (Preset::TinyHybrid, 19)] {
        let folder = tempfile::tempdir().unwrap();
        let life = Life { restart_every: 8, n_waves: 16, answer_tokens: 48..60, ..life(preset, seed) };
        let used = compare(life, |config| {
            crowd(config);
            config.kv_unified = if seed == 19 { Switch::On } else { Switch::Off };
            config.store = store(1500 << 10, Some(&folder));
        });
        let used = used.await;
        assert_used(used, &[("checkpoint", used.checkpoint_uses), ("read", used.disk_tokens)]);
    }
}

fn four_bits(parent: &BlockHash, tokens: &[Token]) -> BlockHash {
    let mut hash = [0; 32];
    hash[0] = block_hash(parent, tokens).0[0] & 0x0F;
    BlockHash(hash)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_when_block_hashes_collide_all_the_time() {
    for (preset, seed) in [(Preset::Tiny, 20), (Preset::TinyHybrid, 21)] {
        let folder = tempfile::tempdir().unwrap();
        let used = compare(Life { restart_every: 8, n_waves: 16, ..life(preset, seed) }, |config| {
            crowd(config);
            config.block_hasher = four_bits;
            config.store = store(8 << 20, Some(&folder));
        });
        let used = used.await;
        assert_used(used, &[("reuse", used.n_reused as u64), ("store", used.ram_tokens + used.disk_tokens)]);
    }
}

/// With an ordinary model's keys and exact attention, restored state gives exactly the same response.
///
/// Both engines compute the prompt in the same two parts, so that only the restore differs.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn restored_state_gives_exactly_the_same_answer_with_ordinary_keys() {
    let prompt = tokens(1, 300);
    for kv_unified in [Switch::Off, Switch::On] {
        for cache_type_k in [CacheType::F16, CacheType::Q8_0] {
            let folder = tempfile::tempdir().unwrap();
            let base = EngineConfig {
                kv_unified,
                cache_type_k,
                flash_attn: Switch::Off,
                n_slots: 1,
                context_tokens_total: 1024,
                costs: CostSource::Assumed,
                ..config(Preset::TinyKeys)
            };
            let kept = EngineConfig { store: store(0, None), ..base.clone() };
            let moved = EngineConfig { store: store(8 << 20, Some(&folder)), ..base };
            let (engine, _updates) = start(kept);
            ask(&prompt[..288], 0).answer(&engine).await;
            let expected = ask(&prompt, 40).answer(&engine).await;
            assert_eq!(expected.cached_tokens(), 288);
            stop(engine).await;

            let (engine, _updates) = start(moved.clone());
            ask(&prompt[..288], 0).answer(&engine).await;
            ask(&tokens(2, 200), 4).answer(&engine).await;
            let answer = ask(&prompt, 40).answer(&engine).await;
            assert_eq!(answer.started.unwrap().cached.ram, 288);
            assert_eq!(answer.tokens, expected.tokens, "{kv_unified:?} {cache_type_k:?}");
            stop(engine).await;

            let (engine, _updates) = start(moved);
            let answer = ask(&prompt, 40).answer(&engine).await;
            // The slot's state was stored at the end, too. The prompt's last token is computed again with its block.
            assert!(answer.started.unwrap().cached.disk >= 288, "{answer:?}");
            stop(engine).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn state_in_slots_is_restored_after_a_restart() {
    for preset in [Preset::Tiny, Preset::TinySwa, Preset::TinyRecurrent, Preset::TinyHybrid] {
        let folder = tempfile::tempdir().unwrap();
        let config = EngineConfig {
            n_slots: 3,
            context_tokens_total: 3 * 1024,
            store: store(64 << 20, Some(&folder)),
            // A GPU computes a small model faster than state is read from disk.
            costs: CostSource::Assumed,
            ..config(preset)
        };
        let prompts: Vec<Vec<Token>> = (0..6).map(|n| tokens(n + 1, 200 + n as usize * 30)).collect();
        let (engine, _updates) = start(config.clone());
        for prompt in &prompts {
            ask(prompt, 2).answer(&engine).await;
        }
        stop(engine).await;
        let (engine, _updates) = start(config.clone());
        let (cold, _cold_updates) = start(EngineConfig { prefix_cache: PrefixCache::Disabled, ..config });
        let (mut n_whole, mut n_back) = (0, 0);
        for prompt in &prompts {
            let again = ask(&[prompt.clone(), tokens(99, 20)].concat(), 50);
            let answer = again.answer(&engine).await;
            assert_eq!(answer.tokens, again.answer(&cold).await.tokens, "{preset:?}");
            n_whole += (prompt.len() as u32 - 1) / 32 * 32;
            n_back += answer.started.unwrap().cached.disk;
        }
        assert!(n_back * 100 >= n_whole * 95, "{preset:?}: {n_back} of {n_whole} tokens in whole blocks are restored");
        stop(engine).await;
        stop(cold).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn memory_that_is_too_small_for_a_usual_chunk_stores_smaller_ones() {
    let (engine, _updates) = start(EngineConfig {
        n_slots: 1,
        context_tokens_total: 1024,
        batch_tokens: 32,
        ubatch_tokens: 32,
        store: store(400 << 10, None),
        costs: CostSource::Assumed,
        ..config(Preset::Tiny)
    });
    ask(&tokens(1, 300), 2).answer(&engine).await;
    ask(&tokens(2, 40), 2).answer(&engine).await;
    let totals = engine.cache_totals();
    assert!(totals.ram.n_bytes > 200 << 10, "{totals:?}");
    let again = ask(&tokens(1, 300), 2).answer(&engine).await;
    assert!(again.started.unwrap().cached.ram >= 96, "{again:?}");
    stop(engine).await;
}
