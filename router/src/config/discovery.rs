//! Where workers are looked for: the forms in which flags and files name them.
//!
//! Not here: looking (`discovery` of the crate).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::ServerName;
use url::Url;

use super::flags::Flags;
use super::{ConfigError, WORKERS_MAX, seconds};

/// Says where workers are looked for.
#[derive(Debug, Clone)]
pub struct DiscoveryConfig {
    /// Lists the workers that are given by their URLs.
    pub workers: Vec<WorkerAddress>,
    /// Is the file that lists workers.
    pub file: Option<PathBuf>,
    /// Lists the names whose addresses are workers.
    pub dns: Vec<DnsName>,
    /// Is the pause between two looks at them.
    pub dns_pause: Duration,
    /// Lists the Kubernetes services whose endpoints are workers.
    pub kubernetes: Vec<KubernetesService>,
    /// Is the file that says where the API server is; absent where that is to be found.
    pub kubeconfig: Option<PathBuf>,
}

/// Says where a worker is and what it speaks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerAddress {
    /// Is its URL, with the path before every path of its API, `/` where there is none.
    pub url: Url,
    /// Says what it speaks.
    pub api: WorkerApi,
    /// Is the name that its certificate must bear, where it is found by a name; absent for the URL's host.
    pub certified: Option<String>,
}

impl WorkerAddress {
    /// Returns the name that the worker's certificate must bear; absent where it can be none.
    pub fn server_name(&self) -> Option<ServerName<'static>> {
        let host = self.certified.as_deref().or_else(|| self.url.host_str())?;
        ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).ok()
    }

    /// Returns the worker at an address.
    fn at(address: SocketAddr, scheme: Scheme, api: WorkerApi) -> Self {
        let url = Url::parse(&format!("{}://{address}", scheme.text())).expect("an address is a host and a port");
        Self { url, api, certified: None }
    }
}

/// Says how a worker is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// In plain text.
    Http,
    /// By TLS.
    Https,
}

impl Scheme {
    fn text(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Returns the scheme that a name asks for, and the rest of it.
    fn of(text: &str) -> (Self, &str) {
        text.strip_prefix("https://").map_or((Self::Http, text), |rest| (Self::Https, rest))
    }
}

/// Says what a worker speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerApi {
    /// OpenAI's API and the summary protocol.
    Warmpath,
    /// OpenAI's API alone.
    OpenAi,
}

/// Is a name whose addresses are workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsName {
    /// Says how they are spoken to.
    pub scheme: Scheme,
    /// Is the name.
    pub host: String,
    /// Is the port that all of them listen on.
    pub port: u16,
    /// Says what they speak.
    pub api: WorkerApi,
}

impl DnsName {
    /// Returns the worker at one of the name's addresses; its certificate must bear the name.
    pub fn worker(&self, address: SocketAddr) -> WorkerAddress {
        let certified = (self.scheme == Scheme::Https).then(|| self.host.clone());
        WorkerAddress { certified, ..WorkerAddress::at(address, self.scheme, self.api) }
    }
}

/// Is a Kubernetes service whose endpoints are workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesService {
    /// Says how they are spoken to.
    pub scheme: Scheme,
    /// Is its namespace.
    pub namespace: String,
    /// Is its name.
    pub name: String,
    /// Is the port that the workers listen on.
    pub port: KubernetesPort,
}

impl KubernetesService {
    /// Returns the worker at an endpoint; its certificate must bear the service's name, as `NAME.NAMESPACE.svc`.
    pub fn worker(&self, address: SocketAddr) -> WorkerAddress {
        let certified = (self.scheme == Scheme::Https).then(|| format!("{}.{}.svc", self.name, self.namespace));
        WorkerAddress { certified, ..WorkerAddress::at(address, self.scheme, WorkerApi::Warmpath) }
    }
}

/// Is an endpoint's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubernetesPort {
    /// Is its number.
    Number(u16),
    /// Is its name, whose number the endpoints say.
    Name(String),
}

/// Says why a worker's URL cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WorkerUrlError {
    /// It cannot be read.
    #[error("it is no URL")]
    NoUrl,
    /// It asks for another protocol.
    #[error("the scheme must be http or https, or openai+ and one of these")]
    Scheme,
    /// It names no host.
    #[error("the host is missing")]
    NoHost,
    /// The host is no name that a certificate could bear.
    #[error("the host is no name and no address")]
    NoName,
    /// It names a user, or holds a password.
    #[error("a URL cannot hold a user or a password; a stock server's key is given by --worker-key-file")]
    Credentials,
    /// It has a query or a fragment.
    #[error("only scheme, host, port and path can be given")]
    TooMuch,
}

/// Is what stands before what names a stock server.
const STOCK_PREFIX: &str = "openai+";

fn api_of(text: &str) -> (&str, WorkerApi) {
    text.strip_prefix(STOCK_PREFIX).map_or((text, WorkerApi::Warmpath), |rest| (rest, WorkerApi::OpenAi))
}

/// Is what every path of OpenAI's API begins with, and clients' base URLs end with.
const API_PREFIX: &str = "/v1";

/// Returns the worker that a URL means: `http://HOST:PORT` or `https://…`, with `openai+` before it for a stock server.
///
/// A path in it stands before every path that is asked for; `/v1` at its end is that of OpenAI's API, and so no part of it.
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

/// Returns where flags say that workers are.
///
/// Errors: the [`ConfigError`]s of these flags.
pub(super) fn resolve(flags: &Flags) -> Result<DiscoveryConfig, ConfigError> {
    let config = DiscoveryConfig {
        workers: workers(&flags.workers)?,
        file: flags.workers_file.clone(),
        dns: flags.worker_dns.iter().map(|text| dns_name(text)).collect::<Result<_, _>>()?,
        dns_pause: seconds("--dns-interval", flags.dns_interval)?.max(Duration::from_millis(100)),
        kubernetes: flags.kubernetes_services.iter().map(|text| service(text)).collect::<Result<_, _>>()?,
        kubeconfig: flags.kubeconfig.clone(),
    };
    let is_empty = config.workers.is_empty() && config.dns.is_empty() && config.kubernetes.is_empty();
    if is_empty && config.file.is_none() {
        return Err(ConfigError::NoWorkers);
    }
    Ok(config)
}

fn workers(given: &[String]) -> Result<Vec<WorkerAddress>, ConfigError> {
    if given.len() > WORKERS_MAX {
        return Err(ConfigError::TooManyWorkers { n: given.len() });
    }
    let mut workers: Vec<WorkerAddress> = Vec::with_capacity(given.len());
    for text in given {
        let worker = worker_address(text).map_err(|source| ConfigError::WorkerUrl { url: shown(text), source })?;
        if workers.iter().any(|other| other.url == worker.url) {
            return Err(ConfigError::WorkerTwice { url: text.clone() });
        }
        workers.push(worker);
    }
    Ok(workers)
}

/// Returns what of a URL may be shown: a password stands before the host.
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
    fn stock_servers_are_told_by_what_stands_before_them() {
        let config =
            resolve_line("--worker openai+http://a:1,http://b:2 --worker-dns openai+c:3,d:4").expect("a good line");
        let workers: Vec<_> = config.workers.iter().map(|worker| (worker.url.as_str(), worker.api)).collect();
        assert_eq!(workers, [("http://a:1/", WorkerApi::OpenAi), ("http://b:2/", WorkerApi::Warmpath)]);
        let names: Vec<_> = config.dns.iter().map(|name| (name.host.as_str(), name.port, name.api)).collect();
        assert_eq!(names, [("c", 3, WorkerApi::OpenAi), ("d", 4, WorkerApi::Warmpath)]);
    }

    #[test]
    fn a_path_stands_before_the_api_s_own() {
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
        let shown = config.workers.iter().chain(&found);
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
            ("--worker a", "--worker a: it is no URL"),
            ("--worker openai+http://", "--worker openai+http://: the host is missing"),
            (
                "--worker openai+http://a:1/v1?x=1",
                "--worker openai+http://a:1/v1?x=1: only scheme, host, port and path can be given",
            ),
            ("--worker http://a:1/#x", "--worker http://a:1/#x: only scheme, host, port and path can be given"),
            (
                "--worker http://me:secret@a:1",
                "--worker a:1: a URL cannot hold a user or a password; a stock server's key is given by --worker-key-file",
            ),
            (
                "--worker openai+https://secret@a:1/v1",
                "--worker a:1/v1: a URL cannot hold a user or a password; a stock server's key is given by --worker-key-file",
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
    fn too_many_workers_are_refused() {
        let given = vec!["http://a:1".to_owned(); WORKERS_MAX + 1];
        assert_eq!(workers(&given), Err(ConfigError::TooManyWorkers { n: WORKERS_MAX + 1 }));
    }
}
