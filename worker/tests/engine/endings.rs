//! Choice of tokens and ends of responses.

use warmpath_bench::model::Preset;
use warmpath_common::ids::Token;
use warmpath_worker::engine::{EngineConfig, EngineError, EngineHandle, FinishReason};

use super::support::{Answer, Ask, ask, config, start, stop, tokens};

fn one_slot() -> EngineConfig {
    EngineConfig { n_slots: 1, context_tokens_total: 1024, ..config(Preset::Tiny) }
}

async fn grammar(engine: &EngineHandle, text: &str) -> Answer {
    let mut request = ask(&tokens(1, 20), 30);
    request.generation.ignore_eos = false;
    request.generation.sampling.grammar = Some(text.to_owned());
    request.answer(engine).await
}

fn biased(biases: &[(Token, f32)]) -> Ask {
    let mut request = ask(&tokens(1, 20), 6);
    request.generation.sampling.logit_bias = biases.to_vec();
    request
}

#[tokio::test]
async fn a_stop_text_ends_the_answer_however_it_is_split_into_tokens() {
    let (engine, _updates) = start(one_slot());
    let whole = ask(&tokens(1, 20), 30).answer(&engine).await;
    let n_chars = whole.text.chars().count();
    for from in [0, 7, n_chars / 2] {
        let stop_text: String = whole.text.chars().skip(from).take(5).collect();
        let mut request = ask(&tokens(1, 20), 30);
        request.generation.stop = vec!["never said".to_owned(), stop_text.clone()];
        let answer = request.answer(&engine).await;
        let expected = &whole.text[..whole.text.find(&stop_text).unwrap()];
        assert_eq!(answer.text, expected);
        assert_eq!(answer.finished().reason, FinishReason::StopText);
        assert_eq!(answer.finished().stopping_word.as_deref(), Some(stop_text.as_str()));
        assert_eq!(answer.tokens, whole.tokens[..answer.tokens.len()]);
    }
    stop(engine).await;
}

#[tokio::test]
async fn an_answer_ends_when_the_context_is_full() {
    let (engine, _updates) = start(one_slot());
    let mut request = ask(&tokens(1, 1000), 0);
    request.generation.max_tokens = None;
    let answer = request.answer(&engine).await;
    assert_eq!((answer.tokens.len(), answer.finished().reason), (25, FinishReason::Length));
    let last = ask(&tokens(2, 1023), 100).answer(&engine).await;
    assert_eq!((last.tokens.len(), last.finished().reason), (2, FinishReason::Length));
    stop(engine).await;
}

#[tokio::test]
async fn an_end_of_generation_token_ends_the_answer_unless_it_is_ignored() {
    let (engine, _updates) = start(one_slot());
    let mut request = ask(&tokens(1, 20), 900);
    request.generation.ignore_eos = false;
    let ended = request.answer(&engine).await;
    assert_eq!(ended.finished().reason, FinishReason::EndOfGeneration);
    assert_eq!(ended.finished().completion_tokens as usize, ended.tokens.len());
    request.generation.ignore_eos = true;
    let ignored = request.answer(&engine).await;
    assert_eq!((ignored.tokens.len(), ignored.finished().reason), (900, FinishReason::Length));
    assert!(ignored.text.starts_with(&ended.text), "the end of generation has no text");
    assert!(!ignored.tokens.contains(ended.tokens.last().unwrap()), "the end of generation was not ignored");
    stop(engine).await;
}

#[tokio::test]
async fn a_prompt_only_request_computes_its_prompt() {
    let (engine, _updates) = start(one_slot());
    let answer = ask(&tokens(1, 100), 0).answer(&engine).await;
    assert_eq!((answer.tokens.len(), answer.finished().reason), (0, FinishReason::Length));
    assert_eq!(ask(&tokens(1, 120), 1).answer(&engine).await.cached_tokens(), 100);
    stop(engine).await;
}

#[tokio::test]
async fn a_grammar_is_followed_to_its_end() {
    let (engine, _updates) = start(one_slot());
    for (text, allowed) in [
        (r#"root ::= "yes" | "no""#, vec!["yes", "no"]),
        (r#"root ::= "[" [0-1] "]""#, vec!["[0]", "[1]"]),
        (r#"root ::= ("ab" | "cd") "!""#, vec!["ab!", "cd!"]),
    ] {
        let answer = grammar(&engine, text).await;
        assert!(allowed.contains(&answer.text.as_str()), "{:?} does not follow {text}", answer.text);
        assert_eq!(answer.finished().reason, FinishReason::EndOfGeneration);
    }
    stop(engine).await;
}

#[tokio::test]
async fn characters_of_several_tokens_are_sent_whole() {
    let (engine, _updates) = start(one_slot());
    let answer = grammar(&engine, r#"root ::= "é" "😀" "字""#).await;
    assert_eq!(answer.text, "é😀字");
    assert!(answer.tokens.len() > 4, "the vocabulary has these characters as tokens, so the test proves nothing");
    stop(engine).await;
}

#[tokio::test]
async fn a_grammar_that_leaves_no_token_fails_its_request_alone() {
    let (engine, _updates) = start(one_slot());
    let mut request = ask(&tokens(1, 20), 30);
    request.generation.sampling.grammar = Some(r#"root ::= "yes""#.to_owned());
    let answer = request.answer(&engine).await;
    assert_eq!(answer.text, "yes");
    assert!(matches!(answer.failed, Some(EngineError::Sampler { .. })), "{answer:?}");
    assert_eq!(ask(&tokens(1, 20), 3).answer(&engine).await.tokens.len(), 3);
    stop(engine).await;
}

#[tokio::test]
async fn biases_force_and_forbid_tokens() {
    let (engine, _updates) = start(one_slot());
    let plain = biased(&[]).answer(&engine).await;
    assert_eq!(biased(&[(33, 1e6)]).answer(&engine).await.tokens, [33; 6]);
    let first = plain.tokens[0];
    assert_ne!(biased(&[(first, f32::NEG_INFINITY)]).answer(&engine).await.tokens[0], first);
    stop(engine).await;
}

#[tokio::test]
async fn penalties_apply_to_tokens_of_the_prompt() {
    let (engine, _updates) = start(one_slot());
    let biases = [(33, 1e6), (34, 1e6 - 1.0)];
    assert_eq!(biased(&biases).answer(&engine).await.tokens[0], 33);
    let mut penalised = biased(&biases);
    penalised.generation.sampling.presence_penalty = 10.0;
    penalised.prompt = [tokens(1, 20), vec![33]].concat();
    assert_eq!(penalised.answer(&engine).await.tokens[0], 34);
    penalised.generation.sampling.repeat_last_n = 1;
    penalised.prompt.push(1);
    assert_eq!(penalised.answer(&engine).await.tokens[0], 33, "the token is too far back to be penalised");
    stop(engine).await;
}

#[tokio::test]
async fn the_same_seed_gives_the_same_answer_and_another_seed_another() {
    let (engine, _updates) = start(one_slot());
    for mirostat in [0, 1, 2] {
        let mut request = ask(&tokens(1, 20), 20);
        request.generation.sampling.temperature = 100.0;
        request.generation.sampling.top_k = 0;
        request.generation.sampling.top_p = 1.0;
        request.generation.sampling.min_p = 0.0;
        request.generation.sampling.mirostat = mirostat;
        let mut answers = Vec::new();
        for seed in [1, 1, 2] {
            request.generation.sampling.seed = Some(seed);
            answers.push(request.answer(&engine).await.tokens);
        }
        assert_eq!(answers[0], answers[1], "mirostat {mirostat}");
        assert_ne!(answers[0], answers[2], "mirostat {mirostat}");
    }
    stop(engine).await;
}
