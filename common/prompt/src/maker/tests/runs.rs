//! Runs of one kind of character: uncut, they would end a thread whose stack is smaller than usual.
//!
//! On a stack of the usual size, llama.cpp tokenizes them as they are.

use warmpath_gguf::{TensorSink, Value, Writer, check};

use super::*;

/// One name for each set of regular expressions in llama.cpp's `llm_tokenizer_bpe`.
const PRE_TOKENIZERS: [&str; 25] = [
    "afmoe",
    "bailingmoe",
    "bloom",
    "chameleon",
    "deepseek-coder",
    "deepseek-llm",
    "deepseek-v3",
    "default",
    "exaone-moe",
    "falcon",
    "gpt-4o",
    "granite-embed-multi-97m",
    "jais-2",
    "kimi-k2",
    "laguna",
    "minicpm5",
    "minimax-m2",
    "seed-coder",
    "spark2_5",
    "superbpe",
    "tekken",
    "tiny_aya",
    "ufakzeka",
    "viking",
    "whitespace",
];

/// Pairs of kinds of characters that one match of some of them covers, and some that none covers.
const PAIRS: [&str; 10] = ["Ⓐ.", "Ⅷ1", "a1", "a ", "a b", "/\n", "a#", "e\u{301} ", ". ", "1 "];

/// Stack of the threads that tokenize. Units: bytes.
///
/// Source: enough for the longest pieces, of 3,072 characters, and not for [`RUN_CHARS`] (`runs`).
const STACK_BYTES: usize = 5 << 18;

/// Length of a run. Units: characters.
const RUN_CHARS: usize = 6_000;

fn run(piece: &str) -> String {
    piece.repeat(RUN_CHARS / piece.chars().count())
}

#[test]
fn a_long_run_ends_no_process_whatever_the_vocabulary() {
    let folder = std::fs::read_dir(fixtures().join("vocab")).unwrap();
    let paths: Vec<PathBuf> =
        folder.map(|entry| entry.unwrap().path()).filter(|path| path.extension() == Some("gguf".as_ref())).collect();
    assert!(paths.len() > 10, "run `make fixtures`");
    for path in paths {
        let tried = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            let maker = PromptMaker::open(&path, PromptOptions::default()).unwrap();
            for piece in ["a", "0", " ", "\n", ".", "é", "語", "e\u{301}", " .", "a\n"] {
                assert!(!maker.text(&run(piece)).is_empty(), "{} {piece:?}", path.display());
            }
        });
        tried.unwrap().join().unwrap();
    }
}

/// Writes a vocabulary with another pre-tokenizer.
fn write_as(pre_tokenizer: &str, path: &Path) {
    let mut writer = Writer::new();
    writer.copy_keys(&check(&fixture_vocab("gpt-2")).unwrap(), |_| true);
    writer.set("tokenizer.ggml.pre", Value::Text(pre_tokenizer)).unwrap();
    writer.begin(path).and_then(TensorSink::finish).unwrap();
}

#[test]
fn runs_that_alternate_end_no_process_whatever_the_pre_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    for pre_tokenizer in PRE_TOKENIZERS {
        let path = folder.path().join(pre_tokenizer);
        write_as(pre_tokenizer, &path);
        let tried = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            let maker = PromptMaker::open(&path, PromptOptions::default()).unwrap();
            for pair in PAIRS {
                let tokens = maker.text(&run(pair));
                assert!(!tokens.is_empty(), "{pre_tokenizer} {pair:?}");
            }
        });
        tried.unwrap().join().unwrap();
    }
}

#[test]
fn a_run_that_is_cut_begins_with_the_tokens_of_a_shorter_one() {
    let maker = open("deepseek-llm", "{{ messages[0].content }}");
    let of = |n: usize| maker.tokenize(&"ab".repeat(n), AddSpecial::Yes, ParseSpecial::No);
    let (short, long) = (of(2048), of(4096));
    assert_eq!(long[..short.len()], short);
    assert_eq!(maker.detokenize(&long[1..]), "ab".repeat(4096), "the first is BOS");
}
