//! Watches an answer for what starts a tool call, so that the call's grammar is asked only from there on.
//!
//! Not here: the grammar (the engine). The idea: what starts a call is a word of the template's. Of the text so far only as
//! much is kept as could be the beginning of one; while the model thinks, nothing starts a call. Formats whose calls start in
//! ways that no word tells have every token outside of thoughts handed on, up to a limit.

use warmpath_common::ids::Token;

/// Is how much text outside of thoughts is handed on where no word starts a call. Units: bytes.
///
/// Source: llama.cpp searches all of it anew for every token; 8 kB take it some 0.2 ms.
pub const HANDED_BYTES_MAX: usize = 8 << 10;

/// Says what starts a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// One of these texts.
    Words(Vec<String>),
    /// What only the grammar's sampler can tell.
    Patterns,
}

/// Says how thoughts are written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Thoughts {
    /// Is what opens them; empty where a model does not think.
    pub start: String,
    /// Lists what closes them.
    pub ends: Vec<String>,
}

/// Is what becomes of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Nothing starts here.
    Nothing,
    /// These tokens are the grammar's: a call starts in the first of them, or may do so.
    Hand(Vec<Token>),
    /// As much was handed on as may be.
    Full,
}

/// Watches one answer.
#[derive(Debug, Clone)]
pub struct CallWatch {
    start: Start,
    thoughts: Thoughts,
    is_thinking: bool,
    /// Is the end of the text, as long as something in it could still matter.
    text: Vec<u8>,
    /// Lists the tokens that the text is of, each with where it ends in it.
    tokens: Vec<(Token, usize)>,
    n_handed_bytes: usize,
}

impl CallWatch {
    /// Returns a watch of an answer whose beginning, in the prompt already, is `prefix`.
    pub fn new(start: Start, thoughts: Thoughts, prefix: &str) -> Self {
        let opened = if thoughts.start.is_empty() { None } else { prefix.rfind(&thoughts.start) };
        let behind = opened.map(|at| &prefix[at + thoughts.start.len()..]);
        let is_thinking = behind.is_some_and(|behind| !thoughts.ends.iter().any(|end| behind.contains(end.as_str())));
        Self { start, thoughts, is_thinking, text: Vec::new(), tokens: Vec::new(), n_handed_bytes: 0 }
    }

    /// Takes the next token, which spells `piece`.
    pub fn push(&mut self, token: Token, piece: &[u8]) -> Seen {
        self.text.extend_from_slice(piece);
        self.tokens.push((token, self.text.len()));
        if self.is_thinking {
            let Some(at) = first(&self.text, self.thoughts.ends.iter()) else {
                self.forget_all_but(longest(self.thoughts.ends.iter()));
                return Seen::Nothing;
            };
            // What ends the thoughts may start a call.
            self.is_thinking = false;
            self.forget_before(at);
        } else if let Some(at) = first(&self.text, [&self.thoughts.start].into_iter()) {
            self.is_thinking = true;
            self.forget_before(at + self.thoughts.start.len());
            return Seen::Nothing;
        }
        match &self.start {
            Start::Words(words) => match first(&self.text, words.iter()) {
                Some(at) => {
                    self.forget_before(at);
                    Seen::Hand(self.take_held())
                }
                None => {
                    let n_kept = longest(words.iter().chain([&self.thoughts.start]));
                    self.forget_all_but(n_kept);
                    Seen::Nothing
                }
            },
            Start::Patterns => self.hand(),
        }
    }

    /// Returns the tokens that are held back and forgets them.
    pub fn take_held(&mut self) -> Vec<Token> {
        self.text.clear();
        self.tokens.drain(..).map(|(token, _)| token).collect()
    }

    /// Hands on what is there but for what could begin thoughts.
    fn hand(&mut self) -> Seen {
        if self.n_handed_bytes > HANDED_BYTES_MAX {
            return Seen::Full;
        }
        let opening = self.thoughts.start.as_bytes();
        let is_begun = |n: &usize| self.text.ends_with(&opening[..*n]);
        let n_kept = (1..opening.len()).rev().find(is_begun).unwrap_or(0);
        let n_whole = self.text.len() - n_kept;
        let handed: Vec<Token> =
            self.tokens.iter().take_while(|(_, end)| *end <= n_whole).map(|(token, _)| *token).collect();
        let n_bytes = handed.len().checked_sub(1).map_or(0, |last| self.tokens[last].1);
        self.n_handed_bytes += n_bytes;
        self.forget_before(n_bytes);
        if handed.is_empty() { Seen::Nothing } else { Seen::Hand(handed) }
    }

    /// Forgets all tokens that lie wholly before the last `n` bytes, less one.
    fn forget_all_but(&mut self, n: usize) {
        self.forget_before((self.text.len() + 1).saturating_sub(n.max(1)));
    }

    /// Forgets the tokens that end at or before the byte `at`.
    fn forget_before(&mut self, at: usize) {
        let n_tokens = self.tokens.iter().take_while(|(_, end)| *end <= at).count();
        let n_bytes = n_tokens.checked_sub(1).map_or(0, |last| self.tokens[last].1);
        self.tokens.drain(..n_tokens);
        self.text.drain(..n_bytes);
        self.tokens.iter_mut().for_each(|(_, end)| *end -= n_bytes);
    }
}

/// Returns where the first of `words` in `text` begins; empty ones are in no text.
fn first<'a>(text: &[u8], words: impl Iterator<Item = &'a String>) -> Option<usize> {
    let found = |word: &String| text.windows(word.len()).position(|window| window == word.as_bytes());
    words.filter(|word| !word.is_empty()).filter_map(found).min()
}

fn longest<'a>(words: impl Iterator<Item = &'a String>) -> usize {
    words.map(String::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Start {
        Start::Words(words.iter().map(|word| (*word).to_owned()).collect())
    }

    fn think() -> Thoughts {
        Thoughts { start: "<think>".to_owned(), ends: vec!["</think>".to_owned()] }
    }

    /// Returns the pieces that are handed on, one by one.
    fn handed(mut watch: CallWatch, pieces: &[&str]) -> Vec<String> {
        let mut handed = Vec::new();
        for (token, piece) in (0..).zip(pieces) {
            if let Seen::Hand(tokens) = watch.push(token, piece.as_bytes()) {
                handed.extend(tokens.into_iter().map(|token| pieces[token as usize].to_owned()));
            }
        }
        handed
    }

    #[test]
    fn a_call_starts_with_the_token_in_which_its_word_starts() {
        let watch = || CallWatch::new(words(&["<tool_call>", "<fn"]), Thoughts::default(), "");
        assert_eq!(handed(watch(), &["a", "b<tool", "_call", ">"]), ["b<tool", "_call", ">"]);
        assert_eq!(handed(watch(), &["<tool_", "<fn", "x"]), ["<fn"]);
        assert_eq!(handed(watch(), &["<", "tool", "call>", "<f", "m"]), [""; 0]);
        let mut single = watch();
        for byte in b"xx<tool_call" {
            assert_eq!(single.push(u32::from(*byte), &[*byte]), Seen::Nothing);
        }
        assert_eq!(single.push(1, b">"), Seen::Hand(b"<tool_call\x01".iter().map(|byte| u32::from(*byte)).collect()));
    }

    #[test]
    fn nothing_starts_in_thoughts_wherever_they_begin() {
        let watch = |prefix| CallWatch::new(words(&["<call>"]), think(), prefix);
        assert_eq!(handed(watch(""), &["<think>", "<call>", "</think>", "x", "<call>"]), ["<call>"]);
        assert_eq!(handed(watch("assistant\n<think>\n"), &["<call>", "</th", "ink>", "<ca", "ll>"]), ["<ca", "ll>"]);
        assert_eq!(handed(watch("<think></think>"), &["<call>"]), ["<call>"]);
        assert_eq!(handed(watch(""), &["<th", "ink><call>", "<call></think><call>"]), ["<call></think><call>"]);
    }

    #[test]
    fn what_ends_thoughts_may_start_a_call() {
        let thoughts = Thoughts { start: "<think>".to_owned(), ends: vec!["</think>".to_owned(), "<call>".to_owned()] };
        let watch = CallWatch::new(words(&["<call>"]), thoughts, "<think>");
        assert_eq!(handed(watch, &["hm", "<call>", "f"]), ["<call>"]);
    }

    #[test]
    fn with_patterns_all_but_thoughts_is_handed_on_up_to_the_limit() {
        let mut watch = CallWatch::new(Start::Patterns, think(), "");
        let pieces = ["a", "<th", "ink>", "no", "</think>", "b", "<t", "x"];
        assert_eq!(handed(watch.clone(), &pieces), ["a", "</think>", "b", "<t", "x"]);
        assert_eq!(watch.push(7, b"<th"), Seen::Nothing);
        assert_eq!(watch.take_held(), [7]);
        let piece = "y".repeat(1000);
        let n_handed = (0..100).filter(|token| matches!(watch.push(*token, piece.as_bytes()), Seen::Hand(_))).count();
        assert_eq!(n_handed, HANDED_BYTES_MAX / 1000 + 1);
        assert_eq!(watch.push(0, b"z"), Seen::Full);
    }

    #[test]
    fn a_long_answer_is_not_kept() {
        let mut watch = CallWatch::new(words(&["<tool_call>"]), think(), "");
        for token in 0..10_000 {
            watch.push(token, b"text ");
            assert!(watch.text.len() <= 32 && watch.tokens.len() <= 8);
        }
    }
}
