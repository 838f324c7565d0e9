//! Anthropic's objects and events.
//!
//! Not here: when which of them is sent. Source: Anthropic's API reference, "Create a Message" and "Streaming
//! Messages".

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::super::api_adapter::CompleteMessage as Answered;
use super::super::cache_diagnostics::Diagnostics;
use super::super::content_parts::{MessagePart, PartKind};
use crate::engine::FinishReason;

/// Signature of every block of reasoning.
///
/// Reasoning is neither signed nor checked here, but clients do not send a block back whose signature is empty.
/// Source: pydantic-ai 2.66 sends its text in another form, behind which nothing can be reused.
pub const SIGNATURE: &str = "unsigned";

/// Event of a stream.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageEvent")]
pub enum Event<'a> {
    /// The first event.
    MessageStart {
        /// The message, still without content.
        message: Message<'a>,
    },
    /// Keep-alive signal.
    Ping,
    /// Start of a block.
    ContentBlockStart {
        /// Index of the block.
        index: usize,
        /// The block, still empty.
        content_block: Block<'a>,
    },
    /// Further part of a block.
    ContentBlockDelta {
        /// Index of the block.
        index: usize,
        /// The new part.
        delta: Delta<'a>,
    },
    /// End of a block.
    ContentBlockStop {
        /// Index of the block.
        index: usize,
    },
    /// End of the message.
    MessageDelta {
        /// End of the message.
        delta: End<'a>,
        /// Tokens of the whole message.
        usage: Usage,
        /// Edits of the prompt, if the request has `context_management`.
        #[serde(skip_serializing_if = "Option::is_none")]
        context_management: Option<AppliedEdits>,
    },
    /// The last event.
    MessageStop,
}

impl Event<'_> {
    /// Returns the name of the event.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::Ping => "ping",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }
}

/// A message.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Message<'a> {
    /// Id of the message.
    pub id: &'a str,
    /// Always `message`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Always `assistant`.
    pub role: &'static str,
    /// First name of the model.
    pub model: &'a str,
    /// Its blocks.
    pub content: Vec<Block<'a>>,
    /// End of the message.
    #[serde(flatten)]
    pub end: End<'a>,
    /// Its tokens.
    pub usage: Usage,
    /// Reason why the prompt does not continue that of the message named in the request; absent if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnostics: Option<Diagnostics>,
    /// Edits of the prompt, if the request has `context_management`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_management: Option<AppliedEdits>,
}

/// Edits of the prompt that `context_management` brought about.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct AppliedEdits {
    /// Always empty: the model reads the whole conversation.
    applied_edits: Vec<Value>,
}

/// End of a message; both fields are null while it has not ended.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "MessageEnd")]
pub struct End<'a> {
    /// Reason.
    #[schemars(extend("enum" = [
        "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use", null
    ]))]
    pub stop_reason: Option<&'static str>,
    /// Stop text that ended it.
    pub stop_sequence: Option<&'a str>,
}

/// Block of a message.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageBlock")]
pub enum Block<'a> {
    /// Reasoning.
    Thinking {
        /// Text of the reasoning.
        thinking: &'a str,
        /// Always `unsigned`; in a stream the block begins without it.
        signature: &'static str,
    },
    /// Text.
    Text {
        /// The text.
        text: &'a str,
    },
    /// Call of a tool.
    ToolUse {
        /// Id of the call.
        id: &'a str,
        /// Name of the tool.
        name: &'a str,
        /// The arguments.
        input: Map<String, Value>,
    },
}

impl<'a> Block<'a> {
    /// Returns a part as a block.
    pub fn whole(part: &'a MessagePart) -> Self {
        Self::with(part, &part.text, SIGNATURE)
    }

    /// Returns the empty block of a part.
    pub fn empty(part: &'a MessagePart) -> Self {
        Self::with(part, "", "")
    }

    fn with(part: &'a MessagePart, text: &'a str, signature: &'static str) -> Self {
        match &part.kind {
            PartKind::Thought => Self::Thinking { thinking: text, signature },
            PartKind::Text => Self::Text { text },
            // Arguments that are not an object, such as those that were cut off, appear only in deltas.
            PartKind::Call { id, name, .. } => {
                Self::ToolUse { id, name, input: serde_json::from_str(text).unwrap_or_default() }
            }
        }
    }
}

/// New part of a block.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "MessageBlockDelta")]
pub enum Delta<'a> {
    /// Further reasoning.
    #[serde(rename = "thinking_delta")]
    Thinking {
        /// Text of the reasoning.
        thinking: &'a str,
    },
    /// End of the reasoning.
    #[serde(rename = "signature_delta")]
    Signature {
        /// Always `unsigned`.
        signature: &'static str,
    },
    /// Further text.
    #[serde(rename = "text_delta")]
    Text {
        /// The text.
        text: &'a str,
    },
    /// Further arguments of a call.
    #[serde(rename = "input_json_delta")]
    InputJson {
        /// Part of their JSON text.
        partial_json: &'a str,
    },
}

impl<'a> Delta<'a> {
    /// Returns the new part of a block.
    pub fn of(part: &MessagePart, text: &'a str) -> Self {
        match part.kind {
            PartKind::Thought => Self::Thinking { thinking: text },
            PartKind::Text => Self::Text { text },
            PartKind::Call { .. } => Self::InputJson { partial_json: text },
        }
    }
}

/// Tokens of a message; the prompt's are the sum of the first three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "MessageUsage")]
pub struct Usage {
    /// Prompt tokens that were computed.
    pub input_tokens: u32,
    /// Always 0: nothing is charged for writing to the cache.
    pub cache_creation_input_tokens: u32,
    /// Prompt tokens that were reused.
    pub cache_read_input_tokens: u32,
    /// Tokens of the response.
    pub output_tokens: u32,
}

/// Returns Anthropic's name for the end of a response, given the client's stop text that ended it.
pub fn stop_reason(message: &Answered<'_>, stop_sequence: Option<&str>) -> &'static str {
    match message.ending.reason {
        FinishReason::Length if message.totals.truncated => "model_context_window_exceeded",
        FinishReason::Length => "max_tokens",
        FinishReason::StopText if stop_sequence.is_some() => "stop_sequence",
        FinishReason::StopText | FinishReason::EndOfGeneration if message.ending.has_tool_calls => "tool_use",
        FinishReason::StopText | FinishReason::EndOfGeneration => "end_turn",
    }
}
