//! What a client presents for a key, whichever dialect it speaks.
//!
//! Not here: whether the key is known.

use axum::http::{HeaderMap, HeaderValue, header};

/// Is the header in which Anthropic's clients send their key.
pub const API_KEY: &str = "x-api-key";

/// Is what stands before a key in the header `authorization`.
const BEARER: &str = "bearer ";

/// Returns the key that a request presents: a bearer's, or Anthropic's.
pub fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    match headers.get(header::AUTHORIZATION) {
        Some(value) => {
            let (scheme, key) = value.as_bytes().split_at_checked(BEARER.len())?;
            scheme.eq_ignore_ascii_case(BEARER.as_bytes()).then_some(key)
        }
        None => headers.get(API_KEY).map(HeaderValue::as_bytes),
    }
}

/// Removes from a request what it presents for a key.
pub fn strip(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
    headers.remove(API_KEY);
}
