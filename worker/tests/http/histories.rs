//! Histories with what a model cannot read: they are answered, in every dialect with the same prompt.
//!
//! Not here: which part becomes which text (`warmpath-prompt`), the dialects' own forms (`warmpath_common::dialects`).

use serde_json::{Value, json};

use crate::harness::TestWorker;

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// Returns the response to a request and the kinds of parts that its prompt lacks.
async fn ask(worker: &TestWorker, path: &str, body: &Value) -> (u16, Value, Option<String>) {
    let response = worker.post(path, body).send().await.expect("the worker responds");
    let header = response.headers().get("x-warmpath-left-out-parts");
    let left_out = header.map(|value| value.to_str().expect("text").to_owned());
    let status = response.status().as_u16();
    (status, response.json().await.expect("JSON"), left_out)
}

/// Returns the text and the prompt's length of a response in any dialect.
fn said(answer: &Value) -> (Value, u64) {
    let places = ["/choices/0/message/content", "/content/0/text", "/output/0/content/0/text"];
    let text = places.iter().find_map(|place| answer.pointer(place)).expect("a text").clone();
    let usage = &answer["usage"];
    let n = |name: &str| usage[name].as_u64().unwrap_or_default();
    (text, n("prompt_tokens") + n("input_tokens") + n("cache_read_input_tokens"))
}

fn image_url() -> Value {
    json!("data:image/png;base64,AAAA")
}

/// Returns a history of one call whose result has a text and an image, in the form of each dialect.
fn with_image_in_result() -> [(&'static str, Value); 3] {
    let call = json!({"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let image = json!({"type": "image_url", "image_url": {"url": image_url()}});
    let chat = json!({"max_tokens": 4, "temperature": 0, "messages": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "seen"}, image]},
    ]});
    let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
    let result = json!([{"type": "text", "text": "seen"}, {"type": "image", "source": source}]);
    let message = json!({"max_tokens": 4, "temperature": 0, "messages": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": result}]},
    ]});
    let output = json!([{"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": image_url()}]);
    let response = json!({"max_output_tokens": 4, "temperature": 0, "input": [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]});
    [(CHAT, chat), (MESSAGES, message), (RESPONSES, response)]
}

#[tokio::test]
async fn an_image_in_a_result_is_the_same_text_in_every_dialect() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let mut plain = with_image_in_result()[0].1.clone();
    plain["messages"][2]["content"] = json!([
        {"type": "text", "text": "seen"}, {"type": "text", "text": "[image: this model cannot read it]"},
    ]);
    let (status, answer, left_out) = ask(&worker, CHAT, &plain).await;
    assert_eq!((status, left_out), (200, None), "{answer}");
    let expected = said(&answer);
    for (path, body) in with_image_in_result() {
        let (status, answer, left_out) = ask(&worker, path, &body).await;
        assert_eq!((status, left_out.as_deref()), (200, Some("image")), "{path}: {answer}");
        assert_eq!(said(&answer), expected, "{path}");
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        let response = worker.post(path, &streamed).send().await.expect("the worker responds");
        assert_eq!(response.headers()["x-warmpath-left-out-parts"], "image", "{path}");
    }
    assert_eq!(worker.metric("left_out_parts_total{kind=\"image\"}").await, 6.0);
    let [_, (_, mut message), (_, response)] = with_image_in_result();
    message.as_object_mut().expect("an object").remove("max_tokens");
    let counted = worker.ask("/v1/messages/count_tokens", message).await;
    assert_eq!(counted["input_tokens"], expected.1);
    let counted = worker.ask("/v1/responses/input_tokens", json!({"input": response["input"]})).await;
    assert_eq!(counted["input_tokens"], expected.1);
    let rendered = worker.ask("/apply-template", json!({"messages": with_image_in_result()[0].1["messages"]})).await;
    assert!(rendered["prompt"].as_str().is_some_and(|text| text.contains("seen\n[image: this")), "{rendered}");
}

#[tokio::test]
async fn a_document_beside_a_result_is_history_and_one_in_a_new_message_is_refused() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let pdf =
        json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}});
    let text = json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hello"}});
    let [_, (_, mut body), _] = with_image_in_result();
    body["messages"][2]["content"][0]["content"] = json!("PDF file read");
    let with = |block: &Value| {
        let mut body = body.clone();
        body["messages"][2]["content"].as_array_mut().expect("blocks").push(block.clone());
        body
    };
    let (status, answer, left_out) = ask(&worker, MESSAGES, &with(&pdf)).await;
    assert_eq!((status, left_out.as_deref()), (200, Some("document")), "{answer}");
    let (status, answer, left_out) = ask(&worker, MESSAGES, &with(&text)).await;
    assert_eq!((status, left_out), (200, None), "{answer}");
    assert_eq!(
        said(&answer).1,
        said(&ask(&worker, MESSAGES, &with(&json!({"type": "text", "text": "hello"}))).await.1).1
    );
    // The agent's next turn, with the same history, and a new message with a document.
    let mut next = with(&pdf);
    let blocks = json!([{"type": "text", "text": "ok"}]);
    let turns = next["messages"].as_array_mut().expect("messages");
    turns.extend([json!({"role": "assistant", "content": blocks}), json!({"role": "user", "content": [text]})]);
    assert_eq!(ask(&worker, MESSAGES, &next).await.0, 200);
    next["messages"][4]["content"] = json!([pdf]);
    let (status, error, _) = ask(&worker, MESSAGES, &next).await;
    let message = error["error"]["message"].as_str().expect("a text");
    assert!(status == 400 && message.contains("`messages[4].content[0].type`: blocks of type `document`"), "{message}");
}

#[tokio::test]
async fn only_the_new_message_of_a_chat_is_refused() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let ask_chat = async |messages: Value| ask(&worker, CHAT, &json!({"messages": messages, "max_tokens": 1})).await;
    let image = json!([{"type": "image_url", "image_url": {"url": image_url()}}]);
    let file =
        json!([{"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"}}]);
    let say = |role: &str, content: &Value| json!({"role": role, "content": content});
    let answer = say("assistant", &json!("b"));
    for (content, kind) in [(&image, "image"), (&file, "file")] {
        let (status, _, left_out) = ask_chat(json!([say("user", content), answer, say("user", &json!("c"))])).await;
        assert_eq!((status, left_out.as_deref()), (200, Some(kind)));
        let (status, _, left_out) = ask_chat(json!([say("user", content), say("user", &json!("never mind"))])).await;
        assert_eq!((status, left_out.as_deref()), (200, Some(kind)));
        let (status, error, left_out) = ask_chat(json!([say("user", &json!("a")), answer, say("user", content)])).await;
        assert_eq!((status, left_out), (400, None), "{error}");
        assert!(error["error"]["message"].as_str().is_some_and(|text| text.starts_with("messages[2]: content parts")));
    }
}

#[tokio::test]
async fn every_form_of_text_reasoning_and_results_is_the_same_prompt() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let prompt = async |messages: Value| {
        worker.ask("/apply-template", json!({ "messages": messages })).await["prompt"].as_str().map(str::to_owned)
    };
    let turns = |answer: Value, result: Value| {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        json!([
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": null}]},
            {"role": "assistant", "content": answer, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": result},
            {"role": "user", "content": "d"},
        ])
    };
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    let expected = prompt(turns(text("b"), json!("{\"n\":1}"))).await;
    let thinking = json!({"type": "thinking", "thinking": "t", "signature": "s"});
    for answer in [
        json!([{"type": "output_text", "text": "b"}]),
        json!([{"type": "refusal", "refusal": "b"}]),
        json!([thinking, {"type": "text", "text": "b"}]),
    ] {
        assert_eq!(prompt(turns(answer.clone(), json!({"n": 1}))).await, expected, "{answer}");
    }
    let number = prompt(turns(text("b"), json!(1))).await;
    assert_eq!(number, prompt(turns(text("b"), json!("1"))).await);
}

#[tokio::test]
async fn the_last_of_two_answers_at_the_end_is_continued() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let say = |role: &str, content: &str| json!({"role": role, "content": content});
    for first in ["Once.", ""] {
        let messages = json!([say("user", "Tell"), say("assistant", first), say("assistant", "And then")]);
        let rendered = worker.ask("/apply-template", json!({ "messages": messages })).await;
        let expected = format!("assistant\n{first}<|im_end|>\n<|im_start|>assistant\nAnd then");
        assert!(rendered["prompt"].as_str().is_some_and(|text| text.ends_with(&expected)), "{rendered}");
        let answer = worker.ask(CHAT, json!({"messages": messages, "max_tokens": 2, "temperature": 0})).await;
        let prompt = json!({"prompt": rendered["prompt"], "max_tokens": 2, "temperature": 0});
        let continued = worker.ask("/v1/completions", prompt).await;
        assert_eq!(answer["choices"][0]["message"]["content"], continued["choices"][0]["text"], "{rendered}");
        assert_eq!(answer["usage"]["prompt_tokens"], continued["usage"]["prompt_tokens"]);
    }
}
