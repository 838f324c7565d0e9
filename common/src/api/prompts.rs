//! The prompts of completions, in every shape that OpenAI and llama-server accept, and prompts with a gap to fill.
//!
//! Chats are in `openai`, tokenizing in `warmpath-prompt`. The field `prompt` of a body has many shapes and means one
//! or several prompts; the rest of the program sees only these.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ids::Token;
use crate::json::whole::Whole;

/// `prompt` of a completion request in each of its forms.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a string, an array of strings, an array of token ids or an array of such arrays")]
pub enum PromptField {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// One prompt in tokens.
    Tokens(Vec<Whole<Token>>),
    /// Several prompts in tokens.
    TokenLists(Vec<Vec<Whole<Token>>>),
    /// One prompt of tokens and texts.
    Mixed(Vec<PromptPart>),
    /// One text as llama-server's object, with media or without.
    Object(PromptObject),
    /// Several prompts in different shapes.
    Several(Vec<PromptItem>),
}

/// One of several prompts.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PromptItem {
    /// A text.
    Text(String),
    /// Tokens.
    Tokens(Vec<Whole<Token>>),
    /// Tokens and texts.
    Mixed(Vec<PromptPart>),
    /// A text as llama-server's object, with media or without.
    Object(PromptObject),
}

/// llama-server's object for a prompt: a text, and the images and audio at its marks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct PromptObject {
    prompt_string: String,
    multimodal_data: Vec<String>,
}

impl JsonSchema for PromptObject {
    fn schema_name() -> Cow<'static, str> {
        "PromptObject".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "llama-server's object for a prompt: a text, and a file in base64 for each `<__media__>`.",
            "type": "object",
            "properties": {
                "prompt_string": {"type": "string"},
                "multimodal_data": {"type": ["array", "null"], "items": {"type": "string"}},
            },
            "required": ["prompt_string"],
        })
    }
}

impl TryFrom<Map<String, Value>> for PromptObject {
    type Error = &'static str;

    fn try_from(mut fields: Map<String, Value>) -> Result<Self, &'static str> {
        let Some(Value::String(prompt_string)) = fields.remove("prompt_string") else {
            return Err("the object has no field `prompt_string` with a text");
        };
        let wrong = "the object's field `multimodal_data` must be an array of texts in base64";
        let multimodal_data = match fields.remove("multimodal_data") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(media)) => {
                let text = |one| if let Value::String(text) = one { Ok(text) } else { Err(wrong) };
                media.into_iter().map(text).collect::<Result<_, _>>()?
            }
            Some(_) => return Err(wrong),
        };
        Ok(Self { prompt_string, multimodal_data })
    }
}

/// Part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PromptPart {
    /// A token.
    Token(Whole<Token>),
    /// A text.
    Text(String),
}

/// Text in a [`MediaPrompt`] that marks the place of an image or audio. Source: llama.cpp's `mtmd_default_marker`.
///
/// llama-server's is random by default, so that no text of a user is one by chance. Here it is fixed, because the
/// workers of a router must agree on it; a chat needs none.
pub const MEDIA_MARKER: &str = "<__media__>";

/// A text with images and audio in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaPrompt {
    /// Text, with a [`MEDIA_MARKER`] in the place of each.
    pub text: String,
    /// Files of the images and audio in base64, in their order; at least one.
    pub media: Vec<String>,
}

/// One prompt that is not a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawPrompt {
    /// A text.
    Text(String),
    /// Tokens.
    Tokens(Vec<Token>),
    /// Tokens and texts, concatenated.
    Mixed(Vec<PromptPart>),
    /// A text with images and audio.
    Media(MediaPrompt),
    /// A gap between two texts.
    Infill(InfillPrompt),
}

/// Error: there is a text after the gap, but the part before it is not a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`suffix` needs a `prompt` of text")]
pub struct SuffixOfTokens;

impl SuffixOfTokens {
    /// Field that is wrong.
    pub const PARAM: &str = "suffix";
}

/// The part of a completion request that decides its prompts and its routing.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct CompletionPrompt {
    /// One prompt or several.
    pub prompt: PromptField,
    /// Text after the response; an empty one counts as absent.
    pub suffix: Option<String>,
}

impl CompletionPrompt {
    /// Returns the request's prompts in order; an empty array means one empty prompt.
    ///
    /// Errors: [`SuffixOfTokens`].
    pub fn into_prompts(self) -> Result<Vec<RawPrompt>, SuffixOfTokens> {
        let prompts = self.prompt.into_prompts();
        let Some(suffix) = self.suffix.filter(|suffix| !suffix.is_empty()) else { return Ok(prompts) };
        let before = |prompt: RawPrompt| match prompt {
            RawPrompt::Text(input_prefix) => Ok(RawPrompt::Infill(InfillPrompt {
                input_prefix,
                input_suffix: suffix.clone(),
                ..InfillPrompt::default()
            })),
            _ => Err(SuffixOfTokens),
        };
        prompts.into_iter().map(before).collect()
    }
}

impl PromptField {
    /// Returns the field's prompts in order; an empty array means one empty prompt.
    pub fn into_prompts(self) -> Vec<RawPrompt> {
        match self {
            Self::Text(text) => vec![RawPrompt::Text(text)],
            Self::Texts(texts) if texts.is_empty() => vec![RawPrompt::Tokens(Vec::new())],
            Self::Texts(texts) => texts.into_iter().map(RawPrompt::Text).collect(),
            Self::Tokens(tokens) => vec![tokens_prompt(tokens)],
            Self::TokenLists(lists) => lists.into_iter().map(tokens_prompt).collect(),
            Self::Mixed(parts) => vec![RawPrompt::Mixed(parts)],
            Self::Object(object) => vec![object.into_prompt()],
            Self::Several(items) => items.into_iter().map(PromptItem::into_prompt).collect(),
        }
    }
}

impl PromptItem {
    fn into_prompt(self) -> RawPrompt {
        match self {
            Self::Text(text) => RawPrompt::Text(text),
            Self::Tokens(tokens) => tokens_prompt(tokens),
            Self::Mixed(parts) => RawPrompt::Mixed(parts),
            Self::Object(object) => object.into_prompt(),
        }
    }
}

fn tokens_prompt(tokens: Vec<Whole<Token>>) -> RawPrompt {
    RawPrompt::Tokens(tokens.into_iter().map(|Whole(token)| token).collect())
}

impl PromptObject {
    fn into_prompt(self) -> RawPrompt {
        let Self { prompt_string: text, multimodal_data: media } = self;
        if media.is_empty() { RawPrompt::Text(text) } else { RawPrompt::Media(MediaPrompt { text, media }) }
    }
}

impl RawPrompt {
    /// Returns the approximate length of the prompt, for comparisons. Units: bytes.
    pub fn n_bytes(&self) -> usize {
        let of_part = |part: &PromptPart| match part {
            PromptPart::Token(_) => size_of::<Token>(),
            PromptPart::Text(text) => text.len(),
        };
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(tokens) => size_of_val(tokens.as_slice()),
            Self::Mixed(parts) => parts.iter().map(of_part).sum(),
            Self::Media(MediaPrompt { text, media }) => text.len() + media.iter().map(String::len).sum::<usize>(),
            Self::Infill(infill) => infill.input_prefix.len() + infill.input_suffix.len(),
        }
    }
}

/// A request to fill the gap between two texts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, JsonSchema)]
pub struct InfillPrompt {
    /// Text before the gap.
    pub input_prefix: String,
    /// Text after the gap.
    pub input_suffix: String,
    /// Texts from other places that may help, the most important one last.
    #[serde(default)]
    pub input_extra: Vec<ExtraText>,
    /// Known start of the gap's text.
    #[serde(default)]
    pub prompt: String,
    /// Most tokens of the response.
    pub max_completion_tokens: Option<Whole<i64>>,
    /// The same limit; the first of the three fields that is set counts.
    pub max_tokens: Option<Whole<i64>>,
    /// The same limit.
    pub n_predict: Option<Whole<i64>>,
}

impl InfillPrompt {
    /// Returns the number of output tokens to reserve room for; 0 if the request sets no limit.
    pub fn answer_tokens(&self) -> usize {
        let n = self.max_completion_tokens.or(self.max_tokens).or(self.n_predict);
        n.and_then(|Whole(n)| usize::try_from(n).ok()).unwrap_or(0)
    }
}

/// A text from another place.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct ExtraText {
    /// The text.
    pub text: String,
    /// Name of the file that it is from.
    pub filename: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(field: &str, expected: &[RawPrompt]) {
        let parsed: PromptField = serde_json::from_str(field).expect(field);
        assert_eq!(parsed.into_prompts(), expected, "{field}");
    }

    fn text(text: &str) -> RawPrompt {
        RawPrompt::Text(text.to_owned())
    }

    #[test]
    fn every_shape_of_a_prompt_is_understood() {
        let tokens = RawPrompt::Tokens(vec![1, 2]);
        let mixed = RawPrompt::Mixed(vec![PromptPart::Token(Whole(1)), PromptPart::Text("a".to_owned())]);
        check(r#""a""#, &[text("a")]);
        check(r#"["a", "b"]"#, &[text("a"), text("b")]);
        check("[1, 2]", std::slice::from_ref(&tokens));
        check("[1.0, 2e0]", std::slice::from_ref(&tokens));
        check("[[1, 2], [1, 2]]", &[tokens.clone(), tokens.clone()]);
        check(r#"[1, "a"]"#, std::slice::from_ref(&mixed));
        check(r#"[1.0, "a"]"#, std::slice::from_ref(&mixed));
        check(r#"{"prompt_string": "a"}"#, &[text("a")]);
        check(r#"{"prompt_string": "a", "multimodal_data": []}"#, &[text("a")]);
        check(r#"[[1, 2], "a", {"prompt_string": "b"}, [1, "a"]]"#, &[tokens, text("a"), text("b"), mixed]);
        check(r#"["a", {"prompt_string": "b"}]"#, &[text("a"), text("b")]);
        let media = MediaPrompt { text: "a".to_owned(), media: vec!["x".to_owned()] };
        let media = RawPrompt::Media(media);
        check(r#"{"prompt_string": "a", "multimodal_data": ["x"]}"#, std::slice::from_ref(&media));
        check(r#"["b", {"prompt_string": "a", "multimodal_data": ["x"]}]"#, &[text("b"), media]);
        check("[]", &[RawPrompt::Tokens(Vec::new())]);
    }

    #[test]
    fn nonsense_is_refused() {
        for field in ["1", "null", "true", r#"{"text": "a"}"#, "[1, null]", r#"[["a", [1]]]"#, "[-1]", "[1.5]"] {
            assert!(serde_json::from_str::<PromptField>(field).is_err(), "{field}");
        }
        for media in [r#""x""#, "1", "[1]", "[null]", "{}"] {
            let field = format!(r#"{{"prompt_string": "a", "multimodal_data": {media}}}"#);
            assert!(serde_json::from_str::<PromptField>(&field).is_err(), "{field}");
        }
    }

    #[test]
    fn a_suffix_makes_a_gap_of_every_text() {
        let read = |body: &str| serde_json::from_str::<CompletionPrompt>(body).expect(body).into_prompts();
        let gap = |before: &str| {
            RawPrompt::Infill(InfillPrompt {
                input_prefix: before.to_owned(),
                input_suffix: "z".to_owned(),
                ..InfillPrompt::default()
            })
        };
        assert_eq!(read(r#"{"prompt": ["a", "b"], "suffix": "z"}"#), Ok(vec![gap("a"), gap("b")]));
        assert_eq!(read(r#"{"prompt": "a", "suffix": ""}"#), Ok(vec![text("a")]));
        let media = r#"{"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}, "suffix": "z"}"#;
        for no_text in [r#"{"prompt": [1], "suffix": "z"}"#, media] {
            assert_eq!(read(no_text), Err(SuffixOfTokens));
        }
    }

    #[test]
    fn an_infill_needs_both_sides() {
        let infill: InfillPrompt =
            serde_json::from_str(r#"{"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}]}"#)
                .expect("optional fields may be left out");
        assert_eq!((infill.input_extra[0].filename.as_deref(), infill.prompt.as_str()), (None, ""));
        for wrong in [r#"{"input_prefix": "a"}"#, r#"{"input_prefix": "", "input_suffix": "", "input_extra": [{}]}"#] {
            assert!(serde_json::from_str::<InfillPrompt>(wrong).is_err(), "{wrong}");
        }
    }
}
