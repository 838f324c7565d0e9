//! The fleet page and the chat page: a document, a style sheet and a script each, embedded in the program.
//!
//! Nothing is loaded from elsewhere, and there is no build step. The content security policy allows only these files to
//! run. So a script in a worker's name or in a model's text would not run, even if a page inserted it as markup.
//!
//! Not here: the content (`admin`, `decisions_api`, `completions`), which the scripts fetch.

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;

use crate::app::App;

const FLEET: &str = include_str!("../../page/fleet.html");
const FLEET_STYLE: &str = include_str!("../../page/fleet.css");
const FLEET_SCRIPT: &str = include_str!("../../page/fleet.js");
const CHAT: &str = include_str!("../../page/chat.html");
const CHAT_STYLE: &str = include_str!("../../page/chat.css");
const CHAT_SCRIPT: &str = include_str!("../../page/chat.js");

/// Content security policy: a page may load its own files and call its own server only.
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

/// Redirects the root path to the fleet page; the target is relative, so it works behind a path prefix.
pub async fn fleet_root() -> Redirect {
    Redirect::temporary("fleet")
}

/// Responds with the fleet page.
pub async fn fleet() -> impl IntoResponse {
    (headers("text/html; charset=utf-8"), FLEET)
}

/// Responds with its style sheet.
pub async fn fleet_style() -> impl IntoResponse {
    (headers("text/css; charset=utf-8"), FLEET_STYLE)
}

/// Responds with its script.
pub async fn fleet_script() -> impl IntoResponse {
    (headers("text/javascript; charset=utf-8"), FLEET_SCRIPT)
}

/// Returns the routes of the chat page. The page itself needs no API key; the requests that it sends do.
pub fn chat_routes() -> Router<App> {
    Router::new()
        .route("/", get(async || Redirect::temporary("chat")))
        .route("/chat", get(async || (headers("text/html; charset=utf-8"), CHAT)))
        .route("/chat.css", get(async || (headers("text/css; charset=utf-8"), CHAT_STYLE)))
        .route("/chat.js", get(async || (headers("text/javascript; charset=utf-8"), CHAT_SCRIPT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_load_nothing_from_elsewhere_and_have_no_inline_code() {
        for (page, style, script) in [(FLEET, FLEET_STYLE, FLEET_SCRIPT), (CHAT, CHAT_STYLE, CHAT_SCRIPT)] {
            for text in [page, style, script] {
                // The namespace of SVG is an address, but it is never loaded.
                let text = text.replace("http://www.w3.org/2000/svg", "");
                for word in [
                    "http:",
                    "https:",
                    "//cdn",
                    "@import",
                    "innerHTML",
                    "insertAdjacentHTML",
                    "document.write",
                    "eval(",
                ] {
                    assert!(!text.contains(word), "{word} in\n{text}");
                }
            }
            let is_inline = |word: &str| word.starts_with("style=") || word.starts_with("on") && word.contains('=');
            assert!(!page.contains("<style") && !page.split_whitespace().any(is_inline));
            assert_eq!(page.matches("<script").count(), 1);
        }
    }
}
