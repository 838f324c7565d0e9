//! Responses that follow clients' grammars: llama.cpp's examples, every way to choose tokens, and hostile grammars
//! beside other requests.
//!
//! Not here: the meaning of a grammar, which a property of the core's tests checks.

use std::path::Path;
use std::time::Instant;

use warmpath_bench::model::Preset;
use warmpath_constraint::gbnf::{Grammar, GrammarMatcher, GrammarVocabulary};
use warmpath_worker::engine::{EngineConfig, EngineError, EngineHandle, FinishReason, Sampling};

use super::support::{Answer, ask, config, start, stop, tokens};

/// Longest response.
const ANSWER_TOKENS_MAX: u32 = 200;

fn several_slots() -> EngineConfig {
    EngineConfig { n_slots: 4, context_tokens_total: 4 * 2048, queue_max: 64, ..config(Preset::Tiny) }
}

/// Returns the response that follows a grammar.
async fn follow(engine: &EngineHandle, grammar: &str, sampling: Sampling) -> Result<Answer, EngineError> {
    let mut request = ask(&tokens(7, 20), ANSWER_TOKENS_MAX);
    request.generation.ignore_eos = false;
    request.generation.sampling = Sampling { grammar: Some(grammar.to_owned()), ..sampling };
    let answer = request.submit(engine)?.answer().await;
    match &answer.failed {
        Some(error) => Err(error.clone()),
        None => Ok(answer),
    }
}

/// Returns the parameters of a random choice, with nearly equal probabilities.
fn random(seed: u32) -> Sampling {
    Sampling { temperature: 100.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: Some(seed), ..Sampling::default() }
}

/// Checks that a response matches the grammar, or is the prefix of a match if it was cut off.
fn check_follows(grammar: &str, answer: &Answer) {
    let read = Grammar::new(grammar, GrammarVocabulary { n_vocab: 1 << 20, named: &|_| None }).unwrap();
    let mut follower = GrammarMatcher::new(&read.into(), 1 << 20).unwrap();
    let text = answer.text.trim_end_matches(char::REPLACEMENT_CHARACTER);
    for byte in text.bytes() {
        follower.refuel(1 << 20);
        assert_eq!(follower.take(0, &[byte]), Ok(true), "{text:?} does not follow {grammar}");
    }
    let is_cut = answer.finished.as_ref().is_some_and(|finished| finished.reason == FinishReason::Length);
    assert!(is_cut || follower.accepts(), "{text:?} is not complete: {grammar}");
}

#[tokio::test]
async fn llama_cpp_s_own_grammars_are_followed() {
    let (engine, _updates) = start(several_slots());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/grammar");
    for name in ["arithmetic", "c", "chess", "japanese", "json", "json_arr", "list"] {
        let grammar = std::fs::read_to_string(folder.join(format!("{name}.gbnf"))).unwrap();
        for seed in 1..6 {
            let answer =
                follow(&engine, &grammar, random(seed)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!answer.tokens.is_empty());
            check_follows(&grammar, &answer);
        }
        let answer = follow(&engine, &grammar, Sampling { temperature: 0.0, ..Sampling::default() }).await.unwrap();
        check_follows(&grammar, &answer);
    }
    stop(engine).await;
}

#[tokio::test]
async fn the_grammar_is_followed_however_tokens_are_chosen() {
    let (engine, _updates) = start(several_slots());
    let grammar = r#"root ::= item ("," item){3}
        item ::= "one" | "(" root ")" | [0-9]{1,3} | "é" | "字""#;
    let ways = [
        Sampling { temperature: 0.0, ..Sampling::default() },
        Sampling { mirostat: 1, seed: Some(3), ..Sampling::default() },
        Sampling { mirostat: 2, seed: Some(3), ..Sampling::default() },
        Sampling { typical_p: 0.2, top_n_sigma: 1.0, seed: Some(3), ..Sampling::default() },
        Sampling { xtc_probability: 1.0, xtc_threshold: 0.0, seed: Some(3), ..Sampling::default() },
        Sampling { dry_multiplier: 2.0, repeat_penalty: 5.0, frequency_penalty: 9.0, ..Sampling::default() },
        Sampling { logit_bias: vec![(u32::from(b'('), 1e6)], ..Sampling::default() },
        random(5),
    ];
    for way in ways {
        let answer = follow(&engine, grammar, way.clone()).await.unwrap_or_else(|error| panic!("{error}: {way:?}"));
        check_follows(grammar, &answer);
    }
    let banned = Sampling { logit_bias: vec![(u32::from(b'1'), f32::NEG_INFINITY)], ..Sampling::default() };
    let refused = follow(&engine, r#"root ::= "1""#, banned).await.unwrap_err().to_string();
    assert!(refused.contains("leaves no token"), "{refused}");
    stop(engine).await;
}

#[tokio::test]
async fn a_grammar_may_name_tokens() {
    let (engine, _updates) = start(several_slots());
    let (b, no_b) = (u32::from(b'b'), r#"root ::= "a" <[98]> !<[98]>{4} "end""#);
    let answer = follow(&engine, no_b, Sampling { logit_bias: vec![(b, 1e6)], ..Sampling::default() }).await.unwrap();
    assert_eq!(answer.tokens[1], b);
    assert!(answer.tokens[2..6].iter().all(|token| *token != b), "{:?}", answer.tokens);
    let refused = follow(&engine, "root ::= <no-such-token>", Sampling::default()).await.unwrap_err().to_string();
    assert!(refused.contains("is not a token of the vocabulary"), "{refused}");
    stop(engine).await;
}

/// Returns grammars that take much work, all of them within what llama.cpp's own sampler follows.
fn hostile() -> Vec<String> {
    let chain = |n: usize, op: &str| -> String {
        let rules: String = (0..n).map(|i| format!("r{i} ::= r{}{op}\n", i + 1)).collect();
        format!("root ::= r0\n{rules}r{n} ::= [^\\r\\n]\n")
    };
    vec![
        format!("root ::= [^\\r\\n]{}", "+".repeat(8)),
        format!("root ::= [^\\r\\n]{}", "+".repeat(10)),
        chain(10, "+"),
        chain(100, "*"),
        "root ::= . | . root | . root root".to_owned(),
        "root ::= . root root root | .? \"\"".to_owned(),
        "root ::= (.{0,30}){0,30}".to_owned(),
        "root ::= ((.{0,6}){0,6}){0,6}".to_owned(),
        format!("root ::= {}", ".? ".repeat(200)),
        format!("root ::= {}", "[^x]* ".repeat(200)),
        format!("root ::= ({})+", (0..2_000).map(|i| format!("\"{i}\"")).collect::<Vec<_>>().join(" | ")),
        format!("root ::= \"{}\"", "x".repeat(120_000)),
        "root ::= (.* \"a\" .*)* | (\"a\" root \"a\")* root2\nroot2 ::= .{0,50}".to_owned(),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_grammars_do_not_delay_other_requests() {
    let (engine, _updates) = start(several_slots());
    let alone = ask(&tokens(1, 20), 100).answer(&engine).await;
    for grammar in hostile() {
        let name = &grammar[..grammar.len().min(50)];
        for sampling in [Sampling::default(), random(1)] {
            let began = Instant::now();
            let beside = ask(&tokens(1, 20), 100);
            let (followed, beside) = tokio::join!(follow(&engine, &grammar, sampling), beside.answer(&engine));
            let took = began.elapsed();
            assert_eq!(beside.tokens, alone.tokens);
            match followed {
                Ok(answer) => println!("{name}: {} tokens, {took:?}", answer.tokens.len()),
                Err(error) => {
                    let reason = error.to_string();
                    println!("{name}: {took:?}, {reason}");
                    assert!(reason.contains("too many ways") || reason.contains("does not parse"), "{reason}");
                }
            }
        }
    }
    stop(engine).await;
}
