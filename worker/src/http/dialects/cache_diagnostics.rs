//! What changed since an earlier prompt, in the words of Anthropic's and OpenAI's APIs.
//!
//! Not here: the comparison (`lifecycle::prompt_fingerprint`). Source: the types of anthropic 2.14.0
//! (`types/cache_miss_reason.py`) and of openai 3.57.0 (`types/responses/response.py`).

use schemars::JsonSchema;
use serde::Serialize;

use super::api_adapter::Beginning;
use crate::lifecycle::prompt_fingerprint::{PromptComparison, PromptPart};

/// Comparison of a prompt with that of an earlier message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "MessageDiagnostics")]
pub struct Diagnostics {
    /// What changed.
    pub cache_miss_reason: CacheMissReason,
}

/// What changed since an earlier message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CacheMissReason {
    /// The model.
    ModelChanged(MissedTokens),
    /// The system text.
    SystemChanged(MissedTokens),
    /// The tools.
    ToolsChanged(MissedTokens),
    /// An earlier message.
    MessagesChanged(MissedTokens),
    /// The earlier message has no id of this tenant's workers.
    PreviousMessageNotFound,
    /// Something else that changes the prompt.
    Unavailable,
}

/// Tokens of the earlier prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct MissedTokens {
    /// Number of them that were not reused.
    pub cache_missed_input_tokens: u32,
}

impl Diagnostics {
    /// Compares a prompt with that of an earlier message; `None` if it continues that.
    pub fn of(beginning: &Beginning, previous: &str) -> Option<Self> {
        let cache_miss_reason = match beginning.compare(previous) {
            PromptComparison::Continues => return None,
            PromptComparison::NotFound => CacheMissReason::PreviousMessageNotFound,
            PromptComparison::Differs { part, n_earlier_tokens } => {
                let missed_tokens =
                    MissedTokens { cache_missed_input_tokens: beginning.missed_tokens(n_earlier_tokens) };
                match part {
                    Some(PromptPart::Model) => CacheMissReason::ModelChanged(missed_tokens),
                    Some(PromptPart::System) => CacheMissReason::SystemChanged(missed_tokens),
                    Some(PromptPart::Tools) => CacheMissReason::ToolsChanged(missed_tokens),
                    Some(PromptPart::Messages | PromptPart::ShorterHistory) => {
                        CacheMissReason::MessagesChanged(missed_tokens)
                    }
                    Some(PromptPart::Settings) | None => CacheMissReason::Unavailable,
                }
            }
        };
        Some(Self { cache_miss_reason })
    }
}

/// Comparison of a prompt with that of an earlier response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseCacheDiagnostics")]
pub enum CacheDiagnostics {
    /// The prompt differs from the earlier one.
    CacheMiss {
        /// What changed.
        #[schemars(extend("enum" = [
            "context_compacted", "input_changed", "model_changed", "reasoning_effort_changed", "tools_changed"
        ]))]
        reason: &'static str,
        /// Number of the earlier prompt's tokens that were not reused.
        cache_missed_tokens: u32,
        /// Length of the earlier prompt. Units: tokens.
        comparison_reusable_tokens: u32,
    },
    /// The prompt continues the earlier one, and some of it was reused.
    CacheHit,
    /// The id is not one of this tenant's workers.
    ComparisonResponseNotFound,
    /// The prompt continues the earlier one but nothing was reused, or the chat template has changed it.
    Unavailable,
}

impl CacheDiagnostics {
    /// Compares a prompt with that of an earlier response.
    pub fn of(beginning: &Beginning, other_response_id: &str) -> Self {
        let (part, n_earlier_tokens) = match beginning.compare(other_response_id) {
            PromptComparison::NotFound => return Self::ComparisonResponseNotFound,
            PromptComparison::Continues if beginning.cached_tokens > 0 => return Self::CacheHit,
            PromptComparison::Continues | PromptComparison::Differs { part: None, .. } => return Self::Unavailable,
            PromptComparison::Differs { part: Some(part), n_earlier_tokens } => (part, n_earlier_tokens),
        };
        let reason = match part {
            PromptPart::Model => "model_changed",
            PromptPart::Tools => "tools_changed",
            PromptPart::System | PromptPart::Messages => "input_changed",
            PromptPart::ShorterHistory => "context_compacted",
            PromptPart::Settings => "reasoning_effort_changed",
        };
        Self::CacheMiss {
            reason,
            cache_missed_tokens: beginning.missed_tokens(n_earlier_tokens),
            comparison_reusable_tokens: n_earlier_tokens,
        }
    }
}
