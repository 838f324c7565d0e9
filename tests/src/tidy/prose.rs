//! The rules for sentences in comments and on pages: line length, openings of doc comments, words that the field does
//! not use, length of changelog entries.

use std::path::Path;

use super::Finding;

/// Longest line of a comment or a page. Units: characters.
const LINE_CHARS_MAX: usize = 120;

/// First words of a doc comment that is no noun phrase; functions have a verb such as "Returns".
const OPENINGS: [&str; 4] = ["Is", "Are", "Says", "Lists"];

/// Words and metaphors that a reader of this field would not understand, each with the term to use.
///
/// Source: the glossary, and what readers of earlier comments stumbled over.
const STRANGE_WORDS: [(&str, &str); 14] = [
    ("whoever", "name the client, request or worker"),
    ("somebody", "name the client, request or worker"),
    ("everybody", "name the clients, requests or workers"),
    ("anybody", "name the client, request or worker"),
    ("thoughts", "reasoning"),
    ("doubted", "stale"),
    ("dearer", "more expensive"),
    ("of late", "recently"),
    ("by lot", "at random"),
    ("the books", "requests in flight"),
    ("hear of", "learn of"),
    ("in vain", "without success"),
    ("for ever", "forever"),
    ("hangs on", "depends on"),
];

/// Languages of code blocks that rustdoc would run as tests; no manifest enables doc tests.
const DOC_TESTS: [&str; 6] = ["", "rust", "no_run", "should_panic", "compile_fail", "ignore"];

/// Longest entry of the changelog, without its links. Units: characters.
const ENTRY_CHARS_MAX: usize = 200;

/// Returns the rules that the comments of the Rust file at `path` break.
pub(super) fn check_comments(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_code = false;
    for (line_idx, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_code = false;
            continue;
        };
        let sentence = comment.trim_start_matches(['/', '!']).trim();
        let is_doc = comment.starts_with(['/', '!']);
        if let Some(language) = sentence.strip_prefix("```") {
            in_code = !in_code;
            if in_code && is_doc && DOC_TESTS.contains(&language.split(',').next().unwrap_or_default()) {
                findings.push(Finding::new(path, line_idx + 1, "an example that no test runs: write a test instead"));
            }
        }
        if in_code {
            continue;
        }
        let mut messages = strange_words(sentence);
        messages.extend(long_line(line, sentence));
        if is_doc && OPENINGS.iter().any(|word| starts_with_word(sentence, word)) {
            messages.push("the sentence is neither a noun phrase nor has a verb such as `Returns`".to_owned());
        }
        findings.extend(messages.into_iter().map(|message| Finding::new(path, line_idx + 1, message)));
    }
    findings
}

/// Returns the rules for sentences that the page at `path` breaks. Code blocks are not checked.
pub(super) fn check_sentences(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_code = false;
    for (line_idx, line) in text.lines().enumerate() {
        let sentence = line.trim();
        in_code ^= sentence.starts_with("```");
        if in_code {
            continue;
        }
        let is_table_or_image = sentence.starts_with('|') || sentence.starts_with("![");
        let mut messages = strange_words(sentence);
        messages.extend(long_line(line, sentence).filter(|_| !is_table_or_image));
        findings.extend(messages.into_iter().map(|message| Finding::new(path, line_idx + 1, message)));
    }
    findings
}

/// Returns the entries of the changelog that are too long; an entry is a list item with its further lines.
pub(super) fn check_changelog(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((line_idx, line)) = lines.next() {
        let Some(first) = line.strip_prefix("- ") else { continue };
        let mut entry = first.to_owned();
        while let Some((_, further)) = lines.next_if(|(_, line)| line.starts_with("  ")) {
            entry.push(' ');
            entry.push_str(further.trim());
        }
        let n_chars = without_links(&entry).chars().count();
        if n_chars > ENTRY_CHARS_MAX {
            let message = format!("an entry of {n_chars} characters, more than {ENTRY_CHARS_MAX}");
            findings.push(Finding::new(path, line_idx + 1, message));
        }
    }
    findings
}

/// Returns an entry without its links, `[text](target)`.
fn without_links(entry: &str) -> String {
    let mut parts = entry.split('[');
    let mut text_left = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once("](").and_then(|(_, target)| target.split_once(')')) {
            Some((_, after)) => text_left.push_str(after),
            None => text_left.push_str(part),
        }
    }
    text_left
}

/// Returns what is wrong with the length of a line, unless it holds a single word, such as a URL.
fn long_line(line: &str, sentence: &str) -> Option<String> {
    let n_chars = line.chars().count();
    let can_break = sentence.contains(' ');
    (n_chars > LINE_CHARS_MAX && can_break).then(|| format!("{n_chars} characters, more than {LINE_CHARS_MAX}"))
}

/// Returns a message for each strange word of a sentence; code between backquotes and the targets of links may have
/// any.
fn strange_words(sentence: &str) -> Vec<String> {
    let prose: String = sentence.split('`').step_by(2).collect::<Vec<_>>().join("`").to_lowercase();
    let has = |word: &str| {
        prose.match_indices(word).any(|(at, _)| {
            let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || "-_/#".contains(c));
            !is_letter(prose[..at].chars().next_back()) && !is_letter(prose[at + word.len()..].chars().next())
        })
    };
    let strange = STRANGE_WORDS.iter().filter(|(word, _)| has(word));
    strange.map(|(word, term)| format!("`{word}` is no term of the field: {term}")).collect()
}

fn starts_with_word(sentence: &str, word: &str) -> bool {
    sentence.strip_prefix(word).is_some_and(|behind| behind.starts_with(' '))
}
