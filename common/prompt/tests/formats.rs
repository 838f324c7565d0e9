//! The prompt that we render is the one that llama.cpp's chat formats are made for, in each template of its collection.
//!
//! If the two differ, only the prompt's end matters for parsing a response. The templates are fetched (`make
//! fixtures`).

#![allow(clippy::unwrap_used, reason = "a test may stop wherever a fixture is wrong")]

use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};
use warmpath_common::openai::ChatPrompt;
use warmpath_llama_chat::{ChatTemplates, FormatInputs, ReasoningFormat, ToolChoice};
use warmpath_prompt::{FormatOptions, PromptMaker, PromptOptions};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fixtures")
}

/// A conversation in which a message has reasoning, content and a call.
const THOUGHT: &str = "result with reasoning and content";

/// Templates for which llama.cpp renders another prompt, or one of the two renders none, and why.
const OTHER_PROMPTS: &[(&str, &[&str])] = &[
    // See docs/templates.md.
    ("CohereForAI-c4ai-command-r-plus-tool_use", &["question with tools", "result", THOUGHT]),
    ("Kimi-K2-Instruct", &["result", THOUGHT]),
    ("Kimi-K2-Thinking", &["result", THOUGHT]),
    // It leaves out calls beside empty content, which llama.cpp passes.
    ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", &["result"]),
    // It requires a variable that has no value.
    ("fireworks-ai-llama-3-firefunction-v2", &["question", "question with tools", "result", THOUGHT, "goes on"]),
    // It refuses tool results.
    ("google-gemma-2-2b-it", &["result", THOUGHT]),
    // llama.cpp rewrites tool results for this old template; the newer one does not need that.
    ("google-gemma-4-31B-it-interleaved", &["result", THOUGHT]),
    // The template ends the turn behind content and opens none for the response; llama.cpp adds its beginning.
    ("google-gemma-4-31B-it", &[THOUGHT]),
    // They have a default date; llama.cpp passes today's.
    ("meta-llama-Llama-3.1-8B-Instruct", &["question", "question with tools", "result", THOUGHT, "goes on"]),
    ("meta-llama-Llama-3.3-70B-Instruct", &["question", "question with tools", "result", THOUGHT, "goes on"]),
    // llama.cpp takes it for Ministral 3 and puts reasoning before the content, of which it renders the first part.
    ("unsloth-mistral-Devstral-Small-2507", &[THOUGHT]),
    // It reads reasoning from `reasoning`, a field that llama.cpp does not fill.
    ("upstage-Solar-Open-100B", &[THOUGHT]),
];

/// Template of which llama.cpp's parser expects the same beginning of every response; behind a result, the prompt has
/// another one.
const SAME_BEGINNING: &str = "deepseek-ai-DeepSeek-V3.2";

fn tool() -> Json {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!({"type": "function", "function": {"name": "look", "description": "looks", "parameters": parameters}})
}

fn conversations() -> Vec<(&'static str, Json, Vec<Json>)> {
    let user = json!({"role": "user", "content": "What is new?"});
    let call = json!({"id": "abcdef123", "type": "function", "function": {"name": "look", "arguments": "{\"city\":\"Oslo\"}"}});
    let called = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let mut thought = called.clone();
    thought["content"] = "I look it up.".into();
    thought["reasoning_content"] = "The weather is new.".into();
    let result = json!({"role": "tool", "name": "look", "tool_call_id": "abcdef123", "content": "rain"});
    vec![
        ("question", json!([user]), vec![]),
        ("question with tools", json!([user]), vec![tool()]),
        ("result", json!([user, called, result]), vec![tool()]),
        (THOUGHT, json!([user, thought, result]), vec![tool()]),
        ("goes on", json!([user, {"role": "assistant", "content": "It is"}]), vec![]),
    ]
}

#[test]
fn the_prompt_is_the_one_that_llama_cpp_renders_and_ends_as_its_format_says() {
    let mut names: Vec<PathBuf> = std::fs::read_dir(fixtures().join("templates"))
        .expect("run `make fixtures`")
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    let (mut other, mut n_same) = (Vec::new(), 0);
    for path in names {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        let options = PromptOptions { chat_template: Some(source.clone()), ..PromptOptions::default() };
        let maker = PromptMaker::open(&fixtures().join("vocab/starcoder.gguf"), options).unwrap();
        let info = maker.vocabulary().clone();
        let templates = ChatTemplates::compile(&source, &info.bos_text, &info.eos_text).unwrap();
        for (case, messages, tools) in conversations() {
            let continues = case == "goes on";
            let inputs = FormatInputs {
                messages: messages.as_array().unwrap(),
                tools: &tools,
                tool_choice: if tools.is_empty() { ToolChoice::None } else { ToolChoice::Auto },
                parallel_tool_calls: false,
                reasoning_format: ReasoningFormat::Auto,
                enable_thinking: true,
                continues,
                kwargs: &Map::new(),
            };
            let request: ChatPrompt = serde_json::from_value(json!({"messages": messages, "tools": tools})).unwrap();
            let (Ok(theirs), Ok(ours)) = (templates.format(&inputs.to_json()), maker.chat(&request)) else {
                other.push((name.clone(), case, "one of the two refuses".to_owned()));
                continue;
            };
            let options = FormatOptions {
                tools: tools.clone(),
                tool_choice: inputs.tool_choice,
                parallel_tool_calls: Some(false),
                reasoning_format: ReasoningFormat::Auto,
            };
            if let Some(answer) = maker.answer_format(&request, &ours, &options).unwrap() {
                assert!(
                    ours.text.ends_with(answer.prefix()) || name == SAME_BEGINNING,
                    "{name} / {case}: {:?} of {:?}",
                    answer.prefix(),
                    ours.text
                );
                answer.reader().unwrap_or_else(|error| panic!("{name} / {case}: {error}"));
            }
            if ours.text == theirs.prompt {
                n_same += 1;
            } else {
                let n = ours.text.bytes().zip(theirs.prompt.bytes()).take_while(|(a, b)| a == b).count();
                let tail = |text: &str| {
                    String::from_utf8_lossy(&text.as_bytes()[n.saturating_sub(20)..])
                        .chars()
                        .take(90)
                        .collect::<String>()
                };
                other.push((name.clone(), case, format!("{:?} {:?}", tail(&ours.text), tail(&theirs.prompt))));
            }
        }
    }
    let known = OTHER_PROMPTS.iter().flat_map(|(name, cases)| cases.iter().map(move |case| (*name, *case)));
    let mut known: Vec<_> = known.collect();
    let mut found: Vec<_> = other.iter().map(|(name, case, _)| (name.as_str(), *case)).collect();
    known.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, known, "{n_same} prompts are the same; the others: {other:#?}");
}

#[test]
fn several_calls_are_allowed_only_if_the_template_renders_them_in_one_message() {
    let grammar = |name: &str, parallel_tool_calls: bool| {
        let source = std::fs::read_to_string(fixtures().join("templates").join(format!("{name}.jinja"))).unwrap();
        let options = PromptOptions { chat_template: Some(source), ..PromptOptions::default() };
        let maker = PromptMaker::open(&fixtures().join("vocab/starcoder.gguf"), options).unwrap();
        let body = json!({"messages": [{"role": "user", "content": "What is new?"}], "tools": [tool()]});
        let request: ChatPrompt = serde_json::from_value(body).unwrap();
        let options = FormatOptions {
            tools: vec![tool()],
            tool_choice: ToolChoice::Required,
            parallel_tool_calls: Some(parallel_tool_calls),
            reasoning_format: ReasoningFormat::Auto,
        };
        let answer = maker.answer_format(&request, &maker.chat(&request).unwrap(), &options).unwrap();
        answer.expect("calls have a format").grammar().expect("a call is required").text.to_owned()
    };
    for (name, renders_several) in [("Qwen-Qwen2.5-7B-Instruct", true), ("meta-llama-Llama-3.1-8B-Instruct", false)] {
        assert_eq!(grammar(name, true) != grammar(name, false), renders_several, "{name}");
    }
}
