//! Texts and conversations for the trial of a vocabulary and its chat templates.
//!
//! They contain something of every kind that a request can contain. The output does not matter, as long as the process
//! survives.
//! Not here: the verdict (`trial`).

use std::collections::HashSet;

use serde_json::{Value as Json, json};
use warmpath_common::openai::ChatPrompt;
use warmpath_prompt::{AddSpecial, ParseSpecial, PromptMaker, Scope};

/// Distance of the sampled characters of Unicode.
///
/// Source: own choice: a prime number, so that every block is sampled, with some 30,000 characters in all.
const CHARACTER_STRIDE: usize = 37;

/// Length of a repeated text. Units: bytes. Source: own choice, longer than any natural word.
const RUN_BYTES: usize = 16 << 10;

/// Texts whose repetition a tokenizer may treat as one word.
const RUNS: [&str; 9] = ["a", "Z", "0", " ", "\n", ".", "é", "語", "\u{1F600}"];

/// Messages of the longest conversation.
///
/// Source: own choice: templates with loops over messages show their cost.
const MESSAGES: usize = 64;

/// Maximum number of a template's quoted texts that are tried in requests.
///
/// Source: own choice: llama.cpp's longest template has some 500 quoted texts; each takes a rendering or two.
const WORDS_MAX: usize = 1024;

/// Longest of these texts. Units: bytes. Source: own choice: a template compares with words or tags.
const WORD_BYTES_MAX: usize = 200;

/// Uses `maker` in every way that a router does.
pub(super) fn all(maker: &PromptMaker) {
    pieces(maker);
    texts(maker);
    chats(maker);
}

fn pieces(maker: &PromptMaker) {
    for token in 0..maker.vocabulary().n_vocab {
        maker.piece(token);
        maker.answer_piece(token);
    }
}

fn texts(maker: &PromptMaker) {
    let characters: String = (0..0x11_0000_u32).step_by(CHARACTER_STRIDE).filter_map(char::from_u32).collect();
    let bytes: String = (0..=u8::MAX).map(char::from).collect();
    let specials: String = (0..maker.vocabulary().n_vocab)
        .map(|token| String::from_utf8_lossy(&maker.piece(token)).into_owned())
        .filter(|piece| piece.starts_with(['<', '[']))
        .take(MESSAGES * MESSAGES)
        .collect();
    let mut texts = vec![String::new(), characters, bytes, specials];
    texts.extend(RUNS.iter().map(|piece| piece.repeat(RUN_BYTES / piece.len())));
    for text in &texts {
        for (add, parse) in [(AddSpecial::Yes, ParseSpecial::Yes), (AddSpecial::No, ParseSpecial::No)] {
            maker.tokenize(text, add, parse);
        }
        maker.tokens(&maker.prepare_text(text.clone(), Scope::default()));
    }
    // One character at a time, so that no token covers it together with its neighbours.
    for character in (0..0x500_u32).filter_map(char::from_u32) {
        maker.tokenize(character.encode_utf8(&mut [0; 4]), AddSpecial::No, ParseSpecial::No);
    }
}

/// Uses the chat templates of `maker`.
pub(super) fn chats(maker: &PromptMaker) {
    let words = maker.chat_template().map(words).unwrap_or_default();
    let chats_of_words = words.iter().flat_map(|word| saying(word)).chain(saying(&words.join(" ")));
    for chat in conversations().into_iter().chain(chats_of_words) {
        let Ok(chat) = serde_json::from_value::<ChatPrompt>(chat) else { continue };
        // A template may refuse a conversation.
        let _ = maker.chat(&chat);
        let _ = maker.chat_prefix(&chat);
    }
}

/// Returns the quoted texts of a template, with which it may compare parts of a request.
///
/// The text between two literals is returned as well, which does no harm.
fn words(template: &str) -> Vec<&str> {
    let pieces = template.split(['\'', '"']).filter(|piece| (1..=WORD_BYTES_MAX).contains(&piece.len()));
    let mut texts = HashSet::new();
    pieces.filter(|piece| texts.insert(*piece)).take(WORDS_MAX).collect()
}

/// Returns requests with a word wherever a client's text can stand, without a tool and with one.
fn saying(word: &str) -> [Json; 2] {
    let message = |role: &str| json!({"role": role, "content": word});
    let messages = json!([message("system"), message("user"), message("assistant"), message("user")]);
    let function = json!({"name": word, "description": word, "parameters": {"type": "object"}});
    [
        json!({"messages": messages}),
        json!({"messages": messages, "tools": [{"type": "function", "function": function}]}),
    ]
}

/// Returns requests that differ in everything that templates read.
fn conversations() -> Vec<Json> {
    let user = |text: &str| json!({"role": "user", "content": text});
    let system = json!({"role": "system", "content": "Answer briefly."});
    let parameters = json!({"type": "object", "properties": {"place": {"type": "string", "description": "where"},
        "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["place"]});
    let tool = json!({"type": "function", "function": {"name": "lookup", "description": "looks up", "parameters": parameters}});
    let call = json!({"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function",
        "function": {"name": "lookup", "arguments": "{\"place\": \"here\"}"}}]});
    let result = json!({"role": "tool", "tool_call_id": "call00001", "name": "lookup", "content": "done"});
    let thought = json!({"role": "assistant", "content": "an answer", "reasoning_content": "a thought"});
    let with_tool = |messages: Json| json!({"messages": messages, "tools": [tool]});
    let long: Vec<Json> = (0..MESSAGES)
        .map(|n| json!({"role": if n % 2 == 0 { "user" } else { "assistant" }, "content": format!("message {n}")}))
        .collect();
    let parts = json!({"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]});
    vec![
        json!({"messages": []}),
        json!({"messages": [user("a question")]}),
        json!({"messages": [user("")]}),
        json!({"messages": [system, user("a question"), thought, user("another question")]}),
        json!({"messages": [parts, user(&"word ".repeat(RUN_BYTES / 5))]}),
        json!({"messages": long}),
        json!({"messages": [user("a question")], "chat_template_kwargs": {"enable_thinking": false}}),
        with_tool(json!([system, user("a question")])),
        with_tool(json!([user("a question"), call, result])),
        with_tool(json!([user("a question"), call, result, thought, user("another question")])),
    ]
}
