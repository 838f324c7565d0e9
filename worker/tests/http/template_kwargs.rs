//! Default variables of the chat template: the reuse that they keep, the declaration for routers, the default field of
//! reasoning.
//!
//! Not here: how variables are combined (`warmpath-prompt`), the flags (`config::chat`).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use warmpath_bench::prompts::words;
use warmpath_common::summary::{SNAPSHOT_PATH, Snapshot};

use crate::harness::{TestWorker, folder};

/// Returns the file of Qwen 3.5's template with the condition of Qwen 3.6's, which has a variable that keeps reasoning.
fn template() -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fixtures/templates");
    let source = std::fs::read_to_string(fixtures.join("Qwen3.5-4B.jinja")).expect("run `make fixtures`");
    let behind_last_question = "loop.index0 > ns.last_query_index";
    let changed = source.replace(behind_last_question, &format!("preserve_thinking is true or {behind_last_question}"));
    assert_ne!(changed, source, "the fixture has another condition");
    let path = folder().join("preserves-thinking.jinja");
    std::fs::write(&path, changed).expect("the template is written");
    path
}

async fn start(flags: &str) -> TestWorker {
    let template = template();
    let fixed = format!("--slots 1 --ctx-size 4096 --chat-template-file {}", template.display());
    TestWorker::start(&format!("{fixed} {flags}")).await
}

fn body(messages: &[Value]) -> Value {
    json!({"messages": messages, "max_tokens": 8, "temperature": 0})
}

/// Sends a tool loop of a thinking model and then the next question; returns the tokens of the loop's last prompt and
/// those that the question reused.
async fn reused(worker: &TestWorker, change: impl Fn(&mut Value)) -> [u64; 2] {
    let call = |id: usize| {
        let function = json!({"name": "look", "arguments": "{\"place\": \"kitchen\"}"});
        let calls = json!([{"id": format!("call0000{id}"), "type": "function", "function": function}]);
        let thought = words(id as u64, 60);
        json!({"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": calls})
    };
    let result = |id: usize| json!({"role": "tool", "content": words(10, 30), "tool_call_id": format!("call0000{id}")});
    let mut messages =
        vec![json!({"role": "system", "content": words(20, 60)}), json!({"role": "user", "content": words(21, 20)})];
    let ask = async |messages: &[Value]| {
        let mut body = body(messages);
        change(&mut body);
        worker.ask("/v1/chat/completions", body).await["usage"].clone()
    };
    let mut before = Value::Null;
    for id in 0..2 {
        messages.extend([call(id), result(id)]);
        before = ask(&messages).await;
    }
    messages.push(json!({"role": "assistant", "content": "Done.", "reasoning_content": words(30, 40)}));
    messages.push(json!({"role": "user", "content": words(31, 20)}));
    let after = ask(&messages).await;
    let tokens = |usage: &Value, field: &str| usage.pointer(field).and_then(Value::as_u64).expect("a count");
    [tokens(&before, "/prompt_tokens"), tokens(&after, "/prompt_tokens_details/cached_tokens")]
}

#[tokio::test]
async fn the_question_behind_a_tool_loop_reuses_the_loop_with_the_default() {
    let keeps = "--chat-template-kwargs {\"preserve_thinking\":true}";
    for (flags, own, is_kept) in [
        ("", json!({}), false),
        ("", json!({"preserve_thinking": true}), true),
        (keeps, json!({}), true),
        (keeps, json!({"preserve_thinking": false}), false),
        (keeps, json!({"enable_thinking": true}), true),
        ("--reasoning-preserve", json!({}), true),
    ] {
        let worker = start(flags).await;
        let own = &own;
        let [before, cached] = reused(&worker, |body| body["chat_template_kwargs"] = own.clone()).await;
        // The opening of the response may be another one in the next prompt.
        assert_eq!(cached + 16 > before, is_kept, "{flags} {own}: {cached} of {before}");
        assert!(is_kept || cached < before / 2, "{flags} {own}: {cached} of {before}");
    }
}

#[tokio::test]
async fn the_defaults_are_declared_and_shown() {
    let mut fingerprints = Vec::new();
    for (flags, expected) in [
        ("", json!({})),
        ("--chat-template-kwargs {\"x\":[1],\"preserve_thinking\":true}", json!({"x": [1], "preserve_thinking": true})),
        ("--reasoning off --reasoning-effort low", json!({"enable_thinking": false, "reasoning_effort": "low"})),
    ] {
        let worker = start(flags).await;
        let props = worker.get_json("/props").await;
        assert_eq!(props["chat_template_kwargs"], expected, "{flags}");
        let snapshot: Snapshot = serde_json::from_value(worker.get_json(SNAPSHOT_PATH).await).expect("a snapshot");
        let declared: Value = serde_json::from_str(&snapshot.model.chat_template_kwargs).expect("JSON");
        assert_eq!(declared, expected, "{flags}");
        assert_eq!(props["model_info"]["chat_template_kwargs"], snapshot.model.chat_template_kwargs, "{flags}");
        fingerprints.push(snapshot.model.chat_template_fingerprint);
    }
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 3, "each is another template for routers");
}

#[tokio::test]
async fn thinking_is_off_by_default_in_every_dialect_and_on_where_a_request_asks() {
    let worker = start("--reasoning off").await;
    let asked = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8});
    let prompt = async |own: Value| {
        let mut body = asked.clone();
        body["chat_template_kwargs"] = own;
        worker.ask("/apply-template", body).await["prompt"].as_str().expect("a text").to_owned()
    };
    let off = prompt(json!({})).await;
    assert!(off.ends_with("<think>\n\n</think>\n\n"), "{off}");
    assert_eq!(prompt(json!({"enable_thinking": null})).await, off);
    let on = prompt(json!({"enable_thinking": true})).await;
    assert!(on.ends_with("<think>\n"), "{on}");
    let n_tokens = async |thinking: Value| {
        let mut body = asked.clone();
        body["thinking"] = thinking;
        worker.ask("/v1/messages/count_tokens", body).await["input_tokens"].as_u64().expect("a count")
    };
    let absent = n_tokens(Value::Null).await;
    assert_eq!(n_tokens(json!({"type": "disabled"})).await, absent);
    assert!(n_tokens(json!({"type": "enabled", "budget_tokens": 1024})).await < absent);
}

#[tokio::test]
async fn reasoning_goes_where_the_default_format_says_unless_a_request_says_otherwise() {
    for (flags, shown, default) in
        [("", "auto", true), ("--reasoning-format none", "none", false), ("--reasoning-format deepseek", "auto", true)]
    {
        let worker = start(flags).await;
        let props = worker.get_json("/props").await;
        assert_eq!(props["default_generation_settings"]["params"]["reasoning_format"], shown, "{flags}");
        for (format, is_apart) in [(Value::Null, default), (json!("none"), false), (json!("auto"), true)] {
            let mut body = body(&[json!({"role": "user", "content": words(1, 20)})]);
            body["reasoning_format"] = format.clone();
            let message = worker.ask("/v1/chat/completions", body).await["choices"][0]["message"].clone();
            // The prompt opens the reasoning, and the model never closes it.
            assert_eq!(message["reasoning_content"].is_string(), is_apart, "{flags} {format}: {message}");
            let content = message["content"].as_str().unwrap_or_default();
            assert_eq!(content.is_empty(), is_apart, "{flags} {format}: {message}");
        }
    }
}
