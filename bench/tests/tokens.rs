//! Comparison of our tokenizer with llama.cpp's on all real texts of the benchmarks.
#![allow(missing_docs, clippy::unwrap_used)]

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use warmpath_bench::corpora::TextKind;
use warmpath_prompt::{AddSpecial, ParseSpecial, PromptMaker, PromptOptions, backend};

/// Texts are tokenized in parts of this size, as requests have them. Units: bytes.
const PART_BYTES: usize = 32 << 10;

/// Cuts a text into parts between characters.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut text_left = text;
    std::iter::from_fn(move || {
        let (part, behind) = text_left.split_at(text_left.floor_char_boundary(PART_BYTES.min(text_left.len())));
        text_left = behind;
        (!part.is_empty()).then_some(part)
    })
}

#[test]
#[ignore = "fetches 28 MB of text, and needs the GGUF file of a model in MODEL"]
fn real_texts_have_the_tokens_of_llama_cpp() {
    let path = std::path::PathBuf::from(std::env::var_os("MODEL").expect("MODEL names a GGUF file"));
    let maker = PromptMaker::open(&path, PromptOptions::default()).unwrap();
    let params = LlamaModelParams::default().with_vocab_only(true);
    let model = LlamaModel::load_from_file(backend(), &path, &params).unwrap();
    for kind in TextKind::real() {
        for (nth, part) in parts(kind.corpus().unwrap().whole()).enumerate() {
            let reference = model.vocab().tokenize(part.as_bytes(), false, false);
            let reference: Vec<u32> = reference.iter().filter_map(|token| u32::try_from(token.0).ok()).collect();
            let tokens = maker.tokenize(part, AddSpecial::No, ParseSpecial::No);
            assert_eq!(tokens, reference, "part {nth} of {kind}");
        }
    }
}

#[test]
fn parts_are_the_text_and_end_between_characters() {
    let text = "äöü€".repeat(20_000);
    let parts: Vec<&str> = parts(&text).collect();
    assert_eq!(parts.concat(), text);
    assert!(parts.len() > 4 && parts.iter().all(|part| part.len() <= PART_BYTES));
}
