//! Headers of event streams that keep proxies from buffering or changing events.
//!
//! The events come from the callers.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

/// Media type of event streams.
pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/event-stream");

/// Adds headers that keep proxies from buffering or changing a streamed response.
///
/// Source: nginx's `proxy_buffering` ("X-Accel-Buffering"); RFC 9111, sections 5.2.2.4 and 5.2.2.6: proxies that
/// compress, and buffer to do so, leave responses marked `no-transform` alone.
pub fn keep_flowing(headers: &mut HeaderMap) {
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
}

/// Returns whether a response with these headers is an event stream.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(CONTENT_TYPE.as_bytes())
}

/// Returns whether the bytes of a response with these headers are encoded, so that no text can be appended to them.
pub fn is_encoded(headers: &HeaderMap) -> bool {
    let is_identity = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    headers.get_all(header::CONTENT_ENCODING).iter().any(|coding| !is_identity(coding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_streams_are_recognized_by_their_type_in_any_case_and_with_parameters() {
        let check = |kind: &'static str, expected: bool| {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
            assert_eq!(is_event_stream(&headers), expected, "{kind}");
        };
        check("text/event-stream", true);
        check(" Text/Event-Stream ; charset=utf-8", true);
        check("text/event-streams", false);
        check("application/json", false);
        assert!(!is_event_stream(&HeaderMap::new()));
    }

    #[test]
    fn every_encoding_but_identity_is_one() {
        let check = |codings: &[&'static str], expected: bool| {
            let header = |coding: &&'static str| (header::CONTENT_ENCODING, HeaderValue::from_static(coding));
            assert_eq!(is_encoded(&codings.iter().map(header).collect()), expected, "{codings:?}");
        };
        check(&[], false);
        check(&["identity"], false);
        check(&["gzip"], true);
        check(&["identity", "br"], true);
        check(&["identity, gzip"], true);
    }
}
