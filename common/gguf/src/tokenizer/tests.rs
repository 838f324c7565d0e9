//! Vocabularies of every kind, valid ones and those that would end a process.
//!
//! The files have an architecture that llama.cpp does not know, so it refuses them before it reads their vocabulary.

use tempfile::TempDir;

use super::*;
use crate::{Value, Writer, check};

/// Metadata of a vocabulary.
struct Vocabulary {
    kind: &'static str,
    tokens: Vec<String>,
    kinds: Option<Vec<i32>>,
    charsmap: Option<Vec<u8>>,
}

impl Vocabulary {
    fn new(kind: &'static str, tokens: Vec<String>) -> Self {
        Self { kind, tokens, kinds: None, charsmap: None }
    }

    fn checked(&self) -> Result<(), TokenizerError> {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("vocabulary.gguf");
        let mut writer = Writer::new();
        writer.set("general.architecture", Value::Text("none-known")).unwrap();
        writer.set("tokenizer.ggml.model", Value::Text(self.kind)).unwrap();
        writer.set("tokenizer.ggml.tokens", Value::Texts(&self.tokens)).unwrap();
        if let Some(kinds) = &self.kinds {
            writer.set("tokenizer.ggml.token_type", Value::I32s(kinds)).unwrap();
        }
        if let Some(charsmap) = &self.charsmap {
            writer.set("tokenizer.ggml.precompiled_charsmap", Value::Bytes(charsmap)).unwrap();
        }
        writer.begin(&path).unwrap().finish().unwrap();
        check(&path).unwrap().checked_tokens().map(drop)
    }
}

fn bytes() -> Vec<String> {
    (0..=u8::MAX).map(|byte| String::from_utf8(spelled(byte)).unwrap()).collect()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Returns RWKV's spelling of every byte.
fn escaped_bytes() -> Vec<String> {
    (0..=u8::MAX).map(|byte| format!("\\x{byte:02x}")).collect()
}

#[test]
fn valid_vocabularies_of_every_kind_pass() {
    for kind in ["gpt2", "gemma4", "bert", "t5", "whitespace", "hybriddna"] {
        assert_eq!(Vocabulary::new(kind, words(&["a", "", "bc", ""])).checked(), Ok(()), "{kind}");
    }
    for kind in ["llama", "plamo2"] {
        assert_eq!(Vocabulary::new(kind, [bytes(), words(&["abc"])].concat()).checked(), Ok(()), "{kind}");
    }
    assert_eq!(Vocabulary::new("rwkv", [escaped_bytes(), words(&["abc", "\\n\\n"])].concat()).checked(), Ok(()));
}

#[test]
fn an_unknown_kind_is_refused() {
    for kind in ["", "none", "no_vocab", "test", "replit"] {
        let error = Vocabulary::new(kind, words(&["a"])).checked().unwrap_err();
        assert!(matches!(&error, TokenizerError::Kind { kind: Some(found) } if found == kind), "{error}");
    }
}

#[test]
fn duplicate_too_long_or_too_few_tokens_are_refused() {
    let check = |tokens: Vec<String>| Vocabulary::new("gpt2", tokens).checked().unwrap_err();
    assert!(matches!(check(words(&["a"; 300])), TokenizerError::Alike { first: 0, second: 1, .. }));
    assert!(matches!(check(words(&["", "[EMPTY_0]"])), TokenizerError::Alike { .. }), "llama.cpp's own placeholder");
    assert!(matches!(check(Vec::new()), TokenizerError::Count { n_tokens: 0 } | TokenizerError::Shape { .. }));
    assert!(matches!(check(vec!["a".repeat(TOKEN_BYTES_MAX + 1)]), TokenizerError::Long { token: 0, .. }));
}

#[test]
fn every_token_has_a_type() {
    let short = Vocabulary { kinds: Some(vec![1]), ..Vocabulary::new("gpt2", words(&["a", "b"])) };
    let error = short.checked().unwrap_err();
    assert_eq!(error.to_string(), "tokenizer.ggml.token_type has 1 entries for 2 tokens");
}

#[test]
fn kinds_that_need_every_byte_are_refused_without_one() {
    // A vocabulary of another kind under this name.
    let foreign = Vocabulary::new("llama", words(&["Ġthe", "a", "b"])).checked().unwrap_err();
    assert_eq!(foreign.to_string(), "no token stands for byte 0x00, which llama tokenizers need");
    for kind in ["llama", "plamo2"] {
        for byte in [0_u8, 10, 0xE2] {
            let mut tokens = bytes();
            tokens.remove(usize::from(byte));
            let error = Vocabulary::new(kind, tokens).checked().unwrap_err();
            assert_eq!(error, TokenizerError::Byte { byte, kind });
        }
    }
    let error = Vocabulary::new("rwkv", words(&["abc", "\\x41b", "a", "\\n"])).checked().unwrap_err();
    assert_eq!(error, TokenizerError::Byte { byte: b'A', kind: "rwkv" });
    let bert = Vocabulary { kinds: Some(vec![1, BYTE]), ..Vocabulary::new("bert", words(&["a", "b"])) };
    assert!(matches!(bert.checked().unwrap_err(), TokenizerError::Shape { .. }));
}

/// Returns a table of 512 nodes in which `A` (65) leads to the replacement at `value`.
fn charsmap(root_base: u32, value: u32, replacements: &[u8]) -> Vec<u8> {
    let mut nodes = vec![0_u32; 512];
    nodes[0] = root_base << 10;
    // Child of the root by `A`, a leaf, whose replacement is at an offset of 256.
    nodes[256 ^ 65] = (256 << 10) | (1 << 8) | 65;
    nodes[65] = value;
    let bytes: Vec<u8> = nodes.iter().flat_map(|node| node.to_le_bytes()).collect();
    [&u32::try_from(bytes.len()).unwrap().to_le_bytes(), bytes.as_slice(), replacements].concat()
}

#[test]
fn a_normalizing_table_with_positions_beyond_its_end_is_refused() {
    let check = |charsmap: Vec<u8>| {
        Vocabulary { charsmap: Some(charsmap), ..Vocabulary::new("t5", words(&["a"])) }.checked().is_ok()
    };
    let sound = charsmap(256, 2, b"b\0cd\0");
    assert!(check(sound.clone()));
    assert!(!check(charsmap(256, 9, b"b\0cd\0")), "the replacement lies behind the end");
    assert!(!check(charsmap(256, 2, b"b\0cd")), "the replacement does not end");
    assert!(!check(charsmap(512, 2, b"b\0cd\0")), "the root's children lie behind the end");
    assert!(!check(sound[..3].to_vec()) && !check(sound[..2000].to_vec()));
}
