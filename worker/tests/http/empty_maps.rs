//! Requests of clients that write empty maps as `[]`: they are those with `{}`, in every dialect.

use serde_json::{Value, json};

use crate::harness::{TestWorker, user};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// Returns schemas of arguments with empty maps at each place that can only have one.
fn schemas(empty: &Value) -> [Value; 4] {
    [
        empty.clone(),
        json!({"type": "object", "properties": empty, "required": []}),
        json!({"type": "object", "properties": {"a": empty, "b": {"type": "object", "properties": empty}}}),
        json!({
            "type": "object", "properties": {"a": {"type": "array", "items": empty}}, "patternProperties": empty,
            "$defs": empty, "definitions": empty, "dependentSchemas": empty, "required": ["a"],
        }),
    ]
}

/// Returns a request of each dialect with a tool of these parameters.
fn requests(parameters: &Value, is_required: bool) -> [(&'static str, Value); 3] {
    let function = json!({"name": "f", "parameters": parameters});
    let choice = if is_required { "required" } else { "auto" };
    let chat = json!({
        "messages": user("Go on."), "tools": [{"type": "function", "function": function}], "tool_choice": choice,
        "temperature": 0, "max_tokens": 12,
    });
    let message = json!({
        "messages": user("Go on."), "tools": [{"name": "f", "input_schema": parameters}],
        "tool_choice": {"type": if is_required { "any" } else { "auto" }}, "temperature": 0, "max_tokens": 12,
    });
    let response = json!({
        "input": "Go on.", "tools": [{"type": "function", "name": "f", "parameters": parameters}],
        "tool_choice": choice, "temperature": 0, "max_output_tokens": 12,
    });
    [(CHAT, chat), (MESSAGES, message), (RESPONSES, response)]
}

/// Returns the number of tokens of an answer's prompt.
fn n_prompt_tokens(answer: &Value) -> u64 {
    // Anthropic's `input_tokens` are without the cached ones.
    let fields = ["prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
    let n_tokens = fields.iter().filter_map(|field| answer["usage"][field].as_u64()).sum();
    assert!(n_tokens > 0, "{answer}");
    n_tokens
}

#[tokio::test]
async fn tools_with_empty_lists_in_place_of_maps_are_those_with_empty_maps() {
    let worker = TestWorker::start("--slots 1 --ctx-size 4096").await;
    for is_required in [false, true] {
        let both = schemas(&json!([])).into_iter().zip(schemas(&json!({})));
        for (lists, maps) in both {
            for ((path, with_lists), (_, with_maps)) in
                requests(&lists, is_required).into_iter().zip(requests(&maps, is_required))
            {
                let (status, answer) = worker.try_ask(path, &with_lists).await;
                assert_eq!(status, 200, "{path}: {with_lists}: {answer}");
                let expected = worker.ask(path, with_maps).await;
                assert_eq!(n_prompt_tokens(&answer), n_prompt_tokens(&expected), "{path}: {lists}");
            }
        }
    }
}

#[tokio::test]
async fn fields_that_are_empty_lists_in_place_of_maps_are_like_absent_ones() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let chat = ["metadata", "logit_bias", "chat_template_kwargs", "tool_choice", "response_format", "stream_options"];
    let messages = ["metadata", "tool_choice", "thinking", "output_config", "chat_template_kwargs", "logit_bias"];
    let responses = ["metadata", "tool_choice", "reasoning", "text", "chat_template_kwargs", "logit_bias"];
    let fields: [&[&str]; 3] = [&chat, &messages, &responses];
    for ((path, body), names) in requests(&json!({}), false).into_iter().zip(fields) {
        for name in names {
            let mut body = body.clone();
            body[*name] = json!([]);
            let (status, answer) = worker.try_ask(path, &body).await;
            assert_eq!(status, 200, "{path} {name}: {answer}");
        }
    }
}

#[tokio::test]
async fn schemas_of_responses_may_have_empty_lists_in_place_of_maps() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "items": [], "maxItems": 0}},
        "required": ["a"], "additionalProperties": false, "$defs": []});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    let body = json!({"messages": user("Go on."), "response_format": format, "temperature": 0, "max_tokens": 60});
    let answer = worker.ask(CHAT, body).await;
    let content = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert_eq!(serde_json::from_str::<Value>(content).expect("JSON"), json!({"a": []}), "{answer}");
    for schema in [json!([]), json!({"type": "object", "properties": []})] {
        let body = json!({"prompt": "Go on.", "json_schema": schema, "temperature": 0, "n_predict": 8});
        let (status, answer) = worker.try_ask("/completion", &body).await;
        assert_eq!(status, 200, "{answer}");
    }
}
