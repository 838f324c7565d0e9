//! Paths of requests, without what base URLs of clients add: repeated slashes, a slash at the end, a repeated `/v1`.
//!
//! A path is cleaned before it reaches the routes, so checks of access, routes and metrics all see the same path.

use axum::http::Uri;
use axum::http::uri::PathAndQuery;

/// Prefix of the paths of OpenAI's API, which clients add to base URLs that already end with it.
const API_PREFIX: &str = "/v1";

/// Paths below which the rest is the name of a model, which may contain repeated slashes.
const MODELS: [&str; 2] = ["/models", "/v1/models"];

/// Cleans the path of a request.
pub(super) fn clean(uri: &mut Uri) {
    let Some(mut path) = cleaned(uri.path()) else { return };
    if let Some(query) = uri.query() {
        path.push('?');
        path.push_str(query);
    }
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path).expect("a part of a path is valid as a path"));
    *uri = Uri::from_parts(parts).expect("another path leaves the other parts valid");
}

/// Returns the path with single slashes; `None` if it has nothing to clean.
fn cleaned(path: &str) -> Option<String> {
    let is_clean = path == "/" || !(path.contains("//") || path.ends_with('/') || path.starts_with("/v1/v1/"));
    if is_clean || !path.starts_with('/') {
        return None;
    }
    let (mut clean, mut rest) = (String::with_capacity(path.len()), path.trim_end_matches('/'));
    while !rest.is_empty() {
        if MODELS.contains(&clean.as_str()) {
            clean.push_str(rest);
            break;
        }
        let segment = rest.trim_start_matches('/');
        let len = segment.find('/').unwrap_or(segment.len());
        if clean != API_PREFIX || segment[..len] != API_PREFIX[1..] {
            clean.push('/');
            clean.push_str(&segment[..len]);
        }
        rest = &segment[len..];
    }
    Some(if clean.is_empty() { "/".to_owned() } else { clean })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: &str, expected: &str) {
        let mut uri: Uri = given.parse().expect("a URI");
        clean(&mut uri);
        assert_eq!(uri.to_string(), expected, "{given}");
    }

    #[test]
    fn repeated_and_last_slashes_and_a_repeated_prefix_are_dropped() {
        for clean in ["/", "/v1/chat/completions", "/v1/models/a/b?x=//", "/?a=b/", "/v1/v1x/a", "/v1"] {
            check(clean, clean);
        }
        for given in [
            "/v1//chat/completions",
            "//v1/chat/completions",
            "///v1//chat///completions//",
            "/v1/chat/completions/",
            "/v1/v1/chat/completions",
            "/v1//v1/chat/completions",
        ] {
            check(given, "/v1/chat/completions");
        }
        check("//", "/");
        check("//health/?a=1//2", "/health?a=1//2");
        check("http://a.example:80//v1/models/", "http://a.example:80/v1/models");
        check("/a%2F%2Fb//c", "/a%2F%2Fb/c");
    }

    #[test]
    fn the_name_of_a_model_keeps_its_slashes() {
        check("/v1/models//srv//m.gguf", "/v1/models//srv//m.gguf");
        check("//v1//models//srv//m.gguf", "/v1/models//srv//m.gguf");
        check("/models/v1/v1//a/", "/models/v1/v1//a");
        check("/v1/models//", "/v1/models");
    }
}
