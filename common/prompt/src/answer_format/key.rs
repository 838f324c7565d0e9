//! Everything that determines the format of a response, besides the chat template.
//!
//! A format depends on the tools, the switches and the kind of the last message, not on the texts of a conversation.

use serde_json::{Map, Value as Json, json};
use warmpath_llama_chat::{ReasoningFormat, ToolChoice};

use crate::messages::Continued;

/// Placeholder for the content of a continued message. Source: a private character that no template writes.
pub(crate) const CONTENT_MARK: char = '\u{f8fe}';
/// Placeholder for the reasoning of a continued message. Source: as [`CONTENT_MARK`].
pub(crate) const REASONING_MARK: char = '\u{f8ff}';

/// A request's settings for the format of its response.
#[derive(Debug, Clone, PartialEq)]
pub struct FormatOptions {
    /// Tools that may be called; empty if none may.
    pub tools: Vec<Json>,
    /// Whether one must be called.
    pub tool_choice: ToolChoice,
    /// Whether several may be called, if the template renders several calls in one message; `None` counts as true.
    pub parallel_tool_calls: Option<bool>,
    /// Field of the response that reasoning is put into.
    pub reasoning_format: ReasoningFormat,
}

/// Kind of a conversation's end, the only part of the conversation that matters for the response's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A user's message.
    Question,
    /// A tool's result.
    ToolResult,
    /// An assistant message that is continued.
    Continued { has_reasoning: bool, has_content: bool },
}

impl Ending {
    /// Name of the tool that is called before a result.
    pub(crate) const TOOL: &str = "lookup";

    /// Returns the end of a conversation whose last message is continued.
    pub(crate) fn of_continued(message: &Continued<'_>) -> Self {
        Self::Continued { has_reasoning: !message.reasoning.is_empty(), has_content: !message.content.is_empty() }
    }

    /// Returns a small conversation with this end.
    pub(crate) fn conversation(self) -> Vec<Json> {
        let user = json!({"role": "user", "content": "question"});
        match self {
            Self::Question => vec![user],
            Self::ToolResult => {
                let function = json!({"name": Self::TOOL, "arguments": "{}"});
                let call = json!({"id": "call00001", "type": "function", "function": function});
                let assistant = json!({"role": "assistant", "content": "", "tool_calls": [call]});
                let result =
                    json!({"role": "tool", "name": Self::TOOL, "tool_call_id": "call00001", "content": "done"});
                vec![user, assistant, result]
            }
            Self::Continued { has_reasoning, has_content } => {
                let marked = |mark: char, is_there: bool| if is_there { mark.to_string() } else { String::new() };
                let mut assistant = json!({"role": "assistant", "content": marked(CONTENT_MARK, has_content)});
                if has_reasoning {
                    assistant["reasoning_content"] = json!(REASONING_MARK.to_string());
                }
                vec![user, assistant]
            }
        }
    }
}

/// The inputs that determine a format, besides the template.
#[derive(Clone, Copy)]
pub(crate) struct FormatKey<'a> {
    pub ending: Ending,
    pub options: &'a FormatOptions,
    pub tools: &'a [Json],
    pub enable_thinking: bool,
    pub kwargs: &'a Map<String, Json>,
}
