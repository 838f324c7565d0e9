//! `/v1/completions`, `/completion` and `/infill`: raw prompts, as text or tokens, and gaps to fill.
//!
//! Not here: their tokens (`lifecycle::prompts`).

use schemars::JsonSchema;
use serde::Deserialize;
use warmpath_common::fields;
use warmpath_common::prompts::{CompletionPrompt, ExtraText, InfillPrompt, PromptField, RawPrompt, SuffixOfTokens};

use super::{CommonFields, Repeats, Request, UntokenizedPrompts};
use crate::error::RequestError;

/// A completion request in OpenAI's format.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct CompletionRequest {
    /// One prompt or several.
    prompt: PromptField,
    /// Text after the response; an empty one counts as absent.
    suffix: Option<String>,
    /// Whether the text begins with the prompt.
    echo: Option<bool>,
    #[serde(flatten, deserialize_with = "fields::part")]
    shared: CommonFields,
}

/// A completion request in llama-server's format.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct NativeCompletionRequest {
    /// One prompt or several.
    prompt: PromptField,
    /// Text after the response; an empty one counts as absent.
    suffix: Option<String>,
    #[serde(flatten, deserialize_with = "fields::part")]
    answer: AnswerFields,
    #[serde(flatten, deserialize_with = "fields::part")]
    shared: CommonFields,
}

/// A request to fill a gap.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct InfillRequest {
    /// Text before the gap.
    input_prefix: String,
    /// Text after the gap.
    input_suffix: String,
    /// Texts from other places that may help, the most important one last.
    #[serde(default)]
    input_extra: Vec<ExtraText>,
    /// Known start of the gap's text.
    #[serde(default)]
    prompt: String,
    #[serde(flatten, deserialize_with = "fields::part")]
    answer: AnswerFields,
    #[serde(flatten, deserialize_with = "fields::part")]
    shared: CommonFields,
}

/// llama-server's fields about the form of the response objects.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AnswerFields {
    /// Whether a response that is not streamed lists its tokens.
    pub return_tokens: Option<bool>,
    /// Paths of the only fields that the object has, such as `generation_settings/n_predict`.
    pub response_fields: Option<Vec<String>>,
}

impl CompletionRequest {
    /// Reads a completion request.
    ///
    /// Errors: `Unreadable`, `Field`.
    pub fn read(body: &[u8]) -> Result<Request, RequestError> {
        let Self { prompt, suffix, echo, shared } = fields::read(body)?;
        let repeats = if echo == Some(true) { Repeats::Echo } else { Repeats::Nothing };
        let prompt = UntokenizedPrompts::Raw(raw_prompts(CompletionPrompt { prompt, suffix })?, repeats);
        Ok(Request { shared, prompt, answer: AnswerFields::default() })
    }
}

impl NativeCompletionRequest {
    /// Reads a completion request.
    ///
    /// Errors: `Unreadable`, `Field`.
    pub fn read(body: &[u8]) -> Result<Request, RequestError> {
        let Self { prompt, suffix, answer, shared } = fields::read(body)?;
        let prompt = UntokenizedPrompts::Raw(raw_prompts(CompletionPrompt { prompt, suffix })?, Repeats::Text);
        Ok(Request { shared, prompt, answer })
    }
}

impl InfillRequest {
    /// Reads a request to fill a gap.
    ///
    /// Errors: `Unreadable`.
    pub fn read(body: &[u8]) -> Result<Request, RequestError> {
        let Self { input_prefix, input_suffix, input_extra, prompt, answer, shared } = fields::read(body)?;
        let n_predict = shared.generation.tokens_max();
        let gap =
            InfillPrompt { input_prefix, input_suffix, input_extra, prompt, n_predict, ..InfillPrompt::default() };
        Ok(Request { shared, prompt: UntokenizedPrompts::Infill(gap), answer })
    }
}

/// Returns the raw prompts of a request that only uses its prompts.
///
/// Errors: `Unreadable`, `Field`.
pub fn read_raw(body: &[u8]) -> Result<Vec<RawPrompt>, RequestError> {
    raw_prompts(fields::read(body)?)
}

fn raw_prompts(prompt: CompletionPrompt) -> Result<Vec<RawPrompt>, RequestError> {
    prompt.into_prompts().map_err(|error| RequestError::field(SuffixOfTokens::PARAM, error.to_string()))
}
