//! Browsers: the pages that may send requests (`--cors-origin`) and the page that is served (`--ui`).
//!
//! Not here: the responses to pages (`http::cors`), the page (`http::pages`).

use axum::http::HeaderValue;
use url::Url;

use super::error::ConfigError;

/// Origins whose pages a browser lets read responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cors {
    /// Every origin.
    Any,
    /// These origins, spelled as browsers send them.
    Origins(Vec<HeaderValue>),
}

/// Settings for browsers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebConfig {
    /// Origins of other pages; `None` if there are none.
    pub cors: Option<Cors>,
    /// Whether clients get the chat page.
    pub chat_page: bool,
}

/// Returns the origins that the flags name; `None` if there are none.
///
/// Errors: `Origin`, for a text that no browser would send.
pub(super) fn cors(texts: &[String]) -> Result<Option<Cors>, ConfigError> {
    if texts.is_empty() {
        return Ok(None);
    }
    if texts.iter().any(|text| text == "*") {
        return Ok(Some(Cors::Any));
    }
    texts.iter().map(|text| origin(text)).collect::<Result<_, _>>().map(|origins| Some(Cors::Origins(origins)))
}

fn origin(text: &str) -> Result<HeaderValue, ConfigError> {
    let error = || ConfigError::Origin { text: text.to_owned() };
    let url = Url::parse(text).map_err(|_| error())?;
    // Origins are compared byte by byte: a trailing slash, a default port or a capital letter would never match.
    if url.origin().ascii_serialization() != text {
        return Err(error());
    }
    HeaderValue::from_str(text).map_err(|_| error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_those_that_browsers_send() {
        let check = |texts: &[&str]| cors(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
        assert_eq!(check(&[]), Ok(None));
        assert_eq!(check(&["*"]), Ok(Some(Cors::Any)));
        assert_eq!(check(&["https://a.example", "*"]), Ok(Some(Cors::Any)));
        let origins = ["https://app.example", "http://localhost:3000", "http://[::1]:8000"];
        assert_eq!(check(&origins), Ok(Some(Cors::Origins(origins.map(HeaderValue::from_static).to_vec()))));
        for bad in [
            "",
            "app.example",
            "https://app.example/",
            "https://app.example/x",
            "https://APP.example",
            "https://a.example:443",
            "null",
            "data:,",
        ] {
            assert_eq!(check(&[bad]), Err(ConfigError::Origin { text: bad.to_owned() }), "{bad}");
        }
    }
}
