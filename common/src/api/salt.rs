//! The cache salt of a request in headers and bodies: which bytes are a salt, and which are rejected.
//!
//! A salt that cannot be read must never count as no salt, since two tenants would then share their prefixes. So
//! reading it returns a salt, its absence or an error, in router and worker alike.

use serde::{Deserialize, Deserializer};

use crate::protocol::headers::CACHE_SALT;

/// Reason why a request's salt cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SaltError {
    /// The header occurs several times, so it is not clear which line counts.
    #[error("the header `{CACHE_SALT}` must be given once")]
    Several,
    /// The bytes are not UTF-8.
    #[error("the header `{CACHE_SALT}` must be UTF-8")]
    NotUtf8,
    /// The salt is empty, which would count as no salt.
    #[error("the header `{CACHE_SALT}` must not be empty: leave it out to have no salt")]
    Empty,
}

/// Returns the salt in the lines of the header [`CACHE_SALT`]; `None` if there is no line.
///
/// Errors: every [`SaltError`].
pub fn of_header<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<String>, SaltError> {
    let mut lines = lines.into_iter();
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(SaltError::Several);
    }
    let salt = std::str::from_utf8(line).map_err(|_| SaltError::NotUtf8)?;
    if salt.is_empty() { Err(SaltError::Empty) } else { Ok(Some(salt.to_owned())) }
}

/// Reads the salt of a body: a non-empty text, or `null` for none.
///
/// Source: vLLM refuses an empty `cache_salt`, too.
pub fn of_body<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let salt = Option::<String>::deserialize(deserializer)?;
    if salt.as_ref().is_some_and(String::is_empty) {
        return Err(serde::de::Error::custom("it must not be empty: leave it out to have no salt"));
    }
    Ok(salt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::openai::ChatPrompt;
    use crate::json::fields::{self, ReadError};

    #[test]
    fn a_salt_in_a_header_is_read_or_refused_and_never_lost() {
        let check = |lines: &[&[u8]], expected| assert_eq!(of_header(lines.iter().copied()), expected, "{lines:?}");
        check(&[], Ok(None));
        for text in ["a", "z\u{fc}rich", "\u{65e5}\u{672c}", "a b"] {
            check(&[text.as_bytes()], Ok(Some(text.to_owned())));
        }
        check(&[b"z\xfcrich"], Err(SaltError::NotUtf8));
        check(&[b""], Err(SaltError::Empty));
        check(&[b"a", b"a"], Err(SaltError::Several));
        check(&[b"a", b"\xff"], Err(SaltError::Several));
    }

    #[test]
    fn a_salt_in_a_body_is_a_text_or_absent() {
        let read =
            |salt: &str| fields::read::<ChatPrompt>(format!("{{\"messages\": [], \"cache_salt\": {salt}}}").as_bytes());
        assert_eq!(read("\"z\\u00fcrich\"").expect("a salt").cache_salt.as_deref(), Some("z\u{fc}rich"));
        assert_eq!(read("null").expect("none").cache_salt, None);
        for wrong in ["\"\"", "5", "[\"a\"]", "{}", "false"] {
            let error = read(wrong).expect_err(wrong);
            let ReadError::Field { param, .. } = &error else { panic!("{wrong}: {error:?}") };
            assert_eq!(param.as_deref(), Some("cache_salt"), "{wrong}: {error}");
        }
        let twice = fields::read::<ChatPrompt>(br#"{"messages": [], "cache_salt": "a", "cache_salt": "b"}"#);
        assert!(twice.is_err(), "{twice:?}");
    }
}
