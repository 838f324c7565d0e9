//! Converts the bytes of a response's tokens to text: only whole characters, and no part of a stop text.
//!
//! Not here: tokens, the vocabulary and the other reasons why a response ends.
//!
//! Bytes wait until they complete a character. Characters wait while they could still become a stop text. The response
//! ends at the first position at which a stop text is complete; if several end there, the longest one counts. This
//! depends only on the text, not on its tokens. The response also ends at the first line with too little indentation,
//! if the client sets a minimum.

use std::ops::Range;

/// Text of a response so far.
#[derive(Debug, Clone, Default)]
pub struct Output {
    stops: Vec<String>,
    /// Bytes of an incomplete character.
    bytes: Vec<u8>,
    /// Text that may become part of a stop text.
    held_text: String,
    /// Length of the text that was returned. Units: bytes.
    n_out: usize,
    indent: Indent,
    ended: Option<Ended>,
}

/// Reason why the text ended before its last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The stop text at this index of the list.
    Stop(usize),
    /// A line with too little indentation.
    Indent,
}

impl Output {
    /// Returns the output of a response that ends before the first of `stops`; empty stop texts are ignored.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, ..Self::default() }
    }

    /// Makes the text end at the first later line that is indented by fewer than `n_least` blanks: before that line's
    /// first character that is not a blank, which may be a line break.
    pub fn indented(self, n_least: u32) -> Self {
        Self { indent: Indent { n_least, n_seen: None }, ..self }
    }

    /// Adds the bytes of a token and returns the text that is now certain; empty once the text has ended.
    pub fn push(&mut self, piece: &[u8]) -> String {
        if self.ended.is_some() {
            return String::new();
        }
        self.bytes.extend_from_slice(piece);
        let text = take_characters(&mut self.bytes);
        self.advance(&text)
    }

    /// Returns the withheld text at the end of the response, with U+FFFD for an incomplete character.
    pub fn finish(&mut self) -> String {
        if self.ended.is_some() {
            return String::new();
        }
        let text_left = String::from_utf8_lossy(&std::mem::take(&mut self.bytes)).into_owned();
        let mut text = self.advance(&text_left);
        if self.ended.is_none() {
            self.n_out += self.held_text.len();
            text.push_str(&std::mem::take(&mut self.held_text));
        }
        text
    }

    /// Returns the length of the text that was returned. Units: bytes.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// Returns the position in the text of the next token's first byte; if that byte completes a character, the
    /// position of the character. Units: bytes.
    pub fn n_taken(&self) -> usize {
        self.n_out + self.held_text.len()
    }

    /// Returns the stop text that ended the response; `None` if it ended otherwise.
    pub fn stop_text(&self) -> Option<&str> {
        match self.ended {
            Some(Ended::Stop(idx)) => Some(&self.stops[idx]),
            Some(Ended::Indent) | None => None,
        }
    }

    /// Returns whether a line with too little indentation ended the response.
    pub fn is_outdented(&self) -> bool {
        self.ended == Some(Ended::Indent)
    }

    fn advance(&mut self, text: &str) -> String {
        let n_old = self.held_text.len();
        self.held_text.push_str(text);
        let outdented_range =
            self.indent.first_outdented(text).map(|visible| n_old + visible.start..n_old + visible.end);
        let stop = self.first_stop(n_old);
        // A stop text that ends with the same character as the cut takes precedence.
        let is_first = |visible: &Range<usize>| stop.is_none_or(|stop| visible.end < stop.end);
        let cut = outdented_range.filter(is_first).map(|visible| (visible.start, Ended::Indent));
        if let Some((n_left, ended)) = cut.or(stop.map(|stop| (stop.start, Ended::Stop(stop.idx)))) {
            self.ended = Some(ended);
            self.held_text.truncate(n_left);
            self.n_out += n_left;
            return std::mem::take(&mut self.held_text);
        }
        let n_certain = self.held_text.len() - self.longest_partial_stop();
        let held_text = self.held_text.split_off(n_certain);
        self.n_out += n_certain;
        std::mem::replace(&mut self.held_text, held_text)
    }

    /// Returns the stop text that is complete first, after the first `n_old` bytes.
    fn first_stop(&self, n_old: usize) -> Option<FoundStop> {
        let matches = self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty()).filter_map(|(idx, stop)| {
            let from = self.held_text.floor_char_boundary(n_old.saturating_sub(stop.len()));
            let start = from + self.held_text[from..].find(stop.as_str())?;
            Some(FoundStop { end: start + stop.len(), start, idx })
        });
        matches.min()
    }

    /// Returns the length of the longest suffix of the held text that is a proper prefix of a stop text.
    fn longest_partial_stop(&self) -> usize {
        let longest = |stop: &String| {
            let len_max = stop.len().saturating_sub(1).min(self.held_text.len());
            (1..=len_max).rev().find(|n| self.held_text.as_bytes().ends_with(&stop.as_bytes()[..*n]))
        };
        self.stops.iter().filter_map(longest).max().unwrap_or(0)
    }
}

/// A stop text found in the held text, ordered by its end, then by its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FoundStop {
    end: usize,
    start: usize,
    /// Index in the list of stop texts.
    idx: usize,
}

/// Indentation of the lines of a text.
#[derive(Debug, Clone, Copy, Default)]
struct Indent {
    /// Minimum number of blanks before each line but the first; 0 for any number.
    n_least: u32,
    /// Blanks at the start of a line that has no other character yet.
    n_seen: Option<u32>,
}

impl Indent {
    /// Returns the character of the new text that shows that its line has too little indentation. Units: bytes.
    fn first_outdented(&mut self, text: &str) -> Option<Range<usize>> {
        if self.n_least == 0 {
            return None;
        }
        for (place, character) in text.char_indices() {
            match (character, self.n_seen) {
                (' ' | '\t', Some(n_seen)) => self.n_seen = Some(n_seen + 1),
                (_, Some(n_seen)) if n_seen < self.n_least => return Some(place..place + character.len_utf8()),
                ('\n', _) => self.n_seen = Some(0),
                _ => self.n_seen = None,
            }
        }
        None
    }
}

/// Takes the complete characters from the front of `bytes`; each invalid sequence becomes U+FFFD.
fn take_characters(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut n_taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        n_taken += chunk.valid().len();
        let is_last = n_taken + chunk.invalid().len() == bytes.len();
        if chunk.invalid().is_empty() || (is_last && is_incomplete(chunk.invalid())) {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        n_taken += chunk.invalid().len();
    }
    bytes.drain(..n_taken);
    text
}

/// Returns whether more bytes could complete `bytes` to a character.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests;
