//! Reads the known fields of a JSON body; errors name the wrong field.
//!
//! Not here: the meaning of the fields, and status codes. Every reader deserializes only its own fields from the same
//! bytes; unknown fields are ignored.

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, IgnoredAny};

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
        /// Path of the field; `None` if the body as a whole is wrong.
        param: Option<String>,
        /// Description of the error.
        reason: String,
    },
}

/// Returns the fields of `body` that `T` names.
///
/// Errors: `Json` if the body is not JSON; `Field` if a field of `T` is missing or has another type.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ReadError> {
    // Serde also accepts an array for a struct: the fields without their names.
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

/// Reads a part of a body that is flattened into the type of the whole: `#[serde(flatten, deserialize_with = "part")]`.
///
/// Without it an error in the part would not name its field, since serde buffers the fields of such parts until it has
/// read the other fields.
pub fn part<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    serde_path_to_error::deserialize(deserializer).map_err(|error| match error.path().to_string().as_str() {
        WHOLE => error.into_inner(),
        path => D::Error::custom(format_args!("`{path}`: {}", error.inner())),
    })
}

/// Path of the body itself, for example if a field is missing.
const WHOLE: &str = ".";

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, ReadError> {
    // Tracking the path to a field takes time, and only errors need it.
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    // Invalid JSON is reported before a wrong field.
    serde_json::from_slice::<IgnoredAny>(body).map_err(|error| ReadError::Json { reason: error.to_string() })?;
    serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(body)).map_err(refuse)
}

fn refuse(error: serde_path_to_error::Error<serde_json::Error>) -> ReadError {
    let path = error.path().to_string();
    let inner = error.into_inner();
    if !inner.is_data() {
        return ReadError::Json { reason: inner.to_string() };
    }
    // The position in the message is that of the last byte read, which may be far behind a field of a flattened part.
    let text = inner.to_string();
    let place = format!(" at line {} column {}", inner.line(), inner.column());
    let reason = text.strip_suffix(&place).unwrap_or(&text).to_owned();
    let is_null = reason.starts_with("invalid type: null") && !path.contains(['.', '[']);
    let (param, reason) = match (path.as_str(), missing_field(&reason)) {
        (WHOLE, Some(field)) => (Some(field.to_owned()), format!("`{field}` is missing")),
        (WHOLE, None) => (field_of_part(&reason).map(str::to_owned), reason),
        (field, _) if is_null => (Some(field.to_owned()), format!("`{field}` is missing")),
        (field, _) => (Some(field.to_owned()), format!("`{field}`: {reason}")),
    };
    ReadError::Field { param, reason }
}

/// Returns the field that serde reports as missing; the error has the name only in its text.
fn missing_field(reason: &str) -> Option<&str> {
    reason.strip_prefix("missing field `")?.strip_suffix('`')
}

/// Returns the field that [`part`] reports as wrong.
fn field_of_part(reason: &str) -> Option<&str> {
    let (field, _) = reason.strip_prefix('`')?.split_once("`: ")?;
    Some(field)
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
    fn names_a_field_of_a_flattened_part() {
        #[derive(Debug, serde::Deserialize)]
        struct Whole {
            first: Vec<u8>,
            #[serde(flatten, deserialize_with = "part")]
            outer: Outer,
        }
        #[derive(Debug, Default, serde::Deserialize)]
        #[serde(default)]
        struct Outer {
            second: Option<Vec<u8>>,
            #[serde(flatten, deserialize_with = "part")]
            inner: Inner,
        }
        #[derive(Debug, Default, serde::Deserialize)]
        #[serde(default)]
        struct Inner {
            #[serde(alias = "other")]
            third: Option<Vec<f32>>,
        }
        let whole: Whole = read(br#"{"other": [0.5], "second": [2], "first": [1], "else": {}}"#).expect("it fits");
        assert_eq!((whole.first, whole.outer.second), (vec![1], Some(vec![2])));
        assert_eq!(whole.outer.inner.third, Some(vec![0.5]));
        let check = |body: &str, expected: Option<&str>, says: &str| match read::<Whole>(body.as_bytes()) {
            Err(ReadError::Field { param, reason }) => {
                assert_eq!((param.as_deref(), reason.as_str()), (expected, says), "{body}");
            }
            other => panic!("{body}: {other:?}"),
        };
        check("{\"second\": [1]}", Some("first"), "`first` is missing");
        check("{\"first\": null}", Some("first"), "`first` is missing");
        let wrong = "invalid type: string \"x\", expected u8";
        check("{\"first\": [1, \"x\"]}", Some("first[1]"), &format!("`first[1]`: {wrong}"));
        check("{\"first\": [], \"second\": [1, \"x\"]}", Some("second[1]"), &format!("`second[1]`: {wrong}"));
        let wrong = "invalid type: string \"x\", expected f32";
        check("{\"first\": [], \"third\": [\"x\"]}", Some("third[0]"), &format!("`third[0]`: {wrong}"));
        check("{\"first\": [], \"third\": null, \"other\": null}", None, "duplicate field `third`");
        check("{\"first\": [], \"second\": null, \"second\": null}", None, "duplicate field `second`");
    }

    #[test]
    fn distinguishes_bodies_that_are_not_json() {
        for body in ["", "{", "{\"messages\": []} x", "{} {}", "\u{1}"] {
            let error = read::<ChatPrompt>(body.as_bytes()).expect_err(body);
            assert!(matches!(error, ReadError::Json { .. }), "{body}: {error:?}");
        }
    }
}
