//! The fleet page: one document, one style sheet and one script, embedded in the program.
//!
//! Nothing is loaded from elsewhere, and there is no build step. The content security policy lets only these three
//! files run, so a worker's name that contains markup could do nothing even if the page inserted it as such.
//!
//! Not here: the content (`admin`, `decisions_api`), which the script fetches.

use axum::http::header;
use axum::response::{IntoResponse, Redirect};

const PAGE: &str = include_str!("../../page/fleet.html");
const STYLE: &str = include_str!("../../page/fleet.css");
const SCRIPT: &str = include_str!("../../page/fleet.js");

/// Content security policy: the page may load its own files and call its own server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

type Headers = [(header::HeaderName, &'static str); 5];

fn headers(content_type: &'static str) -> Headers {
    [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A new version of the router has a new page.
        (header::CACHE_CONTROL, "no-cache"),
    ]
}

/// Redirects the root path to the page; the target is relative, so it works behind a path prefix.
pub async fn root() -> Redirect {
    Redirect::temporary("fleet")
}

/// Responds with the page.
pub async fn page() -> impl IntoResponse {
    (headers("text/html; charset=utf-8"), PAGE)
}

/// Responds with its style sheet.
pub async fn style() -> impl IntoResponse {
    (headers("text/css; charset=utf-8"), STYLE)
}

/// Responds with its script.
pub async fn script() -> impl IntoResponse {
    (headers("text/javascript; charset=utf-8"), SCRIPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_from_elsewhere_or_stands_inline() {
        for (name, text) in [("page", PAGE), ("style", STYLE), ("script", SCRIPT)] {
            // The namespace of SVG is not an address that is loaded.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for word in
                ["http:", "https:", "//cdn", "@import", "innerHTML", "insertAdjacentHTML", "document.write", "eval("]
            {
                assert!(!text.contains(word), "{name} has {word}");
            }
        }
        let is_inline = |word: &str| word.starts_with("style=") || word.starts_with("on") && word.contains('=');
        assert!(!PAGE.contains("<style") && !PAGE.split_whitespace().any(is_inline));
        assert_eq!(PAGE.matches("<script").count(), 1);
    }
}
