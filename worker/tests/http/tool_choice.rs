//! Custom tools of chats, and choices that allow only some tools: the prompt still has all tools.
//!
//! Not here: choices of one tool and of none (`tools`), custom tools of responses (`agents`).

use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, user};
use crate::tool_parameters::OBJECT;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

fn patch() -> Value {
    json!({"type": "custom", "custom": {"name": "patch", "description": "Edits.", "format": {"type": "text"}}})
}

/// Returns a function without arguments.
fn function(name: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {}, "additionalProperties": false});
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn tools() -> Value {
    json!([function("look"), function("look_again"), function("wait"), patch()])
}

fn allowed(mode: &str, tools: Value) -> Value {
    json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
}

fn named(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

/// Returns a chat in which all allowed tokens are about equally likely.
fn random(choice: Value, seed: u64) -> Value {
    json!({"messages": user("Go on."), "tools": tools(), "tool_choice": choice, "temperature": 100.0, "top_k": 0,
        "top_p": 1.0, "min_p": 0.0, "seed": seed, "max_tokens": 60, "parallel_tool_calls": false})
}

/// Returns a call's type, its tool's name, and its text or arguments.
fn read(call: &Value) -> (&str, &str, &str) {
    let kind = call["type"].as_str().expect("a call has a type");
    let argument = if kind == "custom" { "input" } else { "arguments" };
    let of = |field: &str| call[kind][field].as_str().unwrap_or_else(|| panic!("{field} in {call}"));
    (kind, of("name"), of(argument))
}

#[tokio::test]
async fn a_chat_s_custom_tool_is_called_with_a_single_text_whole_and_streamed() {
    let worker = TestWorker::start("--slots 1 --ctx-size 4096").await;
    let choice = json!({"type": "custom", "custom": {"name": "patch"}});
    let body = |stream: bool| {
        json!({"messages": user("Edit"), "tools": tools(), "tool_choice": choice, "temperature": 0, "max_tokens": 40,
            "stream": stream})
    };
    let answer = worker.ask(CHAT, body(false)).await;
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    let (kind, name, input) = read(call);
    assert_eq!((kind, name, call.get("function")), ("custom", "patch", None), "{answer}");
    assert!(!input.is_empty() && !input.contains("\"input\""), "{call}");

    let events = worker.stream(CHAT, body(true)).await;
    let parts: Vec<&Value> =
        events.iter().flat_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array()).flatten().collect();
    assert_eq!((&parts[0]["type"], &parts[0]["custom"]["name"]), (&json!("custom"), &json!("patch")), "{parts:?}");
    assert!(parts[0]["id"].is_string() && parts[1].get("type").is_none() && parts.len() > 2, "{parts:?}");
    let text: String = parts.iter().map(|part| part["custom"]["input"].as_str().expect("a text")).collect();
    assert_eq!(text, input);
}

#[tokio::test]
async fn a_custom_tool_s_call_and_result_are_rendered_like_those_of_a_function() {
    let worker = TestWorker::start("--slots 1 --ctx-size 4096").await;
    let parameters = json!({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
        "additionalProperties": false});
    let function = json!({"name": "patch", "description": "Edits.", "parameters": parameters});
    let body = |tool: &Value, call: Value| {
        let assistant = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let result = json!({"role": "tool", "tool_call_id": "c", "content": "done"});
        json!({"messages": [{"role": "user", "content": "Edit"}, assistant, result], "tools": [tool], "max_tokens": 2})
    };
    let of_function = json!({"name": "patch", "arguments": "{\"input\":\"a \\\"b\\\"\\n\"}"});
    let of_custom = json!({"name": "patch", "input": "a \"b\"\n"});
    let as_function = body(
        &json!({"type": "function", "function": function}),
        json!({"id": "c", "type": "function", "function": of_function}),
    );
    let as_custom = body(&patch(), json!({"id": "c", "type": "custom", "custom": of_custom}));
    let prompt = worker.ask("/apply-template", as_function).await["prompt"].clone();
    assert!(prompt.as_str().is_some_and(|prompt| prompt.contains("a \\\"b\\\"")), "{prompt}");
    assert_eq!(worker.ask("/apply-template", as_custom.clone()).await["prompt"], prompt);
    worker.ask(CHAT, as_custom).await;
}

#[tokio::test]
async fn only_allowed_tools_are_called_and_the_prompt_keeps_them_all() {
    let path = folder().join("allowed-tools.jinja");
    std::fs::write(&path, OBJECT).expect("the file can be written");
    let worker = TestWorker::start(&format!("--slots 1 --ctx-size 4096 --chat-template-file {}", path.display())).await;
    let usage = |answer: &Value| {
        let usage = &answer["usage"];
        (usage["prompt_tokens"].as_u64(), usage["prompt_tokens_details"]["cached_tokens"].as_u64())
    };
    let (n_prompt, _) = usage(&worker.ask(CHAT, random(json!("auto"), 0)).await);
    let choices = [
        (json!([named("look"), {"type": "mcp", "server_label": "s"}]), ["look"].as_slice()),
        (json!([named("look_again"), {"type": "custom", "custom": {"name": "patch"}}]), &["look_again", "patch"]),
    ];
    for (tools, names) in choices {
        let mut n_called = 0;
        for seed in 0..12 {
            let answer = worker.ask(CHAT, random(allowed("required", tools.clone()), seed)).await;
            let (n_own, cached) = usage(&answer);
            assert_eq!(n_own, n_prompt, "the prompt does not depend on the choice");
            assert!(cached.zip(n_prompt).is_some_and(|(cached, all)| cached + 1 >= all), "{answer}");
            let mut body = random(allowed("auto", tools.clone()), seed);
            // The bias makes the model begin a call wherever the grammar allows it.
            body["logit_bias"] = json!([["<tool_call>", 100000]]);
            let optional = worker.ask(CHAT, body).await;
            for answer in [&answer, &optional] {
                for call in answer["choices"][0]["message"]["tool_calls"].as_array().into_iter().flatten() {
                    assert!(names.contains(&read(call).1), "{answer}");
                    n_called += 1;
                }
            }
        }
        assert!(n_called > 20, "{names:?}: {n_called} calls");
    }
    let (status, error) = worker.try_ask(CHAT, &random(allowed("auto", json!([named("gone")])), 0)).await;
    let param = "tool_choice.allowed_tools.tools[0]";
    assert_eq!((status, error["error"]["param"].as_str()), (400, Some(param)), "{error}");
}

#[tokio::test]
async fn a_response_calls_only_allowed_tools_and_repeats_the_choice() {
    let worker = TestWorker::start("--slots 1 --ctx-size 4096").await;
    let function = |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": {}, "additionalProperties": false}});
    let agents = json!({"type": "namespace", "name": "agents", "tools": [function("wait"), function("spawn")]});
    let choice = json!({"type": "allowed_tools", "mode": "required", "tools": [
        {"type": "function", "name": "wait", "namespace": "agents"}, {"type": "custom", "name": "patch"},
    ]});
    let mut body = json!({"input": "Go on.", "tools": [function("wait"), agents, {"type": "custom", "name": "patch"}],
        "tool_choice": choice, "temperature": 100.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_output_tokens": 60});
    let (mut n_waits, mut n_patches) = (0, 0);
    for seed in 0..12 {
        body["seed"] = json!(seed);
        let answer = worker.ask(RESPONSES, body.clone()).await;
        assert_eq!(answer["tool_choice"], choice);
        let item = &answer["output"][0];
        match item["type"].as_str() {
            Some("function_call") => {
                assert_eq!((&item["name"], &item["namespace"]), (&json!("wait"), &json!("agents")), "{answer}");
                n_waits += 1;
            }
            kind => {
                assert_eq!((kind, item["name"].as_str()), (Some("custom_tool_call"), Some("patch")), "{answer}");
                n_patches += 1;
            }
        }
    }
    assert!(n_waits > 0 && n_patches > 0, "{n_waits} and {n_patches} calls");
    body["tool_choice"]["tools"] = json!([{"type": "function", "name": "spawn"}]);
    let (status, error) = worker.try_ask(RESPONSES, &body).await;
    assert_eq!((status, error["error"]["param"].as_str()), (400, Some("tool_choice.tools[0]")), "{error}");
    body["tool_choice"] = json!({"type": "allowed_tools", "mode": "any", "tools": []});
    let (status, error) = worker.try_ask(RESPONSES, &body).await;
    assert_eq!((status, error["error"]["param"].as_str()), (400, Some("tool_choice.mode")), "{error}");
}
