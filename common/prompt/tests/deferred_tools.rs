//! Tools that a conversation loads late, in every template that llama.cpp tests (`make fixtures`): the prompt of each
//! turn still begins with that of the turn before.

#![allow(clippy::unwrap_used, reason = "a test may stop wherever a fixture is wrong")]

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use warmpath_prompt::{PromptMaker, PromptOptions};

/// Templates in which each step of a turn begins with the step before, whatever the tools.
const KEEPING: [&str; 10] = [
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3.5-4B",
    "Qwen3-Coder",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "openai-gpt-oss-120b",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-4-31B-it",
    "GLM-4.6",
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fixtures")
}

fn maker(template: &Path) -> Option<PromptMaker> {
    let source = std::fs::read_to_string(template).expect("run `make fixtures`");
    let options = PromptOptions { chat_template: Some(source), ..PromptOptions::default() };
    PromptMaker::open(&fixtures().join("vocab/starcoder.gguf"), options).ok()
}

fn tool(name: &str) -> Json {
    let parameters = json!({"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]});
    json!({"type": "function", "function": {"name": name, "description": "Finds.", "parameters": parameters}})
}

fn step(id: &str, name: &str, result: Json) -> [Json; 2] {
    let function = json!({"name": name, "arguments": "{\"query\":\"q\"}"});
    let call = json!({"id": id, "type": "function", "function": function});
    let calls = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    [calls, json!({"role": "tool", "tool_call_id": id, "name": name, "content": result})]
}

/// Returns the prompts of a turn's steps: the question, a search, a call of the tool that it found.
///
/// Tools are listed as Claude Code does: one that waits is in the middle of the list from the search on.
fn steps(maker: &PromptMaker, found: Json, late: &[Json]) -> Result<Vec<String>, String> {
    let mut messages =
        vec![json!({"role": "system", "content": "Be exact."}), json!({"role": "user", "content": "What is due?"})];
    messages.extend(step("call00001", "search", found));
    messages.extend(step("call00002", "due", json!("It is due.")));
    let prompt = |n: usize| {
        let mut tools = vec![tool("search"), tool("read")];
        if n > 2 {
            tools.splice(1..1, late.iter().cloned());
        }
        let request = json!({"messages": messages[..n], "tools": tools, "add_generation_prompt": false});
        maker.render(&serde_json::from_value(request).unwrap()).map_err(|error| error.to_string())
    };
    [2, 4, 6].into_iter().map(prompt).collect()
}

fn keeps(prompts: &[String]) -> bool {
    prompts.windows(2).all(|pair| pair[1].starts_with(&pair[0]))
}

#[test]
fn each_step_of_a_turn_that_loads_a_tool_begins_with_the_step_before() {
    let mut due = tool("due");
    due["defer_loading"] = true.into();
    let reference = json!([{"type": "tool_reference", "tool_name": "due"}]);
    let definition = due["function"].clone();
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(fixtures().join("templates")).expect("run `make fixtures`") {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let Some(maker) = maker(&path) else { continue };
        let Ok(plain) = steps(&maker, json!("found"), &[]) else { continue };
        let late = steps(&maker, reference.clone(), std::slice::from_ref(&due));
        let late = late.unwrap_or_else(|error| panic!("{name} renders a text and no definition: {error}"));
        assert_eq!(keeps(&late), keeps(&plain), "{name}: {late:#?}");
        assert_eq!(late[0], plain[0], "{name} lists a tool that waits");
        // A template may render no result at all.
        if plain[1].contains("found") {
            assert_eq!(
                late[1].matches("Finds.").count(),
                plain[1].matches("Finds.").count() + 1,
                "{name}: {}",
                late[1]
            );
            let n_more = late[1].len() - plain[1].len();
            assert!(n_more <= 2 * definition.to_string().len(), "{name}: {n_more} more characters");
        }
        kept.extend(keeps(&late).then_some(name));
    }
    for name in KEEPING {
        assert!(kept.iter().any(|kept| kept == name), "{name} is not among {kept:?}");
    }
}

#[test]
fn if_all_tools_wait_the_first_that_are_loaded_bring_the_instructions_for_calls() {
    let maker = maker(&fixtures().join("templates/Qwen-Qwen2.5-7B-Instruct.jinja")).unwrap();
    let mut due = tool("due");
    due["defer_loading"] = true.into();
    let [calls, result] = step("call00001", "search", json!([{"type": "tool_reference", "tool_name": "due"}]));
    let messages = [json!({"role": "user", "content": "What is due?"}), calls, result];
    let render = |n: usize| {
        let request = json!({"messages": messages[..n], "tools": [due]});
        maker.render(&serde_json::from_value(request).unwrap()).unwrap()
    };
    assert!(!render(1).contains("# Tools"));
    assert!(
        render(3).contains("# Tools") && render(3).contains("<function>{\"description\":\"Finds.\",\"name\":\"due\"")
    );
}

#[test]
fn a_reference_to_a_tool_that_is_not_defined_ends_no_conversation() {
    let maker = maker(&fixtures().join("templates/Qwen-Qwen2.5-7B-Instruct.jinja")).unwrap();
    let [calls, result] = step("call00001", "search", json!([{"type": "tool_reference", "tool_name": "gone"}]));
    let messages = json!([{"role": "user", "content": "What is due?"}, calls, result]);
    let request = serde_json::from_value(json!({"messages": messages, "tools": [tool("search")]})).unwrap();
    assert!(maker.render(&request).unwrap().contains("The tool `gone` is no longer available."));
}
