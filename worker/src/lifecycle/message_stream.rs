//! A response as the messages of its choices: content, reasoning and tool calls, in deltas or whole.
//!
//! Every endpoint that returns a message wraps its [`StartedResponse`] in [`Messages`] and asks for the next step. A
//! stream sends each step's [`MessageDelta`]; for a whole message, they are combined.
//!
//! Not here: tokens and text (`response_stream`), the format for the client (`http`).

use std::sync::Arc;

use warmpath_worker_output::logprobs::{PromptProbabilities, TokenProbabilities};

use super::chat_answer::ChatAnswer;
use super::journal::{JournalLines, ResponseIdentity};
use super::message::MessageDelta;
use super::output_parser::{DeltaPace, OutputParser};
use super::response_stream::{ResponseStep, ResponseTotals, StartedResponse};
use crate::engine::FinishReason;
use crate::error::RequestError;
use crate::request::Delivery;

/// A step of a response made of messages.
#[derive(Debug, PartialEq)]
pub enum MessageStep {
    /// A choice's prompt is computed, with the requested log probabilities of its tokens.
    Prompt {
        /// Index of the choice.
        choice: usize,
        /// Log probabilities of the prompt.
        probabilities: PromptProbabilities,
    },
    /// A choice's message continues.
    Delta {
        /// Index of the choice.
        choice: usize,
        /// New parts; empty only if the tokens have no text yet.
        delta: MessageDelta,
        /// Log probabilities of the tokens of this text, if requested.
        probabilities: Vec<TokenProbabilities>,
    },
    /// A choice's message is complete.
    Finished {
        /// Index of the choice.
        choice: usize,
        /// End of the message.
        ending: MessageEnd,
    },
}

/// End of a choice's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageEnd {
    /// Reason why the engine stopped.
    pub reason: FinishReason,
    /// Whether the message has tool calls.
    pub has_tool_calls: bool,
}

/// A response, parsed as messages.
pub struct Messages {
    answer: StartedResponse,
    /// Parser of each choice; empty if the whole text is the content.
    readings: Vec<OutputParser>,
    /// Log probabilities of tokens of each choice whose text has not been sent yet.
    untold: Vec<Vec<TokenProbabilities>>,
    /// Step that is returned next.
    next_step: Option<MessageStep>,
}

impl Messages {
    /// Parses `answer` as messages.
    pub fn new(answer: StartedResponse) -> Self {
        let pace = if answer.spec().delivery == Delivery::Whole { DeltaPace::AtEnd } else { DeltaPace::Growing };
        let n_choices = answer.n_choices();
        let identity = answer.spec().identity.clone();
        let reading = |(idx, format): (usize, &Arc<ChatAnswer>)| {
            OutputParser::new(Arc::clone(format), pace, call_ids(&identity, idx))
        };
        let formats = answer.spec().answer.iter().flat_map(|format| std::iter::repeat_n(format, n_choices));
        let readings = formats.enumerate().map(reading).collect();
        Self { answer, readings, untold: vec![Vec::new(); n_choices], next_step: None }
    }

    /// Returns the underlying response.
    pub fn answer(&self) -> &StartedResponse {
        &self.answer
    }

    /// Returns the journal's lines before a response in one piece, like [`StartedResponse::lines`].
    pub fn lines(&mut self) -> Option<JournalLines> {
        self.answer.lines()
    }

    /// Ends a write of the stream, like [`StartedResponse::end_write`].
    pub fn end_write(&mut self, choice: Option<usize>, out: &mut Vec<u8>) {
        self.answer.end_write(choice, out);
    }

    /// Returns the tokens and times of the choices that are complete.
    pub fn totals(&self) -> ResponseTotals {
        let reasoning_tokens =
            (!self.readings.is_empty()).then(|| self.readings.iter().map(OutputParser::reasoning_tokens).sum());
        ResponseTotals { reasoning_tokens, ..self.answer.totals() }
    }

    /// Returns the underlying response, for sending its text unparsed. No step may have been read yet.
    pub fn into_answer(self) -> StartedResponse {
        self.answer
    }

    /// Returns the next step; `None` once every choice is complete.
    ///
    /// Errors: `Engine` if a choice fails; the response is then over.
    pub async fn next(&mut self) -> Result<Option<MessageStep>, RequestError> {
        if let Some(step) = self.next_step.take() {
            return Ok(Some(step));
        }
        loop {
            let (choice, delta) = match self.answer.next().await? {
                None => return Ok(None),
                Some(ResponseStep::Prompt { choice, probabilities }) => {
                    return Ok(Some(MessageStep::Prompt { choice, probabilities }));
                }
                Some(ResponseStep::Text { choice, text, probabilities, .. }) => {
                    self.untold[choice].extend(probabilities);
                    let delta = match self.readings.get_mut(choice) {
                        Some(reading) => reading.push(&text),
                        None => MessageDelta::content(text),
                    };
                    (choice, delta)
                }
                Some(ResponseStep::Finished { choice, reason }) => {
                    let reading = self.readings.get_mut(choice);
                    let (delta, has_tool_calls) =
                        reading.map_or_else(Default::default, |reading| (reading.finish(reason), reading.has_calls()));
                    let last_step = MessageStep::Finished { choice, ending: MessageEnd { reason, has_tool_calls } };
                    if delta.is_empty() && self.untold[choice].is_empty() {
                        return Ok(Some(last_step));
                    }
                    self.next_step = Some(last_step);
                    (choice, delta)
                }
            };
            // Tokens without text are sent with the next text, or at the end.
            if !delta.is_empty() || self.next_step.is_some() {
                let probabilities = std::mem::take(&mut self.untold[choice]);
                return Ok(Some(MessageStep::Delta { choice, delta, probabilities }));
            }
        }
    }
}

/// Returns the prefix of the ids of a choice's calls.
///
/// Source: with a digit after it, it has the nine letters and digits that Mistral's templates require.
fn call_ids(identity: &ResponseIdentity, choice: usize) -> String {
    let mut id = identity.part_id("call", choice);
    id.truncate(8);
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::message::{ToolCallDelta, WholeMessage, WholeToolCall};

    fn call(index: usize, head: Option<(&str, &str)>, arguments: &str) -> MessageDelta {
        let (id, name) = (head.map(|head| head.0.to_owned()), head.map(|head| head.1.to_owned()));
        let delta = ToolCallDelta { index, id, name, arguments: arguments.to_owned() };
        MessageDelta { tool_calls: vec![delta], ..MessageDelta::default() }
    }

    #[test]
    fn deltas_add_up_to_the_message() {
        let mut message = WholeMessage::default();
        let thought = MessageDelta { reasoning_content: "hm".to_owned(), ..MessageDelta::default() };
        let deltas = [
            thought.clone(),
            thought,
            MessageDelta::content("a".to_owned()),
            call(0, Some(("x", "f")), ""),
            call(0, None, "{}"),
            call(1, Some(("y", "g")), "["),
            call(1, None, "]"),
        ];
        deltas.into_iter().for_each(|delta| message.extend(delta));
        let whole = |id: &str, name: &str, arguments: &str| WholeToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let tool_calls = vec![whole("x", "f", "{}"), whole("y", "g", "[]")];
        let (content, reasoning_content) = ("a".to_owned(), "hmhm".to_owned());
        assert_eq!(message, WholeMessage { content, reasoning_content, tool_calls });
    }
}
