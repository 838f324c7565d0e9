//! Tests that the tokens of `warmpath-tokenizer` are llama.cpp's, for every vocabulary that has one.

use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::*;
use warmpath_common::ids::Token;
use warmpath_gguf::{Value, Writer};

use super::fixtures;
use super::words::{ALL, prose};
use crate::vocabulary::{AddSpecial, ParseSpecial, Vocabulary};

/// Vocabularies that are tokenized without llama.cpp.
static BYTE_PAIRS: LazyLock<Vec<&(PathBuf, Vocabulary)>> =
    LazyLock::new(|| ALL.iter().filter(|(_, vocabulary)| vocabulary.byte_pair().is_some()).collect());

/// One vocabulary for each splitter: those that have no file of their own are Qwen2's with another name in it, since
/// pieces do not depend on tokens.
static SPLITTERS: LazyLock<Vec<(&str, Vocabulary)>> = LazyLock::new(|| {
    ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken", "deepseek-v3", "kimi-k2", "default"]
        .map(|pre| (pre, with_pre(pre)))
        .into()
});

fn with_pre(pre: &str) -> Vocabulary {
    let header = warmpath_gguf::check(&fixtures().join("vocab/qwen2.gguf")).unwrap();
    let mut writer = Writer::new();
    writer.copy_keys(&header, |_| true);
    writer.set("tokenizer.ggml.pre", Value::Text(pre)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    writer.begin(&path).unwrap().finish().unwrap();
    Vocabulary::open(&path).unwrap()
}

fn llama(vocabulary: &Vocabulary, text: &str) -> Vec<Token> {
    vocabulary.llama().tokenize(text, AddSpecial::No, ParseSpecial::No)
}

/// Asserts that a text has llama.cpp's tokens, and names the first line that has not.
fn assert_same(name: &str, vocabulary: &Vocabulary, text: &str) {
    let ours = |text: &str| vocabulary.byte_pair().unwrap().tokenize(text);
    if ours(text) == llama(vocabulary, text) {
        return;
    }
    for line in text.split_inclusive('\u{4}') {
        assert_eq!(ours(line), llama(vocabulary, line), "{name}: {line:?}");
    }
    panic!("{name}: a text has other tokens, and none of its lines has");
}

#[test]
fn most_byte_level_vocabularies_are_tokenized_without_llama_cpp() {
    let names: Vec<&str> = BYTE_PAIRS.iter().filter_map(|(path, _)| path.file_stem()?.to_str()).collect();
    for name in ["command-r", "gpt-2", "llama-bpe", "qwen2", "qwen35", "refact", "starcoder"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert!(SPLITTERS.iter().all(|(_, vocabulary)| vocabulary.byte_pair().is_some()));
}

/// Returns each character alone and behind a space, an apostrophe, a letter, a digit and a line break, in lines that
/// end with a control character.
fn in_contexts(characters: impl Iterator<Item = char>) -> String {
    let mut text = String::new();
    for c in characters {
        text.extend([c, '\u{4}', ' ', c, '\'', c, 'a', c, '1', c, 'B', '\n', c, 'b', c, ' ', '\u{4}']);
    }
    text
}

/// Asserts that the characters have llama.cpp's tokens in every context, with every splitter.
fn assert_characters(characters: &[char]) {
    for (name, vocabulary) in SPLITTERS.iter() {
        for some in characters.chunks(4096) {
            assert_same(name, vocabulary, &in_contexts(some.iter().copied()));
        }
    }
}

#[test]
fn characters_of_every_script_have_llama_cpp_s_tokens_in_every_context() {
    // All of the first block and some of each of the others.
    let some = ('\0'..'\u{800}').chain(('\u{800}'..char::MAX).step_by(331));
    assert_characters(&some.collect::<Vec<_>>());
}

/// Takes minutes; to be run when llama.cpp or the splitters change.
#[test]
#[ignore = "it takes minutes: cargo test --workspace --lib -- --ignored every_character"]
fn every_character_has_llama_cpp_s_tokens_in_every_context() {
    assert_characters(&('\0'..=char::MAX).collect::<Vec<_>>());
}

#[test]
fn the_spelling_of_every_token_has_llama_cpp_s_tokens() {
    for (path, vocabulary) in BYTE_PAIRS.iter() {
        let spelled = |token| String::from_utf8_lossy(&vocabulary.piece(token)).into_owned() + "\u{4}";
        let spellings: Vec<String> = (0..vocabulary.info().n_vocab).map(spelled).collect();
        for some in spellings.chunks(256) {
            assert_same(&path.display().to_string(), vocabulary, &some.concat());
        }
    }
}

/// Returns texts of the characters that splitters treat differently, in any order.
fn hard() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        4 => "[a-c]",
        4 => "[A-C]",
        2 => "[stmdrvelSTMDRVEL]",
        3 => Just("'".to_owned()),
        3 => "[0-9]",
        4 => Just(" ".to_owned()),
        2 => "[\n\r\t]",
        3 => "[./$+<=>^~|`#(){}_-]",
        2 => "[éÄßſİK]",
        2 => "[中文字の・カー한글ไท]",
        1 => "[\u{301}\u{93f}\u{3099}\u{20dd}]",
        1 => "[²½Ⅷ१²]",
        1 => "[\u{a0}\u{3000}\u{85}\u{2028}\u{200b}\u{1}\u{7f}\u{ad}]",
        1 => "[🙂€©∑“—…]",
        1 => "\\PC",
    ];
    prop::collection::vec(character, 0..60).prop_map(|characters| characters.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
    #[test]
    fn hard_texts_have_llama_cpp_s_tokens_with_every_splitter(text in hard()) {
        for (name, vocabulary) in SPLITTERS.iter() {
            let ours = vocabulary.byte_pair().unwrap().tokenize(&text);
            prop_assert_eq!(ours, llama(vocabulary, &text), "{}: {:?}", name, text);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn prose_has_llama_cpp_s_tokens_in_every_vocabulary(text in prose()) {
        for (path, vocabulary) in BYTE_PAIRS.iter() {
            let ours = vocabulary.byte_pair().unwrap().tokenize(&text);
            prop_assert_eq!(ours, llama(vocabulary, &text), "{}: {:?}", path.display(), text);
        }
    }
}

#[test]
fn long_runs_have_llama_cpp_s_tokens() {
    for (path, vocabulary) in BYTE_PAIRS.iter() {
        for run in ["a", "ab", "aB", " ", ".", "中", "1", "\n", "é"] {
            assert_same(&path.display().to_string(), vocabulary, &run.repeat(900 / run.len()));
        }
    }
}
