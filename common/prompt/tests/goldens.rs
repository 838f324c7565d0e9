//! Every chat template of llama.cpp renders the text that Python's jinja2 renders, or fails where it fails.
//!
//! Goldens and the script that makes them are in `tests/fixtures/templates`; the templates themselves are fetched
//! (`make fixtures`). A template whose source has changed since its goldens were made fails the test. Not here: tokens.

#![allow(clippy::unwrap_used, reason = "a test may stop wherever a fixture is wrong")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value as Json};
use warmpath_prompt::{ChatTemplate, PromptError};

/// Requests that cannot be rendered like in Python, each with its reason in docs/templates.md.
const KNOWN_DIFFERENCES: &[(&str, &str)] = &[("Reka-Edge.jinja", "empty")];

/// Templates whose text Python escapes for HTML by accident (docs/templates.md); ours is the same unescaped.
const ESCAPED_BY_PYTHON: &[&str] = &["meetkai-functionary-medium-v3.1.jinja"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path, remedy: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}: {remedy}", path.display()))
}

fn fixture(name: &str) -> Map<String, Json> {
    let path = root().join("tests/fixtures/templates").join(name);
    serde_json::from_str(&read(&path, "it is committed")).unwrap()
}

fn compile(source: &str) -> Result<ChatTemplate, PromptError> {
    let now: jiff::civil::DateTime = "2026-07-26T15:04:05".parse().unwrap();
    let now = now.to_zoned(jiff::tz::TimeZone::UTC).unwrap();
    ChatTemplate::compile(source, Arc::new(move || now.clone()))
}

/// Failures of Python for which minijinja renders something harmless (docs/templates.md).
const PYTHON_ONLY_FAILURES: &[&str] =
    &["TypeError: 'NoneType' object is not iterable", "TypeError: Object of type generator is not JSON serializable"];

fn unescaped(golden: &Json) -> Json {
    let Some(text) = golden["text"].as_str() else { return golden.clone() };
    let entities = [("&#39;", "'"), ("&#34;", "\""), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
    Json::from_iter([("text", entities.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)))])
}

/// Returns one line of difference, or `None`.
fn difference(template: &ChatTemplate, conversation: &Json, golden: &Json) -> Option<String> {
    let mut variables = serde_json::json!({
        "bos_token": "<bos>", "eos_token": "<eos>", "tools": null, "documents": null, "add_generation_prompt": true,
    });
    for (name, value) in conversation.as_object().unwrap() {
        variables[name] = value.clone();
    }
    let rendered = template.render_json(&variables);
    match (&rendered, &golden["text"], &golden["refused"], &golden["failed"]) {
        (Ok(text), Json::String(expected), _, _) if text == expected => None,
        (Err(PromptError::Refused { message }), _, Json::String(expected), _) if message == expected => None,
        (Err(PromptError::Template { .. }), _, _, Json::String(_)) => None,
        (Ok(_), _, _, Json::String(reason)) if PYTHON_ONLY_FAILURES.contains(&reason.as_str()) => None,
        (Ok(text), Json::String(expected), _, _) => {
            let same = text.bytes().zip(expected.bytes()).take_while(|(ours, theirs)| ours == theirs).count();
            let tail = |text: &str| {
                String::from_utf8_lossy(&text.as_bytes()[same.saturating_sub(40)..])
                    .chars()
                    .take(120)
                    .collect::<String>()
            };
            Some(format!("differs at byte {same}:\n    ours   {:?}\n    python {:?}", tail(text), tail(expected)))
        }
        _ => Some(format!("ours {rendered:?}\n    python {golden}")),
    }
}

#[test]
fn every_template_renders_what_python_renders() {
    let (goldens, conversations) = (fixture("goldens.json"), fixture("conversations.json"));
    let templates = root().join("target/fixtures/templates");
    let mut wrong = Vec::new();
    for (name, golden) in &goldens {
        let source = read(&templates.join(name), "run `make fixtures` to fetch the templates");
        let template = match compile(&source) {
            Ok(template) => template,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for (conversation_name, golden) in golden["cases"].as_object().unwrap() {
            let golden = if ESCAPED_BY_PYTHON.contains(&name.as_str()) { &unescaped(golden) } else { golden };
            let known = KNOWN_DIFFERENCES.contains(&(name, conversation_name));
            match difference(&template, &conversations[conversation_name], golden) {
                Some(difference) if !known => wrong.push(format!("{name} / {conversation_name}: {difference}")),
                None if known => wrong.push(format!(
                    "{name} / {conversation_name}: the texts are equal, but it is listed as a known difference"
                )),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}
