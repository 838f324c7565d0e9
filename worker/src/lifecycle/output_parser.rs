//! Incremental parser of one choice's text as a message.
//!
//! llama.cpp's parser always starts at the beginning of the text, so a longer text is parsed less often. Text that
//! cannot be parsed is not lost and does not fail a request: the rest of the text becomes content. Not here: the format
//! (`chat`), the use of deltas (`message_stream`).

use std::sync::Arc;

use warmpath_llama_chat::{AnswerParser, ChatError, Delta};

use super::chat_answer::ChatAnswer;
use super::message::{MessageDelta, ToolCallDelta};
use crate::engine::FinishReason;
use crate::tools::ReasoningOutput;

/// Approximate limit on how often each byte of a text is parsed.
///
/// Source: docs/decisions/0022: 75 MB/s; up to some kilobytes a text is parsed at each token.
const READS_PER_BYTE_MAX: usize = 1024;

/// Length of the end of the last delta that is searched for in the text, to find where that delta ended. Units: bytes.
///
/// Source: most texts do not repeat that much of themselves.
const ANCHOR_BYTES: usize = 64;

/// Time at which deltas are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeltaPace {
    /// As the text grows.
    Growing,
    /// Once it is complete.
    AtEnd,
}

/// Parser of one choice's text.
pub(super) struct OutputParser {
    answer: Arc<ChatAnswer>,
    /// Parser; `None` once the rest of the text is content.
    reader: Option<AnswerParser>,
    pace: DeltaPace,
    fresh_id: String,
    text: String,
    /// End of each token in the text.
    token_ends: Vec<usize>,
    n_read: usize,
    /// Length of the text at the last delta, and the last characters of that delta.
    sent_until: (usize, String),
    reasoning: String,
    has_calls: bool,
    inline: Inline,
}

/// Position of reasoning that is also part of the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inline {
    Before,
    Within,
    Behind,
}

impl OutputParser {
    /// Starts to parse a response. `fresh_id` is the prefix of its calls' ids.
    pub(super) fn new(answer: Arc<ChatAnswer>, pace: DeltaPace, fresh_id: String) -> Self {
        let reader =
            answer.format.reader().inspect_err(|error| tracing::debug!(%error, "the response cannot be parsed"));
        Self {
            reader: reader.ok(),
            answer,
            pace,
            fresh_id,
            text: String::new(),
            token_ends: Vec::new(),
            n_read: 0,
            sent_until: (0, String::new()),
            reasoning: String::new(),
            has_calls: false,
            inline: Inline::Before,
        }
    }

    /// Appends the text of the next token and returns the new parts.
    pub(super) fn push(&mut self, text: &str) -> MessageDelta {
        self.text.push_str(text);
        self.token_ends.push(self.text.len());
        let Some(reader) = &mut self.reader else { return MessageDelta::content(text.to_owned()) };
        let n_new = self.text.len() - self.n_read;
        if self.pace == DeltaPace::AtEnd || n_new == 0 || n_new < self.text.len() / READS_PER_BYTE_MAX {
            return MessageDelta::default();
        }
        self.n_read = self.text.len();
        match reader.read(&self.text, &self.fresh_id) {
            Ok(delta) => self.message_delta(delta),
            Err(ChatError::TooDeep) => self.give_up(),
            // Further text may make it valid; otherwise, the end of the response decides.
            Err(_) => MessageDelta::default(),
        }
    }

    /// Returns the new parts once the text is complete.
    pub(super) fn finish(&mut self, reason: FinishReason) -> MessageDelta {
        let Some(reader) = &mut self.reader else { return MessageDelta::default() };
        let is_cut_off = reason == FinishReason::Length;
        let output = if is_cut_off {
            reader.read(&self.text, &self.fresh_id)
        } else {
            let whole_output = reader.finish(&self.text, &self.fresh_id);
            // A call that was sent to the client stays a call, even if its end is missing.
            if self.has_calls {
                whole_output.or_else(|_| reader.read(&self.text, &self.fresh_id))
            } else {
                whole_output
            }
        };
        match output {
            Ok(delta) => self.message_delta(delta),
            Err(error) => {
                tracing::debug!(%error, "a response does not have the template's format");
                self.give_up()
            }
        }
    }

    /// Returns whether the message has calls.
    pub(super) fn has_calls(&self) -> bool {
        self.has_calls
    }

    /// Returns the number of reasoning tokens, the opening ones included.
    pub(super) fn reasoning_tokens(&self) -> u32 {
        let reasoning = self.reasoning.trim();
        if reasoning.is_empty() {
            return 0;
        }
        let n_bytes = self.text.find(reasoning).map_or(reasoning.len(), |at| at + reasoning.len());
        u32::try_from(self.token_ends.partition_point(|end| *end <= n_bytes)).unwrap_or(u32::MAX)
    }

    /// Turns the rest of the text into content.
    fn give_up(&mut self) -> MessageDelta {
        self.reader = None;
        let (n_text, anchor) = &self.sent_until;
        let anchor_at = if anchor.is_empty() { None } else { self.text[..*n_text].rfind(anchor.as_str()) };
        let n_told = anchor_at.map_or(*n_text, |at| at + anchor.len());
        MessageDelta::content(self.text[n_told..].to_owned())
    }

    fn message_delta(&mut self, delta: Delta) -> MessageDelta {
        let arguments = delta.tool_calls.iter().map(|call| &call.arguments);
        let last_text = [&delta.reasoning, &delta.content].into_iter().chain(arguments).rfind(|text| !text.is_empty());
        if let Some(last) = last_text {
            let from = last.ceil_char_boundary(last.len().saturating_sub(ANCHOR_BYTES));
            self.sent_until = (self.text.len(), last[from..].to_owned());
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

    /// Returns the part of the reasoning, with its tags, that is also content.
    fn inlined(&mut self, delta: &Delta) -> String {
        let mut content = String::new();
        if self.answer.reasoning_output != ReasoningOutput::Both {
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
