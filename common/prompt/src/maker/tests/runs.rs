//! Runs of one kind of character, as long as a request: llama.cpp's regular expressions would overflow the stack on
//! them.

use super::*;

/// Stack of the threads that tokenize. Units: bytes. Source: tokio's default.
const STACK_BYTES: usize = 2 << 20;

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
                let text = piece.repeat(20 << 10);
                assert!(!maker.text(&text).is_empty(), "{} {piece:?}", path.display());
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
