//! Reads one choice's text as a message while it grows.
//!
//! Not here: which format it has (`chat`), where deltas go (`message`).
//! The idea: llama.cpp's reader parses the whole text anew, so a long text is read less often. What cannot be read is never
//! lost and never fails a request: from there on the text is content as it is.

use std::sync::Arc;

use warmpath_llama_chat::{ChatError, Delta, Reader};

use super::chat::ChatAnswer;
use super::message::{MessageDelta, ToolCallDelta};
use crate::engine::FinishReason;
use crate::tools::Thoughts;

/// Is how often a byte of a text is parsed at most, about.
///
/// Source: docs/decisions/0022: 75 MB/s; up to some kilobytes a text is read at each token.
const READS_PER_BYTE_MAX: usize = 1024;

/// Is how much of what was told is looked for in the text to find where it ended. Units: bytes.
const ANCHOR_BYTES: usize = 64;

/// Says when deltas are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// As the text grows.
    Growing,
    /// Once it is complete.
    AtEnd,
}

/// Reads one choice's text.
pub(super) struct Reading {
    answer: Arc<ChatAnswer>,
    /// Is absent once the text is content as it is.
    reader: Option<Reader>,
    pace: Pace,
    fresh_id: String,
    text: String,
    /// Lists where the text of each token ends.
    token_ends: Vec<usize>,
    n_read: usize,
    /// Is how long the text was when something was told last, and the end of what was told.
    told: (usize, String),
    reasoning: String,
    has_calls: bool,
    inline: Inline,
}

/// Says where thoughts stand that are part of the content, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inline {
    Before,
    Within,
    Behind,
}

impl Reading {
    /// Begins to read an answer. `fresh_id` begins the names of its calls.
    pub(super) fn new(answer: Arc<ChatAnswer>, pace: Pace, fresh_id: String) -> Self {
        let reader = answer.format.reader().inspect_err(|error| tracing::debug!(%error, "no answer can be read"));
        Self {
            reader: reader.ok(),
            answer,
            pace,
            fresh_id,
            text: String::new(),
            token_ends: Vec::new(),
            n_read: 0,
            told: (0, String::new()),
            reasoning: String::new(),
            has_calls: false,
            inline: Inline::Before,
        }
    }

    /// Takes the text of the next token and returns what is new.
    pub(super) fn push(&mut self, text: &str) -> MessageDelta {
        self.text.push_str(text);
        self.token_ends.push(self.text.len());
        let Some(reader) = &mut self.reader else { return MessageDelta::content(text.to_owned()) };
        let n_new = self.text.len() - self.n_read;
        if self.pace == Pace::AtEnd || n_new == 0 || n_new < self.text.len() / READS_PER_BYTE_MAX {
            return MessageDelta::default();
        }
        self.n_read = self.text.len();
        match reader.read(&self.text, &self.fresh_id) {
            Ok(delta) => self.tell(delta),
            Err(ChatError::TooDeep) => self.give_up(),
            // More text may yet make sense of it; if not, the end shows it.
            Err(_) => MessageDelta::default(),
        }
    }

    /// Returns what is new once the text is complete.
    pub(super) fn finish(&mut self, reason: FinishReason) -> MessageDelta {
        let Some(reader) = &mut self.reader else { return MessageDelta::default() };
        let is_cut_off = reason == FinishReason::Length;
        let read = if is_cut_off {
            reader.read(&self.text, &self.fresh_id)
        } else {
            let whole = reader.finish(&self.text, &self.fresh_id);
            // A call that was told stays one, though its end is missing.
            if self.has_calls { whole.or_else(|_| reader.read(&self.text, &self.fresh_id)) } else { whole }
        };
        match read {
            Ok(delta) => self.tell(delta),
            Err(error) => {
                tracing::debug!(%error, "an answer is not of its format");
                self.give_up()
            }
        }
    }

    /// Returns whether the message holds calls.
    pub(super) fn has_calls(&self) -> bool {
        self.has_calls
    }

    /// Returns how many tokens the thoughts took, those that open them included.
    pub(super) fn reasoning_tokens(&self) -> u32 {
        let thoughts = self.reasoning.trim();
        if thoughts.is_empty() {
            return 0;
        }
        let n_bytes = self.text.find(thoughts).map_or(thoughts.len(), |at| at + thoughts.len());
        u32::try_from(self.token_ends.partition_point(|end| *end <= n_bytes)).unwrap_or(u32::MAX)
    }

    /// Makes the rest of the text content.
    fn give_up(&mut self) -> MessageDelta {
        self.reader = None;
        let (n_text, anchor) = &self.told;
        let found = if anchor.is_empty() { None } else { self.text[..*n_text].rfind(anchor.as_str()) };
        let n_told = found.map_or(*n_text, |at| at + anchor.len());
        MessageDelta::content(self.text[n_told..].to_owned())
    }

    fn tell(&mut self, delta: Delta) -> MessageDelta {
        let arguments = delta.tool_calls.iter().map(|call| &call.arguments);
        let told = [&delta.reasoning, &delta.content].into_iter().chain(arguments).rfind(|text| !text.is_empty());
        if let Some(last) = told {
            let from = last.ceil_char_boundary(last.len().saturating_sub(ANCHOR_BYTES));
            self.told = (self.text.len(), last[from..].to_owned());
        }
        self.has_calls |= !delta.tool_calls.is_empty();
        self.reasoning.push_str(&delta.reasoning);
        let mut content = self.inlined(&delta);
        content.push_str(&delta.content);
        let calls = delta.tool_calls.into_iter().map(|call| ToolCallDelta {
            index: call.index,
            id: call.id,
            name: call.name,
            arguments: call.arguments,
        });
        MessageDelta { content, reasoning_content: delta.reasoning, tool_calls: calls.collect() }
    }

    /// Returns the part of thoughts, with what is around them, that is content as well.
    fn inlined(&mut self, delta: &Delta) -> String {
        let mut content = String::new();
        if self.answer.thoughts != Thoughts::Both {
            return content;
        }
        let format = self.answer.format.format();
        if !delta.reasoning.is_empty() {
            if self.inline == Inline::Before {
                content.push_str(&format.thinking_start);
                self.inline = Inline::Within;
            }
            content.push_str(&delta.reasoning);
        }
        if self.inline == Inline::Within && !(delta.content.is_empty() && delta.tool_calls.is_empty()) {
            content.push_str(format.thinking_ends.first().map_or("", String::as_str));
            self.inline = Inline::Behind;
        }
        content
    }
}
