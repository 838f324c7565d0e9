//! Settings that change a model's results, and settings that only choose where it is computed.
//!
//! Not here: the names of the resulting layouts (`engine::llama::layout`), flags.

use tempfile::TempDir;
use warmpath_bench::model::Preset;
use warmpath_common::ids::Token;
use warmpath_common::model::MemoryKind;
use warmpath_worker::engine::{
    EngineConfig, LoadMode, MetadataOverride, MetadataValue, Placement, RopeSettings, TensorOverride,
};
use warmpath_worker_output::logprobs::TokenProbabilities;

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

/// Minimum difference between the log probabilities of the two most likely tokens that rounding does not reverse.
///
/// Source: measured on an Intel Xeon: state that was stored and read changes it by at most 0.05.
const CLEAR: f32 = 0.15;

/// Response to one prompt, and how many of the prompt's tokens were reused.
#[derive(Debug, PartialEq)]
struct Response {
    tokens: Vec<Token>,
    /// Number of tokens before the first that rounding may change.
    n_clear: usize,
    cached_tokens: u32,
}

/// Answers one prompt with a new engine.
async fn answer(config: EngineConfig) -> Response {
    let (engine, _updates) = start(config);
    let answer = ask(&tokens(3, 300), 20).listing(2).answer(&engine).await;
    stop(engine).await;
    let is_clear = |token: &&TokenProbabilities| token.top[0].logprob - token.top[1].logprob >= CLEAR;
    let n_clear = answer.probabilities.iter().take_while(is_clear).count();
    Response { n_clear, cached_tokens: answer.cached_tokens(), tokens: answer.tokens }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn state_of_another_rotation_or_another_model_s_value_is_never_used() {
    let saved = TempDir::new().unwrap();
    let first = answer(one_slot(Some(&saved))).await;
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
        let cold = answer(change(one_slot(None))).await;
        assert_ne!(cold.tokens, first.tokens, "{idx}: the setting does not change the response");
        let warm = answer(change(one_slot(Some(&saved)))).await;
        assert_eq!((&warm, warm.cached_tokens), (&cold, 0), "{idx}: state of another setting was reused");
        let again = answer(change(one_slot(Some(&saved)))).await;
        let clear = &cold.tokens[..cold.n_clear];
        assert!(!clear.is_empty() && again.tokens.starts_with(clear), "{idx}: {again:?} {cold:?}");
        assert!(again.cached_tokens > 200, "{idx}: its own state was not reused: {again:?}");
    }
    let again = answer(one_slot(Some(&saved))).await;
    assert_eq!(again.tokens, first.tokens);
    assert!(again.cached_tokens > 200, "the state that was stored first is missing: {again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_window_of_the_file_that_llama_cpp_ignores_changes_nothing() {
    let windowed = |config: EngineConfig| EngineConfig {
        metadata_overrides: vec![MetadataOverride {
            key: "llama.attention.sliding_window".to_owned(),
            value: MetadataValue::Int(64),
        }],
        ..config
    };
    let (engine, _updates) = start(windowed(one_slot(None)));
    assert_eq!(engine.facts().memory, MemoryKind::Full);
    stop(engine).await;
    let expected = answer(one_slot(None)).await;
    let clear = &expected.tokens[..expected.n_clear];
    let saved = TempDir::new().unwrap();
    for is_stored in [false, true] {
        let given = answer(windowed(one_slot(Some(&saved)))).await;
        assert!(!clear.is_empty() && given.tokens.starts_with(clear), "{given:?} {expected:?}");
        assert_eq!(given.cached_tokens > 200, is_stored, "{given:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_placement_of_weights_changes_no_answer() {
    let expected = answer(one_slot(None)).await;
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
        let given = answer(EngineConfig { placement: placement.clone(), ..one_slot(None) }).await;
        assert_eq!(given.tokens, expected.tokens, "{placement:?}");
    }
}
