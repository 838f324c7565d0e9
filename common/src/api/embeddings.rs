//! The texts of an embedding request, in every shape that OpenAI and llama-server accept.
//!
//! Tokenizing is in `warmpath-prompt`; the prompts of completions, whose shapes are shared, are in `prompts`.

use serde_json::Value;

use crate::api::prompts::{PromptField, RawPrompt};

/// Reason why an `input` cannot be embedded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnusableInput {
    /// It has none of the supported shapes.
    #[error("`{param}` must be a string, an array of strings, an array of token ids or an array of such arrays")]
    Shape {
        /// Path of the field.
        param: String,
    },
    /// It has parts that are not text.
    #[error("`{param}` has parts that are not text; media are not supported")]
    Media {
        /// Path of the field.
        param: String,
    },
    /// It is an empty array.
    #[error("`{param}` must not be empty")]
    Empty {
        /// Path of the field.
        param: String,
    },
}

impl UnusableInput {
    /// Returns the field that caused the error.
    pub fn param(&self) -> &str {
        let (Self::Shape { param } | Self::Media { param } | Self::Empty { param }) = self;
        param
    }
}

/// Texts of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputTexts {
    /// The texts, at least one.
    pub texts: Vec<RawPrompt>,
    /// Whether they were given as a list, so that each has an index.
    pub is_list: bool,
}

impl InputTexts {
    /// Returns the texts in the field `param`.
    ///
    /// Errors: every [`UnusableInput`].
    pub fn read(mut field: Value, param: &str) -> Result<Self, UnusableInput> {
        let param_at = |idx: Option<usize>| idx.map_or_else(|| param.to_owned(), |idx| format!("{param}[{idx}]"));
        if field.as_array().is_some_and(Vec::is_empty) {
            return Err(UnusableInput::Empty { param: param_at(None) });
        }
        match &mut field {
            Value::Array(items) => {
                for (idx, item) in items.iter_mut().enumerate() {
                    join_parts(item).map_err(|NoText| UnusableInput::Media { param: param_at(Some(idx)) })?;
                }
            }
            other => join_parts(other).map_err(|NoText| UnusableInput::Media { param: param_at(None) })?,
        }
        let is_list =
            field.as_array().is_some_and(|items| items.iter().any(|item| !item.is_number())) && !is_mixed(&field);
        let shape = |_| UnusableInput::Shape { param: param_at(None) };
        let field: PromptField = serde_json::from_value(field).map_err(shape)?;
        let texts = field.into_prompts();
        match texts.iter().position(|text| matches!(text, RawPrompt::Media(_))) {
            Some(idx) => Err(UnusableInput::Media { param: param_at(is_list.then_some(idx)) }),
            None => Ok(Self { texts, is_list }),
        }
    }
}

/// Error: a content has a part that is not text.
struct NoText;

/// Replaces OpenAI's content parts by their concatenated text.
fn join_parts(item: &mut Value) -> Result<(), NoText> {
    let Some(content) = item.as_object_mut().and_then(|object| object.remove("content")) else { return Ok(()) };
    let parts = content.as_array().ok_or(NoText)?;
    let text = |part: &Value| (part["type"] == "text").then(|| part["text"].as_str().map(str::to_owned)).flatten();
    let text: Option<String> = parts.iter().map(text).collect();
    *item = Value::String(text.ok_or(NoText)?);
    Ok(())
}

/// Returns whether a list is a single text made of tokens and texts.
fn is_mixed(field: &Value) -> bool {
    field.as_array().is_some_and(|items| items.iter().any(Value::is_number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(text: &str) -> RawPrompt {
        RawPrompt::Text(text.to_owned())
    }

    fn read(field: &Value) -> InputTexts {
        InputTexts::read(field.clone(), "input").unwrap_or_else(|error| panic!("{field}: {error}"))
    }

    fn check_list(field: Value, expected: &[RawPrompt]) {
        let inputs = read(&field);
        assert_eq!((inputs.texts.as_slice(), inputs.is_list), (expected, true), "{field}");
    }

    fn check_one(field: Value, expected: RawPrompt) {
        let inputs = read(&field);
        assert_eq!((inputs.texts.as_slice(), inputs.is_list), (&[expected][..], false), "{field}");
    }

    #[test]
    fn every_shape_of_texts_is_understood() {
        let tokens = || RawPrompt::Tokens(vec![1, 2]);
        check_one(json!("a"), text("a"));
        check_list(json!(["a", "b"]), &[text("a"), text("b")]);
        check_one(json!([1, 2]), tokens());
        check_list(json!([[1, 2], [1, 2]]), &[tokens(), tokens()]);
        check_list(json!(["a", [1, 2]]), &[text("a"), tokens()]);
        check_one(json!({"prompt_string": "a"}), text("a"));
        let parts = json!({"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]});
        check_one(parts.clone(), text("a b"));
        check_list(json!(["c", parts, {"prompt_string": "d"}]), &[text("c"), text("a b"), text("d")]);
    }

    #[test]
    fn errors_name_the_input_that_cannot_be_embedded() {
        let refused = |field: Value| InputTexts::read(field, "input").expect_err("it cannot be embedded");
        let param = |field: Value| refused(field).param().to_owned();
        assert_eq!(refused(json!([])).to_string(), "`input` must not be empty");
        let image = json!({"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]});
        assert_eq!(param(image.clone()), "input");
        assert_eq!(param(json!(["a", image])), "input[1]");
        let media = json!({"prompt_string": "a", "multimodal_data": ["x"]});
        assert_eq!((param(media.clone()), param(json!(["a", media]))), ("input".to_owned(), "input[1]".to_owned()));
        for wrong in [json!(1), json!(null), json!({"content": "a"}), json!([null]), json!([-1]), json!([1.5])] {
            assert_eq!(param(wrong.clone()), "input", "{wrong}");
        }
    }
}
