//! Requests and configurations that the engine refuses, and its end.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use warmpath_bench::model::Preset;
use warmpath_worker::engine::{
    Bytes, CacheType, Engine, EngineConfig, EngineError, EngineUpdate, Fit, StartError, Switch, plan_memory,
};

use super::support::{PATIENCE, ask, config, start, stop, tokens, until};

fn one_slot() -> EngineConfig {
    EngineConfig { n_slots: 1, context_tokens_total: 4096, ..config(Preset::Tiny) }
}

#[tokio::test]
async fn refuses_prompts_that_cannot_run() {
    let (engine, _updates) = start(one_slot());
    let n_vocab = engine.facts().n_vocab;
    for (prompt, words) in [
        (vec![], "no tokens"),
        (vec![1; 4096], "4096 tokens"),
        (vec![1, n_vocab], "not in the vocabulary"),
        (vec![1, u32::MAX], "not in the vocabulary"),
    ] {
        let refused = ask(&prompt, 3).submit(&engine).err();
        let Some(EngineError::InvalidPrompt(fault)) = refused else { panic!("{refused:?}") };
        assert!(fault.to_string().contains(words), "{fault}");
    }
    assert_eq!(ask(&[1, n_vocab - 1], 3).answer(&engine).await.tokens.len(), 3);
    stop(engine).await;
}

#[tokio::test]
async fn refuses_samplers_that_cannot_be_built_and_continues() {
    let (engine, _updates) = start(one_slot());
    let nested = format!("root ::= {}\"a\"{}", "(".repeat(500), ")".repeat(500));
    let chained: String = (0..9000).map(|n| format!("r{n} ::= r{}\n", n + 1)).collect();
    let grammars = [
        "root ::= undefined".to_owned(),
        "no-root ::= \"a\"".to_owned(),
        "root ::= root \"a\"".to_owned(),
        "root ::= \"a\"{5,2}".to_owned(),
        "root ::= \"\\".to_owned(),
        "root ::= \"a\0b\"".to_owned(),
        format!("root ::= r0\n{chained}"),
        "(".repeat(500),
        "a".repeat(1 << 20),
    ];
    for grammar in grammars {
        let mut request = ask(&tokens(1, 20), 3);
        request.generation.sampling.grammar = Some(grammar.clone());
        let refused = request.submit(&engine).err();
        let start = &grammar[..grammar.len().min(60)];
        assert!(matches!(refused, Some(EngineError::Sampler { .. })), "{start}: {refused:?}");
    }
    let mut deep = ask(&tokens(1, 20), 1);
    deep.generation.sampling.grammar = Some(nested);
    assert_eq!(deep.answer(&engine).await.text, "a");
    assert_eq!(ask(&tokens(1, 20), 3).answer(&engine).await.tokens.len(), 3);
    stop(engine).await;
}

#[tokio::test]
async fn refuses_sampling_parameters_out_of_range() {
    let (engine, _updates) = start(one_slot());
    let n_vocab = engine.facts().n_vocab;
    let changes: [fn(&mut warmpath_worker::engine::Sampling); 9] = [
        |s| s.temperature = f32::NAN,
        |s| s.top_p = f32::INFINITY,
        |s| s.repeat_penalty = 0.0,
        |s| s.repeat_penalty = 1e-44,
        |s| s.mirostat = 3,
        |s| s.logit_bias = vec![(u32::MAX, 1.0)],
        |s| s.logit_bias = vec![(1, f32::INFINITY)],
        |s| s.logit_bias = vec![(1, 1.0); 5000],
        |s| s.dry_sequence_breakers = vec!["a\0".to_owned()],
    ];
    for change in changes {
        let mut request = ask(&tokens(1, 20), 3);
        change(&mut request.generation.sampling);
        let refused = request.submit(&engine).err();
        assert!(matches!(refused, Some(EngineError::Sampler { .. })), "{refused:?}");
    }
    // Unusual parameters with a meaning are accepted.
    let mut request = ask(&tokens(1, 20), 3);
    let sampling = &mut request.generation.sampling;
    (sampling.repeat_last_n, sampling.repeat_penalty, sampling.dry_multiplier) = (i32::MAX, 1.1, 0.5);
    (sampling.dry_penalty_last_n, sampling.top_k, sampling.top_p, sampling.min_p) = (i32::MAX, i32::MIN, -3.0, 7.0);
    (sampling.xtc_probability, sampling.typical_p) = (2.0, -1.0);
    sampling.dry_sequence_breakers = vec!["é".repeat(30), String::new()];
    sampling.logit_bias = vec![(n_vocab - 1, -1.0)];
    let answer = request.answer(&engine).await;
    assert_eq!(answer.tokens.len(), 3, "{answer:?}");
    stop(engine).await;
}

#[tokio::test]
async fn refuses_requests_when_the_queue_is_full() {
    let (engine, _updates) = start(EngineConfig { queue_max: 1, ..one_slot() });
    let mut running = ask(&tokens(1, 20), 4000).submit(&engine).unwrap();
    running.tokens(1).await;
    let waiting = ask(&tokens(2, 20), 3).submit(&engine).unwrap();
    let refused = ask(&tokens(3, 20), 3).submit(&engine).err();
    assert_eq!(refused, Some(EngineError::QueueFull { queue_max: 1 }));
    drop(running);
    assert_eq!(waiting.answer().await.tokens.len(), 3);
    until("the slots are free", || engine.counters().busy_slots == 0).await;
    let places = [4, 5].map(|seed| ask(&tokens(seed, 20), 3).submit(&engine).unwrap());
    for answering in places {
        assert_eq!(answering.answer().await.tokens.len(), 3);
    }
    stop(engine).await;
}

#[tokio::test]
async fn draining_finishes_running_requests_and_refuses_the_rest() {
    let (engine, mut updates) = start(one_slot());
    let mut running = ask(&tokens(1, 20), 500).submit(&engine).unwrap();
    running.tokens(1).await;
    let waiting = ask(&tokens(2, 20), 3).submit(&engine).unwrap();
    let drain = tokio::spawn({
        let engine = engine.clone();
        async move { engine.drain(PATIENCE, ready(())).await }
    });
    assert_eq!(waiting.answer().await.failed, Some(EngineError::Draining));
    let late = ask(&tokens(3, 20), 3).submit(&engine).err();
    assert_eq!(late, Some(EngineError::Draining));
    assert_eq!(running.answer().await.tokens.len(), 500);
    drain.await.unwrap();
    engine.stopped().await;
    let mut said = false;
    while let Ok(update) = updates.try_recv() {
        said |= matches!(update, EngineUpdate::Step { load, .. } if load.draining);
    }
    assert!(said, "routers were not informed");
    engine.drain(PATIENCE, ready(())).await;
}

#[tokio::test]
async fn draining_ends_running_requests_at_the_deadline() {
    let (engine, _updates) = start(one_slot());
    let mut running = ask(&tokens(1, 20), 4000).submit(&engine).unwrap();
    running.tokens(1).await;
    engine.drain(Duration::ZERO, ready(())).await;
    assert_eq!(running.answer().await.failed, Some(EngineError::Draining));
}

#[tokio::test]
async fn the_engine_ends_when_its_last_handle_is_dropped() {
    let (engine, mut updates) = start(one_slot());
    drop(engine);
    let ended = async { while updates.recv().await.is_some() {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("the thread drops its sender");
}

fn refusal(config: EngineConfig) -> StartError {
    let (sender, _updates) = mpsc::unbounded_channel();
    Engine::start(config, |_| true, sender).map(|_| ()).expect_err("the engine cannot start")
}

#[test]
fn a_failed_start_names_the_file_and_the_reason() {
    let missing = refusal(EngineConfig { model: "/no/such.gguf".into(), ..EngineConfig::default() });
    let StartError::Model { reason, .. } = &missing else { panic!("{missing}") };
    assert!(missing.to_string().contains("/no/such.gguf") && reason.contains("No such file"), "{missing}");
    let folder = tempfile::tempdir().unwrap();
    let garbage = folder.path().join("garbage.gguf");
    std::fs::write(&garbage, b"this is no model").unwrap();
    let refused = refusal(EngineConfig { model: garbage, ..EngineConfig::default() });
    assert!(matches!(refused, StartError::Model { .. }), "{refused}");
    let off = EngineConfig { cache_type_v: CacheType::Q8_0, flash_attn: Switch::Off, ..one_slot() };
    assert!(matches!(refusal(off), StartError::Config { .. }));
}

#[test]
fn loading_shows_progress_and_can_be_stopped() {
    let calls = Arc::new(AtomicU32::new(0));
    let progress = {
        let calls = Arc::clone(&calls);
        move |share: f32| {
            assert!((0.0..=1.0).contains(&share));
            calls.fetch_add(1, Ordering::Relaxed);
            false
        }
    };
    let (sender, _updates) = mpsc::unbounded_channel();
    let stopped = Engine::start(one_slot(), progress, sender).err();
    assert!(matches!(stopped, Some(StartError::Model { .. })), "{stopped:?}");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn a_context_s_memory_depends_on_its_size_its_types_and_the_slots() {
    let needed = |change: fn(&mut EngineConfig)| {
        let mut config = EngineConfig { context_tokens_total: 1 << 20, ..config(Preset::Tiny) };
        change(&mut config);
        match plan_memory(&config, 1) {
            Err(StartError::Memory { needed: Bytes(needed), .. }) => needed,
            other => panic!("one byte is too little: {other:?}"),
        }
    };
    let base = needed(|_| {});
    let quantized = needed(|config| (config.cache_type_k, config.flash_attn) = (CacheType::Q8_0, Switch::On));
    assert!(needed(|config| config.cache_type_k = CacheType::F32) > base && quantized < base);
    let doubled = needed(|config| config.context_tokens_total *= 2);
    assert!((base * 3 / 2..=base * 2).contains(&doubled), "{doubled} {base}");
    let stored = needed(|config| config.store.ram_bytes += 1 << 30);
    assert_eq!(stored, base + (1 << 30));
    let config = config(Preset::Tiny);
    let plan = plan_memory(&config, 1 << 40).expect("there is room").expect("llama.cpp reports the memory");
    assert_eq!((plan.fitted_cells, plan.memory.available), (None, 1 << 40));
    assert!(plan.memory.context > 0 && plan.memory.compute > 0);
}

#[test]
fn without_a_setting_the_context_is_as_large_as_memory_allows() {
    let fit = Some(Fit { spare_bytes: 1 << 20, slot_tokens_min: 256 });
    let config = EngineConfig { context_tokens_total: 0, fit, ..config(Preset::Tiny) };
    let all = plan_memory(&config, 1 << 40).expect("there is room").expect("llama.cpp reports the memory").memory;
    let needed = all.context + all.compute + all.copied + all.stored;
    let available = needed + all.mapped + (1 << 20) - all.context / 2;
    let plan = plan_memory(&config, available).expect("a smaller one fits").expect("a plan");
    let cells = plan.fitted_cells.expect("the context is smaller");
    assert!(plan.memory.context < all.context && plan.memory.context >= all.context / 3, "{plan:?} {all:?}");
    let given = EngineConfig { context_tokens_total: 1 << 20, ..config.clone() };
    assert!(matches!(plan_memory(&given, available), Err(StartError::Memory { .. })), "a given size is kept");
    // Without a setting, the context has the planned size.
    let engine = EngineConfig { context_tokens_total: cells, ..config };
    assert_eq!(engine.cells_wanted(1), cells);
}
