//! The salt of a request: the text at the root of its hash chains, from its headers or its API key.
//!
//! The salt is read once, when a request arrives. After that no client header can replace it. Not here: valid salts
//! (`warmpath_common::salt`), the header for workers (`lifecycle::headers`).

use axum::http::{HeaderMap, HeaderValue};
use warmpath_common::headers::CACHE_SALT;
use warmpath_common::salt::{self, SaltError};

use crate::error::RequestError;
use crate::keys::ApiKey;

/// Salt in a request's headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Salt {
    /// The client's own, if it sends one; a salt in the body replaces it.
    Client(Option<String>),
    /// The tenant of an API key, followed by the client's own salt; no body replaces it.
    Tenant(String),
}

impl Salt {
    /// Returns the salt in a request's headers, after the name of the key's tenant.
    ///
    /// Errors: every [`SaltError`].
    pub fn of(headers: &HeaderMap, key: Option<&ApiKey>) -> Result<Self, SaltError> {
        let own_salt = salt::of_header(headers.get_all(CACHE_SALT).iter().map(HeaderValue::as_bytes))?;
        Ok(match key {
            // No tenant's name has a colon, so no two tenants can have the same salt.
            Some(key) => Self::Tenant(format!("{}:{}", key.tenant(), own_salt.unwrap_or_default())),
            None => Self::Client(own_salt),
        })
    }

    /// Returns the salt of the request, given the salt in its body; empty for no salt.
    ///
    /// Errors: `Field` if the body must not have one.
    pub fn with_body<'a>(&'a self, of_body: Option<&'a str>) -> Result<&'a str, RequestError> {
        match (self, of_body) {
            (Self::Client(own), of_body) => Ok(of_body.or(own.as_deref()).unwrap_or_default()),
            (Self::Tenant(salt), None) => Ok(salt),
            (Self::Tenant(_), Some(_)) => {
                let reason = "the API key sets the salt; send your own in the header `x-warmpath-cache-salt`, which is added to the key's tenant";
                Err(RequestError::field("cache_salt", reason))
            }
        }
    }

    /// Returns the salt's header for a Warmpath worker; `None` if there is no salt.
    pub fn header(&self) -> Option<HeaderValue> {
        let text = match self {
            Self::Client(own) => own.as_deref()?,
            Self::Tenant(salt) => salt,
        };
        Some(HeaderValue::from_bytes(text.as_bytes()).expect("a header's value behind a tenant's name is one again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Keys, new_key};

    fn headers(lines: &[&[u8]]) -> HeaderMap {
        let value = |line: &&[u8]| HeaderValue::from_bytes(line).expect("a header's value");
        lines.iter().map(|line| (CACHE_SALT.parse().expect("a name"), value(line))).collect()
    }

    #[test]
    fn a_body_replaces_a_client_s_salt_and_no_tenant_s() {
        let own = Salt::of(&headers(&["z\u{fc}rich".as_bytes()]), None).expect("a salt");
        assert_eq!(own.with_body(None).expect("the header's"), "z\u{fc}rich");
        assert_eq!(own.with_body(Some("b")).expect("the body's"), "b");
        assert_eq!(own.header().expect("a header").as_bytes(), "z\u{fc}rich".as_bytes());
        let none = Salt::of(&headers(&[]), None).expect("none");
        assert_eq!((none.with_body(None).expect("none"), none.header()), ("", None));

        let (key, entry) = new_key("a").expect("a good name");
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), entry).expect("it can be written");
        let key = Keys::open(file.path()).expect("a good file").find(key.as_bytes()).expect("it is listed");
        for (lines, expected) in [(&[][..], "a:"), (&["\u{65e5}:".as_bytes()], "a:\u{65e5}:")] {
            let salt = Salt::of(&headers(lines), Some(&key)).expect("a salt");
            assert_eq!(salt.with_body(None).expect("the tenant's"), expected);
            assert_eq!(salt.header().expect("a header").as_bytes(), expected.as_bytes());
            assert!(salt.with_body(Some("b:")).is_err());
        }
        assert_eq!(Salt::of(&headers(&[b"\xff"]), Some(&key)), Err(SaltError::NotUtf8));
    }
}
