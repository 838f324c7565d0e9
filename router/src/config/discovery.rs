//! Sources of worker addresses, and the forms in which flags and files name workers.
//!
//! Not here: the search itself (`discovery` of the crate).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::ServerName;
use url::Url;

use super::error::{ConfigError, WorkerUrlError};
use super::flags::Flags;
use super::limits::{DNS_INTERVAL, HOSTS_MAX, WORKERS_MAX};

/// Sources of worker addresses.
#[derive(Debug, Clone)]
pub struct DiscoveryConfig {
    /// Workers given by their URLs.
    pub workers: Vec<WorkerAddress>,
    /// File that lists workers.
    pub file: Option<PathBuf>,
    /// Names whose addresses are workers.
    pub dns: Vec<DnsName>,
    /// Interval between two resolutions of these names.
    pub dns_pause: Duration,
    /// Kubernetes services whose endpoints are workers.
    pub kubernetes: Vec<KubernetesService>,
    /// File with the address of the API server; `None` to find it in the environment.
    pub kubeconfig: Option<PathBuf>,
}

/// Address of a worker and the API it offers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerAddress {
    /// URL of the worker, with the path prefix of its API; `/` if there is none.
    pub url: Url,
    /// Its API.
    pub api: WorkerApi,
    /// Name that its certificate must have if the worker was found by a name; `None` for the URL's host.
    pub certified: Option<String>,
}

impl WorkerAddress {
    /// Returns the name that the worker's certificate must have; `None` if no certificate can have it.
    pub fn server_name(&self) -> Option<ServerName<'static>> {
        let host = self.certified.as_deref().or_else(|| self.url.host_str())?;
        ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).ok()
    }

    /// Returns the worker at an address; `None` if no URL can hold it, because it has a zone (`fe80::1%2`).
    fn at(address: SocketAddr, scheme: Scheme, api: WorkerApi) -> Option<Self> {
        let url = Url::parse(&format!("{}://{address}", scheme.text())).ok()?;
        Some(Self { url, api, certified: None })
    }
}

/// Scheme of the connection to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
}

impl Scheme {
    fn text(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Returns the scheme at the start of a text, and the rest of it.
    fn of(text: &str) -> (Self, &str) {
        text.strip_prefix("https://").map_or((Self::Http, text), |rest| (Self::Https, rest))
    }
}

/// API of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerApi {
    /// OpenAI's API and the summary protocol.
    Warmpath,
    /// OpenAI's API only.
    OpenAi,
}

/// A name whose addresses are workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsName {
    /// Scheme of the connections to them.
    pub scheme: Scheme,
    /// The name.
    pub host: String,
    /// Port that all of them listen on.
    pub port: u16,
    /// API of all of them.
    pub api: WorkerApi,
}

impl DnsName {
    /// Returns the worker at one of the name's addresses, unless no URL can hold it; its certificate must have the
    /// name.
    pub fn worker(&self, address: SocketAddr) -> Option<WorkerAddress> {
        let certified = (self.scheme == Scheme::Https).then(|| self.host.clone());
        Some(WorkerAddress { certified, ..WorkerAddress::at(address, self.scheme, self.api)? })
    }
}

/// A Kubernetes service whose endpoints are workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesService {
    /// Scheme of the connections to them.
    pub scheme: Scheme,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Port that the workers listen on.
    pub port: KubernetesPort,
}

impl KubernetesService {
    /// Returns the worker at an endpoint, unless no URL can hold its address; its certificate must have the service's
    /// name, as `NAME.NAMESPACE.svc`.
    pub fn worker(&self, address: SocketAddr) -> Option<WorkerAddress> {
        let certified = (self.scheme == Scheme::Https).then(|| format!("{}.{}.svc", self.name, self.namespace));
        Some(WorkerAddress { certified, ..WorkerAddress::at(address, self.scheme, WorkerApi::Warmpath)? })
    }
}

/// Port of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubernetesPort {
    /// The port's number.
    Number(u16),
    /// The port's name; the endpoint gives the number.
    Name(String),
}

/// Prefix of a stock server's address.
const STOCK_PREFIX: &str = "openai+";

fn api_of(text: &str) -> (&str, WorkerApi) {
    text.strip_prefix(STOCK_PREFIX).map_or((text, WorkerApi::Warmpath), |rest| (rest, WorkerApi::OpenAi))
}

/// Start of every path of OpenAI's API, and end of clients' base URLs.
const API_PREFIX: &str = "/v1";

/// Returns the worker at a URL: `http://HOST:PORT` or `https://…`, with `openai+` before it for a stock server.
///
/// A path in the URL is put before every requested path. A final `/v1` is dropped, because the paths of OpenAI's API
/// have it.
///
/// Errors: every [`WorkerUrlError`].
pub fn worker_address(text: &str) -> Result<WorkerAddress, WorkerUrlError> {
    let (url, api) = api_of(text);
    let mut url = Url::parse(url).map_err(|error| match error {
        url::ParseError::EmptyHost => WorkerUrlError::NoHost,
        _ => WorkerUrlError::NoUrl,
    })?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(WorkerUrlError::Scheme);
    }
    let has_user = !url.username().is_empty() || url.password().is_some();
    if has_user {
        return Err(WorkerUrlError::Credentials);
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(WorkerUrlError::TooMuch);
    }
    let base = url.path().trim_end_matches('/');
    let base = base.strip_suffix(API_PREFIX).unwrap_or(base).trim_end_matches('/').to_owned();
    url.set_path(&base);
    let worker = WorkerAddress { url, api, certified: None };
    if worker.server_name().is_none() {
        return Err(WorkerUrlError::NoName);
    }
    Ok(worker)
}

/// Returns the sources that the flags describe.
///
/// Errors: the [`ConfigError`]s of these flags.
pub(super) fn resolve(flags: &Flags) -> Result<DiscoveryConfig, ConfigError> {
    let config = DiscoveryConfig {
        workers: workers(&flags.workers)?,
        file: flags.workers_file.clone(),
        dns: flags.worker_dns.iter().map(|text| dns_name(text)).collect::<Result<_, _>>()?,
        dns_pause: DNS_INTERVAL,
        kubernetes: flags.kubernetes_services.iter().map(|text| service(text)).collect::<Result<_, _>>()?,
        kubeconfig: flags.kubeconfig.clone(),
    };
    let is_empty =
        flags.hosts.is_empty() && config.workers.is_empty() && config.dns.is_empty() && config.kubernetes.is_empty();
    if is_empty && config.file.is_none() {
        return Err(ConfigError::NoWorkers);
    }
    Ok(config)
}

/// Returns the hosts that the flags name.
///
/// Errors: `TooManyHosts`, `HostUrl`, `HostTwice`.
pub(super) fn hosts(urls: &[String]) -> Result<Vec<WorkerAddress>, ConfigError> {
    if urls.len() > HOSTS_MAX {
        return Err(ConfigError::TooManyHosts { n: urls.len() });
    }
    let mut hosts: Vec<WorkerAddress> = Vec::with_capacity(urls.len());
    for text in urls {
        let refuse = |source| ConfigError::HostUrl { url: shown(text), source };
        let host = worker_address(text).map_err(refuse)?;
        if host.api != WorkerApi::Warmpath {
            return Err(refuse(WorkerUrlError::Stock));
        }
        if hosts.contains(&host) {
            return Err(ConfigError::HostTwice { url: text.clone() });
        }
        hosts.push(host);
    }
    Ok(hosts)
}

fn workers(urls: &[String]) -> Result<Vec<WorkerAddress>, ConfigError> {
    if urls.len() > WORKERS_MAX {
        return Err(ConfigError::TooManyWorkers { n: urls.len() });
    }
    let mut workers: Vec<WorkerAddress> = Vec::with_capacity(urls.len());
    for text in urls {
        let worker = worker_address(text).map_err(|source| ConfigError::WorkerUrl { url: shown(text), source })?;
        if workers.iter().any(|other| other.url == worker.url) {
            return Err(ConfigError::WorkerTwice { url: text.clone() });
        }
        workers.push(worker);
    }
    Ok(workers)
}

/// Returns the part of a URL that may be shown: without the user and password before the host.
pub(super) fn shown(text: &str) -> String {
    text.rsplit('@').next().unwrap_or_default().to_owned()
}

fn dns_name(text: &str) -> Result<DnsName, ConfigError> {
    let refuse = || ConfigError::Dns { text: shown(text) };
    let (rest, api) = api_of(text);
    let (scheme, rest) = Scheme::of(rest);
    let (host, port) = rest.rsplit_once(':').ok_or_else(refuse)?;
    let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(refuse)?;
    if host.contains(['/', ':', '@']) || ServerName::try_from(host).is_err() {
        return Err(refuse());
    }
    Ok(DnsName { scheme, host: host.to_owned(), port, api })
}

fn service(text: &str) -> Result<KubernetesService, ConfigError> {
    let parts = || {
        let (scheme, text) = Scheme::of(text);
        let (namespace, rest) = text.split_once('/')?;
        let (name, port) = rest.split_once(':')?;
        let is_name = |part: &str| {
            let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            !part.is_empty() && part.bytes().all(is_letter)
        };
        let port = match port.parse() {
            Ok(0) => return None,
            Ok(number) => KubernetesPort::Number(number),
            Err(_) if is_name(port) && !port.bytes().all(|byte| byte.is_ascii_digit()) => {
                KubernetesPort::Name(port.to_owned())
            }
            Err(_) => return None,
        };
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        (is_name(&namespace) && is_name(&name)).then_some(KubernetesService { scheme, namespace, name, port })
    };
    parts().ok_or_else(|| ConfigError::Kubernetes { text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn resolve_line(line: &str) -> Result<DiscoveryConfig, ConfigError> {
        let arguments = ["warmpath-router"].into_iter().chain(line.split_whitespace());
        resolve(&Flags::try_parse_from(arguments).expect("clap takes the line"))
    }

    #[test]
    fn workers_are_listed_by_flags_or_commas() {
        let config = resolve_line("--worker http://a:1,http://b:2 --worker http://c:3").expect("a good line");
        let hosts: Vec<_> = config.workers.iter().map(|worker| worker.url.host_str().unwrap_or_default()).collect();
        assert_eq!(hosts, ["a", "b", "c"]);
    }

    #[test]
    fn stock_servers_are_marked_by_a_prefix() {
        let config =
            resolve_line("--worker openai+http://a:1,http://b:2 --worker-dns openai+c:3,d:4").expect("a good line");
        let workers: Vec<_> = config.workers.iter().map(|worker| (worker.url.as_str(), worker.api)).collect();
        assert_eq!(workers, [("http://a:1/", WorkerApi::OpenAi), ("http://b:2/", WorkerApi::Warmpath)]);
        let names: Vec<_> = config.dns.iter().map(|name| (name.host.as_str(), name.port, name.api)).collect();
        assert_eq!(names, [("c", 3, WorkerApi::OpenAi), ("d", 4, WorkerApi::Warmpath)]);
    }

    #[test]
    fn a_path_in_the_url_precedes_the_api_s_own() {
        for (url, expected) in [
            ("http://a:1/", "http://a:1/"),
            ("openai+http://a:1/v1", "http://a:1/"),
            ("openai+http://a:1/v1/", "http://a:1/"),
            ("openai+https://a/api/v1", "https://a/api"),
            ("openai+https://a/proxy/llama/", "https://a/proxy/llama"),
            ("http://a:1/workers/w%2F1", "http://a:1/workers/w%2F1"),
            ("openai+https://a/apiv1", "https://a/apiv1"),
            ("openai+https://a/v1/v1x", "https://a/v1/v1x"),
        ] {
            assert_eq!(worker_address(url).map(|worker| worker.url.to_string()).as_deref(), Ok(expected), "{url}");
        }
    }

    #[test]
    fn services_have_a_port_by_number_or_by_name() {
        let config = resolve_line("--kubernetes-service llm/chat:8081,llm/code:http").expect("a good line");
        let service = |name: &str, port| KubernetesService {
            scheme: Scheme::Http,
            namespace: "llm".into(),
            name: name.into(),
            port,
        };
        let expected =
            [service("chat", KubernetesPort::Number(8081)), service("code", KubernetesPort::Name("http".into()))];
        assert_eq!(config.kubernetes, expected);
    }

    #[test]
    fn certificates_are_those_of_the_name_by_which_a_worker_is_found() {
        let line = "--worker https://a:1,openai+https://[::1]:2 --worker-dns https://c.example:3,openai+https://d:4 \
                    --kubernetes-service https://llm/chat:8081";
        let config = resolve_line(line).expect("a good line");
        let at = "10.0.0.1:9".parse().expect("an address");
        let found = [config.dns[0].worker(at), config.dns[1].worker(at), config.kubernetes[0].worker(at)];
        let shown = config.workers.iter().chain(found.iter().flatten());
        let shown: Vec<_> = shown
            .map(|worker| {
                let name = worker.server_name().expect("a name");
                (worker.url.as_str(), name.to_str().into_owned(), worker.api)
            })
            .collect();
        let expected = [
            ("https://a:1/", "a", WorkerApi::Warmpath),
            ("https://[::1]:2/", "::1", WorkerApi::OpenAi),
            ("https://10.0.0.1:9/", "c.example", WorkerApi::Warmpath),
            ("https://10.0.0.1:9/", "d", WorkerApi::OpenAi),
            ("https://10.0.0.1:9/", "chat.llm.svc", WorkerApi::Warmpath),
        ];
        assert_eq!(shown, expected.map(|(url, name, api)| (url, name.to_owned(), api)));
    }

    #[test]
    fn a_router_without_a_way_to_find_workers_does_not_start() {
        assert_eq!(resolve_line("").expect_err("nothing is given"), ConfigError::NoWorkers);
        assert!(resolve_line("--workers-file /etc/workers").is_ok());
    }

    #[test]
    fn bad_values_are_named() {
        for (line, expected) in [
            ("--worker ftp://a:1", "--worker ftp://a:1: the scheme must be http or https, or openai+ and one of these"),
            ("--worker a:1:2", "--worker a:1:2: the scheme must be http or https, or openai+ and one of these"),
            ("--worker a", "--worker a: it is not a URL"),
            ("--worker openai+http://", "--worker openai+http://: the host is missing"),
            (
                "--worker openai+http://a:1/v1?x=1",
                "--worker openai+http://a:1/v1?x=1: only scheme, host, port and path can be given",
            ),
            ("--worker http://a:1/#x", "--worker http://a:1/#x: only scheme, host, port and path can be given"),
            (
                "--worker http://me:secret@a:1",
                "--worker a:1: a URL cannot have a user or a password; give a stock server's key by --worker-key-file",
            ),
            (
                "--worker openai+https://secret@a:1/v1",
                "--worker a:1/v1: a URL cannot have a user or a password; give a stock server's key by --worker-key-file",
            ),
            (
                "--worker-dns http://me:secret@a:1",
                "--worker-dns a:1: it must be HOST:PORT or https://HOST:PORT, with or without openai+",
            ),
            ("--worker http://a:1/v1,http://a:1", "--worker http://a:1: the worker is listed twice"),
            ("--worker http://a:1,http://a:1", "--worker http://a:1: the worker is listed twice"),
            ("--worker openai+http://a:1,http://a:1", "--worker http://a:1: the worker is listed twice"),
            ("--worker-dns a", "--worker-dns a: it must be HOST:PORT or https://HOST:PORT, with or without openai+"),
            (
                "--worker-dns a:0",
                "--worker-dns a:0: it must be HOST:PORT or https://HOST:PORT, with or without openai+",
            ),
            (
                "--worker-dns http://a:1",
                "--worker-dns http://a:1: it must be HOST:PORT or https://HOST:PORT, with or without openai+",
            ),
            (
                "--kubernetes-service chat:8081",
                "--kubernetes-service chat:8081: it must be NAMESPACE/NAME:PORT, with or without https://",
            ),
            (
                "--kubernetes-service llm/chat",
                "--kubernetes-service llm/chat: it must be NAMESPACE/NAME:PORT, with or without https://",
            ),
            (
                "--kubernetes-service llm/chat:99999",
                "--kubernetes-service llm/chat:99999: it must be NAMESPACE/NAME:PORT, with or without https://",
            ),
            (
                "--kubernetes-service llm/a,b:1",
                "--kubernetes-service llm/a: it must be NAMESPACE/NAME:PORT, with or without https://",
            ),
        ] {
            assert_eq!(resolve_line(line).expect_err(line).to_string(), expected);
        }
    }

    #[test]
    fn hosts_are_checked_like_workers_and_are_no_stock_servers() {
        let flags = |line: &str| {
            let arguments = ["warmpath-router"].into_iter().chain(line.split_whitespace());
            hosts(&Flags::try_parse_from(arguments).expect("clap takes the line").hosts)
        };
        let urls = flags("--host http://a:9190,https://b --host http://c:9190/x").expect("a good line");
        let urls: Vec<_> = urls.iter().map(|host| host.url.as_str()).collect();
        assert_eq!(urls, ["http://a:9190/", "https://b/", "http://c:9190/x"]);
        for (line, expected) in [
            ("--host openai+http://a:1", "--host openai+http://a:1: a host is no stock server"),
            ("--host a", "--host a: it is not a URL"),
            (
                "--host http://me:secret@a:1",
                "--host a:1: a URL cannot have a user or a password; give a stock server's key by --worker-key-file",
            ),
            ("--host http://a:1 --host http://a:1/", "--host http://a:1/: the host is listed twice"),
        ] {
            assert_eq!(flags(line).expect_err(line).to_string(), expected);
        }
        let many = vec!["http://a:1".to_owned(); HOSTS_MAX + 1];
        assert_eq!(hosts(&many), Err(ConfigError::TooManyHosts { n: HOSTS_MAX + 1 }));
        assert!(resolve_line("--host http://a:9190").is_ok(), "a host finds workers");
    }

    #[test]
    fn too_many_workers_are_refused() {
        let given = vec!["http://a:1".to_owned(); WORKERS_MAX + 1];
        assert_eq!(workers(&given), Err(ConfigError::TooManyWorkers { n: WORKERS_MAX + 1 }));
    }
}
