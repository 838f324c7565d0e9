//! Detects the start of a tool call in a response, from where the call's grammar applies.
//!
//! The grammar itself is in `grammar`.
//!
//! Most chat templates start a call with a fixed word. Only text that could be the start of such a word is kept; no
//! call starts within reasoning. Other formats have patterns, which are searched in all text outside of reasoning, up
//! to a limit.

use fancy_regex::Regex;
use warmpath_common::ids::Token;

/// Maximum text outside of reasoning that is searched with patterns. Units: bytes.
///
/// Source: every token causes a new search of the whole text; 8 kB take some 0.1 ms.
pub const SEARCHED_BYTES_MAX: usize = 8 << 10;

/// Mark with which a call starts.
#[derive(Debug, Clone)]
pub enum StartTrigger {
    /// Any of these texts.
    Words(Vec<String>),
    /// A match of any of these patterns.
    Patterns(Vec<Pattern>),
}

/// Regular expression that finds the start of a call: the start of its first group that is not empty, or else of the
/// match.
///
/// Source: `llama_grammar_trigger_pattern` in llama.cpp's `llama-grammar.h`.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles a pattern in ECMAScript's syntax, as far as chat formats use it.
    ///
    /// Errors: the pattern does not parse.
    pub fn new(pattern: &str) -> Result<Self, fancy_regex::Error> {
        Regex::new(pattern).map(Self)
    }

    /// Returns the pattern that finds a fixed text.
    ///
    /// Errors: the text is too long.
    pub fn of_word(word: &str) -> Result<Self, fancy_regex::Error> {
        Self::new(&fancy_regex::escape(word))
    }

    fn find(&self, text: &str) -> Option<usize> {
        let captures = self.0.captures(text).ok().flatten()?;
        let mut groups = captures.iter().skip(1).flatten();
        let group = groups.find(|group| !group.as_str().is_empty()).or_else(|| captures.get(0))?;
        Some(group.start())
    }
}

/// Marks of reasoning in a response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReasoningMarks {
    /// Text that opens the reasoning; empty for a model that does not reason.
    pub start: String,
    /// Texts that close the reasoning.
    pub ends: Vec<String>,
}

/// Result of checking a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallDetection {
    /// No call starts here.
    Nothing,
    /// A call has started. These are its tokens so far, each with the bytes that belong to the call.
    Call(Vec<(Token, Vec<u8>)>),
    /// The limit of searched text is reached.
    Full,
}

/// Detector of tool calls in one response.
#[derive(Debug, Clone)]
pub struct ToolCallDetector {
    start: StartTrigger,
    marks: ReasoningMarks,
    is_thinking: bool,
    /// End of the response that may become part of a mark.
    end: HeldText,
    /// Text in which the patterns are searched: all text that is known not to be reasoning.
    searched: HeldText,
}

/// Text with its tokens.
#[derive(Debug, Clone, Default)]
struct HeldText {
    text: Vec<u8>,
    /// Tokens, each with its end in the text.
    tokens: Vec<(Token, usize)>,
}

impl ToolCallDetector {
    /// Returns a detector for a response whose first part, `prefix`, is in the prompt.
    pub fn new(start: StartTrigger, marks: ReasoningMarks, prefix: &str) -> Self {
        let opened_at = if marks.start.is_empty() { None } else { prefix.rfind(&marks.start) };
        let behind = opened_at.map(|at| &prefix[at + marks.start.len()..]);
        let is_thinking = behind.is_some_and(|behind| !marks.ends.iter().any(|end| behind.contains(end.as_str())));
        Self { start, marks, is_thinking, end: HeldText::default(), searched: HeldText::default() }
    }

    /// Checks the next token, whose text is `piece`.
    pub fn push(&mut self, token: Token, piece: &[u8]) -> CallDetection {
        self.end.push(token, piece);
        if self.is_thinking {
            let Some(at) = first(&self.end.text, self.marks.ends.iter()) else {
                self.end.forget_all_but(longest(self.marks.ends.iter()));
                return CallDetection::Nothing;
            };
            // A text that closes the reasoning may also start a call.
            self.is_thinking = false;
            self.end.forget_before(at);
        } else if let Some(at) = first(&self.end.text, [&self.marks.start].into_iter()) {
            self.is_thinking = true;
            self.end.forget_before(at + self.marks.start.len());
            return CallDetection::Nothing;
        }
        match &self.start {
            StartTrigger::Words(words) => match first(&self.end.text, words.iter()) {
                Some(at) => CallDetection::Call(self.end.from(at)),
                None => {
                    self.end.forget_all_but(longest(words.iter().chain([&self.marks.start])));
                    CallDetection::Nothing
                }
            },
            StartTrigger::Patterns(patterns) => {
                if self.searched.text.len() > SEARCHED_BYTES_MAX {
                    return CallDetection::Full;
                }
                self.end.hand_on(self.marks.start.as_bytes(), &mut self.searched);
                match self.searched.find(patterns) {
                    Some(at) => CallDetection::Call([self.searched.from(at), self.end.from(0)].concat()),
                    None => CallDetection::Nothing,
                }
            }
        }
    }
}

impl HeldText {
    fn push(&mut self, token: Token, piece: &[u8]) {
        self.text.extend_from_slice(piece);
        self.tokens.push((token, self.text.len()));
    }

    /// Moves tokens that cannot be part of an incomplete `opening` at the end of the text to `to`.
    fn hand_on(&mut self, opening: &[u8], to: &mut Self) {
        let is_begun = |n: &usize| self.text.ends_with(&opening[..*n]);
        let n_kept = (1..opening.len()).rev().find(is_begun).unwrap_or(0);
        let n_whole = self.text.len() - n_kept;
        let n_tokens = self.tokens.iter().take_while(|(_, end)| *end <= n_whole).count();
        for (token, bytes) in self.from(0).into_iter().take(n_tokens) {
            to.push(token, &bytes);
        }
        self.forget_tokens(n_tokens);
    }

    /// Returns the start of a call that one of the patterns finds, if any.
    fn find(&self, patterns: &[Pattern]) -> Option<usize> {
        let mut text = String::with_capacity(self.text.len());
        for chunk in self.text.utf8_chunks() {
            text.push_str(chunk.valid());
            // One byte replaces one byte, so that positions stay the same.
            text.extend(chunk.invalid().iter().map(|_| '\u{7F}'));
        }
        patterns.iter().find_map(|pattern| pattern.find(&text))
    }

    /// Returns the tokens that end after the byte `at`, each with its bytes from there on.
    fn from(&self, at: usize) -> Vec<(Token, Vec<u8>)> {
        let starts = [0].into_iter().chain(self.tokens.iter().map(|(_, end)| *end));
        let spans = starts.zip(&self.tokens).filter(|(_, (_, end))| *end > at);
        spans.map(|(start, (token, end))| (*token, self.text[start.max(at)..*end].to_vec())).collect()
    }

    /// Forgets all tokens that lie wholly before the last `n - 1` bytes.
    fn forget_all_but(&mut self, n: usize) {
        self.forget_before((self.text.len() + 1).saturating_sub(n.max(1)));
    }

    /// Forgets the tokens that end at or before the byte `at`.
    fn forget_before(&mut self, at: usize) {
        self.forget_tokens(self.tokens.iter().take_while(|(_, end)| *end <= at).count());
    }

    fn forget_tokens(&mut self, n_tokens: usize) {
        let n_bytes = n_tokens.checked_sub(1).map_or(0, |last| self.tokens[last].1);
        self.tokens.drain(..n_tokens);
        self.text.drain(..n_bytes);
        self.tokens.iter_mut().for_each(|(_, end)| *end -= n_bytes);
    }
}

/// Returns the position of the first of `words` in `text`; empty words are ignored.
fn first<'a>(text: &[u8], words: impl Iterator<Item = &'a String>) -> Option<usize> {
    let position_of = |word: &String| text.windows(word.len()).position(|window| window == word.as_bytes());
    words.filter(|word| !word.is_empty()).filter_map(position_of).min()
}

fn longest<'a>(words: impl Iterator<Item = &'a String>) -> usize {
    words.map(String::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> StartTrigger {
        StartTrigger::Words(words.iter().map(|word| (*word).to_owned()).collect())
    }

    fn think() -> ReasoningMarks {
        ReasoningMarks { start: "<think>".to_owned(), ends: vec!["</think>".to_owned()] }
    }

    /// Returns the parts of tokens that belong to the call, and the number of tokens until it was detected.
    fn call(mut watch: ToolCallDetector, pieces: &[&str]) -> Option<(usize, Vec<String>)> {
        (0..).zip(pieces).find_map(|(token, piece)| match watch.push(token, piece.as_bytes()) {
            CallDetection::Call(tokens) => {
                let first = tokens[0].0;
                assert!(tokens.iter().map(|(token, _)| *token).eq(first..=token), "{tokens:?}");
                let texts = tokens.into_iter().map(|(_, bytes)| String::from_utf8(bytes).unwrap());
                Some((token as usize + 1, texts.collect()))
            }
            CallDetection::Nothing | CallDetection::Full => None,
        })
    }

    fn check_call(watch: ToolCallDetector, pieces: &[&str], n_tokens: usize, texts: &[&str]) {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(call(watch, pieces), Some((n_tokens, texts)), "{pieces:?}");
    }

    #[test]
    fn a_call_starts_where_its_word_starts() {
        let watch = || ToolCallDetector::new(words(&["<tool_call>", "<fn"]), ReasoningMarks::default(), "");
        check_call(watch(), &["a", "b<tool", "_call", ">"], 4, &["<tool", "_call", ">"]);
        check_call(watch(), &["<tool_", "<fn", "x"], 2, &["<fn"]);
        check_call(watch(), &["é<f", "n>\n"], 2, &["<f", "n>\n"]);
        assert_eq!(call(watch(), &["<", "tool", "call>", "<f", "m"]), None);
        let mut single = watch();
        for byte in b"xx<tool_call" {
            assert_eq!(single.push(u32::from(*byte), &[*byte]), CallDetection::Nothing);
        }
        let whole = b"<tool_call>".iter().map(|byte| (u32::from(*byte), vec![*byte])).collect();
        assert_eq!(single.push(u32::from(b'>'), b">"), CallDetection::Call(whole));
    }

    #[test]
    fn no_call_starts_in_reasoning() {
        let watch = |prefix| ToolCallDetector::new(words(&["<call>"]), think(), prefix);
        check_call(watch(""), &["<think>", "<call>", "</think>", "x", "<call>"], 5, &["<call>"]);
        check_call(watch("assistant\n<think>\n"), &["<call>", "</th", "ink>", "<ca", "ll>"], 5, &["<ca", "ll>"]);
        check_call(watch("<think></think>"), &["<call>"], 1, &["<call>"]);
        check_call(watch(""), &["<th", "ink><call>", "<call></think><call>"], 3, &["<call></think><call>"]);
    }

    #[test]
    fn the_end_of_reasoning_may_start_a_call() {
        let marks =
            ReasoningMarks { start: "<think>".to_owned(), ends: vec!["</think>".to_owned(), "<call>".to_owned()] };
        let watch = ToolCallDetector::new(words(&["<call>"]), marks, "<think>");
        check_call(watch, &["hm", "<call>", "f"], 2, &["<call>"]);
    }

    fn patterns(patterns: &[&str]) -> StartTrigger {
        StartTrigger::Patterns(patterns.iter().map(|pattern| Pattern::new(pattern).unwrap()).collect())
    }

    #[test]
    fn a_pattern_s_groups_mark_the_start_of_a_call() {
        let harmony = [r"^\s+to$", r"<\|start\|>assistant(\s+to)", r"<\|start\|>assistant(<\|channel\|>(?:a|b)\s+to)"];
        let watch = || ToolCallDetector::new(patterns(&harmony), ReasoningMarks::default(), "");
        check_call(watch(), &[" ", "to", "="], 2, &[" ", "to"]);
        check_call(watch(), &["x", "<|start|>", "assistant ", "to", "="], 4, &[" ", "to"]);
        check_call(watch(), &["<|start|>assistant<|channel|>", "b to="], 2, &["<|channel|>", "b to="]);
        assert_eq!(call(watch(), &["x", " to", "<|start|>assistant<|channel|>c to"]), None);
        // Functionary's calls have a name other than `all`, so its pattern needs the text after the mark.
        let watch = || ToolCallDetector::new(patterns(&[">>>(?!all)"]), ReasoningMarks::default(), "");
        assert_eq!(call(watch(), &["a>", ">>all\n", ">> >all"]), None);
        check_call(watch(), &["é\n>", ">>get"], 2, &[">", ">>get"]);
        let word = StartTrigger::Patterns(vec![Pattern::of_word("[c](.)").unwrap()]);
        check_call(
            ToolCallDetector::new(word, ReasoningMarks::default(), ""),
            &["c.[c](", "x[c]", "(.)"],
            3,
            &["[c]", "(.)"],
        );
    }

    #[test]
    fn patterns_skip_reasoning_and_search_bytes_that_are_not_text() {
        let watch = || ToolCallDetector::new(patterns(&["x(y+z)"]), think(), "");
        check_call(watch(), &["x", "<th", "ink>", "xyz", "</think>", "xy", "z"], 7, &["y", "z"]);
        check_call(watch(), &["<th", "ink>", "</think>", "xy", "z<t", "o"], 6, &["y", "z<t", "o"]);
        let mut broken = watch();
        assert_eq!(broken.push(0, b"\xC3x"), CallDetection::Nothing);
        assert_eq!(broken.push(1, b"y\xFFz"), CallDetection::Nothing);
        assert_eq!(broken.push(2, b"\xE5xyz\xE5"), CallDetection::Call(vec![(2, b"yz\xE5".to_vec())]));
    }

    #[test]
    fn patterns_search_all_text_except_reasoning_up_to_the_limit() {
        let mut watch = ToolCallDetector::new(patterns(&["^z$"]), think(), "");
        let piece = "y".repeat(1000);
        let n_looks =
            (0..100).take_while(|token| watch.push(*token, piece.as_bytes()) == CallDetection::Nothing).count();
        assert_eq!(n_looks, SEARCHED_BYTES_MAX / 1000 + 1);
        assert_eq!(watch.push(0, b"z"), CallDetection::Full);
    }

    #[test]
    fn the_text_of_a_long_response_is_not_kept() {
        let mut watch = ToolCallDetector::new(words(&["<tool_call>"]), think(), "");
        for token in 0..10_000 {
            watch.push(token, b"text ");
            assert!(watch.end.text.len() <= 32 && watch.end.tokens.len() <= 8);
        }
    }
}
