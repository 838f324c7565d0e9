//! Draft models: whatever a draft model proposes, every response is the same as without it.
//!
//! If a model drafts for itself, every draft is accepted as long as the draft model's state is correct, so wrong state
//! is visible in the counters. Drafts of a model with another seed are always rejected.
//!
//! Not here: random traffic (`property`), real weights (`real_weights`), whether drafting is faster (the core's tests).

use std::path::{Path, PathBuf};

use futures::future::join_all;
use warmpath_bench::model::{Preset, write_model};
use warmpath_common::ids::Token;
use warmpath_gguf::{Value, Writer};
use warmpath_worker::engine::{
    AtContextEnd, DraftCosts, DraftModelConfig, Engine, EngineConfig, EngineHandle, FinishReason, ShiftConfig,
    ShiftOptions, SpeculationConfig, StartError, Switch,
};

use super::speculation::{assert_same, check_disconnects, every_way_and_end, run, slots};
use super::support::{Answer, Ask, ask, config, model, start, stop, tokens};

/// Returns a configuration with this draft model, on a machine where drafting is faster.
pub fn drafting(config: &EngineConfig, draft: PathBuf) -> EngineConfig {
    EngineConfig {
        speculation: Some(SpeculationConfig { costs: DraftCosts::LikeGpu, ..SpeculationConfig::default() }),
        draft_model: Some(DraftModelConfig { path: draft, threads: 1, ..DraftModelConfig::default() }),
        ..config.clone()
    }
}

fn agreeing(config: &EngineConfig) -> EngineConfig {
    drafting(config, config.model.clone())
}

fn disagreeing(config: &EngineConfig) -> EngineConfig {
    drafting(config, model(Preset::Tiny, 2))
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.gguf", std::process::id()))
}

/// Sends several requests at the same time.
async fn together(engine: &EngineHandle, asks: &[Ask]) -> Vec<Answer> {
    join_all(asks.iter().map(|ask| ask.answer(engine))).await
}

/// Compares the responses of engines with an agreeing and with a disagreeing draft model with those without one.
async fn check(config: &EngineConfig, asks: &[Ask]) {
    let (expected, held, plain) = run(config, asks).await;
    stop(plain).await;
    for (drafting, agrees) in [(agreeing(config), true), (disagreeing(config), false)] {
        let (answers, held_then, engine) = run(&drafting, asks).await;
        for ((found, expected), ask) in answers.iter().zip(&expected).zip(asks) {
            assert_same(found, expected, ask);
        }
        assert_eq!(held_then, held, "the slots have the same tokens as without drafts");
        let counters = engine.counters();
        assert_eq!((counters.decode_failures, counters.failed_starts), (0, 0));
        assert!(counters.made_tokens > 0, "{counters:?}");
        assert!(agrees || counters.accepted_tokens < counters.drafted_tokens, "{counters:?}");
        stop(engine).await;
    }
}

/// Returns requests with their responses, in groups that run at the same time: conversations that fill slots, continue
/// in them, are cut back and replace each other.
async fn conversations(config: &EngineConfig) -> Vec<Vec<(Ask, Answer)>> {
    let (plain, _updates) = start(config.clone());
    let mut groups: Vec<Vec<(Ask, Answer)>> = Vec::new();
    for seed in 1..=8 {
        let mut prompts = vec![tokens(seed, 40 + 30 * seed as usize), tokens(seed + 50, 300)];
        let before = groups.last().and_then(|group| group.first());
        if let Some((before, answer)) = before.filter(|(before, _)| before.prompt.len() < 400) {
            prompts[0] = [&before.prompt[..], &answer.tokens, &tokens(seed, 9)].concat();
            prompts.push([&before.prompt[..before.prompt.len() / 2], &tokens(seed + 90, 20)].concat());
        }
        let mut group = Vec::new();
        for prompt in prompts {
            let mut asked = ask(&prompt, 30);
            asked.generation.ignore_eos = false;
            let answer = asked.answer(&plain).await;
            // Drafted tokens after the end of a response are not accepted.
            if answer.finished().reason == FinishReason::Length {
                group.push((asked, answer));
            }
        }
        groups.push(group);
    }
    stop(plain).await;
    groups
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn drafts_of_an_agreeing_model_are_accepted_whatever_its_slots_had_before() {
    for (n_slots, kv_unified) in [(2, Switch::Off), (3, Switch::On)] {
        let config = EngineConfig { kv_unified, flash_attn: kv_unified, ..slots(n_slots) };
        let groups = conversations(&config).await;
        let (engine, _updates) = start(agreeing(&config));
        let mut n_tokens = 0;
        for group in &groups {
            let asks: Vec<Ask> = group.iter().map(|(ask, _)| ask.clone()).collect();
            for ((asked, expected), found) in group.iter().zip(together(&engine, &asks).await) {
                assert_eq!(found.tokens, expected.tokens, "{asked:?}");
                n_tokens += found.tokens.len() as u64;
            }
        }
        let counters = engine.counters();
        assert!(n_tokens > 200 && counters.drafted_tokens > n_tokens / 2, "{n_tokens} {counters:?}");
        assert_eq!(counters.accepted_tokens, counters.drafted_tokens, "{counters:?}");
        assert!(counters.made_tokens > n_tokens / 3, "{counters:?}");
        stop(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_are_the_same_with_a_draft_model_however_tokens_are_chosen() {
    let (mut asks, whole) = every_way_and_end().await;
    // A stream that another worker began continues, and so does a conversation of another tenant.
    asks.push(Ask { past: whole.sampled[..10].to_vec(), ..asks[0].clone() });
    asks.push(Ask { salt: 1, ..asks[0].clone() });
    asks.push(Ask { cache_prompt: false, ..asks[0].clone() });
    let asks: Vec<Ask> = asks.into_iter().flat_map(|asked| [asked, ask(&tokens(1, 80), 6)]).collect();
    check(&slots(1), &asks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn contexts_end_and_shift_the_same_as_without_a_draft_model() {
    let mut unlimited = ask(&tokens(4, 480), 0);
    unlimited.generation.max_tokens = None;
    check(&slots(1), &[unlimited, ask(&tokens(4, 511), 9), ask(&tokens(4, 505), 300), ask(&tokens(5, 30), 40)]).await;
    let at_context_end = AtContextEnd::Shift;
    let shifting = EngineConfig { shifts: ShiftConfig { at_context_end, ..ShiftConfig::default() }, ..slots(1) };
    let keeping = Ask { shifts: ShiftOptions { n_keep: 40, ..ShiftOptions::default() }, ..ask(&tokens(6, 470), 200) };
    let (expected, _, plain) = run(&shifting, &[ask(&tokens(5, 490), 300), keeping.clone()]).await;
    stop(plain).await;
    let (found, _, engine) = run(&agreeing(&shifting), &[ask(&tokens(5, 490), 300), keeping]).await;
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.tokens, expected.tokens);
    }
    let counters = engine.counters();
    assert!(counters.context_shifts > 1 && counters.made_tokens > 0, "{counters:?}");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_client_that_disconnects_within_a_draft_leaves_correct_state() {
    let prompt = tokens(8, 60);
    let (expected, _, plain) = run(&slots(1), &[ask(&prompt, 300)]).await;
    stop(plain).await;
    for config in [agreeing(&slots(1)), disagreeing(&slots(1))] {
        check_disconnects(config, &prompt, &expected[0].tokens).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_draft_model_drafts_within_its_own_context() {
    let mut short = std::fs::read(model(Preset::Tiny, 1)).unwrap();
    let key = b"llama.context_length";
    // The key is followed by the value's type and the value.
    let value = short.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
    short[value..value + 4].copy_from_slice(&300_u32.to_le_bytes());
    let draft = file("short-context");
    std::fs::write(&draft, short).unwrap();
    let asks = [ask(&tokens(3, 260), 120), ask(&tokens(4, 310), 40)];
    let (expected, _, plain) = run(&slots(1), &asks).await;
    let (found, _, engine) = run(&drafting(&slots(1), draft), &asks).await;
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.tokens, expected.tokens);
    }
    let made = engine.counters().made_tokens;
    assert!(made > 10 && found[1].finished().drafted.n == 0, "{made}");
    stop(plain).await;
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_draft_model_that_is_too_unsure_drafts_nothing() {
    let mut config = agreeing(&slots(1));
    // The most likely of these tokens has a probability of about one half.
    config.speculation.as_mut().unwrap().p_min = 0.9;
    let (_, _, engine) = run(&config, &[ask(&tokens(3, 60), 40)]).await;
    let counters = engine.counters();
    assert!(counters.draft_model_us > 0 && counters.made_tokens == 0, "{counters:?}");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_draft_model_that_cannot_draft_is_refused_with_the_reason() {
    let refused = |draft: PathBuf| {
        let (updates, _) = tokio::sync::mpsc::unbounded_channel();
        match Engine::start(drafting(&slots(1), draft), |_| true, updates) {
            Err(error) => error,
            Ok(_) => panic!("it starts"),
        }
    };
    assert!(matches!(refused("/nowhere.gguf".into()), StartError::Model { .. }));
    for (draft, says) in [
        (model(Preset::TinyRecurrent, 1), "its memory cannot be rewound"),
        (model(Preset::TinyEmbed, 1), "the token with which its texts begin differs"),
        (with_other_tokens(), "its token 301 differs"),
    ] {
        let error = refused(draft).to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// Returns a model whose vocabulary has two tokens in each other's place.
fn with_other_tokens() -> PathBuf {
    with_changed_tokens("other-tokens", |tokens| tokens.swap(301, 302))
}

/// Returns a model with changed tokens. Types of tokens are cut to their number.
fn with_changed_tokens(name: &str, change: impl FnOnce(&mut Vec<String>)) -> PathBuf {
    let header = warmpath_gguf::check(&model(Preset::Tiny, 1)).unwrap();
    let (texts, kinds) = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type");
    let tokens = header.texts(texts).unwrap();
    let mut tokens: Vec<String> = tokens.iter().map(|token| String::from_utf8(token.clone()).unwrap()).collect();
    change(&mut tokens);
    let mut writer = Writer::new();
    writer.set("general.architecture", Value::Text("llama")).unwrap();
    writer.copy_keys(&header, |copied| copied.starts_with("tokenizer.") && ![texts, kinds].contains(&copied));
    writer.set(texts, Value::Texts(&tokens)).unwrap();
    writer.set(kinds, Value::I32s(&header.numbers(kinds).unwrap()[..tokens.len()])).unwrap();
    let vocabulary = file(&format!("{name}-vocabulary"));
    writer.begin(&vocabulary).unwrap().finish().unwrap();
    let out = file(name);
    write_model(Preset::Tiny, 1, Some(&vocabulary), &out).unwrap();
    out
}

/// The draft model lacks the last token of the vocabulary, so llama.cpp refuses every batch of it with that token.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_draft_model_that_fails_for_one_sequence_goes_on_for_the_others() {
    let n_tokens = warmpath_gguf::check(&model(Preset::Tiny, 1)).unwrap().list_len("tokenizer.ggml.tokens").unwrap();
    let draft = with_changed_tokens("fewer-tokens", |tokens| tokens.truncate(n_tokens - 1));
    // Short prompts, which the draft model computes in one pass, and one that takes it several.
    let rounds: Vec<[Ask; 2]> = [(1, 30, 60), (2, 120, 60), (3, 20, 90)]
        .map(|(seed, n_lacking, n_other)| {
            let mut lacking = tokens(seed, n_lacking);
            lacking[n_lacking - 9] = n_tokens as Token - 1;
            [ask(&lacking, 60), ask(&tokens(seed + 50, n_other), 60)]
        })
        .to_vec();
    let small_passes = EngineConfig { ubatch_tokens: 64, batch_tokens: 64, ..slots(2) };
    let (expected, _, plain) = run(&small_passes, rounds.as_flattened()).await;
    stop(plain).await;
    let (engine, _updates) = start(drafting(&small_passes, draft));
    for ((asks, expected), n_failures) in rounds.iter().zip(expected.chunks(2)).zip(1..) {
        let before = engine.counters();
        let found = together(&engine, asks).await;
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found.tokens, expected.tokens);
        }
        let counters = engine.counters();
        assert_eq!((counters.draft_model_failures, counters.decode_failures), (n_failures, 0), "{counters:?}");
        assert!(counters.made_tokens > before.made_tokens, "the other sequence has drafts: {counters:?}");
    }
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_draft_model_is_not_loaded_if_the_memory_cannot_be_rewound() {
    let recurrent = EngineConfig { n_slots: 1, context_tokens_total: 512, ..config(Preset::TinyRecurrent) };
    let (answers, _, engine) = run(&drafting(&recurrent, "/nowhere.gguf".into()), &[ask(&tokens(1, 60), 20)]).await;
    assert_eq!((answers[0].tokens.len(), engine.counters().drafts), (20, 0));
    stop(engine).await;
}
