//! The hosts from which images are fetched, and the addresses to which connections may go.
//!
//! Not here: connections (`fetch`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use url::{Host, Url};

/// Ports of a host that is listed without one: those of `http` and `https`.
const PORTS_DEFAULT: [u16; 2] = [80, 443];

/// An entry of the list: one host or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageHost {
    pattern: Pattern,
    /// Port; `None` for the default ports.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// Every host.
    Any,
    /// The host of this name.
    Name(String),
    /// The hosts whose names end with this text, which starts with a dot.
    Below(String),
    /// The host at this address.
    Address(IpAddr),
}

/// Error: a text is not an entry of the list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it must be a host name or an address, *.NAME or *, with a port or without, and without a scheme")]
pub struct ImageHostError;

impl FromStr for ImageHost {
    type Err = ImageHostError;

    fn from_str(text: &str) -> Result<Self, ImageHostError> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self { pattern: Pattern::Address(address.to_canonical()), port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => {
                (host, Some(port.parse::<u16>().map_err(|_| ImageHostError)?))
            }
            _ => (text, None),
        };
        let name = |name: &str| Host::parse(name).map_err(|_| ImageHostError);
        let pattern = match (host, host.strip_prefix("*.")) {
            ("*", _) => Pattern::Any,
            (_, Some(below)) => match name(below)? {
                Host::Domain(domain) if is_plain(&domain) => Pattern::Below(format!(".{domain}")),
                _ => return Err(ImageHostError),
            },
            (host, None) => match name(host)? {
                Host::Domain(domain) if is_plain(&domain) => Pattern::Name(domain),
                Host::Domain(_) => return Err(ImageHostError),
                Host::Ipv4(address) => Pattern::Address(address.into()),
                Host::Ipv6(address) => Pattern::Address(IpAddr::V6(address).to_canonical()),
            },
        };
        Ok(Self { pattern, port })
    }
}

/// Returns whether a name has no wildcard and no dot at its end.
fn is_plain(domain: &str) -> bool {
    !domain.is_empty() && !domain.contains('*') && !domain.ends_with('.')
}

impl ImageHost {
    fn has_port(&self, port: u16) -> bool {
        self.port.map_or(PORTS_DEFAULT.contains(&port), |own_port| own_port == port)
    }

    fn has_host(&self, host: &Host<&str>) -> bool {
        match (&self.pattern, host) {
            (Pattern::Any, _) => true,
            (Pattern::Name(name), Host::Domain(domain)) => without_dot(domain) == name,
            (Pattern::Below(end), Host::Domain(domain)) => without_dot(domain).ends_with(end.as_str()),
            (Pattern::Address(own), host) => address_of(host).is_some_and(|address| address == *own),
            _ => false,
        }
    }
}

/// Returns a name without the dot that may end it.
fn without_dot(domain: &str) -> &str {
    domain.strip_suffix('.').unwrap_or(domain)
}

/// Returns the address of a host that is written as an address.
pub(super) fn address_of(host: &Host<&str>) -> Option<IpAddr> {
    match host {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some((*address).into()),
        Host::Ipv6(address) => Some(IpAddr::V6(*address).to_canonical()),
    }
}

/// Returns whether the list allows a URL; the address of its host is checked separately.
pub(super) fn allows_url(hosts: &[ImageHost], url: &Url) -> bool {
    let has_scheme = ["http", "https"].contains(&url.scheme());
    let has_login = !url.username().is_empty() || url.password().is_some();
    let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else { return false };
    has_scheme
        && !has_login
        && hosts.iter().any(|listed_host| listed_host.has_port(port) && listed_host.has_host(&host))
}

/// Returns whether connections to an address are allowed: it is public, or the list names it.
pub(super) fn allows_address(hosts: &[ImageHost], address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    let names =
        |listed_host: &ImageHost| listed_host.pattern == Pattern::Address(ip) && listed_host.has_port(address.port());
    is_public(ip) || hosts.iter().any(names)
}

/// Returns whether an address is public.
///
/// Source: IANA's registries of special-purpose addresses; of IPv6 only global unicast (2000::/3) is public, without
/// the blocks that embed IPv4 addresses (Teredo, 6to4).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let special = match address.octets() {
        [0 | 10 | 127 | 240..=255, ..] | [192, 168, ..] | [169, 254, ..] | [198, 18..=19, ..] => true,
        [100, b, ..] => (64..=127).contains(&b),
        [172, b, ..] => (16..=31).contains(&b),
        [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 51, 100, _] | [203, 0, 113, _] => true,
        _ => false,
    };
    !special && !address.is_multicast()
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        // Teredo and other protocol assignments, documentation, 6to4.
        [0x2001, b, ..] => b >= 0x200 && b != 0xdb8,
        [0x2002, ..] | [0x3fff, ..] => false,
        [a, ..] => a & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(list: &str) -> Vec<ImageHost> {
        list.split(',').map(|text| text.parse().expect(text)).collect()
    }

    #[track_caller]
    fn check(list: &str, allowed: &[&str], refused: &[&str]) {
        let hosts = hosts(list);
        let allows = |url: &&str| allows_url(&hosts, &Url::parse(url).expect("a URL"));
        assert_eq!(allowed.iter().find(|url| !allows(url)), None, "{list}");
        assert_eq!(refused.iter().find(|url| allows(url)), None, "{list}");
    }

    #[test]
    fn a_url_is_allowed_by_its_host_and_its_port() {
        let others = ["http://b.example/", "https://a.example.b/", "https://xa.example/", "ftp://a.example/"];
        check("A.example", &["http://a.example/x", "https://A.EXAMPLE:443/", "https://a.example./"], &others);
        check("a.example", &[], &["http://a.example:81/", "http://u@a.example/", "http://u:p@a.example/"]);
        check("a.example:8080", &["http://a.example:8080/"], &["http://a.example/", "https://a.example/"]);
        check("*.example", &["http://a.example/", "http://b.a.example/"], &["http://example/", "http://aexample/"]);
        check("*", &["http://a.example/", "https://9.9.9.9/"], &["http://a.example:22/"]);
        check("*:22", &["http://a.example:22/"], &["http://a.example/"]);
        check("10.0.0.1", &["http://10.0.0.1/", "http://0x0a000001/", "http://[::ffff:a00:1]/"], &["http://10.0.0.2/"]);
        check("[fd00::1]:8080", &["http://[fd00::1]:8080/"], &["http://[fd00::1]/", "http://[fd00::2]:8080/"]);
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for text in ["", "http://a", "a:b", "a/b", "a b", "a:99999", "*.*", "a.*", "*.10.0.0.1", ":80", "a."] {
            assert_eq!(text.parse::<ImageHost>(), Err(ImageHostError), "{text}");
        }
        assert_eq!("::1".parse::<ImageHost>(), "[::1]".parse());
    }

    #[test]
    fn connections_go_to_public_addresses_and_to_listed_ones() {
        let allows = |list: &str, address: &str| allows_address(&hosts(list), address.parse().expect(address));
        for inner in [
            "127.0.0.1:80",
            "0.0.0.0:80",
            "10.1.2.3:80",
            "100.64.0.1:80",
            "169.254.169.254:80",
            "172.16.0.1:80",
            "172.31.255.255:80",
            "192.168.0.1:80",
            "192.0.0.8:80",
            "198.18.0.1:80",
            "203.0.113.9:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
            "[::]:80",
            "[::1]:80",
            "[::ffff:127.0.0.1]:80",
            "[::127.0.0.1]:80",
            "[64:ff9b::7f00:1]:80",
            "[2001::1]:80",
            "[2001:db8::1]:80",
            "[2002:7f00:1::]:80",
            "[fe80::1]:80",
            "[fd00::1]:80",
            "[ff02::1]:80",
        ] {
            assert!(!allows("*", inner), "{inner}");
        }
        for public in ["9.9.9.9:80", "172.32.0.1:80", "100.128.0.1:80", "192.0.1.1:1", "[2606:4700::1]:443"] {
            assert!(allows("a.example", public), "{public}");
        }
        assert!(allows("a.example,10.0.0.1", "10.0.0.1:443") && allows("10.0.0.1:81", "10.0.0.1:81"));
        assert!(!allows("a.example,10.0.0.1", "10.0.0.1:81") && !allows("10.0.0.1", "10.0.0.2:80"));
        assert!(allows("127.0.0.1", "[::ffff:127.0.0.1]:80"));
    }
}
