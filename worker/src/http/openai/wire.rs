//! The formats of responses: OpenAI's objects for chats and completions, whole and in chunks, with llama-server's
//! timings.
//!
//! Not here: when each of them is sent (`http::openai::answer`).

use schemars::JsonSchema;
use serde::Serialize;

use super::calls::{self, GrowingCalls, ToolCall};
use super::logprobs::Logprobs;
use crate::engine::{CachedTokens, Drafted, FinishReason};
use crate::lifecycle::ResponseTotals;
use crate::lifecycle::message;
use crate::lifecycle::message_stream::MessageEnd;

/// Family of objects of which a response is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// `chat.completion` and `chat.completion.chunk`.
    Chat,
    /// `text_completion`.
    Completion,
}

impl ObjectKind {
    /// Returns the object name of a whole response.
    pub fn object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion",
            Self::Completion => "text_completion",
        }
    }

    /// Returns the object name of a part of a response.
    pub fn chunk_object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion.chunk",
            Self::Completion => "text_completion",
        }
    }

    /// Returns the prefix of a response's id.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Completion => "cmpl-",
        }
    }
}

/// A whole response or one chunk of it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiAnswer")]
pub struct Object<'a> {
    /// Id of the response; the same in all of its chunks.
    pub id: &'a str,
    /// Name of the object.
    pub object: &'static str,
    /// Start time of the response. Units: seconds since 1970.
    pub created: u64,
    /// First name of the model.
    pub model: &'a str,
    /// Fingerprint that changes when the model or the layout of its state does.
    pub system_fingerprint: &'a str,
    /// Choices.
    pub choices: Vec<Choice<'a>>,
    /// Whether the context was full: the response ended there, or its oldest tokens were dropped; absent if it was not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Token counts: absent, null or given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// Measurements of the response, like llama-server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// A choice or a part of it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiChoice")]
pub struct Choice<'a> {
    /// Index of the choice.
    pub index: usize,
    /// Text in the endpoint's format.
    #[serde(flatten)]
    pub content: Content<'a>,
    /// Log probabilities; null if they were not requested, and in a part of a choice that has no token.
    pub logprobs: Option<Logprobs>,
    /// Reason why the choice ended; null while it is in progress.
    #[schemars(extend("enum" = ["stop", "length", "tool_calls", null]))]
    pub finish_reason: Option<&'static str>,
}

/// Text of a choice, in the form of its object.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Content<'a> {
    /// In a whole chat completion.
    Message(Message<'a>),
    /// In a chunk of a chat completion.
    Delta(Delta<'a>),
    /// In a completion, whole or chunk.
    Text(&'a str),
}

/// Message of the assistant.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatMessage")]
pub struct Message<'a> {
    /// Always `assistant`.
    pub role: &'static str,
    /// Reasoning; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// Text; null if there are only calls.
    pub content: Option<&'a str>,
    /// Tool calls; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall<'a>>,
}

impl<'a> Message<'a> {
    /// Returns a message, given the names of custom tools.
    pub fn new(message: &'a message::WholeMessage, custom_tools: &[String]) -> Self {
        let is_call_only = message.content.is_empty() && !message.tool_calls.is_empty();
        Self {
            role: "assistant",
            reasoning_content: Some(message.reasoning_content.as_str()).filter(|text| !text.is_empty()),
            content: (!is_call_only).then_some(&message.content),
            tool_calls: message.tool_calls.iter().map(|call| calls::whole(call, custom_tools)).collect(),
        }
    }
}

/// Part of the assistant's message.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ChatDelta")]
pub struct Delta<'a> {
    /// `assistant`, only in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Further reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// Further text; null together with the role, as in llama-server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Option<&'a str>>,
    /// New parts of tool calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall<'a>>,
}

impl<'a> Delta<'a> {
    /// Returns the parts of a message that a delta stands for, at least one, given the choice's calls so far. Each part
    /// of a call is in a chunk of its own, as clients read only one of them from a chunk.
    pub fn of(delta: &'a message::MessageDelta, calls: &mut GrowingCalls) -> Vec<Self> {
        let some = |text: &'a String| Some(text.as_str()).filter(|text| !text.is_empty());
        let said = Self {
            role: None,
            reasoning_content: some(&delta.reasoning_content),
            content: some(&delta.content).map(Some),
            tool_calls: Vec::new(),
        };
        let mut parts = vec![said];
        for call in &delta.tool_calls {
            parts.extend(calls.parts(call).map(|part| Self { tool_calls: vec![part], ..Self::default() }));
        }
        if parts.len() > 1 && parts[0].is_empty() {
            parts.remove(0);
        }
        parts
    }

    /// Returns whether nothing is new.
    pub fn is_empty(&self) -> bool {
        self.reasoning_content.is_none() && self.content.is_none() && self.tool_calls.is_empty()
    }
}

/// Tokens of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiUsage")]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: u32,
    /// Tokens of the choices.
    pub completion_tokens: u32,
    /// Sum of both.
    pub total_tokens: u32,
    /// Details of the prompts' tokens.
    pub prompt_tokens_details: PromptTokensDetails,
    /// Details of the choices' tokens; absent if the model's reasoning cannot be separated from its response and
    /// nothing was drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// Details of the choices' tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CompletionTokensDetails {
    /// Number of reasoning tokens; absent if they cannot be separated from the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u32>,
    /// Number of drafted tokens that became part of the response; absent if nothing was drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_prediction_tokens: Option<u32>,
    /// Number of drafted tokens that were rejected; absent if nothing was drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected_prediction_tokens: Option<u32>,
}

impl CompletionTokensDetails {
    fn of(totals: &ResponseTotals) -> Option<Self> {
        let Drafted { n, n_accepted } = totals.drafted;
        let accepted_count = (n > 0).then_some(n_accepted);
        let details = Self {
            reasoning_tokens: totals.reasoning_tokens,
            accepted_prediction_tokens: accepted_count,
            rejected_prediction_tokens: accepted_count.map(|n_accepted| n - n_accepted),
        };
        (totals.reasoning_tokens.is_some() || n > 0).then_some(details)
    }
}

/// Details of the prompts' tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PromptTokensDetails {
    /// Number of reused tokens.
    pub cached_tokens: u32,
}

/// Llama-server's `timings`, and the tiers of the reused tokens.
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
    /// Number of drafted tokens; absent if there were none, as in llama-server.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n: Option<u32>,
    /// Number of drafted tokens that became part of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n_accepted: Option<u32>,
}

impl From<ResponseTotals> for Usage {
    fn from(totals: ResponseTotals) -> Self {
        let cached_tokens = totals.cached_tokens;
        Self {
            prompt_tokens: totals.prompt_tokens,
            completion_tokens: totals.completion_tokens,
            total_tokens: totals.prompt_tokens + totals.completion_tokens,
            completion_tokens_details: CompletionTokensDetails::of(&totals),
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }
}

impl From<ResponseTotals> for Timings {
    fn from(totals: ResponseTotals) -> Self {
        let ratio = |above: f64, below: f64| if below > 0.0 { above / below } else { 0.0 };
        let prompt_n = f64::from(totals.computed_tokens);
        // The first token of each choice comes from its prefill, so its time is not in `predicted_ms`.
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
            draft_n: Some(totals.drafted.n).filter(|n| *n > 0),
            draft_n_accepted: (totals.drafted.n > 0).then_some(totals.drafted.n_accepted),
        }
    }
}

/// Returns OpenAI's name for the end of a choice.
pub fn finish_reason(ending: MessageEnd) -> &'static str {
    match ending.reason {
        FinishReason::EndOfGeneration | FinishReason::StopText if ending.has_tool_calls => "tool_calls",
        FinishReason::EndOfGeneration | FinishReason::StopText => "stop",
        FinishReason::Length => "length",
    }
}
