//! Answers of widely used model families are parsed as intended, as a whole and in every split.
//!
//! Rendering is tested elsewhere.
//!
//! The templates are downloaded (`make fixtures`).

#![allow(clippy::unwrap_used, reason = "a test may stop wherever a fixture is wrong")]

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use warmpath_llama_chat::{
    ChatError, ChatFormat, ChatTemplates, DEPTH_MAX, Delta, FormatInputs, ReasoningFormat, ToolChoice,
};

/// Answers of a model family.
struct Family {
    template: &'static str,
    /// A call in the family's format.
    call: &'static str,
    /// Text before the call, and its destination.
    before: (&'static str, Said),
    /// A second call after the first; empty if there is none.
    second: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum Said {
    Content(&'static str),
    Thought(&'static str),
    Nothing,
}

const FAMILIES: &[Family] = &[
    Family {
        template: "meta-llama-Llama-3.1-8B-Instruct",
        before: ("", Said::Nothing),
        call: "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\", \"days\": 3}}",
        second: "",
    },
    Family {
        template: "Qwen-Qwen2.5-7B-Instruct",
        before: ("I will look.\n", Said::Content("I will look.")),
        call: "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n</tool_call>",
        second: "\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
    },
    Family {
        template: "Qwen-Qwen3-0.6B",
        before: ("<think>\nIt asks.\n</think>\n\n", Said::Thought("It asks.")),
        call: "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n</tool_call>",
        second: "\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
    },
    Family {
        template: "Qwen3-Coder",
        before: ("", Said::Nothing),
        call: "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        second: "",
    },
    Family {
        template: "mistralai-Mistral-Nemo-Instruct-2407",
        before: ("", Said::Nothing),
        call: "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}, \"id\": \"abcdef123\"}]",
        second: "",
    },
    Family {
        template: "mistralai-Ministral-3-14B-Reasoning-2512",
        before: ("[THINK]It asks.[/THINK]", Said::Thought("It asks.")),
        call: "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Oslo\", \"days\": 3}",
        second: "[TOOL_CALLS]get_time[ARGS]{}",
    },
    Family {
        template: "deepseek-ai-DeepSeek-V3.1",
        before: ("It asks.</think>", Said::Thought("It asks.")),
        call: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Oslo\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        second: "",
    },
    Family {
        template: "google-gemma-4-31B-it",
        before: ("", Said::Nothing),
        call: "<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>,days:3}<tool_call|>",
        second: "<|tool_call>call:get_time{}<tool_call|>",
    },
    Family {
        template: "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        before: ("I will look.\n", Said::Content("I will look.")),
        call: "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n</tool_call>",
        second: "",
    },
    Family {
        template: "openai-gpt-oss-120b",
        before: ("<|channel|>analysis<|message|>It asks.<|end|><|start|>assistant", Said::Thought("It asks.")),
        call: "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Oslo\", \"days\": 3}",
        second: "",
    },
];

fn templates(name: &str) -> ChatTemplates {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fixtures/templates");
    let source = std::fs::read_to_string(folder.join(format!("{name}.jinja")));
    ChatTemplates::compile(&source.expect("run `make fixtures` to fetch the templates"), "<s>", "</s>").unwrap()
}

fn tools() -> Vec<Value> {
    let properties = json!({"city": {"type": "string"}, "days": {"type": "integer"}});
    let weather = json!({"type": "object", "properties": properties, "required": ["city"]});
    let tool = |name, parameters| json!({"type": "function", "function": {"name": name, "description": "tells", "parameters": parameters}});
    vec![tool("get_weather", weather), tool("get_time", json!({"type": "object", "properties": {}}))]
}

fn format(family: &Family) -> ChatFormat {
    let inputs = FormatInputs {
        messages: &[json!({"role": "user", "content": "question"})],
        tools: &tools(),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: true,
        reasoning_format: ReasoningFormat::Auto,
        enable_thinking: true,
        continues: false,
        kwargs: &Map::new(),
    };
    templates(family.template).format(&inputs.to_json()).unwrap()
}

/// Sum of deltas.
#[derive(Debug, Default, PartialEq)]
struct Told {
    content: String,
    reasoning: String,
    /// Name and arguments of each call.
    calls: Vec<(String, String)>,
}

impl Told {
    fn add(&mut self, delta: Delta) {
        self.content.push_str(&delta.content);
        self.reasoning.push_str(&delta.reasoning);
        for call in delta.tool_calls {
            if call.index == self.calls.len() {
                assert!(call.id.is_some_and(|id| !id.is_empty()), "a call has an id");
                self.calls.push((call.name.expect("a call begins with its name"), String::new()));
            }
            self.calls[call.index].1.push_str(&call.arguments);
        }
    }
}

fn whole(format: &ChatFormat, text: &str) -> Told {
    let mut told = Told::default();
    told.add(format.reader(&format.generation_prompt).unwrap().finish(text, "id").unwrap());
    told
}

fn arguments(told: &Told, idx: usize) -> Value {
    serde_json::from_str(&told.calls[idx].1).unwrap_or_else(|error| panic!("{error}: {told:?}"))
}

#[test]
fn answers_of_every_family_are_parsed_into_text_reasoning_and_calls() {
    for family in FAMILIES {
        let format = format(family);
        let name = family.template;
        let one = whole(&format, &format!("{}{}", family.before.0, family.call));
        assert_eq!(one.calls.len(), 1, "{name}: {one:?}");
        assert_eq!(one.calls[0].0, "get_weather", "{name}");
        assert_eq!(arguments(&one, 0), json!({"city": "Oslo", "days": 3}), "{name}");
        let (content, reasoning) = match family.before.1 {
            Said::Content(text) => (text, ""),
            Said::Thought(text) => ("", text),
            Said::Nothing => ("", ""),
        };
        assert_eq!((one.content.trim(), one.reasoning.trim()), (content, reasoning), "{name}");
        if !family.second.is_empty() {
            let two = whole(&format, &format!("{}{}{}", family.before.0, family.call, family.second));
            assert_eq!(two.calls.len(), 2, "{name}: {two:?}");
            assert_eq!((two.calls[1].0.as_str(), arguments(&two, 1)), ("get_time", json!({})), "{name}");
        }
    }
}

#[test]
fn an_answer_cut_off_anywhere_gives_a_prefix_of_its_call() {
    for family in FAMILIES {
        let format = format(family);
        let text = format!("{}{}", family.before.0, family.call);
        let whole = whole(&format, &text);
        let mut reader = format.reader(&format.generation_prompt).unwrap();
        let mut told = Told::default();
        for (end, _) in text.char_indices().skip(1) {
            if let Ok(delta) = reader.read(&text[..end], "id") {
                told.add(delta);
            }
            assert!(whole.reasoning.starts_with(&told.reasoning), "{}: {told:?}", family.template);
            if let Some((name, arguments)) = told.calls.first() {
                assert_eq!(name, "get_weather");
                assert!(whole.calls[0].1.starts_with(arguments), "{}: {arguments}", family.template);
            }
        }
        told.add(reader.finish(&text, "id").unwrap());
        assert_eq!(told, whole, "{}", family.template);
    }
}

#[test]
fn text_without_a_call_is_content_and_an_invalid_call_is_an_error() {
    let format = format(&FAMILIES[1]);
    assert_eq!(whole(&format, "Just text, {\"a\": 1}.").content, "Just text, {\"a\": 1}.");
    let refused = format.reader(&format.generation_prompt).unwrap().finish("<tool_call>\nnonsense</tool_call>", "id");
    assert!(matches!(refused, Err(ChatError::Refused { .. })), "{refused:?}");
}

#[test]
fn deeply_nested_answers_are_read_up_to_the_limit_and_refused_beyond() {
    let format = format(&FAMILIES[1]);
    let deep = |n: usize| {
        let text = format!("<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {{\"city\": \"{}", "[".repeat(n));
        format.reader(&format.generation_prompt).unwrap().read(&text, "id")
    };
    assert!(deep(DEPTH_MAX - 100).is_ok());
    assert_eq!(deep(DEPTH_MAX + 1), Err(ChatError::TooDeep));
    let any =
        json!({"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}});
    let inputs = FormatInputs {
        messages: &[json!({"role": "user", "content": "question"})],
        tools: &[any],
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: true,
        reasoning_format: ReasoningFormat::Auto,
        enable_thinking: true,
        continues: false,
        kwargs: &Map::new(),
    };
    let format = templates(FAMILIES[1].template).format(&inputs.to_json()).unwrap();
    let text = format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {{\"a\": {}", "[".repeat(DEPTH_MAX - 100));
    assert!(format.reader(&format.generation_prompt).unwrap().read(&text, "id").is_ok());
}

#[test]
fn errors_of_llama_cpp_keep_their_reason() {
    assert!(matches!(ChatTemplates::compile("", "", ""), Err(ChatError::Refused { .. })));
    assert!(matches!(ChatTemplates::compile("{% if %}", "", ""), Err(ChatError::Refused { .. })));
    assert!(matches!(ChatTemplates::compile("a\0b", "", ""), Err(ChatError::Refused { .. })));
    assert!(matches!(templates(FAMILIES[1].template).format("{"), Err(ChatError::Refused { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_split_gives_the_same_messages(at in 0..FAMILIES.len(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let family = &FAMILIES[at];
        let format = format(family);
        let text = format!("{}{}{}", family.before.0, family.call, family.second);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(cut.index(text.len()))).collect();
        ends.sort_unstable();
        let mut reader = format.reader(&format.generation_prompt).unwrap();
        let mut told = Told::default();
        for end in ends {
            if let Ok(delta) = reader.read(&text[..end], "id") {
                told.add(delta);
            }
        }
        told.add(reader.finish(&text, "id").unwrap());
        prop_assert_eq!(told, whole(&format, &text));
    }
}
