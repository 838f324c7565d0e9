//! The bound of a response's reasoning: at the bound, the tokens that close the reasoning are forced.
//!
//! Reasoning may begin with the response, behind earlier reasoning, and behind the text that opens an answer. Elsewhere
//! its mark is ordinary text, for example in a file that a call writes. All reasoning of a response shares one bound:
//! a model that opens its reasoning again does not think on. A character is never cut.
//!
//! Not here: drawing the other tokens (the engine's sampler), separating reasoning from content (the worker's parser).
//! Source: `reasoning-budget.cpp` of llama.cpp, which gives each part of the reasoning a bound of its own.

use std::sync::Arc;

use warmpath_common::ids::Token;

use crate::tool_call_detector::ReasoningMarks;

/// Longest character. Units: bytes. Source: UTF-8.
const CHARACTER_BYTES_MAX: usize = 4;

/// Maximum number of tokens behind the bound that complete a character. Source: one for each byte but the first.
const OVER_TOKENS_MAX: u8 = 3;

/// Bound of a response's reasoning, and how the reasoning is closed there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningBound {
    /// Maximum number of the response's tokens between the marks of reasoning.
    pub tokens_max: u32,
    /// Marks without white space around them.
    pub marks: ReasoningMarks,
    /// Text without white space around it that opens an answer, behind which reasoning may begin; may be empty.
    pub opening: String,
    /// Tokens that close the reasoning: a message, if there is one, and the closing mark.
    pub closing: Arc<[Token]>,
    /// State at the start of the response.
    pub begun: Begun,
}

/// Part of an answer that its prompt has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// Nothing; reasoning may follow.
    Nothing,
    /// Reasoning.
    Reasoning,
    /// Content; no reasoning follows.
    Content,
}

impl Begun {
    /// Returns what a prompt, or its end, has begun; `opening` opens an answer.
    pub fn of(text: &str, marks: &ReasoningMarks, opening: &str) -> Self {
        let opening_at = if opening.is_empty() { None } else { text.rfind(opening) };
        let turn = &text[opening_at.map_or(0, |at| at + opening.len())..];
        let ends = || marks.ends.iter().filter(|end| !end.is_empty());
        let start_at = if marks.start.is_empty() { None } else { turn.rfind(&marks.start) };
        let text_after = start_at.map(|at| &turn[at + marks.start.len()..]);
        let closed_at =
            text_after.and_then(|text| ends().filter_map(|end| Some(text.rfind(end.as_str())? + end.len())).max());
        match (text_after, closed_at) {
            (Some(_), None) => Self::Reasoning,
            (Some(rest), Some(end)) if !rest[end..].trim().is_empty() => Self::Content,
            (None, _) if opening_at.is_some() && !turn.trim().is_empty() => Self::Content,
            _ => Self::Nothing,
        }
    }
}

/// Count of a response's reasoning.
#[derive(Debug, Clone)]
pub struct ReasoningBudget {
    bound: ReasoningBound,
    /// Tokens of reasoning that are left.
    n_left: u32,
    state: State,
    /// End of the text that may become part of a mark or of a character.
    text: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Outside of reasoning.
    Outside(Place),
    /// Within reasoning, with the number of tokens behind the bound.
    Within { n_over: u8 },
    /// Within reasoning that is being closed, with the number of forced tokens.
    Closing { n_forced: usize },
}

/// Place outside of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Reasoning may begin here.
    Open,
    /// Content has begun.
    Content,
}

impl ReasoningBudget {
    /// Returns the state at the start of a response.
    pub fn new(reasoning_bound: ReasoningBound) -> Self {
        let mut budget = Self {
            n_left: reasoning_bound.tokens_max,
            bound: reasoning_bound,
            state: State::Outside(Place::Open),
            text: Vec::new(),
        };
        match budget.bound.begun {
            Begun::Nothing => {}
            Begun::Content => budget.state = State::Outside(Place::Content),
            Begun::Reasoning => budget.enter(),
        }
        budget
    }

    /// Returns the token that must follow; `None` if any may.
    pub fn forced(&self) -> Option<Token> {
        match self.state {
            State::Closing { n_forced } => self.bound.closing.get(n_forced).copied(),
            State::Outside(_) | State::Within { .. } => None,
        }
    }

    /// Advances by the response's next token, whose text is `piece`.
    ///
    /// Any token may follow: another worker, whose default bound differs, may have chosen it.
    pub fn push(&mut self, token: Token, piece: &[u8]) {
        self.text.extend_from_slice(piece);
        match self.state {
            State::Outside(place) => self.look_for_start(place),
            State::Within { n_over } => {
                if !self.closes() {
                    self.count(n_over);
                }
            }
            State::Closing { n_forced } => {
                let is_next = self.bound.closing.get(n_forced) == Some(&token);
                if !self.closes() {
                    self.close(if is_next { n_forced + 1 } else { 0 });
                }
            }
        }
    }

    /// Counts a token of reasoning; `n_over` tokens before it were behind the bound.
    fn count(&mut self, n_over: u8) {
        let n_over = if self.n_left == 0 { n_over + 1 } else { 0 };
        self.n_left = self.n_left.saturating_sub(1);
        let waits = is_cut(&self.text) && n_over < OVER_TOKENS_MAX;
        let is_over = self.n_left == 0 && !waits;
        self.state = if is_over { State::Closing { n_forced: 0 } } else { State::Within { n_over } };
        let longest = self.bound.marks.ends.iter().map(String::len).max().unwrap_or(0);
        self.forget_all_but(longest.max(CHARACTER_BYTES_MAX) - 1);
    }

    /// Goes on closing the reasoning after `n_forced` tokens.
    fn close(&mut self, n_forced: usize) {
        self.state = State::Closing { n_forced };
        if n_forced >= self.bound.closing.len() {
            self.text.clear();
            self.state = State::Outside(Place::Open);
        }
    }

    /// Enters reasoning, which is closed at once if none is left.
    fn enter(&mut self) {
        self.state = if self.n_left == 0 { State::Closing { n_forced: 0 } } else { State::Within { n_over: 0 } };
    }

    /// Leaves reasoning if the text has a closing mark; returns whether it does.
    fn closes(&mut self) -> bool {
        let ends = self.bound.marks.ends.iter().filter(|end| !end.is_empty());
        let Some(end) = ends.filter_map(|end| Some(find(&self.text, end)? + end.len())).min() else { return false };
        self.text.drain(..end);
        self.state = State::Outside(Place::Open);
        self.look_for_start(Place::Open);
        true
    }

    fn look_for_start(&mut self, mut place: Place) {
        let ReasoningBound { marks, opening, .. } = &self.bound;
        if let Some(at) = find(&self.text, opening).filter(|_| !opening.is_empty()) {
            self.text.drain(..at + opening.len());
            place = Place::Open;
        }
        if place == Place::Open {
            let n_blank = self.text.len() - self.text.trim_ascii_start().len();
            self.text.drain(..n_blank);
            if !marks.start.is_empty() && self.text.starts_with(marks.start.as_bytes()) {
                self.text.drain(..marks.start.len());
                self.enter();
                self.closes();
                return;
            }
            if !marks.start.as_bytes().starts_with(&self.text) {
                place = Place::Content;
            }
        }
        if place == Place::Content {
            self.forget_all_but(self.bound.opening.len().saturating_sub(1));
        }
        self.state = State::Outside(place);
    }

    fn forget_all_but(&mut self, n_bytes: usize) {
        self.text.drain(..self.text.len().saturating_sub(n_bytes));
    }
}

/// Returns the position of `word` in `text`.
fn find(text: &[u8], word: &str) -> Option<usize> {
    if word.is_empty() {
        return None;
    }
    text.windows(word.len()).position(|window| window == word.as_bytes())
}

/// Returns whether a text ends within a character.
fn is_cut(text: &[u8]) -> bool {
    let n_following = text.iter().rev().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
    let Some(lead) = text.len().checked_sub(n_following + 1).map(|at| text[at]) else { return false };
    let n_bytes = match lead {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => return false,
    };
    n_following + 1 < n_bytes
}

#[cfg(test)]
mod tests;
