//! The shapes of answers: OpenAI's objects for chats and completions, whole and in chunks, with llama-server's timings.
//!
//! Not here: when which of them is sent (`http::answer`).

use serde::Serialize;

use crate::engine::{CachedTokens, FinishReason};
use crate::lifecycle::Totals;

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
#[derive(Debug, Serialize)]
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
#[derive(Debug, Serialize)]
pub struct Choice<'a> {
    /// Is the choice's index.
    pub index: usize,
    /// Is the text in the endpoint's shape.
    #[serde(flatten)]
    pub content: Content<'a>,
    /// Is always null: log probabilities are not computed.
    pub logprobs: (),
    /// Is why the choice ended; null while it goes on.
    pub finish_reason: Option<&'static str>,
}

/// Is a choice's text in each of its places.
#[derive(Debug, Serialize)]
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
#[derive(Debug, Serialize)]
pub struct Message<'a> {
    /// Is `assistant`.
    pub role: &'static str,
    /// Is the text.
    pub content: &'a str,
}

/// Is a part of the assistant's message.
#[derive(Debug, Default, Serialize)]
pub struct Delta<'a> {
    /// Is `assistant`, in the first chunk only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Is more text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
}

/// Counts the tokens of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Is the tokens of the prompts.
    pub prompt_tokens: u32,
    /// Is the tokens of the choices.
    pub completion_tokens: u32,
    /// Is the sum of both.
    pub total_tokens: u32,
    /// Is absent where nothing was reused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
}

/// Says more of the prompts' tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Is how many were reused.
    pub cached_tokens: u32,
}

/// Is llama-server's `timings`, and where the reused tokens came from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
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
            prompt_tokens_details: (cached_tokens > 0).then_some(PromptTokensDetails { cached_tokens }),
        }
    }
}

impl From<Totals> for Timings {
    fn from(totals: Totals) -> Self {
        let ratio = |above: f64, below: f64| if below > 0.0 { above / below } else { 0.0 };
        let (prompt_n, predicted_n) = (f64::from(totals.computed_tokens), f64::from(totals.completion_tokens));
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
pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndOfGeneration | FinishReason::StopText => "stop",
        FinishReason::Length => "length",
    }
}
