//! Headers: the client's that reach the worker, the worker's that reach the client, and the router's own.
//!
//! A client's headers are filtered first, then ours are set, so no header of a client can remove or imitate one of
//! ours. Only listed headers of a worker reach the client. Not here: their meaning (`warmpath_common::headers`).

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use warmpath_common::headers;
use warmpath_shell::bearer;
use warmpath_shell::trace::TRACEPARENT;

use super::attempt_target::AttemptTarget;
use super::partial_response::PartialResponse;
use super::request::IncomingRequest;

/// Hop-by-hop headers (RFC 9110, section 7.6.1).
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers of a client that are dropped because the router sets them itself; all that begin with [`headers::PREFIX`]
/// are dropped, too.
const SET_BY_ROUTER: &[&str] = &[
    "host",
    "expect",
    // The length is set again when a body is sent.
    "content-length",
    headers::REQUEST_ID,
];

/// Headers of a worker's response that reach clients, besides those that begin with one of [`PASSED_PREFIXES`].
///
/// Source: the headers that clients of these APIs read; `docs/security.md` lists them for operators.
const PASSED: &[&str] = &[
    "content-type",
    "content-encoding",
    "content-language",
    "cache-control",
    "retry-after",
    RETRY_AFTER_MS,
    "x-accel-buffering",
    headers::SLOT,
    headers::PROMPT_TOKENS,
    headers::CACHED_TOKENS,
    headers::LEFT_OUT_TOOLS,
    headers::LEFT_OUT_PARTS,
    headers::UNCONSTRAINED_TOOLS,
    headers::TRUNCATED_TEXTS,
    headers::ANSWER_BREAK,
];

/// Header of OpenAI's servers with the time of `Retry-After` in milliseconds, which their clients prefer.
pub(super) const RETRY_AFTER_MS: &str = "retry-after-ms";

/// Prefixes of headers with a client's remaining quota at a server.
const PASSED_PREFIXES: &[&str] = &["x-ratelimit-", "anthropic-ratelimit-"];

/// Returns a header's text, if it has one.
///
/// Not for headers that separate tenants or keys: unreadable text counts as absent.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns a header's number, if it has one.
pub(super) fn number<T: FromStr>(headers: &HeaderMap, name: &str) -> Option<T> {
    text(headers, name)?.parse().ok()
}

/// Returns the time after which a server takes requests again: that of `retry-after-ms`, or of `Retry-After`, given in
/// seconds or as a date; `None` if it is none of these.
///
/// A date is relative to the server's own clock, if the response has one. Source: RFC 9110, section 10.2.3; fractions
/// of seconds are no part of it, but clients read them.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let time = |name: &str, unit_s: f64| {
        let units: f64 = text(headers, name)?.trim().parse().ok().filter(|units: &f64| *units >= 0.0)?;
        Some(Duration::try_from_secs_f64(units * unit_s).unwrap_or(Duration::MAX))
    };
    if let Some(time) = time(RETRY_AFTER_MS, 1e-3).or_else(|| time(header::RETRY_AFTER.as_str(), 1.0)) {
        return Some(time);
    }
    let value = text(headers, header::RETRY_AFTER.as_str())?;
    let date = |value: &str| httpdate::parse_http_date(value.trim()).ok();
    let its_now = text(headers, header::DATE.as_str()).and_then(date).unwrap_or(now);
    date(value).map(|until| until.duration_since(its_now).unwrap_or_default())
}

/// Returns the headers for a worker: the client's, then the request's id, and for a Warmpath worker model, salt, tenant
/// and hints.
pub(super) fn to_worker(
    request: &IncomingRequest,
    target: &AttemptTarget,
    partial_response: Option<&PartialResponse>,
) -> HeaderMap {
    let mut headers = of_client(&request.headers);
    let is_stock = target.in_flight.is_server_request();
    // A stock server may require a key of its own.
    if !is_stock {
        bearer::strip(&mut headers);
    }
    // Events of a compressed stream cannot be read, and no error event can follow when the worker breaks off.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    set(&mut headers, headers::REQUEST_ID, request.id.as_str());
    if let Some(parent) = target.span.traceparent() {
        headers.insert(HeaderName::from_static(TRACEPARENT), parent);
    }
    if is_stock {
        return headers;
    }
    if let Some(model) = target.model {
        set(&mut headers, headers::MODEL_FINGERPRINT, &model.to_string());
    }
    if let Some(identity) = &request.identity {
        set(&mut headers, headers::JOURNAL, identity);
    }
    if let Some(partial_response) = partial_response {
        set(&mut headers, headers::JOURNAL_BYTES, &partial_response.lines.len().to_string());
        if let Some(cached_tokens) = partial_response.cached_tokens {
            set(&mut headers, headers::CACHED_TOKENS, &cached_tokens.to_string());
        }
    }
    if let Some(salt) = request.salt.header() {
        headers.insert(HeaderName::from_static(headers::CACHE_SALT), salt);
    }
    if let Some(key) = &request.key {
        set(&mut headers, headers::TENANT, key.tenant());
        set(&mut headers, headers::PRIORITY_MAX, &key.priority_max().to_string());
    }
    if let Some(slot) = target.decision.slot {
        set(&mut headers, headers::SLOT, &slot.to_string());
    }
    if let Some(block) = target.decision.expected_block {
        set(&mut headers, headers::EXPECTED_BLOCK, &block.to_string());
    }
    if let Some(predicted_tokens) = target.predicted_cached_tokens {
        set(&mut headers, headers::PREDICTED_CACHED_TOKENS, &predicted_tokens.to_string());
    }
    if let Some(peer) = &target.kv_peer {
        set(&mut headers, headers::KV_PEER, peer);
    }
    headers
}

/// Returns the headers of a client that are passed on.
fn of_client(headers: &HeaderMap) -> HeaderMap {
    end_to_end(headers, |name| !name.starts_with(headers::PREFIX) && !SET_BY_ROUTER.contains(&name))
}

/// Returns the headers of a worker that reach the client.
pub(super) fn to_client(headers: &HeaderMap) -> HeaderMap {
    let is_passed =
        |name: &str| PASSED.contains(&name) || PASSED_PREFIXES.iter().any(|beginning| name.starts_with(beginning));
    end_to_end(headers, is_passed)
}

/// Adds the router's headers about its target.
pub(super) fn describe(headers: &mut HeaderMap, target: &AttemptTarget, worker: &str) {
    set(headers, headers::WORKER, worker);
    set(headers, headers::ROUTE, &target.decision.reason.to_string());
    if let Some(predicted_tokens) = target.predicted_cached_tokens {
        set(headers, headers::PREDICTED_CACHED_TOKENS, &predicted_tokens.to_string());
    }
}

/// Returns the `wanted` headers that are not hop-by-hop.
fn end_to_end(headers: &HeaderMap, is_passed: impl Fn(&str) -> bool) -> HeaderMap {
    // Headers named by `Connection` are hop-by-hop, too. Its value is read as bytes, so that an invalid name does not
    // hide the others.
    let named_by_connection =
        headers.get_all(header::CONNECTION).iter().flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    let named_by_connection: Vec<HeaderName> =
        named_by_connection.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect();
    let goes_on = |name: &HeaderName| {
        is_passed(name.as_str()) && !HOP_BY_HOP.contains(&name.as_str()) && !named_by_connection.contains(name)
    };
    headers.iter().filter(|(name, _)| goes_on(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Sets a header, if the text is a valid value.
pub(super) fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&str, &[u8])]) -> HeaderMap {
        let line = |(name, value): &(&str, &[u8])| {
            (HeaderName::from_bytes(name.as_bytes()).expect("a name"), HeaderValue::from_bytes(value).expect("a value"))
        };
        lines.iter().map(line).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn internal_and_connection_headers_of_clients_are_not_passed_on() {
        let headers = map(&[
            ("accept", b"*/*"),
            ("accept", b"text/plain"),
            ("x-warmpath-cache-salt", b"a"),
            ("x-warmpath-slot", b"1"),
            ("x-warmpath-anything", b"1"),
            ("x-request-id", b"r"),
            ("host", b"h"),
            ("content-length", b"2"),
            ("connection", b"close, x-hop"),
            ("connection", b"\xff, x-other ,,"),
            ("x-hop", b"1"),
            ("x-other", b"1"),
            ("te", b"trailers"),
            ("upgrade", b"websocket"),
            ("x-kept", b"\xff"),
        ]);
        assert_eq!(names(&of_client(&headers)), ["accept", "accept", "x-kept"]);
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let noon = httpdate::parse_http_date("Wed, 25 Nov 2026 12:00:00 GMT").expect("a date");
        for (value, date, expected_s) in [
            ("3600", None, Some(3600)),
            (" 0 ", None, Some(0)),
            ("86400", None, Some(86_400)),
            ("2.0", None, Some(2)),
            ("Wed, 25 Nov 2026 12:10:00 GMT", None, Some(600)),
            ("Wed, 25 Nov 2026 12:10:00 GMT", Some("Wed, 25 Nov 2026 12:09:00 GMT"), Some(60)),
            ("Wednesday, 25-Nov-26 12:10:00 GMT", None, Some(600)),
            ("Wed, 25 Nov 2026 11:00:00 GMT", None, Some(0)),
            ("soon", None, None),
            ("-1", None, None),
            ("", None, None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, value.parse().expect("a header"));
            date.map(|date| headers.insert(header::DATE, date.parse().expect("a header")));
            assert_eq!(retry_after(&headers, noon), expected_s.map(Duration::from_secs), "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), noon), None);
        let endless = map(&[("retry-after", b"99999999999999999999999")]);
        assert_eq!(retry_after(&endless, noon), Some(Duration::MAX));
        let both = map(&[("retry-after", b"2"), ("retry-after-ms", b"1500")]);
        assert_eq!(retry_after(&both, noon), Some(Duration::from_millis(1500)));
    }

    #[test]
    fn listed_headers_of_a_worker_reach_clients() {
        let headers = map(&[
            ("content-type", b"application/json"),
            ("retry-after", b"7"),
            ("x-warmpath-cached-tokens", b"1"),
            ("x-warmpath-worker", b"http://10.0.0.5:1"),
            ("x-warmpath-else", b"1"),
            ("x-ratelimit-remaining-requests", b"1"),
            ("cache-control", b"no-cache"),
            ("connection", b"cache-control"),
            ("set-cookie", b"a=b"),
            ("location", b"http://10.0.0.5:1/"),
            ("server", b"llama.cpp"),
            ("access-control-allow-origin", b"*"),
            ("www-authenticate", b"Basic"),
            ("date", b"now"),
        ]);
        let expected = ["content-type", "retry-after", "x-ratelimit-remaining-requests", "x-warmpath-cached-tokens"];
        assert_eq!(names(&to_client(&headers)), expected);
    }
}
