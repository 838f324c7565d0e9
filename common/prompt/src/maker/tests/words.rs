//! Tests that texts may be cut at words: the tokens are those of the whole text, in every vocabulary that allows it.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proptest::prelude::*;
use warmpath_common::ids::Token;
use warmpath_gguf::{Value, Writer};

use super::fixtures;
use crate::vocabulary::{AddSpecial, ParseSpecial, Vocabulary};

/// Every vocabulary that can be opened.
pub(crate) static ALL: LazyLock<Vec<(PathBuf, Vocabulary)>> = LazyLock::new(|| {
    let files = std::fs::read_dir(fixtures().join("vocab")).unwrap().map(|file| file.unwrap().path());
    files.filter_map(|path| Some((path.clone(), Vocabulary::open(&path).ok()?))).collect()
});

/// Those whose texts are cut at words' ends, as in byte-pair encoding.
static CUT_AT_WORDS: LazyLock<Vec<&(PathBuf, Vocabulary)>> =
    LazyLock::new(|| ALL.iter().filter(|(_, vocabulary)| vocabulary.cuts_at_words()).collect());

/// SentencePiece vocabularies: one that puts a space before each text, and the same without it, as Gemma's is.
static SENTENCE_PIECES: LazyLock<[Vocabulary; 2]> = LazyLock::new(|| {
    let path = fixtures().join("vocab/llama-spm.gguf");
    [Vocabulary::open(&path).unwrap(), with(&path, |writer| writer.set(ADD_SPACE, Value::Bool(false)).unwrap())]
});

const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";

/// Opens a vocabulary in which something is changed.
fn with(path: &Path, change: impl FnOnce(&mut Writer)) -> Vocabulary {
    let header = warmpath_gguf::check(path).unwrap();
    let mut writer = Writer::new();
    writer.copy_keys(&header, |_| true);
    change(&mut writer);
    let folder = tempfile::tempdir().unwrap();
    let changed = folder.path().join("changed.gguf");
    writer.begin(&changed).unwrap().finish().unwrap();
    Vocabulary::open(&changed).unwrap()
}

#[test]
fn most_vocabularies_are_cut_at_words_and_those_with_phrases_as_tokens_are_not() {
    let names: Vec<&str> = CUT_AT_WORDS.iter().filter_map(|(path, _)| path.file_stem()?.to_str()).collect();
    for name in ["qwen2", "llama-bpe", "gemma-4", "command-r", "falcon", "starcoder", "mpt"] {
        assert!(names.contains(&name), "{name} is cut: {names:?}");
    }
    for name in ["llama-spm", "phi-3", "bert-bge", "deepseek-llm"] {
        assert!(!names.contains(&name), "{name} is no byte-pair encoding, or has tokens across words");
    }
}

/// Returns texts with everything that splitters treat specially beside words: spaces, digits, contractions, other
/// scripts.
pub(super) fn prose() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => "[ ]?[A-Za-z]{1,12}",
        2 => prop::sample::select(vec![
            "'s", "'LL", " don't", "\n", "\r\n", "  ", "   ", "\t", ".", ", ", "...", " -- ", "(", ")", "_", "/", "http://a.b/c d", "7", " 2026",
            "12345", "é", " über", "naïve", "中文", " 日本", "한국 a", "مرحبا", " \u{301}", "🙂", "ſ", "İ", "\u{a0}", "e\u{301} a", "$", "#!", "camelCase Word",
        ]).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

#[test]
fn tokens_that_llama_cpp_finds_first_forbid_cuts_that_they_may_adjoin() {
    let path = fixtures().join("vocab/llama-spm.gguf");
    let header = warmpath_gguf::check(&path).unwrap();
    let (texts, types) = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type");
    for (spelling, adds_space, allows) in [
        ("<tag>", true, true),
        ("<tag>", false, true),
        ("wordtag", true, false),
        ("wordtag", false, true),
        (" <tag>", true, false),
        ("<tag", true, false),
        ("<tag", false, true),
        ("a b", false, false),
    ] {
        let mut tokens: Vec<String> =
            header.texts(texts).unwrap().into_iter().map(|text| String::from_utf8(text).unwrap()).collect();
        let mut kinds = header.numbers(types).unwrap();
        tokens.pop();
        tokens.push(spelling.to_owned());
        *kinds.last_mut().unwrap() = USER_DEFINED;
        let vocabulary = with(&path, |writer| {
            writer.set(texts, Value::Texts(&tokens)).unwrap();
            writer.set(types, Value::I32s(&kinds)).unwrap();
            writer.set(ADD_SPACE, Value::Bool(adds_space)).unwrap();
        });
        assert_eq!(vocabulary.cuts_into_portions(), allows, "{spelling:?}, a space before each text: {adds_space}");
        let text = "word <tag> a <tag word a b a <tag>word. Word <tag> wordtag wordtag b".repeat(3);
        assert_eq!(in_portions(&vocabulary, &text, 1), whole(&vocabulary, &text), "{spelling:?}, {adds_space}");
    }
}

/// Type of a token that llama.cpp finds in a text before it encodes what is between. Source: `llama_token_type`.
const USER_DEFINED: i32 = 4;

fn whole(vocabulary: &Vocabulary, text: &str) -> Vec<Token> {
    vocabulary.llama().tokenize(text, AddSpecial::No, ParseSpecial::No)
}

fn in_portions(vocabulary: &Vocabulary, text: &str, bytes_min: usize) -> Vec<Token> {
    vocabulary.portions_of(text, bytes_min).flat_map(|portion| vocabulary.tokenize_portion(portion)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn portions_give_the_tokens_of_the_text_in_sentence_piece_vocabularies(text in prose(), bytes_min in 0..80usize) {
        for vocabulary in SENTENCE_PIECES.iter() {
            prop_assert!(vocabulary.cuts_into_portions());
            prop_assert_eq!(in_portions(vocabulary, &text, bytes_min), whole(vocabulary, &text), "{:?}", text);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn portions_give_the_tokens_of_the_text_in_every_byte_pair_vocabulary(text in prose(), bytes_min in 0..80usize) {
        for (path, vocabulary) in CUT_AT_WORDS.iter() {
            prop_assert_eq!(in_portions(vocabulary, &text, bytes_min), whole(vocabulary, &text), "{}: {:?}", path.display(), text);
        }
    }
}
