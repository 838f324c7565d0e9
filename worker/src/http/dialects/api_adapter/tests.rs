//! Tests of the dialects' events, compared exactly: a short response, reasoning, a call, a limit and a failure.

mod silence;

use std::time::Duration;

use axum::body::to_bytes;
use serde_json::{Value, json};
use warmpath_common::ids::SlotId;

use super::super::anthropic::MessageWriter;
use super::super::responses::ResponseWriter;
use super::*;
use crate::engine::{CachedTokens, Drafted, EngineError, EngineEvent, EventSender, Finished, Started};
use crate::lifecycle::journal::{PastOutput, ResponseIdentity};
use crate::lifecycle::message::ToolCallDelta;
use crate::lifecycle::testing::scripted;

const PROMPT_TOKENS: usize = 20;
const CACHED_TOKENS: u32 = 16;

fn started() -> EngineEvent {
    let cached = CachedTokens { resident: CACHED_TOKENS, ..CachedTokens::default() };
    EngineEvent::Started(Started {
        slot: SlotId(0),
        cached,
        left_answer_at: None,
        restored: Duration::ZERO,
        fetched: None,
    })
}

fn text(text: &str) -> EngineEvent {
    let text = text.to_owned();
    EngineEvent::Text { text, token: 5, n_draws: 1, end: None, own_probabilities: None, probabilities: Vec::new() }
}

fn finished(reason: FinishReason) -> Finished {
    Finished {
        reason,
        stopping_word: (reason == FinishReason::StopText).then(|| "END".to_owned()),
        truncated: false,
        drafted: Drafted::default(),
        completion_tokens: 3,
        prompt_ms: 1.0,
        predicted_ms: 2.0,
    }
}

fn ended(reason: FinishReason) -> EngineEvent {
    EngineEvent::Finished(finished(reason))
}

/// Returns a response in progress whose engine sends `events` after its start, and the engine's end of the channel.
async fn writing<W: DialectWriter>(body: Value, events: Vec<EngineEvent>) -> (DialectStream<W>, EventSender) {
    continued(body, (None, events)).await
}

/// Like [`writing`], for a response whose earlier part the client may have.
async fn continued<W: DialectWriter>(
    body: Value,
    (past, events): (Option<PastOutput>, Vec<EngineEvent>),
) -> (DialectStream<W>, EventSender) {
    let (engine, receiver) = crate::engine::events();
    for event in std::iter::once(started()).chain(events) {
        engine.send(event);
    }
    let body = Body(body.to_string().into());
    let beginning = Beginning {
        model: "tiny".to_owned(),
        identity: ResponseIdentity::parse("0123456789abcdef0123456789abcdef.7").expect("an identity"),
        prompt_tokens: u32::try_from(PROMPT_TOKENS).expect("a small number"),
        cached_tokens: CACHED_TOKENS,
        tools: W::convert(&body.0).map(|converted| converted.tools).unwrap_or_default(),
        fingerprint: None,
    };
    let writer = W::new(beginning, W::read_repeated(&body).expect("it can be read"));
    let messages = Messages::new(scripted(PROMPT_TOKENS, past, receiver).await);
    (DialectStream { writer, messages, parts: MessageParts::default(), ending: None }, engine)
}

/// Returns the events of a stream with their names; ids have no random part, and times are 0.
async fn streamed<W: DialectWriter>(body: Value, events: Vec<EngineEvent>) -> Vec<(String, Value)> {
    let (writing, _engine) = writing::<W>(body, events).await;
    let response = writing.stream();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    parse(&to_bytes(response.into_body(), 1 << 20).await.expect("a stream"))
}

async fn whole<W: DialectWriter>(body: Value, events: Vec<EngineEvent>) -> Value {
    let response = writing::<W>(body, events).await.0.whole().await.expect("an answer");
    assert_eq!(response.headers()["content-type"], "application/json");
    let bytes = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
    let mut value = serde_json::from_slice(&bytes).expect("JSON");
    settle(&mut value);
    value
}

fn parse(bytes: &[u8]) -> Vec<(String, Value)> {
    let text = std::str::from_utf8(bytes).expect("events are text");
    let events = text.split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let name = name.strip_prefix("event: ").expect("a name").to_owned();
        let mut data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        settle(&mut data);
        if name != "error" {
            assert_eq!(data["type"], name, "the type in the data is the event's name");
        }
        (name, data)
    });
    events.collect()
}

/// Removes the parts of a value that differ in every run.
fn settle(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match (name.as_str(), value) {
                    ("id" | "item_id", Value::String(id)) => id.truncate(id.find('_').unwrap_or(id.len())),
                    ("completed_at", value) if value.is_number() => *value = json!(0),
                    (_, value) => settle(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle),
        _ => {}
    }
}

fn hello(reason: FinishReason) -> Vec<EngineEvent> {
    vec![text("Hel"), text(""), text("lo"), ended(reason)]
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(name, _)| name.as_str()).collect()
}

fn message_usage(output_tokens: u32) -> Value {
    json!({"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 16, "output_tokens": output_tokens})
}

fn named(data: Value) -> (String, Value) {
    (data["type"].as_str().expect("a type").to_owned(), data)
}

#[tokio::test]
async fn a_message_of_text_gives_these_events() {
    let message = json!({"id": "msg", "type": "message", "role": "assistant", "model": "tiny", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": message_usage(0)});
    let delta = |text: &str| {
        named(json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}))
    };
    let expected = [
        named(json!({"type": "message_start", "message": message})),
        named(json!({"type": "ping"})),
        named(json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})),
        delta("Hel"),
        delta("lo"),
        named(json!({"type": "content_block_stop", "index": 0})),
        named(
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null}, "usage": message_usage(3)}),
        ),
        named(json!({"type": "message_stop"})),
    ];
    assert_eq!(streamed::<MessageWriter>(json!({}), hello(FinishReason::EndOfGeneration)).await, expected);
}

#[tokio::test]
async fn a_whole_message_has_its_stop_reason() {
    let message = async |reason| whole::<MessageWriter>(json!({}), hello(reason)).await;
    let expected = json!({"id": "msg", "type": "message", "role": "assistant", "model": "tiny",
        "content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn", "stop_sequence": null, "usage": message_usage(3)});
    assert_eq!(message(FinishReason::EndOfGeneration).await, expected);
    assert_eq!(message(FinishReason::Length).await["stop_reason"], "max_tokens");
    let full = Finished { truncated: true, ..finished(FinishReason::Length) };
    let full = whole::<MessageWriter>(json!({}), vec![EngineEvent::Finished(full)]).await;
    assert_eq!((&full["stop_reason"], &full["content"]), (&json!("model_context_window_exceeded"), &json!([])));
}

#[tokio::test]
async fn only_a_stop_text_of_the_client_is_a_message_s_stop_sequence() {
    let listed = json!({"stop_sequences": ["other", "END"]});
    let stopped = whole::<MessageWriter>(listed.clone(), hello(FinishReason::StopText)).await;
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!("END")));
    let streamed = streamed::<MessageWriter>(listed, hello(FinishReason::StopText)).await;
    let delta = &streamed[streamed.len() - 2].1["delta"];
    assert_eq!(*delta, json!({"stop_reason": "stop_sequence", "stop_sequence": "END"}));
    // Otherwise the text belongs to the chat template.
    for body in [json!({}), json!({"stop_sequences": null}), json!({"stop_sequences": ["EN"]})] {
        let stopped = whole::<MessageWriter>(body, hello(FinishReason::StopText)).await;
        assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    }
    let (writing, _engine) = writing::<MessageWriter>(json!({}), Vec::new()).await;
    let called = MessageEnd { reason: FinishReason::StopText, has_tool_calls: true };
    let called = message(&writing.parts, &writing.messages, Some(called));
    let called = writing.writer.whole(&CompleteMessage { stop_text: Some("<|role_end|>"), ..called });
    let called: Value = serde_json::from_slice(&called).expect("JSON");
    assert_eq!((&called["stop_reason"], &called["stop_sequence"]), (&json!("tool_use"), &Value::Null));
}

#[tokio::test]
async fn a_message_that_fails_midway_ends_with_an_error_event() {
    let failed = EngineEvent::Failed(EngineError::Decode { reason: "scripted".to_owned() });
    let events = streamed::<MessageWriter>(json!({}), vec![text("Hel"), failed]).await;
    assert_eq!(names(&events), ["message_start", "ping", "content_block_start", "content_block_delta", "error"]);
    let error = json!({"type": "api_error", "message": "the model failed to decode: scripted"});
    assert_eq!(events[4].1, json!({"type": "error", "error": error}));
}

/// Writes the pieces of a response with reasoning, content and two calls; returns the events after its start.
async fn parts_of<W: DialectWriter>(reason: FinishReason) -> Vec<(String, Value)> {
    let (mut writing, _engine) = writing::<W>(json!({}), vec![ended(reason)]).await;
    let call = |index, head: Option<(&str, &str)>, arguments: &str| {
        let (id, name) = head.map(|(id, name)| (id.to_owned(), name.to_owned())).unzip();
        ToolCallDelta { index, id, name, arguments: arguments.to_owned() }
    };
    let calls = [
        call(0, Some(("c1", "look")), ""),
        call(0, None, "{\"a\""),
        call(0, None, ": 1}"),
        call(1, Some(("c2", "go")), "{}"),
    ];
    let said = [MessagePiece::Thought("Hm."), MessagePiece::Text("I look.")];
    let mut out = Vec::new();
    for piece in said.into_iter().chain(calls.iter().map(MessagePiece::Call)) {
        writing.write_piece(&mut out, piece);
    }
    let mut end = Vec::new();
    assert!(!writing.write_next(&mut end).await, "the engine has ended");
    out.append(&mut end);
    parse(&out)
}

#[tokio::test]
async fn reasoning_and_calls_are_blocks_of_a_message() {
    let start = |index: u32, block: Value| {
        named(json!({"type": "content_block_start", "index": index, "content_block": block}))
    };
    let delta =
        |index: u32, delta: Value| named(json!({"type": "content_block_delta", "index": index, "delta": delta}));
    let stop = |index: u32| named(json!({"type": "content_block_stop", "index": index}));
    let json_delta = |text: &str| json!({"type": "input_json_delta", "partial_json": text});
    let expected = [
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "Hm."})),
        delta(0, json!({"type": "signature_delta", "signature": "unsigned"})),
        stop(0),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "I look."})),
        stop(1),
        start(2, json!({"type": "tool_use", "id": "c1", "name": "look", "input": {}})),
        delta(2, json_delta("{\"a\"")),
        delta(2, json_delta(": 1}")),
        stop(2),
        start(3, json!({"type": "tool_use", "id": "c2", "name": "go", "input": {}})),
        delta(3, json_delta("{}")),
        stop(3),
        named(
            json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens", "stop_sequence": null}, "usage": message_usage(3)}),
        ),
        named(json!({"type": "message_stop"})),
    ];
    assert_eq!(parts_of::<MessageWriter>(FinishReason::Length).await, expected);
}

/// Returns a response at one of its stages, for a request without further fields.
fn response(status: &str, fields: Value) -> Value {
    let mut response = json!({"id": "resp", "object": "response", "created_at": 7, "completed_at": null, "status": status,
        "error": null, "incomplete_details": null, "model": "tiny", "output": [], "usage": null, "background": false,
        "previous_response_id": null, "store": false, "truncation": "disabled", "instructions": null, "max_output_tokens": null,
        "max_tool_calls": null, "metadata": {}, "parallel_tool_calls": true, "prompt_cache_key": null,
        "reasoning": {"effort": null, "summary": null}, "safety_identifier": null, "temperature": null,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": null, "user": null});
    for (name, value) in fields.as_object().expect("an object") {
        response[name] = value.clone();
    }
    response
}

fn response_usage() -> Value {
    json!({"input_tokens": 20, "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0}, "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 23})
}

fn message_item(status: &str, texts: &[&str]) -> Value {
    let content: Vec<_> = texts.iter().map(|text| output_text(text)).collect();
    json!({"type": "message", "id": "msg", "status": status, "role": "assistant", "content": content})
}

fn output_text(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// Numbers events from `first`.
fn numbered(first: u64, events: impl IntoIterator<Item = Value>) -> Vec<(String, Value)> {
    let number = |(number, mut event): (u64, Value)| {
        event["sequence_number"] = json!(number);
        named(event)
    };
    (first..).zip(events).map(number).collect()
}

#[tokio::test]
async fn a_response_of_text_gives_these_events() {
    let in_progress = response("in_progress", json!({}));
    let at = |kind: &str, fields: Value| {
        let mut event = json!({"type": kind, "item_id": "msg", "output_index": 0, "content_index": 0});
        event.as_object_mut().expect("an object").append(&mut fields.as_object().expect("an object").clone());
        event
    };
    let item = message_item("completed", &["Hello"]);
    let done = response("completed", json!({"completed_at": 0, "output": [item], "usage": response_usage()}));
    let expected = [
        json!({"type": "response.created", "response": in_progress}),
        json!({"type": "response.in_progress", "response": in_progress}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": message_item("in_progress", &[])}),
        at("response.content_part.added", json!({"part": output_text("")})),
        at("response.output_text.delta", json!({"delta": "Hel", "logprobs": []})),
        at("response.output_text.delta", json!({"delta": "lo", "logprobs": []})),
        at("response.output_text.done", json!({"text": "Hello", "logprobs": []})),
        at("response.content_part.done", json!({"part": output_text("Hello")})),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": "response.completed", "response": done}),
    ];
    assert_eq!(
        streamed::<ResponseWriter>(json!({}), hello(FinishReason::EndOfGeneration)).await,
        numbered(0, expected)
    );
}

#[tokio::test]
async fn a_response_that_reaches_its_limit_is_incomplete_and_so_is_its_last_item() {
    let item = message_item("incomplete", &["Hello"]);
    let details = json!({"reason": "max_output_tokens"});
    let expected =
        response("incomplete", json!({"incomplete_details": details, "output": [item], "usage": response_usage()}));
    assert_eq!(whole::<ResponseWriter>(json!({}), hello(FinishReason::Length)).await, expected);
    let events = streamed::<ResponseWriter>(json!({}), hello(FinishReason::Length)).await;
    let (last, before) = (&events[events.len() - 1], &events[events.len() - 2]);
    assert_eq!((last.0.as_str(), &last.1["response"]), ("response.incomplete", &expected));
    assert_eq!(before.1["item"], item);
}

#[tokio::test]
async fn a_response_that_fails_midway_reports_it_with_the_text_so_far() {
    let failed = EngineEvent::Failed(EngineError::Decode { reason: "scripted".to_owned() });
    let events = streamed::<ResponseWriter>(json!({}), vec![text("Hel"), failed]).await;
    let (name, data) = events.last().expect("there are events");
    let error = json!({"code": "server_error", "message": "the model failed to decode: scripted"});
    let output = json!([message_item("incomplete", &["Hel"])]);
    assert_eq!(name, "response.failed");
    assert_eq!(data["response"], response("failed", json!({"error": error, "output": output})));
    assert_eq!(data["sequence_number"], events.len() - 1);
}

#[tokio::test]
async fn a_response_repeats_its_request() {
    let said = json!({"instructions": "Be brief.", "max_output_tokens": 9, "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.9,
        "tools": [{"type": "function", "name": "f"}], "tool_choice": "none", "parallel_tool_calls": false, "user": "u",
        "reasoning": {"effort": "low"}});
    let mut request = said.clone();
    request["input"] = json!("Hi");
    request["store"] = json!(true);
    request["text"] = json!({"verbosity": "low"});
    let answered = whole::<ResponseWriter>(request, hello(FinishReason::EndOfGeneration)).await;
    for (name, value) in said.as_object().expect("an object") {
        assert_eq!(&answered[name], value, "{name}");
    }
    assert_eq!(answered["text"], json!({"verbosity": "low", "format": {"type": "text"}}));
    assert_eq!(answered["store"], false, "nothing is stored, even if the request wants it");
}

#[tokio::test]
async fn reasoning_and_calls_are_items_of_a_response() {
    let events = parts_of::<ResponseWriter>(FinishReason::EndOfGeneration).await;
    let place = |item: &str, index: u32, mut event: Value| {
        event["item_id"] = json!(item);
        event["output_index"] = json!(index);
        if item != "fc" {
            event["content_index"] = json!(0);
        }
        event
    };
    let thought = |text: &str| json!({"type": "reasoning_text", "text": text});
    let reasoning = |status: &str, content: Value| json!({"type": "reasoning", "id": "rs", "status": status, "summary": [], "content": content});
    let call = |status: &str, id: &str, name: &str, arguments: &str| json!({"type": "function_call", "id": "fc", "status": status, "call_id": id, "name": name, "arguments": arguments});
    let added =
        |index: u32, item: Value| json!({"type": "response.output_item.added", "output_index": index, "item": item});
    let done =
        |index: u32, item: Value| json!({"type": "response.output_item.done", "output_index": index, "item": item});
    let arguments = |index: u32, delta: &str| {
        place("fc", index, json!({"type": "response.function_call_arguments.delta", "delta": delta}))
    };
    let arguments_done = |index: u32, name: &str, arguments: &str| {
        place(
            "fc",
            index,
            json!({"type": "response.function_call_arguments.done", "name": name, "arguments": arguments}),
        )
    };
    let output = json!([
        reasoning("completed", json!([thought("Hm.")])),
        message_item("completed", &["I look."]),
        call("completed", "c1", "look", "{\"a\": 1}"),
        call("completed", "c2", "go", "{}"),
    ]);
    let expected = [
        added(0, reasoning("in_progress", json!([]))),
        place("rs", 0, json!({"type": "response.content_part.added", "part": thought("")})),
        place("rs", 0, json!({"type": "response.reasoning_text.delta", "delta": "Hm."})),
        place("rs", 0, json!({"type": "response.reasoning_text.done", "text": "Hm."})),
        place("rs", 0, json!({"type": "response.content_part.done", "part": thought("Hm.")})),
        done(0, output[0].clone()),
        added(1, message_item("in_progress", &[])),
        place("msg", 1, json!({"type": "response.content_part.added", "part": output_text("")})),
        place("msg", 1, json!({"type": "response.output_text.delta", "delta": "I look.", "logprobs": []})),
        place("msg", 1, json!({"type": "response.output_text.done", "text": "I look.", "logprobs": []})),
        place("msg", 1, json!({"type": "response.content_part.done", "part": output_text("I look.")})),
        done(1, output[1].clone()),
        added(2, call("in_progress", "c1", "look", "")),
        arguments(2, "{\"a\""),
        arguments(2, ": 1}"),
        arguments_done(2, "look", "{\"a\": 1}"),
        done(2, output[2].clone()),
        added(3, call("in_progress", "c2", "go", "")),
        arguments(3, "{}"),
        arguments_done(3, "go", "{}"),
        done(3, output[3].clone()),
        json!({"type": "response.completed",
            "response": response("completed", json!({"completed_at": 0, "output": output, "usage": response_usage()}))}),
    ];
    assert_eq!(events, numbered(0, expected));
}

#[tokio::test]
async fn calls_have_the_clients_names_and_formats() {
    let tools = json!([
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
        {"type": "custom", "name": "patch"},
        {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
    ]);
    let body = json!({"input": "Hi", "tools": tools});
    let (mut writing, _engine) = writing::<ResponseWriter>(body, vec![ended(FinishReason::EndOfGeneration)]).await;
    let call = |index, head: Option<(&str, &str)>, arguments: &str| {
        let (id, name) = head.map(|(id, name)| (id.to_owned(), name.to_owned())).unzip();
        ToolCallDelta { index, id, name, arguments: arguments.to_owned() }
    };
    let mut out = Vec::new();
    for call in [
        call(0, Some(("c1", "n__f")), "{}"),
        call(1, Some(("c2", "patch")), "{\"inp"),
        call(1, None, "ut\": \"a\\"),
        call(1, None, "nb\"}"),
        call(2, Some(("c3", "tool_search")), "{\"query\": "),
        call(2, None, "\"q\"}"),
    ] {
        writing.write_piece(&mut out, MessagePiece::Call(&call));
    }
    let mut end = Vec::new();
    assert!(!writing.write_next(&mut end).await, "the engine has ended");
    out.append(&mut end);
    let events = parse(&out);
    let done: Vec<_> =
        events.iter().filter(|(name, _)| name == "response.output_item.done").map(|event| &event.1["item"]).collect();
    let function = json!({"type": "function_call", "id": "fc", "status": "completed", "call_id": "c1", "namespace": "n", "name": "f",
        "arguments": "{}"});
    let custom = json!({"type": "custom_tool_call", "id": "ctc", "status": "completed", "call_id": "c2", "name": "patch",
        "input": "a\nb"});
    let search = json!({"type": "tool_search_call", "id": "tsc", "status": "completed", "call_id": "c3", "execution": "client",
        "arguments": {"query": "q"}});
    assert_eq!(done, [&function, &custom, &search]);
    let deltas = events.iter().filter(|(name, _)| name == "response.custom_tool_call_input.delta");
    assert_eq!(deltas.map(|event| event.1["delta"].as_str()).collect::<Option<String>>().as_deref(), Some("a\nb"));
    let done = events.iter().find(|(name, _)| name == "response.custom_tool_call_input.done").expect("there is one");
    assert_eq!((&done.1["input"], &done.1["item_id"]), (&json!("a\nb"), &json!("ctc")));
    let last = &events.last().expect("there are events").1;
    assert_eq!(last["response"]["output"], json!([function, custom, search]));
    let of_search = events.iter().filter(|(_, event)| event["output_index"] == 2).map(|(name, _)| name.as_str());
    assert_eq!(of_search.collect::<Vec<_>>(), ["response.output_item.added", "response.output_item.done"]);
}
