//! LoRA adapters: they change responses, and state that was computed with one is never reused with another.
//!
//! Not here: random traffic with adapters (`property`).

use warmpath_bench::model::Preset;
use warmpath_worker::engine::{AdapterFile, Engine, EngineConfig, StartError, Switch};

use super::images::{asked, image, prompt, prompts, seeing, user};
use super::support::{Ask, adapter, applied, ask, config, start, stop, tokens, until};

fn with_adapters() -> EngineConfig {
    let adapters = [11, 12].map(|seed| adapter(Preset::Tiny, seed)).to_vec();
    EngineConfig { n_slots: 3, context_tokens_total: 3 * 1024, adapters, ..config(Preset::Tiny) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_adapter_answers_differently_and_reuses_only_its_own_state() {
    let (engine, _updates) = start(with_adapters());
    let prompt = tokens(1, 300);
    let mut answers = Vec::new();
    for adapter in [None, applied(0), applied(1)] {
        let mut ask = ask(&prompt, 8);
        ask.adapter = adapter;
        let first = ask.answer(&engine).await;
        assert_eq!(first.cached_tokens(), 0, "{adapter:?}: state of another adapter was reused");
        let again = ask.answer(&engine).await;
        assert!(again.cached_tokens() > 200, "{adapter:?}: its own state was not reused");
        assert_eq!(again.tokens, first.tokens);
        answers.push(first.tokens);
    }
    assert!(answers[0] != answers[1] && answers[1] != answers[2] && answers[0] != answers[2], "{answers:?}");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn streams_with_different_adapters_run_side_by_side() {
    let (engine, _updates) = start(with_adapters());
    let asks = [None, applied(0), applied(1)].map(|adapter| {
        let mut ask = ask(&tokens(2, 100), 200);
        ask.adapter = adapter;
        ask
    });
    let mut streams: Vec<_> = asks.iter().map(|ask| ask.submit(&engine).unwrap()).collect();
    // The adapters take turns: when the first stream is half through, so are the others, except for the first steps.
    while streams[0].so_far().tokens.len() < 100 {
        assert!(streams[0].next().await);
    }
    let mut together = Vec::new();
    for stream in streams {
        together.push(stream.answer().await.tokens);
    }
    assert!(together.iter().all(|tokens| tokens.len() == 200));
    for (ask, together) in asks.iter().zip(&together) {
        let mut alone = ask.clone();
        alone.cache_prompt = false;
        assert_eq!(&alone.answer(&engine).await.tokens, together, "{:?}", ask.adapter);
    }
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_prompt_beside_a_stream_does_not_wait_for_a_long_prompt_with_another_adapter() {
    for kv_unified in [Switch::Off, Switch::On] {
        let sizes = EngineConfig { context_tokens_total: 3 * 4096, kv_unified, ..with_adapters() };
        let (engine, _updates) = start(EngineConfig { batch_tokens: 4, ubatch_tokens: 4, ..sizes });
        let with = |adapter, seed, n| Ask { adapter: applied(adapter), ..ask(&tokens(seed, n), 1) };
        let mut stream = Ask { generation: ask(&[1], 4000).generation, ..with(0, 1, 20) }.submit(&engine).unwrap();
        stream.tokens(1).await;
        let reader = tokio::spawn(stream.answer());
        let mut long = with(1, 2, 4000).submit(&engine).unwrap();
        until("the long prompt is being computed", || engine.counters().prefill_tokens > 60).await;
        let short = with(0, 3, 40);
        tokio::select! {
            answer = short.answer(&engine) => assert_eq!(answer.tokens.len(), 1),
            () = long.tokens(1) => panic!("{kv_unified:?}: the prompt waits for the long one"),
        }
        assert!(kv_unified == Switch::On || engine.counters().passed_tokens_max <= 4, "{:?}", engine.counters());
        drop(long);
        reader.abort();
        stop(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn images_take_no_turn_of_a_prompt() {
    for (kv_unified, of_prompt) in [(Switch::Off, 0), (Switch::Off, 1), (Switch::On, 0), (Switch::On, 1)] {
        let adapters = [11, 12].map(|seed| adapter(Preset::Tiny, seed)).to_vec();
        let sizes = EngineConfig { n_slots: 3, context_tokens_total: 3 * 4096, kv_unified, ..seeing() };
        let (engine, _updates) = start(EngineConfig { batch_tokens: 4, ubatch_tokens: 4, adapters, ..sizes });
        let with = |adapter, n, max_tokens| Ask { adapter: applied(adapter), ..ask(&tokens(1, n), max_tokens) };
        let stream = with(0, 20, 3000).submit(&engine).unwrap();
        let reader = tokio::spawn(stream.answer());
        let many = [user(&(0..20).map(image).collect::<Vec<_>>())];
        let mut images = asked(&prompt(&prompts(&engine), &many)).submit(&engine).unwrap();
        until("the images are computed", || engine.counters().encoded_images > 2).await;
        let other = with(of_prompt, 40, 1);
        tokio::select! {
            answer = other.answer(&engine) => assert_eq!(answer.tokens.len(), 1),
            () = images.tokens(1) => panic!("{kv_unified:?}: the prompt with adapter {of_prompt} waits for all images"),
        }
        drop(images);
        reader.abort();
        stop(engine).await;
    }
}

#[test]
fn a_file_that_is_not_an_adapter_of_the_model_is_refused_by_its_name() {
    let refused = |file: AdapterFile| {
        let config = EngineConfig { adapters: vec![file], ..config(Preset::Tiny) };
        let (sender, _updates) = tokio::sync::mpsc::unbounded_channel();
        match Engine::start(config, |_| true, sender).map(drop) {
            Err(error @ StartError::Adapter { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let file = |path: std::path::PathBuf| AdapterFile { path, ..adapter(Preset::Tiny, 13) };
    assert!(refused(file("/no/such.gguf".into())).contains("/no/such.gguf"));
    assert!(refused(file(config(Preset::Tiny).model)).contains("it is not a LoRA adapter"));
    assert!(refused(adapter(Preset::TinySwa, 13)).contains("llama.cpp refuses it"));
}
