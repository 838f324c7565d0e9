//! Tests that a declared vocabulary is the one that llama.cpp loads, and that none can do harm.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use warmpath_gguf::{VocabularyChanges, changed_vocabulary};

use super::*;
use crate::maker::tests::words::ALL;
use crate::vocabulary::Vocabulary;

/// Returns the vocabulary in the file with this name.
fn loaded(name: &str) -> &'static (PathBuf, Vocabulary) {
    ALL.iter().find(|(path, _)| path.ends_with(name)).unwrap()
}

/// Opens the vocabulary of the file at `path` with this declaration.
fn open_with(path: &Path, declaration: &str) -> Result<Option<Vocabulary>, String> {
    let changes = VocabularyChanges { declaration: Some(declaration), ..VocabularyChanges::default() };
    let folder = tempfile::tempdir().unwrap();
    let changed = folder.path().join("declared.gguf");
    std::fs::write(&changed, changed_vocabulary(path, changes).unwrap()).unwrap();
    Vocabulary::open_declared(&changed).map_err(|error| error.to_string())
}

#[test]
fn declared_vocabularies_are_those_that_llama_cpp_loads() {
    let mut names = Vec::new();
    for (path, loaded) in ALL.iter() {
        assert!(Vocabulary::open_declared(path).unwrap().is_none(), "{}: it declares nothing", path.display());
        let Some(declaration) = loaded.declaration(path) else { continue };
        let declared = open_with(path, &declaration).unwrap().expect("it declares itself");
        assert_eq!(declared.settings, loaded.settings);
        assert!((0..=loaded.info().n_vocab).all(|token| declared.piece(token) == loaded.piece(token)
            && declared.answer_piece(token) == loaded.answer_piece(token)));
        for text in ["It's <|im_end|> 12345\n\n  naïve 中文", ""] {
            assert_eq!(declared.tokenize_plain(text), loaded.tokenize_plain(text));
        }
        assert_eq!(declared.chat_template(), loaded.chat_template());
        assert_eq!(declared.tool_use_template, loaded.tool_use_template);
        assert_eq!(declared.token_bound.is_some(), loaded.token_bound.is_some());
        names.push(path.file_stem().unwrap().to_string_lossy().into_owned());
    }
    for name in ["command-r", "gpt-2", "llama-bpe", "qwen2", "qwen35", "refact", "starcoder"] {
        assert!(names.iter().any(|declared| declared == name), "{name}: {names:?}");
    }
}

#[test]
fn declarations_of_other_vocabularies_are_refused() {
    let path = &loaded("gpt-2.gguf").0;
    let of = |name: &str| {
        let (path, vocabulary) = loaded(name);
        vocabulary.declaration(path).unwrap()
    };
    let reason = |declaration: &str| open_with(path, declaration).unwrap_err();
    assert!(reason("{").contains("its declaration is invalid"));
    assert!(reason(&of("qwen2.gguf")).contains("151936 tokens are declared, and it has 50257"));
    let beyond = of("gpt-2.gguf").replace(r#""prefix":[]"#, r#""prefix":[50257]"#);
    assert!(reason(&beyond).contains("token 50257 is declared, and there are 50257 tokens"), "{beyond}");
    // SentencePiece cannot be declared.
    let (path, vocabulary) = loaded("llama-spm.gguf");
    assert_eq!(vocabulary.declaration(path), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]
    #[test]
    fn no_declaration_does_harm(special in 0..60_000_u32, control: bool, strips: bool, unused in 0..50_257_u32, text in "\\PC{0,30}") {
        let (path, vocabulary) = loaded("gpt-2.gguf");
        let header = warmpath_gguf::check(path).unwrap();
        let texts = header.texts("tokenizer.ggml.tokens").unwrap();
        let info = vocabulary.info().clone();
        let specials = vec![DeclaredSpecial { token: special, control, lstrip: strips, rstrip: strips }];
        let declaration = Declaration { info, prefix: vec![1], suffix: vec![], specials, unused: [unused].into() };
        let json = serde_json::to_string(&declaration).unwrap();
        let made = DeclaredTokens::new(&header, &texts, declaration);
        prop_assert_eq!(made.is_ok(), special < 50_257);
        if let Ok(Some(vocabulary)) = open_with(path, &json) {
            vocabulary.tokenize_plain(&text);
            for token in [special, unused, u32::MAX] {
                vocabulary.piece(token);
                vocabulary.answer_piece(token);
            }
        }
    }
}
