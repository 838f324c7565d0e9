//! Known bugs of llama.cpp's server (DESIGN.md, section 4), one regression test each.
//!
//! Not here: random traffic (`property`, `tiers`).

use warmpath_bench::model::Preset;
use warmpath_common::ids::{SlotId, Token};
use warmpath_worker::engine::{EngineConfig, PrefixCache, Switch};

use super::support::{ask, config, start, stop, tokens, until};
use super::tiers::store;

fn cold(config: &EngineConfig) -> EngineConfig {
    EngineConfig {
        n_slots: 1,
        context_tokens_total: 1024,
        batch_tokens: 512,
        ubatch_tokens: 512,
        prefix_cache: PrefixCache::Disabled,
        store: store(0, None),
        ..config.clone()
    }
}

fn slots(preset: Preset, n_slots: u16) -> EngineConfig {
    let context_tokens_total = 1024 * u32::from(n_slots);
    let store = store(64 << 20, None);
    // Small batches make computing slow, so that restoring state is faster even with this small model.
    EngineConfig { n_slots, context_tokens_total, batch_tokens: 32, ubatch_tokens: 32, store, ..config(preset) }
}

/// ggml-org/llama.cpp#27148: a slot keeps another conversation's state and reports that nothing is cached.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn trap_27148_tokens_that_count_as_not_cached_are_not_in_the_slot() {
    for preset in [Preset::Tiny, Preset::TinySwa, Preset::TinyRecurrent, Preset::TinyHybrid] {
        let config = slots(preset, 1);
        let (engine, _updates) = start(config.clone());
        let (cold, _cold_updates) = start(cold(&config));
        let first = tokens(1, 200);
        ask(&first, 8).answer(&engine).await;

        let mut alone = ask(&tokens(2, 150), 60);
        alone.cache_prompt = false;
        let other = ask(&tokens(3, 170), 60);
        let mut other_tenant = ask(&first, 60);
        other_tenant.salt = 1;
        for request in [alone, other, other_tenant] {
            let answer = request.answer(&engine).await;
            assert_eq!(answer.cached_tokens(), 0, "{preset:?}");
            assert_eq!(answer.tokens, request.answer(&cold).await.tokens, "{preset:?}");
            let n_held = if request.cache_prompt { request.prompt.len() as u32 + 59 } else { 0 };
            until("the slot holds nothing else", || engine.slots()[0].held_tokens == n_held).await;
        }
        let again = ask(&[first, tokens(4, 40)].concat(), 60);
        let answer = again.answer(&engine).await;
        assert!(answer.cached_tokens() >= 192, "{preset:?}: {answer:?}");
        assert_eq!(answer.tokens, again.answer(&cold).await.tokens, "{preset:?}");
        stop(engine).await;
        stop(cold).await;
    }
}

/// ggml-org/llama.cpp#28139: a request for a given empty slot does not use the RAM cache.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn trap_28139_a_request_for_an_empty_slot_starts_from_the_store() {
    let (engine, _updates) = start(slots(Preset::Tiny, 2));
    let prompt = tokens(1, 300);
    ask(&prompt, 4).answer(&engine).await;
    // Two others evict it from its slot, and one without the cache empties a slot.
    ask(&tokens(2, 200), 4).answer(&engine).await;
    ask(&tokens(3, 200), 4).answer(&engine).await;
    let mut passing = ask(&tokens(4, 100), 4);
    passing.cache_prompt = false;
    let emptied = passing.answer(&engine).await.started.unwrap().slot;
    until("the slot is empty", || engine.slots()[usize::from(emptied.0)].held_tokens == 0).await;

    let mut again = ask(&prompt, 4);
    again.wanted_slot = Some(emptied);
    let started = again.answer(&engine).await.started.unwrap();
    assert_eq!(started.slot, emptied);
    assert!(started.cached.ram >= 288, "{started:?}");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn trap_28139_a_request_for_an_empty_slot_starts_from_disk_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let config = EngineConfig { store: store(64 << 20, Some(&folder)), ..slots(Preset::Tiny, 2) };
    let prompt = tokens(1, 300);
    let (engine, _updates) = start(config.clone());
    ask(&prompt, 4).answer(&engine).await;
    stop(engine).await;
    let (engine, _updates) = start(config);
    let mut again = ask(&prompt, 4);
    again.wanted_slot = Some(SlotId(1));
    let started = again.answer(&engine).await.started.unwrap();
    assert_eq!(started.slot, SlotId(1));
    assert!(started.cached.disk >= 288, "{started:?}");
    stop(engine).await;
}

/// ggml-org/llama.cpp#13194, #21831, #22942: models with a sliding window, recurrent and hybrid ones compute the whole
/// prompt again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn trap_13194_21831_22942_a_later_turn_computes_few_of_the_earlier_tokens() {
    for preset in [Preset::TinySwa, Preset::TinyRecurrent, Preset::TinyHybrid] {
        for kv_unified in [Switch::Off, Switch::On] {
            let config = EngineConfig { kv_unified, ..slots(preset, 2) };
            let (engine, _updates) = start(config.clone());
            let (cold, _cold_updates) = start(cold(&config));
            let system = tokens(1, 400);
            let mut first = ask(&[system.clone(), tokens(2, 60)].concat(), 50);
            first.last_message_token = Some(system.len() as u32);
            let answer = first.answer(&engine).await;

            // Each prompt, and the minimum number of its known tokens that must be reused.
            let goes_on = [first.prompt.clone(), answer.tokens, tokens(3, 40)].concat();
            let edited = [system.clone(), tokens(4, 50)].concat();
            // Text at the end of a prompt changes often; elsewhere, the second prompt that parts there reuses all.
            let changed_end = [first.prompt[..380].to_vec(), tokens(7, 50)].concat();
            let parted = |seed| [system[..333].to_vec(), tokens(seed, 50)].concat();
            let prompts = [
                (goes_on, first.prompt.len() - 40),
                (edited, 400 - 32),
                (changed_end, first.prompt.len() - 256 - 32),
                (parted(5), first.prompt.len() - 256 - 32),
                (parted(6), 333 - 32),
            ];
            for (prompt, n_known) in prompts {
                for seed in [90, 91, 92] {
                    ask(&tokens(seed, 150), 4).answer(&engine).await;
                }
                let request = ask(&prompt, 50);
                let answer = request.answer(&engine).await;
                let cached = answer.cached_tokens() as usize;
                assert!(
                    cached >= n_known,
                    "{preset:?} {kv_unified:?}: {cached} of at least {n_known} known tokens were reused"
                );
                assert_eq!(answer.tokens, request.answer(&cold).await.tokens, "{preset:?} {kv_unified:?}");
            }
            assert_eq!(engine.counters().failed_starts, 0, "{preset:?} {kv_unified:?}");
            stop(engine).await;
            stop(cold).await;
        }
    }
}

/// The tokens before a sliding window are not stored, so a restored slot cannot resume at any earlier position.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_restored_slot_with_a_sliding_window_resumes_at_an_earlier_checkpoint() {
    let config = slots(Preset::TinySwa, 1);
    let (engine, _updates) = start(config.clone());
    let (cold, _cold_updates) = start(cold(&config));
    let prompt: Vec<Token> = tokens(1, 500);
    ask(&prompt, 4).answer(&engine).await;
    ask(&tokens(2, 200), 4).answer(&engine).await;
    let back = ask(&prompt, 4).answer(&engine).await;
    assert!(back.started.unwrap().cached.ram >= 448, "{back:?}");

    let parted = ask(&[prompt[..250].to_vec(), tokens(3, 30)].concat(), 30);
    let answer = parted.answer(&engine).await;
    assert!(answer.cached_tokens() >= 224, "{answer:?}");
    assert_eq!(answer.tokens, parted.answer(&cold).await.tokens);
    assert_eq!(engine.counters().failed_starts, 0);
    stop(engine).await;
    stop(cold).await;
}

/// Recurrent state takes no cells, so it is kept until its slot is needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_idle_recurrent_conversation_stays_in_its_slot_whatever_the_token_limit() {
    let config = EngineConfig { prefix_tokens_max: Some(100), ..slots(Preset::TinyRecurrent, 2) };
    let (engine, _updates) = start(config);
    let prompt = tokens(1, 300);
    let answer = ask(&prompt, 20).answer(&engine).await;
    ask(&tokens(2, 200), 20).answer(&engine).await;
    let next = ask(&[prompt, answer.tokens, tokens(3, 10)].concat(), 4).answer(&engine).await;
    assert_eq!(next.started.unwrap().cached.resident, 319);
    stop(engine).await;
}
