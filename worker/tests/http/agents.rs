//! Coding agents: requests in the format of Claude Code and Codex CLI, with other texts, and their second turns.
//!
//! Not here: each kind of tool and item on its own (`warmpath_common::dialects`). Source: recorded requests of Claude
//! Code 2.1 and Codex CLI, for the fields, the number and types of the tools, and the order of the roles.

use serde_json::{Value, json};
use warmpath_bench::prompts::words;

use crate::harness::TestWorker;

const MESSAGES: &str = "/v1/messages?beta=true";
const RESPONSES: &str = "/v1/responses";

/// Template that refuses system messages after the first message, like that of Qwen 3.5.
const SYSTEM_FIRST: &str = "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{%- endif %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";

fn schema() -> Value {
    json!({"type": "object", "properties": {"path": {"enum": ["a", "b"]}}, "required": ["path"], "additionalProperties": false})
}

/// Returns Claude Code's first request: 24 tools, three system blocks, and a system message after the user's message.
fn claude_code() -> Value {
    let tool =
        |idx: u64| json!({"name": format!("Tool{idx}"), "description": words(idx, 12), "input_schema": schema()});
    let text = |text: String| json!({"type": "text", "text": text});
    let cached = |text: String| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    json!({
        "model": "tiny", "max_tokens": 8, "stream": false, "temperature": 0,
        "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [
            text("x-anthropic-billing-header: cc_version=2.1; cch=1a2b;".to_owned()), cached(words(1, 10)), cached(words(2, 200)),
        ],
        "tools": (100..124).map(tool).collect::<Vec<_>>(),
        "messages": [
            {"role": "user", "content": [text(words(3, 40)), cached(words(4, 6))]},
            {"role": "system", "content": [text(words(5, 200))]},
        ],
    })
}

/// Returns Codex CLI's first request: functions, a namespace, a tool that the worker does not execute, and developer
/// items before the user's.
fn codex() -> Value {
    let function = |name: &str| json!({"type": "function", "name": name, "description": words(6, 15), "strict": false, "parameters": schema()});
    let message = |role: &str, texts: &[String]| {
        let parts: Vec<_> = texts.iter().map(|text| json!({"type": "input_text", "text": text})).collect();
        json!({"type": "message", "role": role, "content": parts})
    };
    let mut tools: Vec<Value> =
        ["exec_command", "write_stdin", "request_user_input", "update_plan"].map(function).into();
    let nested = ["spawn_agent", "send_input", "wait", "close_agent", "resume_agent"].map(function);
    tools.push(json!({"type": "namespace", "name": "multi_agent_v1", "description": "d", "tools": nested}));
    tools.extend(["view_image", "list_skills", "read_memory"].map(function));
    tools.push(json!({"type": "web_search", "external_web_access": true}));
    json!({
        "model": "tiny", "max_output_tokens": 60, "stream": false, "store": false, "temperature": 0, "tool_choice": "auto",
        "parallel_tool_calls": true, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "client_metadata": {"x": "y"}, "reasoning": {"effort": "medium", "summary": "auto"}, "tools": tools,
        "input": [
            message("developer", &[words(7, 200)]), message("developer", &[words(8, 50), words(9, 10)]),
            message("user", &[words(10, 20)]), message("user", &[words(11, 6)]),
        ],
    })
}

/// Returns the response and the kinds of tools that were omitted from the request.
async fn ask(worker: &TestWorker, path: &str, body: &Value) -> (Value, Option<String>) {
    let response = worker.post(path, body).send().await.expect("the worker responds");
    let left_out =
        response.headers().get("x-warmpath-left-out-tools").map(|value| value.to_str().expect("text").to_owned());
    let status = response.status().as_u16();
    let answer: Value = response.json().await.expect("JSON");
    assert_eq!(status, 200, "{answer}");
    (answer, left_out)
}

fn extend(body: &mut Value, name: &str, items: impl IntoIterator<Item = Value>) {
    body[name].as_array_mut().expect("a list").extend(items);
}

#[tokio::test]
async fn codex_calls_tools_of_namespaces_and_continues_with_their_results() {
    let worker = TestWorker::start("--slots 1 --ctx-size 8192").await;
    let mut body = codex();
    body["tool_choice"] = json!({"type": "function", "name": "wait", "namespace": "multi_agent_v1"});
    let (answer, left_out) = ask(&worker, RESPONSES, &body).await;
    assert_eq!(left_out.as_deref(), Some("web_search"));
    let metrics = worker.get("/metrics").await.text().await.expect("text");
    assert!(metrics.contains("warmpath_worker_left_out_tools_total{kind=\"web_search\"} 1"), "{metrics}");
    let call = &answer["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &call["namespace"]),
        (&json!("function_call"), &json!("wait"), &json!("multi_agent_v1")),
        "{answer}"
    );
    body["tool_choice"] = json!("auto");
    body["max_output_tokens"] = json!(1);
    let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "done"});
    let search = json!({"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search"}});
    extend(&mut body, "input", [call.clone(), output, search]);
    let (next, left_out) = ask(&worker, RESPONSES, &body).await;
    assert_eq!(left_out.as_deref(), Some("web_search"));
    let usage = &next["usage"];
    let (cached, all) = (&usage["input_tokens_details"]["cached_tokens"], &usage["input_tokens"]);
    let first = answer["usage"]["input_tokens"].as_u64().expect("a count");
    assert!(cached.as_u64() >= Some(first - 32) && all.as_u64() > Some(first), "the first turn is reused: {usage}");
    body["tool_choice"] = json!({"type": "web_search"});
    assert_eq!(worker.try_ask(RESPONSES, &body).await.0, 400);
}

#[tokio::test]
async fn a_custom_tool_is_called_with_a_single_text() {
    let worker = TestWorker::start("--slots 1 --ctx-size 4096").await;
    let tool =
        json!({"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "text"}});
    let mut body = json!({"input": "Edit", "tools": [tool], "tool_choice": {"type": "custom", "name": "apply_patch"},
        "max_output_tokens": 40, "temperature": 0});
    let answer = worker.ask(RESPONSES, body.clone()).await;
    let call = &answer["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("custom_tool_call"), &json!("apply_patch")), "{answer}");
    assert!(call["input"].is_string() && call.get("arguments").is_none(), "{call}");
    let output = json!({"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"});
    body["input"] = json!([{"role": "user", "content": "Edit"}, call, output]);
    body["tool_choice"] = json!("none");
    let next = worker.ask(RESPONSES, body).await;
    assert!(next["usage"]["input_tokens_details"]["cached_tokens"].as_u64() > Some(10), "{next}");
}

#[tokio::test]
async fn claude_code_is_served_and_its_second_turn_reuses_the_first() {
    let template = crate::harness::folder().join("system-first.jinja");
    std::fs::write(&template, SYSTEM_FIRST).expect("the file can be written");
    for flags in [String::new(), format!("--chat-template-file {}", template.display())] {
        // With flash attention, a short suffix is computed with cached tokens before it, up to a whole tile.
        let worker = TestWorker::start(&format!("--slots 1 --ctx-size 8192 --flash-attn off {flags}")).await;
        let mut body = claude_code();
        let (answer, left_out) = ask(&worker, MESSAGES, &body).await;
        assert_eq!(left_out, None);
        let first = answer["usage"]["input_tokens"].as_u64().expect("a count");
        extend(
            &mut body,
            "messages",
            [
                json!({"role": "assistant", "content": answer["content"]}),
                json!({"role": "user", "content": words(12, 6)}),
            ],
        );
        body["system"][0]["text"] = json!("x-anthropic-billing-header: cc_version=2.1; cch=ffff;");
        let (next, _) = ask(&worker, MESSAGES, &body).await;
        let cached = next["usage"]["cache_read_input_tokens"].as_u64();
        assert!(cached >= Some(first - 32), "{cached:?} of {first} are reused");
    }
}

#[tokio::test]
async fn instructions_and_developer_items_are_one_message_if_the_template_requires_it() {
    let template = crate::harness::folder().join("system-first-responses.jinja");
    std::fs::write(&template, SYSTEM_FIRST).expect("the file can be written");
    let worker =
        TestWorker::start(&format!("--slots 1 --ctx-size 8192 --chat-template-file {}", template.display())).await;
    let mut body = codex();
    body["instructions"] = json!(words(13, 20));
    body["tools"] = json!([]);
    let (answer, _) = ask(&worker, RESPONSES, &body).await;
    assert!(answer["usage"]["input_tokens"].as_u64() > Some(300), "{answer}");
    let chat = json!({"messages": [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "system", "content": "d"}]});
    let prompt = worker.ask("/apply-template", chat).await["prompt"].clone();
    assert_eq!(prompt, "<|im_start|>system\na\nb<|im_end|>\n<|im_start|>user\nc\nd<|im_end|>\n<|im_start|>assistant\n");
    let only = worker.ask(RESPONSES, json!({"instructions": "Be brief.", "input": [], "max_output_tokens": 1})).await;
    assert_eq!(only["usage"]["output_tokens"], 1, "{only}");
}

#[tokio::test]
async fn the_next_turn_reuses_the_computed_part_of_an_interrupted_one() {
    let worker = TestWorker::start("--slots 1 --ctx-size 16384 --batch-size 256 --ubatch-size 256").await;
    let mut body = claude_code();
    body["messages"][1]["content"][0]["text"] = json!(words(14, 700));
    let counted = worker.ask("/v1/messages/count_tokens", body.clone()).await;
    let n_prompt = counted["input_tokens"].as_u64().expect("a count");
    assert!((2048..12_000).contains(&n_prompt), "{n_prompt} tokens are not several batches with room for a response");
    body["stream"] = json!(true);
    body["max_tokens"] = json!(4000);
    let leaving = worker.post(MESSAGES, &body).send().await.expect("the worker responds");
    assert_eq!(leaving.status(), 200, "{:?}", leaving.text().await);
    worker.until("a part is computed", async |worker| worker.metric("prefill_tokens_total").await >= 512.0).await;
    drop(leaving);
    worker.until("the slot is free", async |worker| worker.metric("slots_busy").await == 0.0).await;
    let n_computed = worker.metric("prefill_tokens_total").await as u64;
    body["stream"] = json!(false);
    body["max_tokens"] = json!(1);
    extend(&mut body, "messages", [json!({"role": "user", "content": words(15, 6)})]);
    let (next, _) = ask(&worker, MESSAGES, &body).await;
    let cached = next["usage"]["cache_read_input_tokens"].as_u64().expect("a count");
    assert!(
        cached + 32 >= n_computed.min(n_prompt),
        "{cached} tokens are reused of {n_computed} computed ones; the prompt has {n_prompt}"
    );
}
