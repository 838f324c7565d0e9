//! Reads the known fields of a JSON body; errors name the wrong field.
//!
//! Every reader deserializes only its own fields from the same bytes; unknown fields are ignored. A body with too many
//! values is refused before it is parsed, because a parsed value takes many times the memory of its text.

use memchr::memchr2;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, IgnoredAny};

/// Most values of a body: objects, lists, texts, names of fields, `true`, `false` and `null`.
///
/// Units: values. Source: a parsed value takes up to 450 bytes (an object with one field), so all take at most 118 MB.
/// A request of Claude Code with 24 tools has about 2,300, and each message about 12 more.
pub const VALUES_MAX: usize = 256 << 10;

/// Numbers in lists of numbers that count as one value. Source: own choice: while a list of tokens is read, a number
/// takes up to 96 bytes, so 1,048,576 numbers take as much as the values; prompts of so many tokens are rare.
const NUMBERS_PER_VALUE: usize = 4;

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
/// Four numbers count as one value, because numbers come in long lists, such as the tokens of a prompt.
/// Errors: `Json` if the body is not JSON; `Field` if a field of `T` is missing or has another type, or if there are
/// more than [`VALUES_MAX`] values.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ReadError> {
    check_values(body, NUMBERS_PER_VALUE)?;
    decode_object(body)
}

/// Returns the fields of `body` that `T` names, of which some are of any type (`serde_json::Value`).
///
/// Each number counts as a value, because no list of tokens is in such a body. Errors: as [`read`].
pub fn read_untyped<T: DeserializeOwned>(body: &[u8]) -> Result<T, ReadError> {
    check_values(body, 1)?;
    decode_object(body)
}

/// Returns the items of `body`, a JSON array.
///
/// Errors: as [`read`].
pub fn read_list<T: DeserializeOwned>(body: &[u8]) -> Result<Vec<T>, ReadError> {
    check_values(body, NUMBERS_PER_VALUE)?;
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

fn decode_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, ReadError> {
    // Serde also accepts an array for a struct: the fields without their names.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(ReadError::Field { param: None, reason: "the request body must be a JSON object".to_owned() });
    }
    decode(body)
}

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

/// Refuses a body with more than [`VALUES_MAX`] values, where `numbers_per_value` numbers count as one.
fn check_values(body: &[u8], numbers_per_value: usize) -> Result<(), ReadError> {
    // Every value takes at least two bytes, one of which may be a comma, so most bodies need no count.
    if body.len() / 2 < VALUES_MAX {
        return Ok(());
    }
    let counts = ValueCounts::of(body);
    if counts.n_others + counts.n_numbers / numbers_per_value <= VALUES_MAX {
        return Ok(());
    }
    let reason = format!("the request body has more than {VALUES_MAX} JSON values");
    Err(ReadError::Field { param: None, reason })
}

/// Numbers of values in a body.
#[derive(Debug, Default, PartialEq, Eq)]
struct ValueCounts {
    n_numbers: usize,
    n_others: usize,
}

impl ValueCounts {
    /// Returns the counts of a body; those of an invalid one mean nothing.
    ///
    /// Cost: O(n), without allocation.
    fn of(body: &[u8]) -> Self {
        let mut counts = Self::default();
        let mut at = 0;
        while let Some(byte) = body.get(at) {
            at += match byte {
                b'"' => {
                    let (text, rest) = body[at..].split_at(text_bytes(&body[at..]));
                    counts.n_others += if hides_values(text, rest) { VALUES_MAX + 1 } else { 1 };
                    text.len()
                }
                // Of a word, the first letter is enough: it is in none of the others.
                b'{' | b'[' | b't' | b'f' | b'n' => {
                    counts.n_others += 1;
                    1
                }
                b'-' | b'0'..=b'9' => {
                    counts.n_numbers += 1;
                    number_bytes(&body[at..])
                }
                _ => 1,
            };
        }
        counts
    }
}

/// Returns the length of the text at the start of `json`, with its quotes.
fn text_bytes(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(n_plain) = json.get(at..).and_then(|behind| memchr2(b'"', b'\\', behind)) {
        at += n_plain;
        if json[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    json.len()
}

/// Returns the length of the number at the start of `json`.
fn number_bytes(json: &[u8]) -> usize {
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    json.iter().position(|byte| !is_part(byte)).unwrap_or(json.len())
}

/// Returns whether a text, followed by `rest`, is the name of a field whose own text `serde_json::Value` parses as
/// JSON, with any number of values.
///
/// Source: serde_json's `KeyClassifier` with the feature `raw_value`, which axum enables.
fn hides_values(text: &[u8], behind: &[u8]) -> bool {
    const NAME: &str = "$serde_json::private::RawValue";
    // Escaped, each letter has up to six bytes.
    let may_be = (NAME.len()..=6 * NAME.len()).contains(&text.len().saturating_sub(2));
    may_be
        && behind.trim_ascii_start().starts_with(b":")
        && serde_json::from_slice::<String>(text).is_ok_and(|name| name == NAME)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;
    use crate::api::openai::ChatPrompt;

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

    #[test]
    fn counts_each_value_of_a_body_once() {
        let check = |body: &str, n_numbers: usize, n_others: usize| {
            assert_eq!(ValueCounts::of(body.as_bytes()), ValueCounts { n_numbers, n_others }, "{body}");
        };
        check("", 0, 0);
        check("{}", 0, 1);
        check(r#"{"a": 1, "b": [-1.5e+3, 20E-1, 0]}"#, 4, 4);
        check("[true, false, null, [], {}]", 0, 6);
        check(r#"["{[,:", "\"[1,2]\"", "\\", ""]"#, 0, 5);
        check(r#"{"a": {"b": {"c": "d"}}}"#, 0, 7);
        check(r#"["unfinished"#, 0, 2);
        check(r#"["unfinished\"#, 0, 2);
    }

    fn list_of(item: &str, n_items: usize) -> String {
        format!("{{\"list\": [{}]}}", vec![item; n_items].join(","))
    }

    #[test]
    fn refuses_a_body_with_too_many_values() {
        let check = |body: &str| {
            for error in [
                read::<Map<String, Value>>(body.as_bytes()).expect_err("too many"),
                read_untyped::<Map<String, Value>>(body.as_bytes()).expect_err("too many"),
            ] {
                assert!(matches!(&error, ReadError::Field { param: None, .. }), "{error:?}");
                assert_eq!(error.to_string(), "the request body has more than 262144 JSON values");
            }
        };
        for item in ["{}", "[]", r#"{"":0}"#, r#""""#, "null", "true", r#"[{"a": "b"}]"#] {
            check(&list_of(item, 300_000));
        }
        let error =
            read_list::<Value>(format!("[{}]", vec!["[]"; 300_000].join(",")).as_bytes()).expect_err("too many");
        assert!(matches!(error, ReadError::Field { param: None, .. }), "{error:?}");
        // Texts that serde_json would parse.
        for name in ["$serde_json::private::RawValue", "\\u0024serde_json::private::Raw\\u0056alue"] {
            check(&format!("{{\"a\": {{\"{name}\" : \"[{}]\"}}}}", vec!["[]"; 300_000].join(",")));
        }
    }

    #[test]
    fn of_numbers_and_long_texts_a_body_may_have_more() {
        #[derive(Debug, serde::Deserialize)]
        struct Tokens {
            list: Vec<u32>,
        }
        let tokens = list_of("1", 1_000_000);
        assert_eq!(read::<Tokens>(tokens.as_bytes()).expect("four count as one").list.len(), 1_000_000);
        let too_many = list_of("1", 1_100_000);
        for error in [
            read_untyped::<Map<String, Value>>(tokens.as_bytes()).expect_err("each counts"),
            read::<Tokens>(too_many.as_bytes()).expect_err("too many"),
            read_list::<u32>(format!("[{}]", vec!["1"; 1_100_000].join(",")).as_bytes()).expect_err("too many"),
        ] {
            assert!(matches!(error, ReadError::Field { param: None, .. }), "{error:?}");
        }

        let n_parts = (16 << 20) / 12;
        let body = format!("{{\"text\": \"{}\"}}", r#"[{},\"a\":0]"#.repeat(n_parts));
        let fields = read_untyped::<Map<String, Value>>(body.as_bytes()).expect("one text");
        assert_eq!(fields["text"].as_str().map(str::len), Some(n_parts * 10));
    }
}
