//! Tests that texts may be cut at words: the tokens are those of the whole text, in every vocabulary that allows it.

use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::fixtures;
use crate::vocabulary::{AddSpecial, ParseSpecial, Vocabulary};

/// Lists every vocabulary whose texts are cut at words.
static CUT_AT_WORDS: LazyLock<Vec<(PathBuf, Vocabulary)>> = LazyLock::new(|| {
    let files = std::fs::read_dir(fixtures().join("vocab")).unwrap().map(|file| file.unwrap().path());
    let opened = files.filter_map(|path| Some((path.clone(), Vocabulary::open(&path).ok()?)));
    opened.filter(|(_, vocabulary)| vocabulary.cuts_at_words()).collect()
});

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

/// Returns texts in which everything that splitters look at stands beside words: spaces, digits, contractions, other scripts.
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn words_give_the_tokens_of_the_text_in_every_vocabulary(text in prose()) {
        for (path, vocabulary) in CUT_AT_WORDS.iter() {
            let whole = vocabulary.tokenize(&text, AddSpecial::No, ParseSpecial::No);
            prop_assert_eq!(vocabulary.tokenize_plain(&text), whole, "{}: {:?}", path.display(), text);
        }
    }
}
