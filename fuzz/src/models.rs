//! What a model brings: its GGUF header with the vocabulary, and its chat template.
//!
//! ggml's reader is compiled without coverage, the checks of what it has read with coverage. The files of the corpus
//! have an architecture that llama.cpp does not know, so it refuses them before it reads their vocabulary.

use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use warmpath_gguf::{GgufError, check, fingerprint, vocabulary};
use warmpath_prompt::{
    AddSpecial, ChatTemplate, Clock, DeclaredVocabulary, ParseSpecial, PromptMaker, PromptOptions, RENDERED_BYTES_MAX,
    forward_logs,
};

/// Folder of files in memory; without it, files are where temporary files are.
const MEMORY_FOLDER: &str = "/dev/shm";

/// Start of the keys that a vocabulary lacks, because it is one file.
const SPLIT_KEYS: &str = "split.";

/// Checks a model's file and its vocabulary: the vocabulary of an accepted file is accepted and has the same keys. One
/// that declares itself is used as a router does.
pub(crate) fn gguf(input: &[u8]) {
    // ggml writes a line about each file that it refuses.
    forward_logs();
    let file = file(input);
    let Ok(model_keys) = keys(file.path()) else { return };
    drop(fingerprint(file.path()));
    let vocabulary = vocabulary(file.path()).expect("an accepted file has a vocabulary");
    let vocabulary_keys = keys(self::file(&vocabulary).path()).expect("a vocabulary is accepted");
    assert_eq!(vocabulary_keys, model_keys, "keys of the vocabulary, and of its model");
    let Ok(Some(declared)) = DeclaredVocabulary::open(file.path()) else { return };
    if let Ok(maker) = PromptMaker::of_declared(declared, PromptOptions::default()) {
        let tokens = maker.tokenize("a b <s> é", AddSpecial::Yes, ParseSpecial::Yes);
        maker.detokenize(&tokens);
    }
}

/// Returns a file with these bytes, which is deleted when it is dropped.
fn file(bytes: &[u8]) -> NamedTempFile {
    let in_memory = NamedTempFile::new_in(MEMORY_FOLDER);
    let mut file = in_memory.or_else(|_| NamedTempFile::new()).expect("the folder of temporary files is writable");
    file.write_all(bytes).expect("there is room");
    file
}

/// Checks a file and reads everything in its header; returns the keys that a vocabulary keeps.
fn keys(path: &Path) -> Result<Vec<String>, GgufError> {
    let header = check(path)?;
    let keys = header.keys();
    for key in &keys {
        drop((header.text(key), header.unsigned(key), header.texts(key), header.numbers(key), header.list_len(key)));
    }
    drop(header.checked_tokens());
    Ok(keys.into_iter().filter(|key| !key.starts_with(SPLIT_KEYS)).collect())
}

static VARIABLES: LazyLock<Value> = LazyLock::new(|| {
    let function = json!({"name": "f", "description": "does", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}});
    let call = json!({"type": "function", "id": "1", "function": {"name": "f", "arguments": {"a": "b"}}});
    json!({
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": " hi "}]},
            {"role": "assistant", "content": null, "reasoning_content": "so", "tool_calls": [call]},
            {"role": "tool", "content": "c", "tool_call_id": "1"},
        ],
        "tools": [{"type": "function", "function": function}],
        "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "enable_thinking": false,
    })
});

/// Compiles a template and renders a conversation.
pub(crate) fn template(input: &[u8]) {
    let Ok(source) = std::str::from_utf8(input) else { return };
    let clock: Clock = Arc::new(|| Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC));
    let Ok(template) = ChatTemplate::compile(source, clock) else { return };
    if let Ok(text) = template.render_json(&VARIABLES) {
        assert!(text.len() <= RENDERED_BYTES_MAX, "{} bytes", text.len());
    }
}
