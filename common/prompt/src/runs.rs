//! Cuts texts within runs of one kind of character that are too long for llama.cpp's regular expressions.
//!
//! If llama.cpp has no splitter of its own for a vocabulary, it uses `std::regex`. That recurses at least once per
//! character of a match, and a full stack ends the process. A match hardly extends beyond a run of one kind of
//! character. So such a run is cut into pieces, counted from the run's start: a text that grows at its end is still cut
//! at the same places.
//!
//! Not here: cuts between words, which change no token (`words`).

/// Longest run that is tokenized in one piece. Units: bytes.
///
/// Source: a run of 16 KiB fills a stack of 2 MiB, as tokio's threads have; no word of a language is that long.
pub(crate) const RUN_BYTES_MAX: usize = 1024;

/// Pre-tokenizers for which llama.cpp has splitters of its own, which do not recurse.
///
/// Source: `unicode_regex_split_custom` in llama.cpp's `unicode.cpp`, and the names in `llama-vocab.cpp` that lead
/// there.
const SPLITTERS: [&str; 24] = [
    "command-r",
    "dbrx",
    "deepseek-r1-qwen",
    "exaone4",
    "falcon-h1",
    "falcon3",
    "gemma4",
    "gpt-2",
    "jina-v5-nano",
    "kormo",
    "lfm2",
    "llama-bpe",
    "llama-v3",
    "llama3",
    "megrez",
    "midm-2.0",
    "modern-bert",
    "mpt",
    "phi-2",
    "pixtral",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];

/// Returns whether long runs must be cut for a vocabulary of this kind with this pre-tokenizer.
pub(crate) fn must_be_cut(kind: &str, pre_tokenizer: &str) -> bool {
    matches!(kind, "gpt2" | "hybriddna" | "whitespace") && !SPLITTERS.contains(&pre_tokenizer)
}

/// Kinds of characters that regular expressions of pre-tokenizers distinguish.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

/// Returns a character's class; `None` if it belongs to the character before it, as an accent does.
fn class(c: char) -> Option<Class> {
    match c {
        c if c.is_whitespace() => Some(Class::Space),
        c if c.is_alphabetic() => Some(Class::Letter),
        c if c.is_numeric() => Some(Class::Number),
        // Punctuation of all languages.
        '\u{0}'..='\u{BF}' | '\u{2000}'..='\u{206F}' | '\u{3000}'..='\u{303F}' | '\u{FF00}'..='\u{FFEF}' => {
            Some(Class::Other)
        }
        _ => None,
    }
}

/// Returns the pieces of a text in which no run has more than [`RUN_BYTES_MAX`] bytes.
///
/// Cost: O(n). Shape: the pieces concatenated are the text; a single piece if nothing is cut.
pub(crate) fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut piece_start, mut run_start, mut run_class) = (0, 0, None);
    for (at, c) in text.char_indices() {
        let class = class(c).or(run_class);
        if class != run_class {
            (run_start, run_class) = (at, class);
        } else if at - run_start >= RUN_BYTES_MAX {
            pieces.push(&text[piece_start..at]);
            (piece_start, run_start) = (at, at);
        }
    }
    pieces.push(&text[piece_start..]);
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_long_runs_are_cut() {
        let prose = "It is a word, 12345 and (more)\n\n    ".repeat(1000);
        assert_eq!(pieces(&prose), [prose.as_str()]);
        let encoded = "aGVsbG8x/9+".repeat(1000);
        assert_eq!(pieces(&encoded), [encoded.as_str()], "letters and digits alternate");
        assert_eq!(pieces(""), [""]);
        for run in ["a", "0", " ", ".", "é", "語", "e\u{301}", "\u{1F600}"] {
            let long = run.repeat(10_000);
            let cut = pieces(&long);
            assert!(cut.iter().all(|piece| piece.len() <= RUN_BYTES_MAX + 4), "{run}");
            assert!(cut.len() >= long.len() / (RUN_BYTES_MAX + 4), "{run}");
        }
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_text_and_a_longer_text_is_cut_at_the_same_places(parts in prop::collection::vec(("[a0 .é語\u{301}]", 1..2000_usize), 0..6)) {
            let text: String = parts.iter().map(|(c, n)| c.repeat(*n)).collect();
            let cut = pieces(&text);
            prop_assert_eq!(cut.concat(), text.clone());
            let longer = format!("{text} and more");
            let (before, _) = cut.split_at(cut.len() - 1);
            prop_assert!(pieces(&longer).starts_with(before));
        }
    }
}
