//! Reads the known fields of a JSON body, and names the field that is wrong.
//!
//! Meanings and status codes are decided elsewhere. Every reader deserializes its own fields from the same bytes, so
//! unknown fields cost nothing and break nothing.

use serde::de::DeserializeOwned;

/// Reason why the fields of a body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The body is not JSON.
    #[error("the request body is not valid JSON: {reason}")]
    Json {
        /// Message of the parser, with line and column.
        reason: String,
    },
    /// A field is missing or has a wrong type or value.
    #[error("{reason}")]
    Field {
        /// Path of the field; absent where the body as a whole is wrong.
        param: Option<String>,
        /// What is wrong with it.
        reason: String,
    },
}

/// Returns the fields of `body` that `T` names.
///
/// Errors: `Json` where the body is not JSON; `Field` where a field of `T` is missing or has another type.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ReadError> {
    // Serde accepts an array for a struct, as its fields without names.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(ReadError::Field { param: None, reason: "the request body must be a JSON object".to_owned() });
    }
    decode(body)
}

/// Returns the items of `body`, a JSON array.
///
/// Errors: as [`read`].
pub fn read_list<T: DeserializeOwned>(body: &[u8]) -> Result<Vec<T>, ReadError> {
    decode(body)
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, ReadError> {
    // Tracking the path to a field takes time, and only errors need it.
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(refuse)?;
    deserializer.end().map_err(|error| ReadError::Json { reason: error.to_string() })?;
    Ok(value)
}

fn refuse(error: serde_path_to_error::Error<serde_json::Error>) -> ReadError {
    let path = error.path().to_string();
    let inner = error.into_inner();
    if !inner.is_data() {
        return ReadError::Json { reason: inner.to_string() };
    }
    // A path of "." is the body itself, for example when a field is missing.
    if path == "." {
        return ReadError::Field { param: missing_field(&inner), reason: inner.to_string() };
    }
    let reason = format!("`{path}`: {inner}");
    ReadError::Field { param: Some(path), reason }
}

/// Returns the field that serde reports as missing; the error has the name only in its text.
fn missing_field(error: &serde_json::Error) -> Option<String> {
    let text = error.to_string();
    let (_, rest) = text.split_once("missing field `")?;
    rest.split_once('`').map(|(field, _)| field.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::ChatPrompt;

    #[test]
    fn names_the_field_that_is_missing_or_wrong() {
        let check = |body: &str, expected: Option<&str>| match read::<ChatPrompt>(body.as_bytes()) {
            Err(ReadError::Field { param, .. }) => assert_eq!(param.as_deref(), expected, "{body}"),
            other => panic!("{body}: {other:?}"),
        };
        check("{}", Some("messages"));
        check("{\"messages\": [{}, 5]}", Some("messages[1]"));
        check("{\"messages\": [], \"model\": 5}", Some("model"));
        check("[]", None);
        check(" [null, [{}]]", None);
    }

    #[test]
    fn tells_what_is_not_json_apart() {
        for body in ["", "{", "{\"messages\": []} x", "\u{1}"] {
            let error = read::<ChatPrompt>(body.as_bytes()).expect_err(body);
            assert!(matches!(error, ReadError::Json { .. }), "{body}: {error:?}");
        }
    }
}
