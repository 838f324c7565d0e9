//! The fields of a request about drafts: OpenAI's `prediction`, llama-server's `speculative.n_max` and
//! `speculative.n_min`.
//!
//! They change the speed of an answer and no token of it. Not here: drafting (`warmpath_worker_core::drafting`).

use schemars::JsonSchema;
use serde::Deserialize;
use warmpath_common::ids::Token;
use warmpath_common::whole::Whole;

use super::whole_within;
use crate::engine::DraftOptions;
use crate::error::RequestError;

/// Maximum size of a prediction; the rest of a longer one is ignored. Units: bytes.
///
/// Source: some 64,000 tokens, more than the responses of most models can have.
const PREDICTION_BYTES_MAX: usize = 256 << 10;

/// Fields about drafts.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DraftFields {
    /// Text that the response is expected to contain. It makes the response faster if the worker drafts.
    prediction: Option<Prediction>,
    /// Maximum length of a draft; 0 turns drafts off.
    #[serde(rename = "speculative.n_max")]
    #[schemars(range(min = 0, max = 2147483647))]
    n_max: Option<Whole<u32>>,
    /// Minimum length of a draft.
    #[serde(rename = "speculative.n_min")]
    #[schemars(range(min = 0, max = 2147483647))]
    n_min: Option<Whole<u32>>,
}

/// OpenAI's `prediction`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
struct Prediction {
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "there is one type, which is checked")]
    kind: PredictionKind,
    content: PredictedContent,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum PredictionKind {
    Content,
}

/// `content` in its two forms.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a string or an array of text parts")]
enum PredictedContent {
    Text(String),
    Parts(Vec<TextPart>),
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
struct TextPart {
    text: String,
}

impl DraftFields {
    /// Returns the options that the fields set.
    ///
    /// Errors: `Field`, naming the first field that is out of range.
    pub(super) fn resolve(&self, tokenize: &dyn Fn(&str) -> Vec<Token>) -> Result<DraftOptions, RequestError> {
        let n_limit = i32::MAX.unsigned_abs();
        let n_max = whole_within("speculative.n_max", self.n_max, 0..=n_limit, n_limit)?;
        let n_min = whole_within("speculative.n_min", self.n_min, 0..=n_limit, 0)?;
        let text = self.prediction.as_ref().map_or(String::new(), Prediction::text);
        let predicted_tokens = if text.is_empty() { Vec::new() } else { tokenize(&text) };
        Ok(DraftOptions {
            predicted: predicted_tokens,
            n_max: self.n_max.map(|_| n_max),
            n_min: self.n_min.map(|_| n_min),
        })
    }
}

impl Prediction {
    fn text(&self) -> String {
        let mut text = match &self.content {
            PredictedContent::Text(text) => text.clone(),
            PredictedContent::Parts(parts) => parts.iter().map(|part| part.text.as_str()).collect(),
        };
        text.truncate(text.floor_char_boundary(PREDICTION_BYTES_MAX));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(body: &str) -> Result<DraftOptions, String> {
        let fields: DraftFields = serde_json::from_str(body).map_err(|error| error.to_string())?;
        fields.resolve(&|text| text.bytes().map(Token::from).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_prediction_is_a_text_or_an_array_of_parts() {
        let predicted = |body: &str| wish(body).map(|wish| wish.predicted);
        let ab = Ok(vec![97, 98]);
        assert_eq!(predicted(r#"{"prediction": {"type": "content", "content": "ab"}}"#), ab);
        let parts = r#"[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]"#;
        assert_eq!(predicted(&format!(r#"{{"prediction": {{"type": "content", "content": {parts}}}}}"#)), ab);
        assert_eq!(predicted(r#"{"prediction": null}"#), Ok(Vec::new()));
        assert!(predicted(r#"{"prediction": {"type": "other", "content": "ab"}}"#).is_err());
        assert!(predicted(r#"{"prediction": {"type": "content", "content": 1}}"#).is_err());
        let long = "\u{e4}".repeat(PREDICTION_BYTES_MAX);
        let used =
            predicted(&format!(r#"{{"prediction": {{"type": "content", "content": "x{long}"}}}}"#)).expect("it is cut");
        assert_eq!(used.len(), PREDICTION_BYTES_MAX - 1, "the text ends between two characters");
    }

    #[test]
    fn refuses_lengths_out_of_range() {
        let lengths = |body: &str| wish(body).map(|wish| (wish.n_max, wish.n_min));
        assert_eq!(lengths("{}"), Ok((None, None)));
        assert_eq!(lengths(r#"{"speculative.n_max": 0, "speculative.n_min": 5}"#), Ok((Some(0), Some(5))));
        assert!(lengths(r#"{"speculative.n_max": -1}"#).is_err());
        assert!(lengths(r#"{"speculative.n_max": 4000000000}"#).is_err());
    }
}
