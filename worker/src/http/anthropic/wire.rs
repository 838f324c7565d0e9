//! Anthropic's objects and events.
//!
//! Not here: when which of them is sent. Source: Anthropic's API reference, "Create a Message" and "Streaming Messages".

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::super::dialect::Message as Answered;
use super::super::parts::{Kind, Part};
use crate::engine::FinishReason;

/// Is an event of a stream.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageEvent")]
pub enum Event<'a> {
    /// Comes first.
    MessageStart {
        /// Is the message, still without content.
        message: Message<'a>,
    },
    /// Says that the stream goes on.
    Ping,
    /// Opens a block.
    ContentBlockStart {
        /// Is the block's place.
        index: usize,
        /// Is the block, still empty.
        content_block: Block<'a>,
    },
    /// Is more of a block.
    ContentBlockDelta {
        /// Is the block's place.
        index: usize,
        /// Is what it has grown by.
        delta: Delta<'a>,
    },
    /// Closes a block.
    ContentBlockStop {
        /// Is the block's place.
        index: usize,
    },
    /// Says how the message ended.
    MessageDelta {
        /// Is how.
        delta: End<'a>,
        /// Counts the tokens of the whole message.
        usage: Usage,
    },
    /// Comes last.
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

/// Is a message.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Message<'a> {
    /// Names it.
    pub id: &'a str,
    /// Is `message`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Is `assistant`.
    pub role: &'static str,
    /// Is the first name of the model.
    pub model: &'a str,
    /// Lists its blocks.
    pub content: Vec<Block<'a>>,
    /// Says how it ended.
    #[serde(flatten)]
    pub end: End<'a>,
    /// Counts its tokens.
    pub usage: Usage,
}

/// Says how a message ended; both are null while it has not.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "MessageEnd")]
pub struct End<'a> {
    /// Is why.
    #[schemars(extend("enum" = [
        "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use", null
    ]))]
    pub stop_reason: Option<&'static str>,
    /// Is the stop text that ended it.
    pub stop_sequence: Option<&'a str>,
}

/// Is a block of a message.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageBlock")]
pub enum Block<'a> {
    /// Is what the model thought before it spoke.
    Thinking {
        /// Is the thought.
        thinking: &'a str,
        /// Is empty: nobody signs a thought here, and nobody asks for a signature.
        signature: &'static str,
    },
    /// Is what the model says.
    Text {
        /// Is the text.
        text: &'a str,
    },
    /// Is a call of a tool.
    ToolUse {
        /// Names the call.
        id: &'a str,
        /// Names the tool.
        name: &'a str,
        /// Is the arguments.
        input: Map<String, Value>,
    },
}

impl<'a> Block<'a> {
    /// Returns a part as a block.
    pub fn whole(part: &'a Part) -> Self {
        Self::with(part, &part.text)
    }

    /// Returns a part's block before anything is in it.
    pub fn empty(part: &'a Part) -> Self {
        Self::with(part, "")
    }

    fn with(part: &'a Part, text: &'a str) -> Self {
        match &part.kind {
            Kind::Thought => Self::Thinking { thinking: text, signature: "" },
            Kind::Text => Self::Text { text },
            // What is no object is there in parts only, as where the answer was cut short.
            Kind::Call { id, name, .. } => {
                Self::ToolUse { id, name, input: serde_json::from_str(text).unwrap_or_default() }
            }
        }
    }
}

/// Is what a block has grown by.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "MessageBlockDelta")]
pub enum Delta<'a> {
    /// Is more of what the model thinks.
    #[serde(rename = "thinking_delta")]
    Thinking {
        /// Is the thought.
        thinking: &'a str,
    },
    /// Ends a thought.
    #[serde(rename = "signature_delta")]
    Signature {
        /// Is empty.
        signature: &'static str,
    },
    /// Is more of what the model says.
    #[serde(rename = "text_delta")]
    Text {
        /// Is the text.
        text: &'a str,
    },
    /// Is more of a call's arguments.
    #[serde(rename = "input_json_delta")]
    InputJson {
        /// Is a part of their JSON text.
        partial_json: &'a str,
    },
}

impl<'a> Delta<'a> {
    /// Returns what a part has grown by.
    pub fn of(part: &Part, text: &'a str) -> Self {
        match part.kind {
            Kind::Thought => Self::Thinking { thinking: text },
            Kind::Text => Self::Text { text },
            Kind::Call { .. } => Self::InputJson { partial_json: text },
        }
    }
}

/// Counts a message's tokens; the prompt's are the sum of the first three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "MessageUsage")]
pub struct Usage {
    /// Is the prompt tokens that were computed.
    pub input_tokens: u32,
    /// Is 0: nothing is charged for keeping what was computed.
    pub cache_creation_input_tokens: u32,
    /// Is the prompt tokens that were reused.
    pub cache_read_input_tokens: u32,
    /// Is the answer's tokens.
    pub output_tokens: u32,
}

/// Returns Anthropic's word for the end of an answer.
pub fn stop_reason(message: &Answered<'_>) -> &'static str {
    match message.ending.reason {
        FinishReason::Length if message.totals.truncated => "model_context_window_exceeded",
        FinishReason::Length => "max_tokens",
        FinishReason::StopText => "stop_sequence",
        FinishReason::EndOfGeneration if message.ending.has_tool_calls => "tool_use",
        FinishReason::EndOfGeneration => "end_turn",
    }
}
