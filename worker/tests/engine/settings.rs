//! Settings that change a model's results, and settings that only choose where it is computed.
//!
//! Not here: the names of the resulting layouts (`engine::llama::layout`), flags.

use tempfile::TempDir;
use warmpath_bench::model::Preset;
use warmpath_common::ids::Token;
use warmpath_worker::engine::{
    EngineConfig, LoadMode, MetadataOverride, MetadataValue, Placement, RopeSettings, TensorOverride,
};

use super::support::{ask, config, start, stop, tokens};
use super::tiers::store;

fn one_slot(disk: Option<&TempDir>) -> EngineConfig {
    // Small batches make computing slow, so that reading state is faster even with this small model.
    EngineConfig {
        n_slots: 1,
        context_tokens_total: 1024,
        batch_tokens: 32,
        ubatch_tokens: 32,
        store: store(if disk.is_some() { 8 << 20 } else { 0 }, disk),
        ..config(Preset::Tiny)
    }
}

/// Answers one prompt with a new engine; returns the response and how many of the prompt's tokens were reused.
async fn answer(config: EngineConfig) -> (Vec<Token>, u32) {
    let (engine, _updates) = start(config);
    let answer = ask(&tokens(3, 300), 20).answer(&engine).await;
    stop(engine).await;
    let cached_tokens = answer.cached_tokens();
    (answer.tokens, cached_tokens)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn state_of_another_rotation_or_another_model_s_value_is_never_used() {
    let saved = TempDir::new().unwrap();
    let (first, _) = answer(one_slot(Some(&saved))).await;
    let rope = |rope: RopeSettings| move |config: EngineConfig| EngineConfig { rope, ..config };
    let base = RopeSettings::default();
    let replaced = |config: EngineConfig| EngineConfig {
        metadata_overrides: vec![MetadataOverride {
            key: "llama.rope.freq_base".to_owned(),
            value: MetadataValue::Float(20.0),
        }],
        ..config
    };
    let changes: [&dyn Fn(EngineConfig) -> EngineConfig; 3] = [
        &rope(RopeSettings { freq_base: Some(10.0), ..base }),
        &rope(RopeSettings { freq_scale: Some(0.01), ..base }),
        &replaced,
    ];
    for (idx, change) in changes.iter().enumerate() {
        let (cold, _) = answer(change(one_slot(None))).await;
        assert_ne!(cold, first, "{idx}: the setting does not change the response");
        let (warm, cached_tokens) = answer(change(one_slot(Some(&saved)))).await;
        assert_eq!((&warm, cached_tokens), (&cold, 0), "{idx}: state of another setting was reused");
        let (again, cached_tokens) = answer(change(one_slot(Some(&saved)))).await;
        assert_eq!(again, cold);
        assert!(cached_tokens > 200, "{idx}: its own state was not reused: {cached_tokens}");
    }
    let (again, cached_tokens) = answer(one_slot(Some(&saved))).await;
    assert_eq!(again, first);
    assert!(cached_tokens > 200, "the state that was stored first is missing: {cached_tokens}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_placement_of_weights_changes_no_answer() {
    let (expected, _) = answer(one_slot(None)).await;
    let base = Placement::default();
    let here = |pattern: &str| TensorOverride { pattern: pattern.to_owned(), buffer: "CPU".to_owned() };
    let placements = [
        Placement { devices: Some(Vec::new()), ..base.clone() },
        Placement { repack: false, check_tensors: true, ..base.clone() },
        Placement { load_mode: LoadMode::None, no_host: true, ..base.clone() },
        Placement { overrides: vec![here(r"blk\.0\."), TensorOverride::all_experts_on_cpu()], ..base.clone() },
        Placement { kv_offload: false, op_offload: false, ..base },
    ];
    for placement in placements {
        let (given, _) = answer(EngineConfig { placement: placement.clone(), ..one_slot(None) }).await;
        assert_eq!(given, expected, "{placement:?}");
    }
}
