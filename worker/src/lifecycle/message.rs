//! An answer as the messages that its choices spell: content, reasoning and tool calls, in deltas or whole.
//!
//! Not here: tokens and text (`answer`), the shape in which a client gets it (`http`).
//! The idea: every endpoint that writes a message wraps its [`Answer`] in [`Messages`] and asks for the next step; a step's
//! [`MessageDelta`] is what a stream writes, and [`Message::extend`] adds the deltas up for a client that wants the whole.

use std::sync::Arc;

use warmpath_worker_core::probabilities::{PromptProbabilities, TokenProbabilities};

use super::answer::{Answer, Delivery, Step, Totals};
use super::chat::ChatAnswer;
use super::reading::{Pace, Reading};
use crate::engine::FinishReason;
use crate::error::RequestError;

/// Is what is new in a choice's message; every part may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageDelta {
    /// Is more text for the user.
    pub content: String,
    /// Is more of what the model thought first.
    pub reasoning_content: String,
    /// Lists what is new in tool calls, in order.
    pub tool_calls: Vec<ToolCallDelta>,
}

impl MessageDelta {
    /// Returns a delta of text alone.
    pub fn content(content: String) -> Self {
        Self { content, ..Self::default() }
    }

    /// Returns whether nothing is new.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning_content.is_empty() && self.tool_calls.is_empty()
    }
}

/// Is what is new in one tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// Is the call's place in the message; calls come one after the other.
    pub index: usize,
    /// Names the call; present in its first delta only.
    pub id: Option<String>,
    /// Names the function; present in the call's first delta only.
    pub name: Option<String>,
    /// Is more of the arguments' JSON text.
    pub arguments: String,
}

/// Is a whole message of the assistant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Is the text for the user.
    pub content: String,
    /// Is what the model thought first; empty where it did not, or where that stays in the content.
    pub reasoning_content: String,
    /// Lists the calls.
    pub tool_calls: Vec<ToolCall>,
}

/// Is a whole tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Names the call.
    pub id: String,
    /// Names the function.
    pub name: String,
    /// Is the arguments as JSON text; not valid JSON where the answer was cut off in it.
    pub arguments: String,
}

impl Message {
    /// Adds what is new.
    pub fn extend(&mut self, delta: MessageDelta) {
        self.content.push_str(&delta.content);
        self.reasoning_content.push_str(&delta.reasoning_content);
        for call in delta.tool_calls {
            if call.index >= self.tool_calls.len() {
                self.tool_calls.resize_with(call.index + 1, ToolCall::default);
            }
            let whole = &mut self.tool_calls[call.index];
            whole.id.push_str(call.id.as_deref().unwrap_or_default());
            whole.name.push_str(call.name.as_deref().unwrap_or_default());
            whole.arguments.push_str(&call.arguments);
        }
    }
}

/// Is one step of an answer made of messages.
#[derive(Debug, PartialEq)]
pub enum MessageStep {
    /// A choice's prompt is computed, and it was asked how likely its tokens are.
    Prompt {
        /// Is the choice's index.
        choice: usize,
        /// Is how likely they are.
        probabilities: PromptProbabilities,
    },
    /// A choice's message goes on.
    Delta {
        /// Is the choice's index.
        choice: usize,
        /// Is what is new; empty only where tokens made no text yet.
        delta: MessageDelta,
        /// Says how likely the tokens were whose text this is, where that was asked for.
        probabilities: Vec<TokenProbabilities>,
    },
    /// A choice's message is complete.
    Finished {
        /// Is the choice's index.
        choice: usize,
        /// Is why.
        ending: Ending,
    },
}

/// Says how a choice's message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// Is why the engine stopped.
    pub reason: FinishReason,
    /// Says that the message holds tool calls.
    pub has_tool_calls: bool,
}

/// Is an answer, read as messages.
pub struct Messages {
    answer: Answer,
    /// Reads each choice; empty where their text is their content.
    readings: Vec<Reading>,
    /// Lists what is known of the tokens of each choice whose text is not told yet.
    untold: Vec<Vec<TokenProbabilities>>,
    /// Is a step that comes next.
    queued: Option<MessageStep>,
}

impl Messages {
    /// Reads `answer` as messages.
    pub fn new(answer: Answer) -> Self {
        let pace = if answer.form().delivery == Delivery::Whole { Pace::AtEnd } else { Pace::Growing };
        let n_choices = answer.n_choices();
        let reading = |format: &Arc<ChatAnswer>| Reading::new(Arc::clone(format), pace, fresh_id());
        let formats = answer.form().answer.iter().flat_map(|format| std::iter::repeat_n(format, n_choices));
        let readings = formats.map(reading).collect();
        Self { answer, readings, untold: vec![Vec::new(); n_choices], queued: None }
    }

    /// Returns the answer below: its form, its start.
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// Returns the tokens and times of the choices that are complete.
    pub fn totals(&self) -> Totals {
        let reasoning_tokens =
            (!self.readings.is_empty()).then(|| self.readings.iter().map(Reading::reasoning_tokens).sum());
        Totals { reasoning_tokens, ..self.answer.totals() }
    }

    /// Returns the answer below, for those who write its text as it is. Nothing may have been read yet.
    pub fn into_answer(self) -> Answer {
        self.answer
    }

    /// Returns the next step, or `None` once every choice is complete.
    ///
    /// Errors: `Engine`, when a choice fails; the answer is then over.
    pub async fn next(&mut self) -> Result<Option<MessageStep>, RequestError> {
        if let Some(step) = self.queued.take() {
            return Ok(Some(step));
        }
        loop {
            let (choice, delta) = match self.answer.next().await? {
                None => return Ok(None),
                Some(Step::Prompt { choice, probabilities }) => {
                    return Ok(Some(MessageStep::Prompt { choice, probabilities }));
                }
                Some(Step::Text { choice, text, probabilities, .. }) => {
                    self.untold[choice].extend(probabilities);
                    let delta = match self.readings.get_mut(choice) {
                        Some(reading) => reading.push(&text),
                        None => MessageDelta::content(text),
                    };
                    (choice, delta)
                }
                Some(Step::Finished { choice, reason }) => {
                    let reading = self.readings.get_mut(choice);
                    let (delta, has_tool_calls) =
                        reading.map_or_else(Default::default, |reading| (reading.finish(reason), reading.has_calls()));
                    let finished = MessageStep::Finished { choice, ending: Ending { reason, has_tool_calls } };
                    if delta.is_empty() && self.untold[choice].is_empty() {
                        return Ok(Some(finished));
                    }
                    self.queued = Some(finished);
                    (choice, delta)
                }
            };
            // Tokens without text wait for the next that has some, at the latest for the end.
            if !delta.is_empty() || self.queued.is_some() {
                let probabilities = std::mem::take(&mut self.untold[choice]);
                return Ok(Some(MessageStep::Delta { choice, delta, probabilities }));
            }
        }
    }
}

/// Returns what the names of an answer's calls begin with.
///
/// Source: with a digit behind it, it has the nine letters and digits that Mistral's templates ask for.
fn fresh_id() -> String {
    let mut id = uuid::Uuid::new_v4().simple().to_string();
    id.truncate(8);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(index: usize, head: Option<(&str, &str)>, arguments: &str) -> MessageDelta {
        let (id, name) = (head.map(|head| head.0.to_owned()), head.map(|head| head.1.to_owned()));
        let delta = ToolCallDelta { index, id, name, arguments: arguments.to_owned() };
        MessageDelta { tool_calls: vec![delta], ..MessageDelta::default() }
    }

    #[test]
    fn deltas_add_up_to_the_message() {
        let mut message = Message::default();
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
        let whole = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let tool_calls = vec![whole("x", "f", "{}"), whole("y", "g", "[]")];
        let (content, reasoning_content) = ("a".to_owned(), "hmhm".to_owned());
        assert_eq!(message, Message { content, reasoning_content, tool_calls });
    }
}
