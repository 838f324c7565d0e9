//! Speculative decoding: with correct, wrong or partly correct drafts, every response is the same as without drafts,
//! and so are all later ones.
//!
//! Not here: drafts of a draft model (`draft_models`), random traffic with drafts (`property`), real weights
//! (`real_weights`), which drafts are proposed and their costs (the core's tests).

use std::collections::BTreeMap;

use warmpath_bench::model::Preset;
use warmpath_common::ids::Token;
use warmpath_constraint::schema::normalize;
use warmpath_worker::engine::{
    AtContextEnd, CostSource, DraftCosts, DraftOptions, EngineConfig, EngineHandle, ProbabilityOptions,
    ProbabilitySource, Sampling, ShiftConfig, ShiftOptions, SpeculationConfig, Switch,
};
use warmpath_worker_core::drafting::ForcedDrafts;
use warmpath_worker_output::reasoning_budget::{Begun, ReasoningBound};
use warmpath_worker_output::tool_call_detector::ReasoningMarks;

use super::drafts::{forced, half_right, know, right, wrong};
use super::support::{Answer, Ask, ask, config, start, stop, tokens, until};

/// Maximum difference of log probabilities, because kernels for several tokens round differently.
const ROUNDING: f32 = 0.05;

/// Drafts, and how many of their tokens are correct.
const DRAFTS: [(ForcedDrafts, Right); 3] = [(right, Right::Most), (wrong, Right::None), (half_right, Right::Some)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    Most,
    Some,
    None,
}

pub fn slots(n_slots: u16) -> EngineConfig {
    // Measured costs of a busy machine could let one of two engines reuse other state than the other.
    let costs = CostSource::Assumed;
    EngineConfig { n_slots, context_tokens_total: 512 * u32::from(n_slots), costs, ..config(Preset::Tiny) }
}

fn with(config: &EngineConfig, speculation: Option<SpeculationConfig>) -> EngineConfig {
    EngineConfig { speculation, ..config.clone() }
}

/// Returns the responses of an engine, one after the other, and each slot's number of tokens at the end.
pub async fn run(config: &EngineConfig, asks: &[Ask]) -> (Vec<Answer>, Vec<u32>, EngineHandle) {
    let (engine, _updates) = start(config.clone());
    let mut answers = Vec::new();
    for ask in asks {
        answers.push(ask.answer(&engine).await);
    }
    until("the engine is idle", || engine.counters().busy_slots == 0).await;
    let held = engine.slots().iter().map(|slot| slot.held_tokens).collect();
    (answers, held, engine)
}

#[track_caller]
pub fn assert_same(found: &Answer, expected: &Answer, ask: &Ask) {
    assert_eq!(found.tokens, expected.tokens, "{ask:?}");
    assert_eq!(found.text, expected.text, "{ask:?}");
    assert_eq!(found.failed, expected.failed, "{ask:?}");
    assert_eq!(found.cached_tokens(), expected.cached_tokens(), "{ask:?}");
    let end = |answer: &Answer| {
        let finished = answer.finished.clone()?;
        Some((finished.reason, finished.stopping_word, finished.truncated, finished.completion_tokens))
    };
    assert_eq!(end(found), end(expected), "{ask:?}");
    assert_eq!(found.probabilities.len(), expected.probabilities.len(), "{ask:?}");
    for (found, expected) in found.probabilities.iter().zip(&expected.probabilities) {
        assert_eq!(found.chosen.token, expected.chosen.token);
        let differs = (found.chosen.logprob - expected.chosen.logprob).abs() > ROUNDING;
        assert!(!differs || found.chosen.logprob == expected.chosen.logprob, "{found:?} {expected:?}");
        let likely: BTreeMap<Token, f32> = expected.top.iter().map(|top| (top.token, top.logprob)).collect();
        for top in found.top.iter().take(1) {
            assert!(likely.contains_key(&top.token), "{found:?} {expected:?}");
        }
    }
}

/// Compares the responses of an engine with each kind of drafts with those without drafts.
async fn check(config: &EngineConfig, asks: &[Ask]) {
    let (expected, held, engine) = run(&with(config, None), asks).await;
    assert_eq!(engine.counters().drafts, 0);
    stop(engine).await;
    for (ask, answer) in asks.iter().zip(&expected) {
        know(&ask.prompt, &answer.tokens);
    }
    for (drafts, are_right) in DRAFTS {
        let (answers, held_then, engine) = run(&with(config, forced(drafts)), asks).await;
        for (idx, ask) in asks.iter().enumerate() {
            assert_same(&answers[idx], &expected[idx], ask);
        }
        assert_eq!(held_then, held, "the slots have the same tokens as without drafts");
        let counters = engine.counters();
        let (n, n_accepted) = (counters.drafted_tokens, counters.accepted_tokens);
        match are_right {
            Right::Most => assert!(n_accepted > n / 2, "{counters:?}"),
            Right::Some => assert!(n_accepted > 0 && n_accepted < n, "{counters:?}"),
            Right::None => assert!(n > 0 && n_accepted < n / 10, "{counters:?}"),
        }
        assert_eq!((counters.decode_failures, counters.failed_starts), (0, 0));
        stop(engine).await;
    }
}

/// Returns a request for each way to choose tokens.
fn every_way(engine: &EngineHandle) -> Vec<Ask> {
    let prompt = tokens(1, 60);
    let plain = ask(&prompt, 40);
    let random = Sampling { temperature: 8.0, min_p: 0.0, seed: Some(7), ..Sampling::default() };
    let sampled = |change: fn(&mut Sampling)| {
        let mut asked = plain.clone();
        asked.generation.sampling = random.clone();
        change(&mut asked.generation.sampling);
        asked
    };
    let probabilities = |source| {
        let mut asked = sampled(|_| {});
        asked.generation.probabilities = Some(ProbabilityOptions { n_top: 3, source, of_prompt: false });
        asked
    };
    let mut asks = vec![
        plain.clone(),
        sampled(|_| {}),
        sampled(|sampling| {
            sampling.repeat_penalty = 1.3;
            sampling.presence_penalty = 0.5;
            sampling.frequency_penalty = 0.3;
        }),
        sampled(|sampling| sampling.dry_multiplier = 0.8),
        sampled(|sampling| sampling.mirostat = 1),
        sampled(|sampling| sampling.mirostat = 2),
        sampled(|sampling| sampling.logit_bias = (0..64).map(|token| (token, 4.0)).collect()),
        sampled(|sampling| {
            sampling.xtc_probability = 0.5;
            sampling.xtc_threshold = 0.01;
        }),
        probabilities(ProbabilitySource::Model),
        probabilities(ProbabilitySource::Sampler),
    ];
    for (grammar, temperature) in [(r#"root ::= ("ab" | "cd" | " ")* "!""#, 0.0), (r#"root ::= [a-z ]+ ".""#, 50.0)] {
        let mut asked = plain.clone();
        asked.generation.ignore_eos = false;
        asked.generation.sampling = Sampling { temperature, grammar: Some(grammar.to_owned()), ..random.clone() };
        asks.push(asked);
    }
    let schema = serde_json::json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 20},
        "b": {"type": "array", "items": {"type": "integer"}, "maxItems": 4}}, "required": ["a", "b"]});
    let mut asked = plain.clone();
    asked.generation.ignore_eos = false;
    asked.generation.schema = Some(engine.compiler().unwrap().compile(&normalize(&schema).unwrap()).unwrap());
    asks.push(asked);
    for max_tokens in [1, 2, 3, 9, 10, 11, 12] {
        asks.push(ask(&prompt, max_tokens));
    }
    for (tokens_max, begun) in [(0, Begun::Reasoning), (7, Begun::Reasoning), (7, Begun::Nothing)] {
        let mut asked = sampled(|sampling| sampling.repeat_penalty = 1.3);
        let marks = ReasoningMarks { start: "a".to_owned(), ends: vec!["\u{1}never".to_owned()] };
        let closing = tokens(9, 5).into();
        asked.generation.bound = Some(ReasoningBound { tokens_max, marks, opening: String::new(), closing, begun });
        asked.generation.probabilities = plain.clone().listing(2).generation.probabilities;
        asks.push(asked);
    }
    asks
}

/// Returns requests whose tokens are chosen in every way and that end in every way, and the first one's whole answer.
pub async fn every_way_and_end() -> (Vec<Ask>, Answer) {
    let (engine, _updates) = start(slots(1));
    let mut asks = every_way(&engine);
    let whole = asks[0].answer(&engine).await;
    stop(engine).await;
    for from in [0, 5, 17] {
        let mut stopped = asks[0].clone();
        stopped.generation.stop = vec![whole.text.chars().skip(from).take(3).collect()];
        asks.push(stopped);
    }
    let mut ending = ask(&tokens(1, 20), 400);
    ending.generation.ignore_eos = false;
    asks.push(ending);
    (asks, whole)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_are_the_same_with_drafts_however_tokens_are_chosen() {
    let (asks, _) = every_way_and_end().await;
    // The request after each of them starts from its state.
    let asks: Vec<Ask> = asks.into_iter().flat_map(|asked| [asked, ask(&tokens(1, 80), 6)]).collect();
    check(&slots(1), &asks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_state_after_a_drafted_answer_is_that_of_its_tokens() {
    let prompt = tokens(2, 50);
    let (first, ..) = run(&slots(1), &[ask(&prompt, 30)]).await;
    let said = &first[0].tokens;
    let next: Vec<Ask> = [0, 10, 29, 30]
        .map(|n_kept| ask(&[&prompt[..], &said[..n_kept], &tokens(3, 5)].concat(), 8))
        .into_iter()
        .flat_map(|next| [ask(&prompt, 30), next])
        .collect();
    for kv_unified in [Switch::Off, Switch::On] {
        check(&EngineConfig { kv_unified, flash_attn: kv_unified, ..slots(2) }, &next).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn drafts_stop_at_the_end_of_the_context() {
    let mut unlimited = ask(&tokens(4, 480), 0);
    unlimited.generation.max_tokens = None;
    let asks = [unlimited, ask(&tokens(4, 511), 9), ask(&tokens(4, 505), 300), ask(&tokens(5, 30), 6)];
    check(&slots(1), &asks).await;
    let shifting = EngineConfig {
        shifts: ShiftConfig { at_context_end: AtContextEnd::Shift, ..ShiftConfig::default() },
        ..slots(1)
    };
    let keeping = Ask { shifts: ShiftOptions { n_keep: 40, ..ShiftOptions::default() }, ..ask(&tokens(6, 470), 200) };
    check(&shifting, &[ask(&tokens(5, 490), 300), keeping, ask(&tokens(5, 500), 5)]).await;
}

/// Lets clients disconnect after some tokens; each next request must continue `expected`, the answer without drafts.
pub async fn check_disconnects(config: EngineConfig, prompt: &[Token], expected: &[Token]) {
    let (engine, _updates) = start(config);
    for n in [1, 4, 30] {
        let mut leaving = ask(prompt, 300).submit(&engine).unwrap();
        leaving.tokens(n).await;
        drop(leaving);
        let next = ask(&[prompt, &expected[..20]].concat(), 20).answer(&engine).await;
        assert_eq!(next.tokens, expected[20..40]);
    }
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_client_that_disconnects_within_a_draft_leaves_correct_state() {
    let prompt = tokens(8, 60);
    let (expected, _, plain) = run(&slots(1), &[ask(&prompt, 300)]).await;
    stop(plain).await;
    know(&prompt, &expected[0].tokens);
    for (drafts, _) in DRAFTS {
        check_disconnects(with(&slots(1), forced(drafts)), &prompt, &expected[0].tokens).await;
    }
}

/// Models whose recurrent state llama.cpp can roll back.
const RECURRENT: [Preset; 3] = [Preset::TinyHybrid, Preset::TinyQwen35, Preset::TinyNemotronH];

#[cfg_attr(
    any(feature = "cuda", feature = "metal", feature = "rocm", feature = "vulkan"),
    ignore = "random weights tie so closely that a GPU's rounding decides"
)]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_are_the_same_with_drafts_where_recurrent_state_is_rolled_back() {
    for preset in RECURRENT {
        let one_slot = EngineConfig { model: config(preset).model, ..slots(1) };
        let (engine, _updates) = start(one_slot.clone());
        let asks: Vec<Ask> = every_way(&engine).into_iter().flat_map(|asked| [asked, ask(&tokens(1, 80), 6)]).collect();
        stop(engine).await;
        check(&one_slot, &asks).await;
        let prompt = tokens(8, 60);
        let (expected, _, plain) = run(&one_slot, &[ask(&prompt, 300)]).await;
        stop(plain).await;
        know(&prompt, &expected[0].tokens);
        for (drafts, _) in DRAFTS {
            check_disconnects(with(&one_slot, forced(drafts)), &prompt, &expected[0].tokens).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn repeated_text_is_drafted_where_recurrent_state_is_rolled_back() {
    for preset in RECURRENT {
        let costs = DraftCosts::LikeGpu;
        let config = EngineConfig { model: config(preset).model, ..slots(2) };
        let speculation = SpeculationConfig { costs, ..SpeculationConfig::default() };
        let (engine, _updates) = start(with(&config, Some(speculation)));
        let prompt = tokens(1, 60);
        let (answer, ..) = drafted(&engine, &ask(&prompt, 60)).await;
        let before = engine.counters();
        let (again, _, n_accepted) = drafted(&engine, &ask(&prompt, 60)).await;
        assert_eq!(again, answer);
        let n_passes = 60 - n_accepted;
        assert!(n_passes * 3 <= 60 * 2, "{n_accepted} of {before:?}");
        stop(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nothing_is_drafted_if_memory_cannot_be_rewound() {
    let config = EngineConfig { n_slots: 1, context_tokens_total: 512, ..config(Preset::TinyRecurrent) };
    let asks = [ask(&tokens(1, 60), 20), ask(&tokens(1, 70), 20)];
    let (expected, _, plain) = run(&config, &asks).await;
    let (answers, _, engine) = run(&with(&config, forced(wrong)), &asks).await;
    assert_eq!(engine.counters().drafts, 0);
    for (found, expected) in answers.iter().zip(&expected) {
        assert_eq!(found.tokens, expected.tokens);
    }
    stop(plain).await;
    stop(engine).await;
}

fn auto() -> EngineConfig {
    with(&slots(2), Some(SpeculationConfig::default()))
}

/// Returns an answer, the drafted tokens of all answers so far, and those that were accepted.
async fn drafted(engine: &EngineHandle, ask: &Ask) -> (Vec<Token>, u64, u64) {
    let before = engine.counters();
    let answer = ask.answer(engine).await;
    let now = engine.counters();
    let of_answer = answer.finished().drafted;
    let counted = (now.drafted_tokens - before.drafted_tokens, now.accepted_tokens - before.accepted_tokens);
    assert_eq!((u64::from(of_answer.n), u64::from(of_answer.n_accepted)), counted);
    (answer.tokens, counted.0, counted.1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn drafts_come_only_from_answers_of_the_same_root() {
    let (engine, _updates) = start(auto());
    let prompt = tokens(1, 60);
    let (answer, n, _) = drafted(&engine, &ask(&prompt, 60)).await;
    assert_eq!(n, 0, "no text repeats");
    let other_root = Ask { salt: 1, ..ask(&prompt, 60) };
    assert_eq!(drafted(&engine, &other_root).await, (answer.clone(), 0, 0), "a draft came from another root");
    let (again, n, n_accepted) = drafted(&engine, &ask(&prompt, 60)).await;
    assert_eq!(again, answer);
    assert!(n >= 50 && n_accepted == n, "{n_accepted} of {n}");
    let leaves_nothing = Ask { cache_prompt: false, ..ask(&tokens(2, 60), 60) };
    drafted(&engine, &leaves_nothing).await;
    assert_eq!(drafted(&engine, &ask(&tokens(2, 60), 60)).await.1, 0, "a draft came from a response without the cache");
    assert_eq!(drafted(&engine, &leaves_nothing).await.1, 0, "a response without the cache was drafted");
    engine.clear_cache().await.unwrap();
    assert_eq!(drafted(&engine, &ask(&prompt, 60)).await, (answer, 0, 0), "the cache was cleared");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_client_s_prediction_is_drafted_up_to_its_own_limit() {
    let (engine, _updates) = start(auto());
    let prompt = tokens(9, 60);
    let (answer, ..) = drafted(&engine, &Ask { salt: 9, ..ask(&prompt, 60) }).await;
    let mut predicted = answer.clone();
    predicted[30] = (predicted[30] + 1) % 256;
    let wish = |n_max| {
        let mut asked = Ask { salt: 8, cache_prompt: false, ..ask(&prompt, 60) };
        asked.generation.drafts = DraftOptions { predicted: predicted.clone(), n_max, n_min: None };
        asked
    };
    let (found, n, n_accepted) = drafted(&engine, &wish(None)).await;
    assert_eq!(found, answer);
    assert!(n_accepted >= 40 && n > n_accepted, "{n_accepted} of {n}");
    assert_eq!(drafted(&engine, &wish(Some(0))).await, (answer, 0, 0));
    let before = engine.counters();
    drafted(&engine, &wish(Some(8))).await;
    let now = engine.counters();
    assert!(now.drafted_tokens - before.drafted_tokens <= 8 * (now.drafts - before.drafts));
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nothing_is_drafted_beside_a_prompt() {
    let (engine, _updates) = start(EngineConfig { ubatch_tokens: 16, batch_tokens: 16, ..auto() });
    let prompt = tokens(1, 60);
    let (answer, ..) = drafted(&engine, &ask(&prompt, 100)).await;
    let mut again = ask(&prompt, 100).submit(&engine).unwrap();
    again.tokens(1).await;
    let beside = ask(&tokens(5, 480), 1).submit(&engine).unwrap();
    let (again, beside) = tokio::join!(again.answer(), beside.answer());
    assert_eq!(again.tokens, answer);
    assert_eq!(beside.tokens.len(), 1);
    stop(engine).await;
}
