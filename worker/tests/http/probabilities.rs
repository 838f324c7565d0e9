//! Log probabilities of a response's tokens, and completions that begin with their prompt.

use serde_json::{Value, json};

use crate::harness::{TestWorker, user};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn entries(choice: &Value) -> &Vec<Value> {
    choice["logprobs"]["content"].as_array().expect("a chat's log probabilities are a list")
}

/// Returns the text of all entries' bytes.
fn text_of(entries: &[Value]) -> String {
    let bytes = entries.iter().flat_map(|entry| entry["bytes"].as_array().expect("bytes are a list"));
    let bytes: Vec<u8> = bytes.map(|byte| u8::try_from(byte.as_u64().expect("a number")).expect("a byte")).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn greedy_chat() -> Value {
    json!({
        "messages": user("How likely?"), "max_tokens": 8, "temperature": 0, "ignore_eos": true,
        "logprobs": true, "top_logprobs": 3,
    })
}

#[tokio::test]
async fn a_chat_has_the_log_probability_of_each_token_whole_and_streamed() {
    let worker = TestWorker::start("--slots 1").await;
    let mut body = greedy_chat();
    let whole = worker.ask(CHAT, body.clone()).await;
    let choice = &whole["choices"][0];
    assert_eq!(entries(choice).len(), 8);
    assert_eq!(json!(text_of(entries(choice))), choice["message"]["content"]);
    for entry in entries(choice) {
        let top = entry["top_logprobs"].as_array().expect("a list");
        let logprobs: Vec<f64> = top.iter().map(|one| one["logprob"].as_f64().expect("a number")).collect();
        assert_eq!(
            (top.len(), &top[0]["id"]),
            (3, &entry["id"]),
            "the greedy choice is the most likely token: {entry}"
        );
        assert!(logprobs.is_sorted_by(|a, b| a >= b) && logprobs[0] <= 0.0, "{logprobs:?}");
        assert!(logprobs.iter().map(|logprob| logprob.exp()).sum::<f64>() <= 1.0 + 1e-5, "{logprobs:?}");
    }
    body["stream"] = json!(true);
    let events = worker.stream(CHAT, body).await;
    let parts = events.iter().map(|event| &event["choices"][0]).filter(|choice| !choice["logprobs"].is_null());
    let streamed: Vec<Value> = parts.flat_map(|choice| entries(choice).clone()).collect();
    assert_eq!(streamed.len(), 8);
    for (streamed, whole) in streamed.iter().zip(entries(choice)) {
        assert_eq!((&streamed["id"], &streamed["bytes"]), (&whole["id"], &whole["bytes"]));
    }
}

#[tokio::test]
async fn a_tool_call_has_the_same_tokens_whole_and_streamed() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let parameters = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]});
    let mut body = json!({
        "messages": user("Call it"), "temperature": 0, "max_tokens": 200, "logprobs": true,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
        "tool_choice": "required", "parallel_tool_calls": false,
    });
    let whole = worker.ask(CHAT, body.clone()).await;
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    body["stream"] = json!(true);
    let events = worker.stream(CHAT, body).await;
    let parts = events.iter().map(|event| &event["choices"][0]).filter(|choice| !choice["logprobs"].is_null());
    let streamed: Vec<Value> = parts.flat_map(|choice| entries(choice).clone()).collect();
    let ids = |entries: &[Value]| entries.iter().map(|entry| entry["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&streamed), ids(entries(choice)));
    let closing = events.iter().map(|event| &event["choices"][0]).find(|choice| choice["delta"] == json!({}));
    assert!(closing.is_some_and(|choice| !entries(choice).is_empty()), "the tokens that close the call have no text");
}

#[tokio::test]
async fn probabilities_are_null_unless_requested() {
    let worker = TestWorker::start("--slots 1").await;
    for wish in [json!({}), json!({"logprobs": false}), json!({"logprobs": null, "n_probs": 0})] {
        let mut body = json!({"prompt": "a", "max_tokens": 2});
        body.as_object_mut().expect("an object").extend(wish.as_object().expect("an object").clone());
        let whole = worker.ask(COMPLETIONS, body).await;
        assert_eq!(whole["choices"][0]["logprobs"], Value::Null);
    }
}

#[tokio::test]
async fn tokens_of_a_stop_text_have_no_probabilities() {
    let worker = TestWorker::start("--slots 1").await;
    let mut body = greedy_chat();
    let whole = worker.ask(CHAT, body.clone()).await;
    let all = entries(&whole["choices"][0]);
    body["stop"] = json!(text_of(&all[3..5]));
    let stopped = worker.ask(CHAT, body.clone()).await;
    let choice = &stopped["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(json!(text_of(entries(choice))), choice["message"]["content"]);
    assert!(entries(choice).len() <= 3, "{choice}");
    body["stop"] = json!(text_of(&all[..2]));
    let nothing = worker.ask(CHAT, body).await;
    assert_eq!(nothing["choices"][0]["logprobs"]["content"], json!([]), "the answer is empty, not without a list");
}

#[tokio::test]
async fn sampling_probabilities_are_one_if_no_other_token_could_be_drawn() {
    let worker = TestWorker::start("--slots 1").await;
    let mut body = greedy_chat();
    body["post_sampling_probs"] = json!(true);
    let whole = worker.ask(CHAT, body).await;
    for entry in entries(&whole["choices"][0]) {
        assert_eq!(entry["logprob"].as_f64().map(f64::abs), Some(0.0), "{entry}");
    }
}

#[tokio::test]
async fn a_completion_lists_probabilities_with_the_positions_of_its_tokens() {
    let worker = TestWorker::start("--slots 1").await;
    let mut body = json!({"prompt": "a", "max_tokens": 6, "temperature": 0, "ignore_eos": true, "logprobs": 2});
    let whole = worker.ask(COMPLETIONS, body.clone()).await;
    let (choice, logprobs) = (&whole["choices"][0], &whole["choices"][0]["logprobs"]);
    let list = |name: &str| logprobs[name].as_array().expect("a list").clone();
    let (tokens, offsets) = (list("tokens"), list("text_offset"));
    assert_eq!((tokens.len(), list("token_logprobs").len(), list("top_logprobs").len()), (6, 6, 6));
    let text: String = tokens.iter().filter_map(Value::as_str).collect();
    assert_eq!(json!(text), choice["text"]);
    for (token, offset) in tokens.iter().zip(&offsets) {
        let offset = usize::try_from(offset.as_u64().expect("a number")).expect("it fits");
        let rest: String = text.chars().skip(offset).collect();
        assert!(rest.starts_with(token.as_str().expect("a text")), "{token} at {offset} of {text}");
    }
    assert!(list("top_logprobs").iter().zip(&tokens).all(|(top, token)| top.get(token.as_str().unwrap()).is_some()));

    body["stream"] = json!(true);
    let events = worker.stream(COMPLETIONS, body).await;
    let parts = events.iter().map(|event| &event["choices"][0]["logprobs"]).filter(|logprobs| !logprobs.is_null());
    let streamed: Vec<Value> = parts.flat_map(|part| part["text_offset"].as_array().expect("a list").clone()).collect();
    assert_eq!(streamed, offsets, "the offsets are those in the whole text");
}

#[tokio::test]
async fn a_completion_begins_with_its_prompt_on_request() {
    let worker = TestWorker::start("--slots 2").await;
    let mut body = json!({
        "prompt": ["One two", "Three"], "n": 2, "echo": true, "max_tokens": 3, "temperature": 0, "ignore_eos": true,
    });
    let whole = worker.ask(COMPLETIONS, body.clone()).await;
    body["echo"] = json!(false);
    let plain = worker.ask(COMPLETIONS, body.clone()).await;
    for (idx, prompt) in ["One two", "One two", "Three", "Three"].iter().enumerate() {
        let expected = format!("{prompt}{}", plain["choices"][idx]["text"].as_str().expect("a text"));
        assert_eq!(whole["choices"][idx]["text"], json!(expected));
    }
    assert_eq!(whole["usage"]["completion_tokens"], plain["usage"]["completion_tokens"]);
    (body["echo"], body["stream"], body["n"], body["prompt"]) = (json!(true), json!(true), json!(1), json!("One two"));
    let events = worker.stream(COMPLETIONS, body).await;
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(json!(text), whole["choices"][0]["text"]);
}

#[tokio::test]
async fn a_completion_that_begins_with_its_prompt_has_the_prompt_s_log_probabilities() {
    let worker = TestWorker::start("--slots 2").await;
    let mut body = json!({
        "prompt": "One two three", "echo": true, "logprobs": 2, "max_tokens": 3, "temperature": 0, "ignore_eos": true,
    });
    let whole = worker.ask(COMPLETIONS, body.clone()).await;
    let choice = &whole["choices"][0];
    let list = |logprobs: &Value, name: &str| logprobs[name].as_array().expect("a list").clone();
    let (n_prompt, logprobs) = (whole["usage"]["prompt_tokens"].as_u64().expect("a number"), &choice["logprobs"]);
    let numbers = list(logprobs, "token_logprobs");
    assert_eq!(numbers.len() as u64, n_prompt + 3);
    assert!(
        numbers[0].is_null() && logprobs["top_logprobs"][0].is_null(),
        "the first token has no log probability: {logprobs}"
    );
    assert!(numbers[1..].iter().all(|number| number.as_f64().is_some_and(|number| number <= 0.0)), "{numbers:?}");
    let text: String = list(logprobs, "tokens").iter().filter_map(Value::as_str).collect();
    assert_eq!(json!(text), choice["text"]);
    assert!(text.starts_with("One two three"));

    body["stream"] = json!(true);
    let events = worker.stream(COMPLETIONS, body.clone()).await;
    let parts: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
    assert_eq!(parts[0]["text"], "One two three", "{events:?}");
    let shown = parts.iter().map(|part| &part["logprobs"]).filter(|logprobs| !logprobs.is_null());
    let offsets: Vec<Value> = shown.flat_map(|logprobs| list(logprobs, "text_offset")).collect();
    assert_eq!(offsets, list(logprobs, "text_offset"));

    (body["stream"], body["max_tokens"]) = (json!(false), json!(0));
    let prompt_only = worker.ask(COMPLETIONS, body).await;
    let choice = &prompt_only["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("One two three"), &json!("length")));
    assert_eq!(list(&choice["logprobs"], "token_logprobs").len() as u64, n_prompt);
    assert_eq!(prompt_only["usage"]["completion_tokens"], 0);
}

/// Returns the bytes of a token in a completion.
fn bytes_of(token: &str) -> Vec<u8> {
    let Some(spelled) = token.strip_prefix("bytes:") else { return token.as_bytes().to_vec() };
    let mut parts = spelled.split(r"\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).expect("two digits"));
        bytes.extend(&part.as_bytes()[2..]);
    }
    bytes
}

#[tokio::test]
async fn the_chosen_token_is_among_a_completion_s_most_likely_even_if_it_is_a_part_of_a_character() {
    let worker = TestWorker::start("--slots 1").await;
    let prompt = "aé語😀 語😀b";
    let mut body = json!({
        "prompt": prompt, "echo": true, "logprobs": 20, "max_tokens": 6, "temperature": 0, "ignore_eos": true,
    });
    for stream in [false, true] {
        body["stream"] = json!(stream);
        let parts = if stream {
            worker.stream(COMPLETIONS, body.clone()).await
        } else {
            vec![worker.ask(COMPLETIONS, body.clone()).await]
        };
        let list = |name: &str| -> Vec<Value> {
            let lists = parts.iter().filter_map(|part| part["choices"][0]["logprobs"][name].as_array());
            lists.flatten().cloned().collect()
        };
        let (tokens, offsets) = (list("tokens"), list("text_offset"));
        let tokens: Vec<&str> = tokens.iter().filter_map(Value::as_str).collect();
        assert!(tokens.iter().filter(|token| token.starts_with("bytes:")).count() > 4, "{tokens:?}");
        for ((token, top), logprob) in tokens.iter().zip(list("top_logprobs")).zip(list("token_logprobs")).skip(1) {
            assert_eq!(top[token], logprob, "{token} of {top}");
            assert!(top.as_object().is_some_and(|top| top.len() >= 20), "other tokens are missing: {top}");
        }
        let text: String = parts.iter().filter_map(|part| part["choices"][0]["text"].as_str()).collect();
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| bytes_of(token)).collect();
        assert_eq!(String::from_utf8_lossy(&bytes), text);
        let mut before = Vec::new();
        for (token, offset) in tokens.iter().zip(&offsets) {
            assert_eq!(json!(String::from_utf8_lossy(&before).chars().count()), *offset, "{token}");
            before.extend(bytes_of(token));
        }
    }
}
