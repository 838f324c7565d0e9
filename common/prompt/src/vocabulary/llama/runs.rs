//! Cuts texts within runs of one kind of character that are too long for llama.cpp's regular expressions.
//!
//! If llama.cpp has no splitter of its own for a vocabulary, it uses `std::regex`. That recurses once per character of
//! a match, and a full stack ends the process. A match hardly extends beyond a run of one kind of character, so a long
//! run is cut. Some matches extend over several runs (`a1a1`, `a b c`, letters that llama.cpp calls symbols), so a long
//! stretch without a place that ends every match is cut, too. Both are counted from their starts: a text that grows at
//! its end is still cut at the same places.

/// Longest run that is tokenized in one piece. Units: bytes.
///
/// Source: a match of 6,500 characters fills a stack of 2 MiB, as tokio's threads have, whatever the expression
/// (llama.cpp's `unicode_regex_split`, g++ 12, -O3, x86-64); no word of a language is that long.
pub(crate) const RUN_BYTES_MAX: usize = 1024;

/// Length from which a stretch that one match may cover is cut at the end of a word. Units: bytes.
///
/// Source: own choice: a word, with its run's limit, ends before [`STRETCH_BYTES_MAX`].
const STRETCH_BYTES: usize = 2048;

/// Longest stretch that one match may cover. Units: bytes.
///
/// Source: as of [`RUN_BYTES_MAX`]: half of the stack.
const STRETCH_BYTES_MAX: usize = 3072;

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

/// Returns whether the matches of every expression end between these characters, white space apart.
///
/// Source: the expressions in llama.cpp's `llm_tokenizer_bpe`: only exaone-moe's cross spaces, those between letters;
/// only `[\r\n/]*` crosses line breaks. Only ASCII counts, whose kinds all versions of Unicode agree on.
fn ends_every_match(previous: char, next: char) -> bool {
    match next {
        ' ' => previous.is_ascii() && !previous.is_ascii_alphabetic(),
        next => previous == '\n' && !['\r', '\n', '/'].contains(&next),
    }
}

/// Returns the pieces of a text in which no run has more than [`RUN_BYTES_MAX`] bytes, and no stretch that one match
/// may cover more than [`STRETCH_BYTES_MAX`].
///
/// Cost: O(n). Shape: the pieces concatenated are the text; a single piece if nothing is cut.
pub(crate) fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut piece_start, mut stretch_start, mut run_start, mut run_class) = (0, 0, 0, None);
    let mut previous = '\n';
    for (at, c) in text.char_indices() {
        let class = class(c).or(run_class);
        let (is_run_end, n_run, n_stretch) = (class != run_class, at - run_start, at - stretch_start);
        // An apostrophe may go on with a word, as in "don't".
        let is_word_end = is_run_end && run_class == Some(Class::Letter) && c != '\'';
        let is_cut = n_stretch >= STRETCH_BYTES_MAX
            || (is_word_end && n_stretch >= STRETCH_BYTES)
            || (!is_run_end && n_run >= RUN_BYTES_MAX);
        if is_cut {
            pieces.push(&text[piece_start..at]);
            piece_start = at;
        }
        if is_cut || is_run_end {
            (run_start, run_class) = (at, class);
        }
        if is_cut || ends_every_match(previous, c) {
            stretch_start = at;
        }
        previous = c;
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
        let lines = "one word after the other without a mark, then a comma, and so on ".repeat(1000);
        assert_eq!(pieces(&lines), [lines.as_str()]);
        assert_eq!(pieces(""), [""]);
        for run in ["a", "0", " ", ".", "é", "語", "e\u{301}", "\u{1F600}"] {
            let long = run.repeat(6_000);
            let cut = pieces(&long);
            assert!(cut.iter().all(|piece| piece.len() <= RUN_BYTES_MAX + 4), "{run}");
            assert!(cut.len() >= long.len() / (RUN_BYTES_MAX + 4), "{run}");
        }
    }

    #[test]
    fn runs_that_alternate_are_cut_after_a_word_if_there_is_one() {
        for pair in ["Ⓐ.", "Ⅷ1", "a1", "a ", "/\n", "a.", "don't", "語，", ".1", "\u{301}a"] {
            let long = pair.repeat(2_000);
            let cut = pieces(&long);
            assert!(cut.iter().all(|piece| piece.len() <= STRETCH_BYTES_MAX + 4), "{pair:?}");
        }
        for (pair, begin) in [("a b", " "), ("語，", "，"), ("a1", "1")] {
            let long = pair.repeat(2_000);
            assert!(pieces(&long)[1..].iter().all(|piece| piece.starts_with(begin)), "{pair:?}");
        }
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_text_and_a_longer_text_is_cut_at_the_same_places(parts in prop::collection::vec(("[a0 .é語\u{301}]{1,2}", 1..2000_usize), 0..6)) {
            let text: String = parts.iter().map(|(c, n)| c.repeat(*n)).collect();
            let cut = pieces(&text);
            prop_assert_eq!(cut.concat(), text.clone());
            let longer = format!("{text} and more");
            let (before, _) = cut.split_at(cut.len() - 1);
            prop_assert!(pieces(&longer).starts_with(before));
        }
    }
}
