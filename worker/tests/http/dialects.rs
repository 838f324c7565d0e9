//! Anthropic's messages and OpenAI's responses of a worker: responses, counts, errors in the dialect's format.

use reqwest::Response;
use serde_json::{Value, json};

use crate::harness::{TestWorker, user};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const RESPONSES: &str = "/v1/responses";

/// Returns the events of a successful stream, each with its name.
async fn events(worker: &TestWorker, path: &str, body: &Value) -> Vec<(String, Value)> {
    let response = worker.post(path, body).send().await.expect("the worker responds");
    assert_eq!(response.status().as_u16(), 200);
    let text = response.text().await.expect("the stream ends well");
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data = data.strip_prefix("data: ").expect("data");
        (name.trim_start_matches("event: ").to_owned(), serde_json::from_str(data).expect("JSON"))
    };
    text.split_terminator("\n\n").map(event).collect()
}

fn message(content: &str) -> Value {
    json!({"model": "tiny", "max_tokens": 6, "temperature": 0, "messages": user(content)})
}

#[tokio::test]
async fn a_message_has_the_text_of_the_same_chat_and_anthropic_s_usage() {
    let worker = TestWorker::start("--slots 1").await;
    let system = json!({"role": "system", "content": "Be brief."});
    let question = json!({"role": "user", "content": "What is a block, and what is it good for?"});
    let chat = json!({"messages": [system, question], "max_tokens": 6, "temperature": 0});
    let chat = worker.ask(CHAT, chat).await;
    let mut body = message("What is a block, and what is it good for?");
    body["system"] = json!([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]);
    let answer = worker.ask(MESSAGES, body.clone()).await;
    assert_eq!(answer["content"], json!([{"type": "text", "text": chat["choices"][0]["message"]["content"]}]));
    assert_eq!((&answer["stop_reason"], &answer["model"]), (&json!("max_tokens"), &json!("tiny")));
    let usage = &answer["usage"];
    let n = |name: &str| usage[name].as_u64().expect("a number");
    assert_eq!(
        n("input_tokens") + n("cache_read_input_tokens"),
        chat["usage"]["prompt_tokens"].as_u64().expect("a number")
    );
    assert!(n("cache_read_input_tokens") > 0, "the chat's prompt was not reused: {usage}");
    assert_eq!((n("cache_creation_input_tokens"), n("output_tokens")), (0, 6));

    let mut uncounted = body.clone();
    uncounted.as_object_mut().expect("an object").remove("max_tokens");
    let counted = worker.ask(COUNT, uncounted).await;
    assert_eq!(counted, json!({"input_tokens": chat["usage"]["prompt_tokens"]}));

    body["stream"] = json!(true);
    let events = events(&worker, MESSAGES, &body).await;
    let text: String = events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(text, answer["content"][0]["text"]);
    let started = &events[0].1["message"]["usage"];
    let end = &events[events.len() - 2].1;
    assert_eq!(end["delta"], json!({"stop_reason": "max_tokens", "stop_sequence": null}));
    assert_eq!((&started["output_tokens"], &end["usage"]["output_tokens"]), (&json!(0), &json!(6)));
    assert_eq!(started["cache_read_input_tokens"], end["usage"]["cache_read_input_tokens"]);
    assert!(started["cache_read_input_tokens"].as_u64() > Some(0));
}

#[tokio::test]
async fn a_stop_sequence_is_named() {
    let worker = TestWorker::start("--slots 1").await;
    let text =
        worker.ask(MESSAGES, message("Hello there")).await["content"][0]["text"].as_str().expect("text").to_owned();
    let stop = text.split_whitespace().nth(1).expect("two words").to_owned();
    let mut body = message("Hello there");
    body["stop_sequences"] = json!(["never said", stop]);
    let answer = worker.ask(MESSAGES, body).await;
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)), "{answer}");
}

#[tokio::test]
async fn a_response_has_the_text_of_the_same_chat_and_can_be_continued() {
    let worker = TestWorker::start("--slots 1").await;
    let chat =
        worker.ask(CHAT, json!({"messages": user("Tell me of blocks"), "max_tokens": 6, "temperature": 0})).await;
    let mut body = json!({"input": "Tell me of blocks", "max_output_tokens": 6, "temperature": 0, "store": true});
    let answer = worker.ask(RESPONSES, body.clone()).await;
    let said = &answer["output"][0]["content"][0]["text"];
    assert_eq!(*said, chat["choices"][0]["message"]["content"]);
    assert_eq!(
        (&answer["status"], &answer["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!((&answer["store"], &answer["max_output_tokens"]), (&json!(false), &json!(6)));
    assert_eq!(answer["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert!(answer["usage"]["input_tokens_details"]["cached_tokens"].as_u64() > Some(0));
    let counted = worker.ask("/v1/responses/input_tokens", json!({"input": "Tell me of blocks"})).await;
    assert_eq!(counted, json!({"object": "response.input_tokens", "input_tokens": chat["usage"]["prompt_tokens"]}));

    body["stream"] = json!(true);
    let events = events(&worker, RESPONSES, &body).await;
    let text: String = events.iter().filter_map(|(_, data)| data["delta"].as_str()).collect();
    assert_eq!(text, *said);
    let numbers: Vec<_> = events.iter().map(|(_, data)| data["sequence_number"].as_u64().expect("a number")).collect();
    assert!(numbers.into_iter().eq(0..events.len() as u64));
    assert_eq!(events[events.len() - 1].0, "response.incomplete");

    // The response's items are sent back with the next question.
    let mut turn = answer["output"].as_array().expect("items").clone();
    turn.insert(0, json!({"role": "user", "content": "Tell me of blocks"}));
    turn.push(json!({"role": "user", "content": "Go on"}));
    let next = worker.ask(RESPONSES, json!({"input": turn, "max_output_tokens": 1})).await;
    assert!(next["usage"]["input_tokens_details"]["cached_tokens"].as_u64() > Some(10), "{next}");
}

/// Checks an error in Anthropic's format.
async fn check_anthropic(response: Response, (status, kind, says): (u16, &str, &str)) {
    let id = response.headers()["x-request-id"].to_str().expect("text").to_owned();
    assert_eq!(response.status().as_u16(), status);
    let body: Value = response.json().await.expect("an error is JSON");
    assert_eq!(
        (&body["type"], &body["error"]["type"], &body["request_id"]),
        (&json!("error"), &json!(kind), &json!(id))
    );
    assert!(body["error"]["message"].as_str().is_some_and(|message| message.contains(says)), "{says}: {body}");
}

#[tokio::test]
async fn errors_of_messages_are_anthropic_s_and_name_the_client_s_fields() {
    let worker = TestWorker::start("--slots 1 --queue-max 1 --ctx-size 256 --body-max 3000").await;
    let with = |name: &str, value: Value| {
        let mut body = message("Hi");
        body[name] = value;
        body.to_string()
    };
    let invalid = "invalid_request_error";
    for (body, expected) in [
        ("{".to_owned(), (400, invalid, "not valid JSON")),
        ("[]".to_owned(), (400, invalid, "must be a JSON object")),
        (json!({"messages": user("a")}).to_string(), (400, invalid, "`max_tokens` is missing")),
        (with("max_tokens", json!(-2)), (400, invalid, "`max_tokens` must be at least 0")),
        (with("max_tokens", json!("many")), (400, invalid, "`max_tokens`: invalid type")),
        (with("stop_sequences", json!(5)), (400, invalid, "`stop_sequences` must be an array")),
        (with("stop_sequences", json!(vec!["x"; 33])), (400, invalid, "`stop_sequences` has 33 texts")),
        (with("temperature", json!(-1)), (400, invalid, "`temperature` must be")),
        (with("messages", json!([])), (400, invalid, "`messages` is empty")),
        (with("messages", user(&"word ".repeat(400))), (400, invalid, "tokens > 255 maximum")),
        (
            with("messages", json!([{"role": "user", "content": [{"type": "document"}]}])),
            (400, invalid, "`messages[0].content[0].type`"),
        ),
        (with("model", json!("claude-x")), (404, "not_found_error", "`claude-x` does not exist")),
        (with("metadata", json!("x".repeat(3000))), (413, "request_too_large", "3000 bytes")),
    ] {
        check_anthropic(worker.post_bytes(MESSAGES, body).await, expected).await;
    }
    check_anthropic(worker.get(MESSAGES).await, (405, invalid, "does not support the method GET")).await;
    check_anthropic(worker.get("/v1/messages/batches").await, (404, "not_found_error", "does not exist")).await;
    check_anthropic(worker.post_bytes(COUNT, with("model", json!("x"))).await, (404, "not_found_error", "`x`")).await;
    let unknown = worker.get("/v1/nothing").await.json::<Value>().await.expect("JSON");
    assert!(unknown["error"].get("param").is_some(), "other paths have OpenAI's format: {unknown}");
}

#[tokio::test]
async fn errors_of_responses_are_openai_s_and_name_the_client_s_fields() {
    let worker = TestWorker::start("--slots 1 --ctx-size 256").await;
    let with = |name: &str, value: Value| {
        let mut body = json!({"input": "Hi"});
        body[name] = value;
        body
    };
    for (body, param, code) in [
        (json!({}), "input", None),
        (json!({"input": []}), "input", None),
        (with("max_output_tokens", json!(-2)), "max_output_tokens", None),
        (with("max_output_tokens", json!("x")), "max_output_tokens", None),
        (with("temperature", json!(-1)), "temperature", None),
        (with("previous_response_id", json!("resp_1")), "previous_response_id", Some("unsupported_parameter")),
        (with("background", json!(true)), "background", Some("unsupported_parameter")),
        (
            with("moderation", json!({"policy": {"input": {"mode": "block"}}})),
            "moderation",
            Some("unsupported_parameter"),
        ),
        (with("tool_choice", json!({"type": "web_search"})), "tool_choice.type", Some("unsupported_parameter")),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].type", Some("unsupported_parameter")),
    ] {
        let (status, answer) = worker.try_ask(RESPONSES, &body).await;
        let error = &answer["error"];
        assert_eq!(
            (status, error["param"].as_str(), error["code"].as_str()),
            (400, Some(param), code),
            "{body}: {error}"
        );
        assert!(error["message"].as_str().is_some_and(|message| message.contains(param)), "{body}: {error}");
    }
    for path in ["/v1/responses/resp_1", "/v1/responses/resp_1/input_items"] {
        let response = worker.get(path).await;
        assert_eq!(response.status().as_u16(), 404);
        assert!(response.text().await.expect("text").contains("not stored here"));
    }
    assert_eq!(worker.delete("/v1/responses/resp_1").await.0, 404);
}

/// Returns the status and the object of a response to any path.
async fn send(worker: &TestWorker, path: &str, body: &Value) -> (u16, Value) {
    let response = worker.post(path, body).send().await.expect("the worker responds");
    (response.status().as_u16(), response.json().await.expect("the response is JSON"))
}

#[tokio::test]
async fn endpoints_that_are_not_offered_are_named_as_such() {
    let worker = TestWorker::start("").await;
    for path in ["/v1/responses/compact", "/v1/files", "/v1/batches", "/v1/conversations", "/v1/images/generations"] {
        let (status, answer) = send(&worker, path, &json!({"input": "a"})).await;
        let error = &answer["error"];
        assert_eq!((status, &error["type"]), (404, &json!("invalid_request_error")), "{path}: {answer}");
        assert_eq!(error["code"], "endpoint_not_offered", "{path}: {answer}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains("not offer")), "{path}: {answer}");
    }
}

#[tokio::test]
async fn paths_that_clients_join_from_a_base_url_are_cleaned() {
    let worker = TestWorker::start("").await;
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    for path in ["/v1//chat/completions", "//v1/chat/completions", "/v1/chat/completions/", "/v1/v1/chat/completions"] {
        assert_eq!(send(&worker, path, &chat).await.0, 200, "{path}");
    }
    assert_eq!(send(&worker, "/v1/v1/messages//", &chat).await.0, 200);
    // An error has the form of the dialect, too.
    let (status, answer) = send(&worker, "//v1/messages/", &json!({})).await;
    assert_eq!((status, &answer["type"]), (400, &json!("error")), "{answer}");
}

#[tokio::test]
async fn empty_ids_and_choices_count_as_absent() {
    let worker = TestWorker::start("").await;
    let response = json!({"input": "a", "max_output_tokens": 1, "previous_response_id": "", "conversation": "",
        "tool_choice": "", "model": "", "reasoning": {"effort": ""}});
    assert_eq!(send(&worker, "/v1/responses", &response).await.0, 200);
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "model": "", "tool_choice": "",
        "response_format": "", "reasoning_format": "", "reasoning_effort": "", "function_call": "", "suffix": "",
        "stop": "", "user": "", "container": ""});
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let (status, answer) = send(&worker, path, &chat_for(path, &chat)).await;
        assert_eq!(status, 200, "{path}: {answer}");
    }
}

/// Returns a chat without the fields that have another form in the dialect of this path.
fn chat_for(path: &str, chat: &Value) -> Value {
    let mut chat = chat.clone();
    if path == "/v1/messages" {
        chat.as_object_mut().expect("an object").retain(|name, _| name != "tool_choice");
    }
    chat
}

#[tokio::test]
async fn a_thread_is_refused_with_the_details_of_its_api_and_edits_are_reported_as_not_made() {
    let worker = TestWorker::start("--slots 1 --ctx-size 256").await;
    let mut body = message("Hi");
    body["thread"] = json!({"type": "create"});
    let (status, answer) = worker.try_ask(MESSAGES, &body).await;
    let details = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    assert_eq!((status, &answer["error"]["details"]), (400, &details), "{answer}");
    body["thread"] = json!(null);
    body["context_management"] = json!({"edits": [{"type": "clear_tool_uses_20250919"}]});
    let none_applied = json!({"applied_edits": []});
    assert_eq!(worker.ask(MESSAGES, body.clone()).await["context_management"], none_applied);
    body["stream"] = json!(true);
    let events = events(&worker, MESSAGES, &body).await;
    let (_, end) = events.iter().find(|(name, _)| name == "message_delta").expect("an end");
    assert_eq!(end["context_management"], none_applied);
    body["stream"] = json!(false);
    body["context_management"] = json!(null);
    assert_eq!(worker.ask(MESSAGES, body).await.get("context_management"), None);
}

#[tokio::test]
async fn a_full_queue_is_429_in_both_dialects() {
    let worker = TestWorker::start("--slots 1 --queue-max 0").await;
    let _running = worker.begin_long().await;
    let response = worker.post(MESSAGES, &message("Hi")).send().await.expect("a response");
    assert_eq!(response.headers()["retry-after"], "1");
    check_anthropic(response, (429, "rate_limit_error", "queue is full")).await;
    let (status, answer) = worker.try_ask(RESPONSES, &json!({"input": "Hi"})).await;
    assert_eq!((status, &answer["error"]["code"]), (429, &json!("queue_full")));
}

/// Returns the positions of all values within `value`, as JSON pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| places(value, &format!("{at}/{name}"), found)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(idx, value)| places(value, &format!("{at}/{idx}"), found))
        }
        _ => {}
    }
}

#[tokio::test]
async fn bodies_with_any_value_replaced_are_answered_or_refused_in_the_dialect_s_format() {
    let worker = TestWorker::start("--slots 2 --ctx-size 1024").await;
    let schema = json!({"type": "object", "properties": {"place": {"type": "string"}}});
    let message = json!({"model": "tiny", "max_tokens": 1, "stream": false, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
        "stop_sequences": ["x"], "metadata": {"user_id": "u"}, "thinking": {"type": "disabled"},
        "cache_control": {"type": "ephemeral", "ttl": "5m"}, "output_config": {"effort": "low"},
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "f", "description": "d", "input_schema": schema}], "tool_choice": {"type": "auto"},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"place": "here"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]}]});
    let response = json!({"model": "tiny", "max_output_tokens": 1, "stream": false, "temperature": 0.5, "top_p": 0.9,
        "instructions": "s", "metadata": {"a": "b"}, "store": true, "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}}, "include": ["reasoning.encrypted_content"], "parallel_tool_calls": true,
        "tools": [{"type": "function", "name": "f", "description": "d", "parameters": schema, "strict": false}],
        "tool_choice": "auto", "truncation": "auto", "previous_response_id": null,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"place\": \"here\"}"},
            {"type": "function_call_output", "call_id": "1", "output": "r"}]});
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!(""),
        json!("\u{0}`[0]."),
        json!([]),
        json!({}),
        json!([[{}]]),
    ];
    for (path, body) in [(MESSAGES, message), (RESPONSES, response)] {
        assert_eq!(send(&worker, path, &body).await.0, 200, "{path}");
        let mut found = Vec::new();
        places(&body, "", &mut found);
        for (place, value) in found.iter().flat_map(|place| values.iter().map(move |value| (place, value))) {
            let mut changed = body.clone();
            *changed.pointer_mut(place).expect("the value exists") = value.clone();
            let response = worker.post(path, &changed).send().await.expect("the worker responds");
            let status = response.status().as_u16();
            let text = response.text().await.expect("a body");
            assert!([200, 400, 404].contains(&status), "{place} = {value}: {status} {text}");
            if status != 200 {
                let answer: Value = serde_json::from_str(&text).expect("an error is JSON");
                assert!(answer["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer}");
                assert_eq!(path == MESSAGES, answer["type"] == "error", "{answer}");
            }
        }
    }
}
