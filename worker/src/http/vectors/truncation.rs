//! Fields about texts that are too long for a vector or a score, as TEI, Cohere, vLLM and Voyage name them.
//!
//! A text is either refused, or shortened at one end. Not here: its tokens (`warmpath-prompt`).

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use warmpath_common::headers;
use warmpath_common::ids::Token;
use warmpath_common::whole::Whole;
use warmpath_prompt::{CutEnd, FittedText, TextRoom};

use crate::error::RequestError;

/// Fields about texts that are too long.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TruncationFields {
    #[serde(alias = "truncation")]
    #[schemars(schema_with = "truncate")]
    truncate: Option<Truncate>,
    #[serde(alias = "truncation_side")]
    #[schemars(schema_with = "direction")]
    truncation_direction: Option<Direction>,
    #[schemars(schema_with = "tokens_max")]
    truncate_prompt_tokens: Option<Whole<i64>>,
}

/// `truncate` in its two forms.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "true, false, \"NONE\", \"START\" or \"END\"")]
enum Truncate {
    Switch(bool),
    Mode(Mode),
}

/// Cohere's and NIM's form.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Mode {
    None,
    Start,
    End,
}

/// Side of a text at which tokens are removed: TEI's form, and vLLM's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Direction {
    #[serde(alias = "left")]
    Left,
    #[serde(alias = "right")]
    Right,
}

fn truncate(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Whether a text that is too long is shortened: at its end, or with START at its start.",
        "enum": [true, false, "NONE", "START", "END", null],
    })
}

fn direction(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Side at which a text is shortened; right, its end, if absent.",
        "enum": ["Left", "Right", "left", "right", null],
    })
}

fn tokens_max(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Shortens each text to this number of tokens, those around it included; -1 is as many as fit.",
        "anyOf": [{"const": -1}, {"type": "integer", "minimum": 1, "maximum": i64::MAX}, {"type": "null"}],
    })
}

/// Handling of texts that are too long where the request does not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LongText {
    /// The request is refused.
    Refused,
    /// The text is cut at its end.
    Cut,
}

impl TruncationFields {
    /// Returns the room for each text of at most `n_tokens_max` tokens; `None` if longer ones are refused.
    ///
    /// Errors: `Field`.
    pub fn resolve(&self, n_tokens_max: u32, default: LongText) -> Result<Option<TextRoom>, RequestError> {
        let param = "truncate_prompt_tokens";
        let n_fit = n_tokens_max as usize;
        let n_tokens_max = match self.truncate_prompt_tokens {
            None | Some(Whole(-1)) => n_fit,
            Some(Whole(n)) => usize::try_from(n)
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| RequestError::field(param, format!("`{param}` must be at least 1, or -1; it is {n}")))?
                .min(n_fit),
        };
        let of_direction = if self.truncation_direction == Some(Direction::Left) { CutEnd::Start } else { CutEnd::End };
        let cut_end = match self.truncate {
            Some(Truncate::Switch(true)) => Some(of_direction),
            Some(Truncate::Mode(Mode::Start)) => Some(CutEnd::Start),
            Some(Truncate::Mode(Mode::End)) => Some(CutEnd::End),
            Some(Truncate::Switch(false) | Truncate::Mode(Mode::None)) if self.truncate_prompt_tokens.is_some() => {
                return Err(RequestError::field(param, format!("`{param}` cannot be used with `truncate` off")));
            }
            Some(Truncate::Switch(false) | Truncate::Mode(Mode::None)) => None,
            None => (default == LongText::Cut || self.truncate_prompt_tokens.is_some()).then_some(of_direction),
        };
        Ok(cut_end.map(|cut_end| TextRoom { n_tokens_max, n_document_max: usize::MAX, cut_end }))
    }
}

/// Texts of a request, and how many of them were shortened.
#[derive(Debug, Default)]
pub struct FittedTexts {
    /// Tokens of each text.
    pub texts: Vec<Vec<Token>>,
    /// Number of texts that were shortened.
    pub n_cut: usize,
}

impl FittedTexts {
    /// Adds a text.
    pub fn push(&mut self, text: FittedText) {
        self.texts.push(text.tokens);
        self.n_cut += usize::from(text.is_cut);
    }
}

/// Reports the number of shortened texts in a header, if there are any.
pub fn tell_cut(response: &mut Response, n_cut: usize) {
    if n_cut > 0 {
        let name = HeaderName::from_static(headers::TRUNCATED_TEXTS);
        response.headers_mut().insert(name, HeaderValue::from(n_cut));
    }
}
