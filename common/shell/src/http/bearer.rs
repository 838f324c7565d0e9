//! The key that a client presents, in each dialect.
//!
//! Not here: whether a key is valid (the callers).

use axum::http::{HeaderMap, header};

/// Header in which Anthropic's clients send their key.
pub const API_KEY: &str = "x-api-key";

/// Prefix of a key in the header `authorization`.
const BEARER: &str = "bearer ";

/// Returns the key that a request presents: the bearer token, or Anthropic's header if there is no `authorization`;
/// `None` if one of these headers occurs more than once.
pub fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let mut bearers = headers.get_all(header::AUTHORIZATION).iter();
    let mut keys = headers.get_all(API_KEY).iter();
    // If a header is repeated, a proxy in front of this server may have checked another one of its lines.
    match (bearers.next(), bearers.next(), keys.next(), keys.next()) {
        (Some(value), None, ..) => {
            let (scheme, key) = value.as_bytes().split_at_checked(BEARER.len())?;
            scheme.eq_ignore_ascii_case(BEARER.as_bytes()).then_some(key)
        }
        (None, None, Some(key), None) => Some(key.as_bytes()),
        _ => None,
    }
}

/// Removes the headers with the presented key from a request.
pub fn strip(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
    headers.remove(API_KEY);
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn check(lines: &[(&str, &[u8])], expected: Option<&[u8]>) {
        let line = |(name, value): &(&str, &[u8])| {
            (HeaderName::from_bytes(name.as_bytes()).expect("a name"), HeaderValue::from_bytes(value).expect("a value"))
        };
        assert_eq!(presented(&lines.iter().map(line).collect()), expected, "{lines:?}");
    }

    #[test]
    fn a_key_is_presented_once_and_byte_by_byte() {
        check(&[], None);
        check(&[("authorization", b"bEaReR a")], Some(b"a"));
        check(&[("authorization", b"Bearer \xff")], Some(b"\xff"));
        check(&[("authorization", b"Basic a")], None);
        check(&[("authorization", b"a")], None);
        check(&[("x-api-key", b"a")], Some(b"a"));
        check(&[("authorization", b"Bearer a"), ("x-api-key", b"b")], Some(b"a"));
        check(&[("authorization", b"Basic a"), ("x-api-key", b"b")], None);
        check(&[("authorization", b"Bearer a"), ("authorization", b"Bearer a")], None);
        check(&[("x-api-key", b"a"), ("x-api-key", b"b")], None);
    }
}
