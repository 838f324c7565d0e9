//! Tools before the system text, and their keys in one order: the rendered prompt, the settings in the summary for
//! routers, refused templates.
//!
//! Not here: how the parts are found (`warmpath-prompt`).

use serde_json::{Value, json};
use warmpath_bench::prompts::words;
use warmpath_common::summary::{SNAPSHOT_PATH, Snapshot, VOCABULARY_PATH};
use warmpath_prompt::{PromptMaker, PromptOptions};
use warmpath_worker::config::{flags::Flags, resolve};
use warmpath_worker::start::bind;

use crate::harness::{TestWorker, tiny};

/// Returns an agent's request in a project: the tools are the same in all projects, and the system text has the path.
fn asked(project: &str) -> Value {
    let tool = |idx: u64| {
        let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}}});
        json!({"type": "function", "function": {"name": format!("tool_{idx}"), "description": words(idx, 30), "parameters": parameters}})
    };
    let messages = json!([
        {"role": "system", "content": format!("You work in {project}. {}", words(50, 40))},
        {"role": "user", "content": "What is there?"},
    ]);
    json!({"messages": messages, "tools": (0..6).map(tool).collect::<Vec<_>>(), "max_tokens": 8, "temperature": 0})
}

/// Returns the worker's summary, and the prompt maker that a router makes from the worker's vocabulary.
async fn declared(worker: &TestWorker) -> (Snapshot, PromptMaker) {
    let snapshot = worker.get_json(SNAPSHOT_PATH).await;
    let vocabulary = worker.get(VOCABULARY_PATH).await.bytes().await.expect("bytes");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), &vocabulary).expect("the vocabulary is written");
    let maker = PromptMaker::open(file.path(), PromptOptions::default()).expect("it opens");
    (serde_json::from_value(snapshot).expect("a snapshot"), maker)
}

#[tokio::test]
async fn a_router_renders_the_same_prompt_as_the_worker() {
    let mut fingerprints = Vec::new();
    for flag in ["", "--tools-first"] {
        let worker = TestWorker::start(&format!("--slots 1 --ctx-size 4096 {flag}")).await;
        let (snapshot, router) = declared(&worker).await;
        assert_eq!(router.chat_template_fingerprint(), snapshot.model.chat_template_fingerprint, "{flag}");
        let prompt = worker.ask("/apply-template", asked("/home/a")).await["prompt"].clone();
        let chat = serde_json::from_value(asked("/home/a")).expect("a chat");
        assert_eq!(prompt.as_str(), Some(router.render(&chat).expect("it renders").as_str()), "{flag}");
        let find = |part: &str| prompt.as_str().and_then(|prompt| prompt.find(part)).expect("the prompt has it");
        assert_eq!(find("tool_5") < find("/home/a"), !flag.is_empty(), "{prompt}");
        fingerprints.push(snapshot.model.chat_template_fingerprint);
    }
    assert_ne!(fingerprints[0], fingerprints[1]);
}

/// Returns a request like [`asked`], with the keys of its tools in another order.
fn with_other_keys(mut request: Value) -> Value {
    fn reversed(value: &mut Value) {
        if let Value::Object(fields) = value {
            let fields_before = std::mem::take(fields);
            fields.extend(fields_before.into_iter().rev());
            fields.values_mut().for_each(reversed);
        }
    }
    request["tools"].as_array_mut().into_iter().flatten().for_each(reversed);
    request
}

#[tokio::test]
async fn a_router_renders_the_same_sorted_keys_as_the_worker() {
    let mut fingerprints = Vec::new();
    for (flag, are_same) in [("", false), ("--tool-keys-sorted", true), ("--tool-keys-sorted --tools-first", true)] {
        let worker = TestWorker::start(&format!("--slots 1 --ctx-size 4096 {flag}")).await;
        let (snapshot, router) = declared(&worker).await;
        assert_eq!(router.chat_template_fingerprint(), snapshot.model.chat_template_fingerprint, "{flag}");
        let mut prompts = Vec::new();
        for request in [asked("/home/a"), with_other_keys(asked("/home/a"))] {
            let prompt = worker.ask("/apply-template", request.clone()).await["prompt"].clone();
            let chat = serde_json::from_value(request).expect("a chat");
            assert_eq!(prompt.as_str(), Some(router.render(&chat).expect("it renders").as_str()), "{flag}");
            prompts.push(prompt);
        }
        assert_eq!(prompts[0] == prompts[1], are_same, "{flag}: {prompts:?}");
        fingerprints.push(snapshot.model.chat_template_fingerprint);
    }
    assert!(fingerprints[0] != fingerprints[1] && fingerprints[1] != fingerprints[2], "{fingerprints:?}");
}

#[tokio::test]
async fn a_continued_session_with_other_keys_reuses_its_tools() {
    for (flag, expected) in [("", 0.0..0.4), ("--tool-keys-sorted", 0.9..1.0)] {
        let worker = TestWorker::start(&format!("--slots 2 --ctx-size 8192 {flag}")).await;
        worker.ask("/v1/chat/completions", asked("/home/a")).await;
        let continued = with_other_keys(asked("/home/a"));
        let second = worker.ask("/v1/chat/completions", continued.clone()).await;
        let tokens = |field: &str| second["usage"].pointer(field).and_then(Value::as_f64).expect("a count");
        let share = tokens("/prompt_tokens_details/cached_tokens") / tokens("/prompt_tokens");
        assert!(expected.contains(&share), "{flag}: {share}");
        let mut fresh = continued;
        fresh["cache_prompt"] = json!(false);
        let fresh = worker.ask("/v1/chat/completions", fresh).await;
        assert_eq!(fresh["choices"][0]["message"], second["choices"][0]["message"], "{flag}");
    }
}

#[tokio::test]
async fn a_required_call_has_its_arguments_in_the_order_of_the_prompt() {
    let worker = TestWorker::start("--slots 1 --ctx-size 4096 --tool-keys-sorted").await;
    let properties = json!({"b": {"type": "boolean"}, "c": {"type": "boolean"}, "a": {"type": "boolean"}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["c", "b", "a"]});
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": parameters}});
    let messages = json!([{"role": "user", "content": "Look."}]);
    let body = json!({"messages": messages, "tools": [tool], "tool_choice": "required", "max_tokens": 128});
    let answer = worker.ask("/v1/chat/completions", body).await;
    let arguments = answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str();
    let arguments = serde_json::from_str::<serde_json::Map<String, Value>>(arguments.expect("a call"));
    assert_eq!(arguments.expect("an object").keys().collect::<Vec<_>>(), ["c", "b", "a"]);
}

#[tokio::test]
async fn a_second_project_starts_from_the_tools_of_the_first() {
    for (flag, expected) in [("", 0.0..0.2), ("--tools-first", 0.7..1.0)] {
        let worker = TestWorker::start(&format!("--slots 2 --ctx-size 8192 {flag}")).await;
        worker.ask("/v1/chat/completions", asked("/home/a")).await;
        let second = worker.ask("/v1/chat/completions", asked("/srv/other")).await;
        let tokens = |field: &str| second["usage"].pointer(field).and_then(Value::as_f64).expect("a count");
        let share = tokens("/prompt_tokens_details/cached_tokens") / tokens("/prompt_tokens");
        assert!(expected.contains(&share), "{flag}: {share}");
        let mut fresh = asked("/srv/other");
        fresh["cache_prompt"] = json!(false);
        let fresh = worker.ask("/v1/chat/completions", fresh).await;
        assert_eq!(fresh["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{fresh}");
        assert_eq!(fresh["choices"][0]["message"], second["choices"][0]["message"], "{flag}");
    }
}

#[tokio::test]
async fn the_start_fails_with_the_reason_if_the_template_has_no_tools() {
    let line = ["warmpath-worker", "--listen", "127.0.0.1:0", "--chat-template", "chatml", "--tools-first", "--model"];
    let line = line.into_iter().chain(tiny().to_str());
    let flags = Flags::from_command_line(line.map(Into::into)).expect("the flags parse").run().expect("a run");
    let bound = bind(resolve(flags).expect("the flags fit together")).await.expect("the worker binds");
    let error = bound.serve(std::future::pending()).await.expect_err("ChatML has no tools");
    let reason = warmpath_shell::chain(&error);
    assert!(reason.contains("cannot render tools first: it does not render both tools and a system text"), "{reason}");
}
