//! The shapes of answers: OpenAI's objects for chats and completions, whole and in chunks, with llama-server's timings.
//!
//! Not here: when which of them is sent (`http::answer`).

use schemars::JsonSchema;
use serde::Serialize;

use super::logprobs::Logprobs;
use crate::engine::{CachedTokens, FinishReason};
use crate::lifecycle::Totals;
use crate::lifecycle::message::{self, Ending};

/// Is which of the two families of objects an answer is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `chat.completion` and `chat.completion.chunk`.
    Chat,
    /// `text_completion`.
    Completion,
}

impl Shape {
    /// Returns the object name of a whole answer.
    pub fn object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion",
            Self::Completion => "text_completion",
        }
    }

    /// Returns the object name of a part of an answer.
    pub fn chunk_object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion.chunk",
            Self::Completion => "text_completion",
        }
    }

    /// Returns what an answer's id begins with.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Completion => "cmpl-",
        }
    }
}

/// Is a whole answer or one chunk of it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiAnswer")]
pub struct Object<'a> {
    /// Names the answer; the same in all of its chunks.
    pub id: &'a str,
    /// Names the shape.
    pub object: &'static str,
    /// Is when the answer began. Units: seconds since 1970.
    pub created: u64,
    /// Is the first name of the model.
    pub model: &'a str,
    /// Changes when the model or the layout of its state does.
    pub system_fingerprint: &'a str,
    /// Lists choices.
    pub choices: Vec<Choice<'a>>,
    /// Says that the context was full: the answer ended there, or its oldest tokens were dropped; absent where it was not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Counts tokens: absent, null or given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// Measures the answer as llama-server does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// Is one choice or a part of it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiChoice")]
pub struct Choice<'a> {
    /// Is the choice's index.
    pub index: usize,
    /// Is the text in the endpoint's shape.
    #[serde(flatten)]
    pub content: Content<'a>,
    /// Is null where they were not asked for, and in a part of a choice that has no token.
    pub logprobs: Option<Logprobs>,
    /// Is why the choice ended; null while it goes on.
    #[schemars(extend("enum" = ["stop", "length", "tool_calls", null]))]
    pub finish_reason: Option<&'static str>,
}

/// Is a choice's text in each of its places.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Content<'a> {
    /// In a whole chat completion.
    Message(Message<'a>),
    /// In a chunk of one.
    Delta(Delta<'a>),
    /// In a completion, whole or chunk.
    Text(&'a str),
}

/// Is the assistant's message.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatMessage")]
pub struct Message<'a> {
    /// Is `assistant`.
    pub role: &'static str,
    /// Is what the model thought first; absent where nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// Is the text; null where there are only calls.
    pub content: Option<&'a str>,
    /// Lists the calls; absent where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall<'a>>,
}

/// Is a tool call or a part of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ToolCall<'a> {
    /// Is the call's place in the message, in chunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Names the call; in its first chunk only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// Is `function`; in the call's first chunk only.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// Is the function that is called.
    pub function: Function<'a>,
}

/// Is a called function or a part of the call.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Function<'a> {
    /// Names the function; in the call's first chunk only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// Is the arguments' JSON text.
    pub arguments: &'a str,
}

/// Is what an OpenAI client calls a tool of this kind.
const FUNCTION: &str = "function";

impl<'a> From<&'a message::Message> for Message<'a> {
    fn from(message: &'a message::Message) -> Self {
        let call = |call: &'a message::ToolCall| ToolCall {
            index: None,
            id: Some(&call.id),
            kind: Some(FUNCTION),
            function: Function { name: Some(&call.name), arguments: &call.arguments },
        };
        let is_call_only = message.content.is_empty() && !message.tool_calls.is_empty();
        Self {
            role: "assistant",
            reasoning_content: Some(message.reasoning_content.as_str()).filter(|text| !text.is_empty()),
            content: (!is_call_only).then_some(&message.content),
            tool_calls: message.tool_calls.iter().map(call).collect(),
        }
    }
}

/// Is a part of the assistant's message.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ChatDelta")]
pub struct Delta<'a> {
    /// Is `assistant`, in the first chunk only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Is more of what the model thought first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// Is more text; null beside the role, as llama-server has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Option<&'a str>>,
    /// Lists what is new in tool calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall<'a>>,
}

impl<'a> From<&'a message::MessageDelta> for Delta<'a> {
    fn from(delta: &'a message::MessageDelta) -> Self {
        let some = |text: &'a String| Some(text.as_str()).filter(|text| !text.is_empty());
        let call = |call: &'a message::ToolCallDelta| ToolCall {
            index: Some(call.index),
            id: call.id.as_deref(),
            kind: call.id.as_ref().map(|_| FUNCTION),
            function: Function { name: call.name.as_deref(), arguments: &call.arguments },
        };
        Self {
            role: None,
            reasoning_content: some(&delta.reasoning_content),
            content: some(&delta.content).map(Some),
            tool_calls: delta.tool_calls.iter().map(call).collect(),
        }
    }
}

/// Counts the tokens of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiUsage")]
pub struct Usage {
    /// Is the tokens of the prompts.
    pub prompt_tokens: u32,
    /// Is the tokens of the choices.
    pub completion_tokens: u32,
    /// Is the sum of both.
    pub total_tokens: u32,
    /// Says how many of the prompts' tokens were reused.
    pub prompt_tokens_details: PromptTokensDetails,
    /// Is absent where the model's thoughts cannot be told from its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// Says more of the choices' tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CompletionTokensDetails {
    /// Is how many were thoughts.
    pub reasoning_tokens: u32,
}

/// Says more of the prompts' tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PromptTokensDetails {
    /// Is how many were reused.
    pub cached_tokens: u32,
}

/// Is llama-server's `timings`, and where the reused tokens came from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Timings {
    cache_n: u32,
    prefix_cache_tokens: CachedTokens,
    prefix_cache_ratio: f64,
    prompt_n: u32,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: u32,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

impl From<Totals> for Usage {
    fn from(totals: Totals) -> Self {
        let cached_tokens = totals.cached_tokens;
        Self {
            prompt_tokens: totals.prompt_tokens,
            completion_tokens: totals.completion_tokens,
            total_tokens: totals.prompt_tokens + totals.completion_tokens,
            completion_tokens_details: totals
                .reasoning_tokens
                .map(|reasoning_tokens| CompletionTokensDetails { reasoning_tokens }),
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }
}

impl From<Totals> for Timings {
    fn from(totals: Totals) -> Self {
        let ratio = |above: f64, below: f64| if below > 0.0 { above / below } else { 0.0 };
        let prompt_n = f64::from(totals.computed_tokens);
        // The first token of each choice comes out of its prompt, so its time is not in `predicted_ms`.
        let predicted_n = f64::from(totals.completion_tokens.saturating_sub(totals.n_begun));
        Self {
            cache_n: totals.reused.total(),
            prefix_cache_tokens: totals.reused,
            prefix_cache_ratio: totals.prefix_cache_ratio(),
            prompt_n: totals.computed_tokens,
            prompt_ms: totals.prompt_ms,
            prompt_per_token_ms: ratio(totals.prompt_ms, prompt_n),
            prompt_per_second: ratio(1000.0 * prompt_n, totals.prompt_ms),
            predicted_n: totals.completion_tokens,
            predicted_ms: totals.predicted_ms,
            predicted_per_token_ms: ratio(totals.predicted_ms, predicted_n),
            predicted_per_second: ratio(1000.0 * predicted_n, totals.predicted_ms),
        }
    }
}

/// Returns OpenAI's word for the end of a choice.
pub fn finish_reason(ending: Ending) -> &'static str {
    match ending.reason {
        FinishReason::EndOfGeneration | FinishReason::StopText if ending.has_tool_calls => "tool_calls",
        FinishReason::EndOfGeneration | FinishReason::StopText => "stop",
        FinishReason::Length => "length",
    }
}
