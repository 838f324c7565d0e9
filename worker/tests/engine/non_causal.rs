//! Images whose tokens attend to each other in both directions, as of Gemma 3: responses are those of llama.cpp's own
//! evaluation, whatever is cached and whatever runs beside them.
//!
//! The model has random weights, since a digital one attends only backwards. Weights and KV cache are 32-bit floats, so
//! that rounding hides no wrong state. Not here: images with a causal mask (`images`).

use warmpath_bench::model::Preset;
use warmpath_bench::model::projector::{NON_CAUSAL_IMAGE_TOKENS, Reads};
use warmpath_worker::engine::{CacheType, EngineConfig, ProjectorConfig, SpeculationConfig, Switch};

use super::images::{
    N_ANSWER, answered_by_mtmd, asked, bitmap, check_refused, compare, image, projector, prompt, prompts, seeing, text,
    user,
};
use super::support::{Ask, ask, model, start, stop};
use super::tiers::store;

const PAIR: (Preset, Reads) = (Preset::TinyGemma3, Reads::NonCausal);

/// Makes an engine read images without a causal mask.
fn set_non_causal(config: &mut EngineConfig) {
    config.model = model(PAIR.0, 1);
    config.projector = config.projector.take().map(|set| ProjectorConfig { path: projector(PAIR.0, PAIR.1), ..set });
    (config.cache_type_k, config.cache_type_v) = (CacheType::F32, CacheType::F32);
    (config.flash_attn, config.kv_unified) = (Switch::Off, Switch::Off);
}

fn non_causal() -> EngineConfig {
    let mut config = seeing();
    set_non_causal(&mut config);
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_are_those_of_llama_cpp_s_own_evaluation_while_others_run() {
    let (engine, _updates) = start(EngineConfig { n_slots: 4, context_tokens_total: 4 * 2048, ..non_causal() });
    let maker = prompts(&engine);
    // Words that fill more than the sliding window of 128 tokens.
    let long = "some words ".repeat(70);
    let asks = [
        (vec![image(1), text("What is this?")], vec![1]),
        (vec![text(&long), image(2), text("What is it?")], vec![2]),
        (vec![text("Compare"), image(3), image(4), text(&long), image(3), text("?")], vec![3, 4, 3]),
    ];
    let mut stream = Ask { generation: ask(&[1], 400).generation, ..asked(&prompt(&maker, &[user(&[text("Go on")])])) }
        .submit(&engine)
        .unwrap();
    stream.tokens(1).await;
    let made: Vec<_> = asks.iter().map(|(parts, _)| prompt(&maker, &[user(parts)])).collect();
    assert!(made[1].runs[0].start > 128 && made[2].runs[2].start > 128);
    let answering: Vec<_> = made.iter().map(|prompt| asked(prompt).submit(&engine).unwrap()).collect();
    for ((prompt, (_, seeds)), answering) in made.iter().zip(&asks).zip(answering) {
        let answer = answering.answer().await;
        let (expected, n_tokens) =
            answered_by_mtmd(PAIR, &prompt.text, &|_| seeds.iter().map(|seed| bitmap(*seed)).collect());
        assert_eq!((answer.tokens, prompt.tokens.len()), (expected, n_tokens), "{}", prompt.text);
        assert!(prompt.runs.iter().all(|run| run.n_tokens as usize == NON_CAUSAL_IMAGE_TOKENS));
    }
    drop(stream);
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_whatever_is_cached() {
    // A micro-batch has room for exactly one image.
    let ubatch_tokens = u32::try_from(NON_CAUSAL_IMAGE_TOKENS).unwrap();
    for (seed, kv_unified) in [(11, Switch::Off), (12, Switch::On)] {
        let (ram, ..) = compare(seed, 24, |config| {
            set_non_causal(config);
            config.kv_unified = kv_unified;
            (config.batch_tokens, config.ubatch_tokens) = (40, ubatch_tokens);
            config.store = store(8 << 20, None);
            // Checkpoints are due within images.
            config.block_size_tokens = 24;
        })
        .await;
        assert!(ram > 0, "{kv_unified:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (_, disk, _) = compare(13, 24, |config| {
        set_non_causal(config);
        config.store = store(2 << 20, Some(&folder));
        config.speculation = Some(SpeculationConfig::default());
    })
    .await;
    assert!(disk > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_image_is_computed_in_one_step_between_the_tokens_of_a_stream() {
    let ubatch_tokens = u32::try_from(NON_CAUSAL_IMAGE_TOKENS).unwrap();
    let (engine, _updates) = start(EngineConfig { batch_tokens: 64, ubatch_tokens, ..non_causal() });
    let maker = prompts(&engine);
    let stream = Ask { generation: ask(&[1], 400).generation, ..asked(&prompt(&maker, &[user(&[text("Go on")])])) };
    let mut stream = stream.submit(&engine).unwrap();
    stream.tokens(1).await;
    for seed in 0..3 {
        let prompt = prompt(&maker, &[user(&[image(seed), image(seed + 10), text("and this?")])]);
        let answer = asked(&prompt).answer(&engine).await;
        assert_eq!(answer.tokens.len(), N_ANSWER as usize);
    }
    assert_eq!(engine.counters().passed_tokens_max, u64::from(ubatch_tokens));
    drop(stream);
    stop(engine).await;
}

#[test]
fn images_that_exceed_a_micro_batch_are_refused_with_the_size_that_they_need() {
    let ubatch_tokens = u32::try_from(NON_CAUSAL_IMAGE_TOKENS).unwrap() - 1;
    check_refused(EngineConfig { ubatch_tokens, ..non_causal() }, "set --ubatch-size 16 or more");
}
