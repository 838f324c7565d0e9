//! Names by which clients may address a server.
//!
//! A web page from another site can reach a server if the site's name resolves to the server's address (DNS rebinding).
//! The browser then sends that name as `Host`. Addresses, and names that only the operator can define, are safe.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr as _;

use axum::http::uri::Authority;
use axum::http::{Request, Version, header};

/// Value of a flag that allows every name.
pub(crate) const ANY: &str = "*";

/// Names by which clients may address a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Every name.
    Any,
    /// The names of this machine for itself, the listed names, and some addresses.
    Listed {
        /// Names and addresses, normalized.
        names: Vec<String>,
        /// Further addresses.
        addresses: Addresses,
    },
}

/// Addresses by which clients may address a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// Loopback addresses of this machine.
    Loopback,
    /// All addresses.
    Every,
}

/// Error: a name is not a valid host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}: it must be a host name or an address, without a scheme or a port, or *")]
pub struct HostError {
    /// Given text.
    pub text: String,
}

/// Reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostRefusal {
    /// The request must name exactly one host.
    #[error("an HTTP/1.1 request must have one `Host` header")]
    NotOne,
    /// The request names a host that is not allowed.
    #[error("clients may not address this server as `{host}`: --allowed-host lists the allowed names")]
    Unknown {
        /// Name.
        host: String,
    },
}

impl HostRefusal {
    /// Returns the error's code for programs, if it has one.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::NotOne => None,
            Self::Unknown { .. } => Some("host_not_allowed"),
        }
    }
}

impl AllowedHosts {
    /// Returns the names by which clients may address a server that listens at `listen`: any name if that is not a
    /// loopback address and no name is given.
    ///
    /// Errors: a name is invalid.
    pub fn of_clients(host_names: &[String], listen: SocketAddr) -> Result<Self, HostError> {
        let is_loopback = listen.ip().is_loopback();
        if host_names.iter().any(|name| name == ANY) || (host_names.is_empty() && !is_loopback) {
            return Ok(Self::Any);
        }
        let addresses = if is_loopback { Addresses::Loopback } else { Addresses::Every };
        Ok(Self::Listed { names: names(host_names)?, addresses })
    }

    /// Returns the names by which operators may address an admin listener: any address, and the given names.
    ///
    /// Errors: a name is invalid.
    pub fn of_operators(host_names: &[String]) -> Result<Self, HostError> {
        if host_names.iter().any(|name| name == ANY) {
            return Ok(Self::Any);
        }
        Ok(Self::Listed { names: names(host_names)?, addresses: Addresses::Every })
    }

    /// Checks that a request addresses the server by an allowed name.
    ///
    /// Errors: every [`HostRefusal`].
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), HostRefusal> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let (host, second) = (hosts.next(), hosts.next());
        if second.is_some() || (host.is_none() && request.version() >= Version::HTTP_11) {
            return Err(HostRefusal::NotOne);
        }
        let Self::Listed { names, addresses } = self else { return Ok(()) };
        let host_text = host.map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
        // The authority of an absolute request line takes precedence over `Host`. A check of only one of them could be
        // bypassed with the other.
        for host in host_text.into_iter().chain(request.uri().authority().map(ToString::to_string)) {
            if !is_allowed(&host, names, *addresses) {
                return Err(HostRefusal::Unknown { host });
            }
        }
        Ok(())
    }
}

fn is_allowed(authority: &str, names: &[String], addresses: Addresses) -> bool {
    let Ok(host_authority) = Authority::from_str(authority) else { return false };
    if authority.contains('@') {
        return false;
    }
    let host = normalized(host_authority.host());
    let is_own = match (host.parse::<IpAddr>(), addresses) {
        (Ok(_), Addresses::Every) => true,
        (Ok(address), Addresses::Loopback) => address.to_canonical().is_loopback(),
        // No browser resolves `localhost` by DNS (RFC 6761). A name without a dot, such as a proxy's upstream or a
        // service of Compose, cannot exist on the internet (ICANN's ban of dotless domains, 2013).
        (Err(_), _) => is_single_label(&host) || host.ends_with(".localhost"),
    };
    is_own || names.contains(&host)
}

fn is_single_label(host: &str) -> bool {
    !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

fn names(host_names: &[String]) -> Result<Vec<String>, HostError> {
    let name = |text: &String| {
        let host = normalized(text);
        let is_address = host.parse::<IpAddr>().is_ok();
        let is_name = Authority::from_str(&host).is_ok_and(|authority| authority.host() == host);
        if is_address || is_name { Ok(host) } else { Err(HostError { text: text.clone() }) }
    };
    host_names.iter().map(name).collect()
}

/// Returns a host in the form for comparisons: in lower case, without the final dot and the brackets of an address.
fn normalized(host: &str) -> String {
    let host = host.strip_suffix('.').unwrap_or(host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(given: &[&str]) -> Vec<String> {
        given.iter().map(|name| (*name).to_owned()).collect()
    }

    fn on(listen: &str, given: &[&str]) -> AllowedHosts {
        AllowedHosts::of_clients(&listed(given), listen.parse().expect("an address")).expect("good names")
    }

    fn takes(hosts: &AllowedHosts, host: &str) -> bool {
        let request = Request::get("/").header("host", host).body(()).expect("a request");
        match hosts.check(&request) {
            Ok(()) => true,
            Err(HostRefusal::Unknown { host: refused }) => {
                assert_eq!(refused, host);
                false
            }
            Err(HostRefusal::NotOne) => panic!("{host} is one"),
        }
    }

    #[test]
    fn on_loopback_only_names_of_the_machine_and_given_names_are_accepted() {
        for listen in ["127.0.0.1:8080", "[::1]:8080"] {
            let hosts = on(listen, &["Router.example.", "10.0.0.5"]);
            for host in [
                "localhost",
                "LOCALHOST:8080",
                "localhost.:1",
                "app.localhost:3000",
                "127.0.0.1",
                "127.9.9.9:80",
                "[::1]:8080",
                "[::ffff:127.0.0.1]",
                "router.example",
                "ROUTER.example:443",
                "10.0.0.5:8080",
                "warmpath_upstream",
                "router-1:8080",
            ] {
                assert!(takes(&hosts, host), "{host} on {listen}");
            }
            for host in [
                "evil.example",
                "evil.example:8080",
                "localhost.evil.example",
                "127.0.0.1.evil.example",
                "127.0.0.1@evil.example",
                "evil.example@127.0.0.1",
                "10.0.0.6",
                "0.0.0.0:8080",
                "127.1",
                "",
                "[::2]",
                "a b",
            ] {
                assert!(!takes(&hosts, host), "{host} on {listen}");
            }
        }
    }

    #[test]
    fn elsewhere_every_name_is_accepted_unless_names_are_given() {
        assert!(takes(&on("0.0.0.0:8080", &[]), "evil.example"));
        assert!(takes(&on("127.0.0.1:8080", &["*"]), "evil.example"));
        let hosts = on("10.0.0.5:8080", &["router.example"]);
        assert!(takes(&hosts, "router.example") && takes(&hosts, "10.9.9.9:8080") && takes(&hosts, "localhost"));
        assert!(!takes(&hosts, "evil.example"));
    }

    #[test]
    fn operators_may_use_any_address_and_given_names() {
        let hosts = AllowedHosts::of_operators(&listed(&["router.example"])).expect("good names");
        assert!(
            takes(&hosts, "10.1.2.3:9090") && takes(&hosts, "[fd00::1]:9090") && takes(&hosts, "router.example:9090")
        );
        assert!(takes(&hosts, "localhost:9090") && !takes(&hosts, "evil.example:9090"));
    }

    #[test]
    fn a_request_has_one_host_and_its_request_line_an_allowed_one() {
        let hosts = on("127.0.0.1:8080", &[]);
        let get = |uri: &str| Request::get(uri).header("host", "localhost");
        let check = |request: axum::http::request::Builder| hosts.check(&request.body(()).expect("a request"));
        assert_eq!(check(Request::get("/")), Err(HostRefusal::NotOne));
        assert_eq!(on("0.0.0.0:1", &[]).check(&Request::get("/").body(()).expect("one")), Err(HostRefusal::NotOne));
        assert_eq!(check(Request::get("/").version(Version::HTTP_10)), Ok(()), "HTTP/1.0 has none");
        assert_eq!(check(get("/").header("host", "localhost")), Err(HostRefusal::NotOne));
        assert_eq!(check(get("http://localhost:8080/")), Ok(()));
        let host = "evil.example".to_owned();
        assert_eq!(check(get("http://evil.example/")), Err(HostRefusal::Unknown { host }));
        let bytes = Request::get("/").header("host", &b"\xff"[..]);
        assert!(matches!(check(bytes), Err(HostRefusal::Unknown { .. })));
    }

    #[test]
    fn an_invalid_name_is_reported() {
        for text in ["http://a", "a:80", "a/b", "", "a b", "u@a"] {
            let refused = AllowedHosts::of_operators(&listed(&[text]));
            assert_eq!(refused, Err(HostError { text: text.to_owned() }));
        }
        assert!(AllowedHosts::of_operators(&listed(&["::1", "[::1]", "a.b-c", "10.0.0.1"])).is_ok());
    }
}
