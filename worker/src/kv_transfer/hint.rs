//! The router's hint in `x-warmpath-kv-peer`: `<base URL>;blocks=<number of the prompt's first blocks there>`.

use std::str::FromStr;

use url::{Host, Url};

/// Worker that has more of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerHint {
    url: Url,
    n_blocks: usize,
}

/// The text is not a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not `<base URL>;blocks=<number>`")]
pub struct NoHint;

impl PeerHint {
    /// Returns the worker's base URL.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the number of the prompt's first blocks that it has.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Returns whether the worker is on this machine.
    pub fn is_loopback(&self) -> bool {
        match self.url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        }
    }
}

impl FromStr for PeerHint {
    type Err = NoHint;

    fn from_str(text: &str) -> Result<Self, NoHint> {
        let (url, blocks) = text.rsplit_once(";blocks=").ok_or(NoHint)?;
        let url = Url::parse(url.trim()).map_err(|_| NoHint)?;
        let n_blocks = blocks.trim().parse().ok().filter(|n| *n > 0).ok_or(NoHint)?;
        let is_plain = url.username().is_empty() && url.password().is_none();
        let is_base = url.query().is_none() && url.fragment().is_none();
        let is_http = matches!(url.scheme(), "http" | "https") && url.has_host();
        if is_http && is_plain && is_base { Ok(Self { url, n_blocks }) } else { Err(NoHint) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_a_base_url_and_a_number_of_blocks() {
        let hint: PeerHint = "http://10.0.0.7:8081;blocks=12".parse().expect("a hint");
        assert_eq!((hint.url().as_str(), hint.n_blocks(), hint.is_loopback()), ("http://10.0.0.7:8081/", 12, false));
        let hint: PeerHint = "https://a.example/w1;blocks=1".parse().expect("a hint");
        assert_eq!((hint.url().path(), hint.n_blocks()), ("/w1", 1));
        for loopback in ["http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:8081", "https://localhost:1"] {
            assert!(format!("{loopback};blocks=1").parse::<PeerHint>().expect("a hint").is_loopback(), "{loopback}");
        }
        for other in ["http://127.0.0.1.example", "http://localhost.example", "http://0.0.0.0:1", "http://[::2]"] {
            assert!(!format!("{other};blocks=1").parse::<PeerHint>().expect("a hint").is_loopback(), "{other}");
        }
        for wrong in [
            "",
            "http://a:1",
            "http://a:1;blocks=",
            "http://a:1;blocks=0",
            "http://a:1;blocks=-1",
            "http://a:1;blocks=99999999999999999999",
            "a:1;blocks=1",
            "file:///etc/passwd;blocks=1",
            "http://user:key@a:1;blocks=1",
            "http://a:1/?x=1;blocks=1",
            "http://a:1/#x;blocks=1",
            "http://;blocks=1",
        ] {
            assert_eq!(wrong.parse::<PeerHint>(), Err(NoHint), "{wrong}");
        }
    }
}
