//! The fleet page: one document, one style sheet and one script, part of the program.
//!
//! Not here: what it shows (`admin`, `recent`), which its script asks for. The idea: nothing comes from elsewhere and nothing is
//! built; the policy lets only these three files run, so a worker's name that is markup could do nothing even if it were read as such.

use axum::http::header;
use axum::response::{IntoResponse, Redirect};

const PAGE: &str = include_str!("../../page/fleet.html");
const STYLE: &str = include_str!("../../page/fleet.css");
const SCRIPT: &str = include_str!("../../page/fleet.js");

/// Lets the page load its own files and ask its own server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

type Headers = [(header::HeaderName, &'static str); 5];

fn headers(content_type: &'static str) -> Headers {
    [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A new version of the router brings a new page.
        (header::CACHE_CONTROL, "no-cache"),
    ]
}

/// Sends who asks for nothing in particular to the page; relative, so that it works behind a prefix.
pub async fn root() -> Redirect {
    Redirect::temporary("fleet")
}

/// Answers with the page.
pub async fn page() -> impl IntoResponse {
    (headers("text/html; charset=utf-8"), PAGE)
}

/// Answers with its style sheet.
pub async fn style() -> impl IntoResponse {
    (headers("text/css; charset=utf-8"), STYLE)
}

/// Answers with its script.
pub async fn script() -> impl IntoResponse {
    (headers("text/javascript; charset=utf-8"), SCRIPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_from_elsewhere_or_stands_inline() {
        for (name, text) in [("page", PAGE), ("style", STYLE), ("script", SCRIPT)] {
            // The name of SVG's elements is no address.
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
