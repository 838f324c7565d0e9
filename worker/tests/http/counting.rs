//! Requests that only count, tokenize or render: answers that would be too long, prompts that are too long to count.
//!
//! Not here: the tokens themselves (`looks`), counts of ordinary prompts (`dialects`), their places (`prompt_pools`).

use std::path::PathBuf;

use serde_json::{Value, json};
use warmpath_bench::model::{Preset, write_model};
use warmpath_gguf::{TensorSink, Value as Metadata, Writer};

use crate::harness::{TestWorker, folder, tiny, user};

/// Flags of a worker whose longest answer of this kind has 4,000 bytes.
const FLAGS: &str = "--slots 1 --body-max 1000";

/// Checks that the answer to a request would be longer than 4,000 bytes.
async fn check_too_long(worker: &TestWorker, (path, body): (&str, &Value), param: &str) {
    let (status, answer) = worker.try_ask(path, body).await;
    let error = &answer["error"];
    assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{path}: {answer}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("more than 4000 bytes")), "{path}: {answer}");
}

/// Returns the tiny model with another vocabulary.
fn with_vocabulary(name: &str, change: impl FnOnce(&mut Writer)) -> PathBuf {
    let mut writer = Writer::new();
    writer.set("general.architecture", Metadata::Text("llama")).expect("a good value");
    let header = warmpath_gguf::check(tiny()).expect("the model is intact");
    writer.copy_keys(&header, |key| key.starts_with("tokenizer."));
    change(&mut writer);
    let file = |name: &str| folder().join(format!("{name}-{}.gguf", std::process::id()));
    let (vocabulary, model) = (file(&format!("{name}-vocabulary")), file(name));
    writer.begin(&vocabulary).and_then(TensorSink::finish).expect("it is written");
    write_model(Preset::Tiny, 1, Some(&vocabulary), &model).expect("it is written");
    model
}

/// Returns a model with a control token of this text in place of `<|repo_name|>`, and the token's id.
fn with_control_token(text: &str) -> (PathBuf, usize) {
    let header = warmpath_gguf::check(tiny()).expect("the model is intact");
    let texts = "tokenizer.ggml.tokens";
    let tokens = header.texts(texts).expect("it has tokens").into_iter();
    let mut tokens: Vec<String> = tokens.map(|token| String::from_utf8(token).expect("a text")).collect();
    let id = tokens.iter().position(|token| token == "<|repo_name|>").expect("it has this token");
    tokens[id] = text.to_owned();
    let change = |writer: &mut Writer| writer.set(texts, Metadata::Texts(&tokens)).expect("a good value");
    (with_vocabulary("long-token", change), id)
}

#[tokio::test]
async fn a_text_that_takes_llama_cpp_long_to_tokenize_is_refused() {
    let of_llama = |writer: &mut Writer| {
        writer.set("tokenizer.ggml.pre", Metadata::Text("falcon")).expect("a good value");
    };
    let worker = TestWorker::start_model(&with_vocabulary("falcon", of_llama), "").await;
    let (word, n_bytes) = ("a".repeat(1 << 20), 1 << 20);
    let longer = json!({"content": format!("{word}a")});
    let (status, answer) = worker.try_ask("/tokenize", &longer).await;
    assert_eq!((status, answer["error"]["param"].as_str()), (400, Some("content")), "{answer}");
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("1048577 bytes")), "{answer}");
    assert!(worker.ask("/tokenize", json!({"content": word})).await["tokens"].is_array());
    let ours = TestWorker::start("").await;
    assert!(ours.ask("/tokenize", longer).await["tokens"].is_array(), "without llama.cpp it takes milliseconds");
    for text in ["a".repeat(n_bytes / 2), "words and words ".repeat(n_bytes / 20)] {
        let tokens = worker.ask("/tokenize", json!({"content": text, "add_special": false})).await["tokens"].clone();
        let spelled = worker.ask("/detokenize", json!({"tokens": tokens})).await;
        assert_eq!(spelled["content"], text);
    }
}

#[tokio::test]
async fn ids_that_stand_for_a_text_longer_than_any_answer_are_refused() {
    let (model, id) = with_control_token(&format!("<|{}|>", "x".repeat(96)));
    let worker = TestWorker::start_model(&model, FLAGS).await;
    let ids = |n: usize| json!({"tokens": vec![id; n]});
    let answer = worker.ask("/detokenize", ids(39)).await;
    assert_eq!(answer["content"].as_str().map(str::len), Some(3900));
    // The text of 40 alone would fit.
    for n in [40, 41, 180] {
        check_too_long(&worker, ("/detokenize", &ids(n)), "tokens").await;
    }
}

#[tokio::test]
async fn tokens_and_prompts_longer_than_any_answer_are_refused() {
    let template = folder().join("long.jinja");
    let long = "{% for message in messages %}{{ message.content }}{% endfor %}\
         {% for _ in range(500) %}0123456789{% endfor %}";
    std::fs::write(&template, long).expect("the template is written");
    let worker = TestWorker::start(&format!("{FLAGS} --chat-template-file {}", template.display())).await;
    let digits = |n: usize, with_pieces: bool| json!({"content": "7".repeat(n), "with_pieces": with_pieces});
    let answer = worker.ask("/tokenize", digits(100, true)).await;
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(100), "a digit is a token");
    assert_eq!(answer["tokens"][99]["piece"], "7");
    let answer = worker.ask("/tokenize", digits(900, false)).await;
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(900));
    check_too_long(&worker, ("/tokenize", &digits(900, true)), "content").await;
    check_too_long(&worker, ("/apply-template", &json!({"messages": user("a")})), "messages").await;
}

#[tokio::test]
async fn a_count_far_beyond_the_context_is_refused_like_its_prompt() {
    let worker = TestWorker::start("--slots 1 --ctx-size 256").await;
    let near = json!({"messages": user(&"word ".repeat(500))});
    let counted = worker.ask("/v1/chat/completions/input_tokens", near).await;
    assert!(counted["input_tokens"].as_u64() > Some(500), "a short text is counted to its end: {counted}");

    let far = ".".repeat(1 << 20);
    let says = "the prompt of at least 513 tokens exceeds the available context size, which is 256 tokens";
    for (path, body) in [
        ("/v1/chat/completions/input_tokens", json!({"messages": user(&far)})),
        ("/v1/responses/input_tokens", json!({"input": far})),
    ] {
        let (status, answer) = worker.try_ask(path, &body).await;
        let error = &answer["error"];
        assert_eq!((status, error["code"].as_str()), (400, Some("context_length_exceeded")), "{path}: {answer}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(says)), "{path}: {answer}");
    }
    let (status, answer) = worker.try_ask("/v1/messages/count_tokens", &json!({"messages": user(&far)})).await;
    assert_eq!(status, 400);
    assert_eq!(answer["error"]["message"], "prompt is too long: 513 tokens > 255 maximum");
}
