//! Tools whose schemas are made to be expensive, requested beside another response.
//!
//! Not here: grammars of clients (the engine's tests), random schemas (`fuzz`).

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::harness::{TestWorker, folder, user};
use crate::tool_parameters::{GLM, QWEN};

/// Time limit for every wait of a stream beside hostile tools.
///
/// Source: a step takes a few milliseconds at most, and compiling the largest grammar takes a second; the rest is for
/// busy machines.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns parameters that take much work, all of them within what llama.cpp's own sampler follows.
fn hostile() -> Vec<Value> {
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let with = |schema: Value| json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
    let alike = |n: usize| vec![json!({"type": "string"}); n];
    let mut deep = json!({"type": "string"});
    for _ in 0..4 {
        deep = json!({"anyOf": [deep.clone(), deep.clone(), {"type": "array", "items": deep}]});
    }
    let recursive = json!({
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "required": ["a"],
        "$defs": {"a": {"anyOf": [
            {"type": "array", "items": {"$ref": "#/$defs/a"}},
            {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}},
            {"type": "string", "pattern": "^(a|aa)*$"},
        ]}},
    });
    vec![
        with(text("^(((a{0,6}){0,6}){0,6})$")),
        with(text("^((a+)+)+$")),
        with(text("^(a|aa|aaa)*(.*a.*)$")),
        with(text("^(a{0,30}){0,30}$")),
        with(json!({"anyOf": alike(100)})),
        with(json!({"type": "array", "items": {"anyOf": alike(100)}})),
        with(json!({"type": "string", "minLength": 1000, "maxLength": 2000})),
        with(json!({"type": "array", "items": text("^(a|aa)*$"), "minItems": 100, "maxItems": 1000})),
        with(deep),
        recursive,
    ]
}

/// Returns parameters whose definitions refer to each other so often that their grammar would be endless.
fn branching() -> Vec<Value> {
    let with = |definitions: Value| {
        let properties = json!({"a": {"$ref": "#/$defs/0"}});
        json!({"type": "object", "properties": properties, "required": ["a"], "$defs": definitions})
    };
    let again = json!({"$ref": "#/$defs/0"});
    let chain = |n: usize, last: Value| {
        let twice = |idx: usize| json!({"anyOf": vec![json!({"$ref": format!("#/$defs/{}", idx + 1)}); 2]});
        let mut definitions: Map<String, Value> = (0..n).map(|idx| (idx.to_string(), twice(idx))).collect();
        definitions.insert(n.to_string(), last);
        with(Value::Object(definitions))
    };
    let patterns: Vec<Value> = (0..60).map(|n| json!({"type": "string", "pattern": format!("^a{{{n}}}b?$")})).collect();
    let lengths: Vec<Value> = (0..60).map(|n| json!({"$ref": "#/$defs/1", "minLength": n})).collect();
    let members: Map<String, Value> = (0..8).map(|idx| (format!("p{idx}"), again.clone())).collect();
    vec![
        with(json!({"0": {"anyOf": vec![again.clone(); 8]}})),
        chain(15, json!({"type": "string"})),
        chain(25, json!({"type": "array", "items": {"type": "integer"}})),
        with(json!({"0": {"type": "object", "properties": members}})),
        // This is within the budget, so it is compiled.
        with(json!({"0": {"anyOf": lengths}, "1": {"anyOf": patterns}})),
    ]
}

/// Returns parameters that all refer to the same large definition, in different ways.
fn copying() -> Value {
    let property = |idx: usize| (format!("p{idx}"), json!({"$ref": "#/$defs/0", "maxItems": idx}));
    let properties: Map<String, Value> = (0..500).map(property).collect();
    let required: Vec<&String> = properties.keys().collect();
    let numbers: Vec<u32> = (0..5000).collect();
    json!({"type": "object", "properties": properties, "required": required, "$defs": {"0": {"enum": numbers}}})
}

fn tool(parameters: Value) -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_tools_do_not_delay_other_requests() {
    let worker = TestWorker::start("--slots 2 --ctx-size 16384").await;
    check_beside_others(&worker, hostile().into_iter().chain(branching())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_tools_do_not_delay_other_requests_if_arguments_are_written_one_by_one() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fixtures/templates");
    let own = |name: &str, template: &str| {
        let path = folder().join(format!("{name}.jinja"));
        std::fs::write(&path, template).expect("the file can be written");
        path
    };
    let gemma = fixtures.join("google-gemma-4-31B-it.jinja");
    assert!(gemma.exists(), "run `make fixtures` to download the templates");
    for template in [own("qwen-coder-hostile", QWEN), own("glm-hostile", GLM), gemma, fixtures.join("MiniMax-M3.jinja")]
    {
        let flags = format!("--slots 2 --ctx-size 16384 --chat-template-file {}", template.display());
        check_beside_others(&TestWorker::start(&flags).await, branching()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_is_not_copied_without_limit_if_arguments_are_written_one_by_one() {
    for (name, template) in [("qwen-coder-copying", QWEN), ("glm-copying", GLM)] {
        // With the schemas in it, the prompt would be too long.
        let template = template.replace("{{ tool | tojson }}", "{{ tool.function.name }}");
        let path = folder().join(format!("{name}.jinja"));
        std::fs::write(&path, template).expect("the file can be written");
        let flags = format!("--slots 2 --ctx-size 16384 --chat-template-file {}", path.display());
        let worker = TestWorker::start(&flags).await;
        check_beside_others(&worker, [copying()]).await;
        let body = json!({"messages": user("Call it"), "tools": tool(copying()), "tool_choice": "required"});
        let (status, answer) = worker.try_ask("/v1/chat/completions", &body).await;
        let reason = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && reason.contains("its grammar is too large"), "{name}: {answer}");
    }
}

/// Requests tools with these parameters, each beside another response.
async fn check_beside_others(worker: &TestWorker, all: impl IntoIterator<Item = Value>) {
    let other = json!({"prompt": "It goes on", "temperature": 0, "max_tokens": 60, "ignore_eos": true});
    let alone = worker.ask("/v1/completions", other.clone()).await["choices"][0]["text"].clone();
    for parameters in all {
        let name: String = parameters["properties"].to_string().chars().take(70).collect();
        for choice in ["required", "auto"] {
            let began = Instant::now();
            let body = json!({
                "messages": user("Call it"),
                "tools": tool(parameters.clone()),
                "tool_choice": choice,
                "max_tokens": 120,
                "seed": 1,
                "logit_bias": [["<tool_call>", 30], ["a", 30], ["[", 20]],
            });
            let (answer, beside) = tokio::join!(
                worker.try_ask("/v1/chat/completions", &body),
                worker.ask("/v1/completions", other.clone())
            );
            let took = began.elapsed();
            assert_eq!(beside["choices"][0]["text"], alone, "{name}");
            assert!(took < WAIT_MAX, "{name} took {took:?}");
            match answer {
                (200, answer) => {
                    let content = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
                    assert!(choice == "auto" || content.is_empty(), "{answer}");
                }
                (status, answer) => {
                    let reason = answer["error"]["message"].as_str().expect("an error has a message");
                    let is_told = [
                        "too many ways",
                        "does not parse",
                        "too large",
                        "schema cannot be followed",
                        "refers to itself",
                    ]
                    .iter()
                    .any(|part| reason.contains(part));
                    assert!(status == 400 && is_told, "{answer}");
                }
            }
        }
    }
}
