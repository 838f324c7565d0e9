//! Workers among the endpoints of a Kubernetes service, found by watching its EndpointSlices.
//!
//! An endpoint that is terminating gets no further request. The readiness of an endpoint is ignored: the worker reports
//! it on its summary stream, sooner and without the flaps of a probe. If a missed probe removed a worker, the router
//! would drop the worker's blocks and would have to fetch them again.
//!
//! Not here: the watch protocol (`kube`).

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client};
use warmpath_router_core::fleet::membership::DiscoveredWorker;
use warmpath_shell::chain;

use super::source::Source;
use crate::config::{KubernetesPort, KubernetesService, WorkerAddress};
use crate::metrics::Metrics;

/// Label of a slice that names its service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Duration of one watch; the next one continues where it ended. If the API server vanishes without closing its
/// connection, the router notices it 5 s after the end of the watch. Units: seconds. Source: docs/decisions/0033.
const WATCH_S: u32 = 30;
/// First pause after a failed watch. Source: own choice: an API server that only closed the watch is back at once.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Longest pause, and so about the longest time that changes stay unseen after an outage. Source: docs/decisions/0033.
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// Reason why no cluster can be reached.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kubeconfig file cannot be used.
    #[error(transparent)]
    File(#[from] kube::config::KubeconfigError),
    /// No cluster can be found, or no client can be made for it.
    #[error(transparent)]
    Client(Box<kube::Error>),
}

/// Returns a client for the cluster that a file names, or for the one in this process's environment.
///
/// Errors: every [`ClusterError`]; no request is sent to the cluster yet.
pub(super) async fn client(kubeconfig: Option<&Path>) -> Result<Client, ClusterError> {
    let client = match kubeconfig {
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path)?;
            let config =
                kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?;
            Client::try_from(config)
        }
        None => Client::try_default().await,
    };
    client.map_err(|error| ClusterError::Client(Box::new(error)))
}

/// Follows a service as long as the router runs. While the API server cannot be reached, the last list stays.
pub(super) async fn watch(client: Client, service: KubernetesService, source: Source, metrics: Arc<Metrics>) {
    let slices: Api<EndpointSlice> = Api::namespaced(client, &service.namespace);
    let only = Config::default().labels(&format!("{SERVICE_LABEL}={}", service.name)).timeout(WATCH_S);
    let (store, writer) = reflector::store();
    let events = reflector(writer, watcher(slices, only)).backoff(RetryPauses::default());
    let mut events = std::pin::pin!(events);
    let mut last_error = String::new();
    while let Some(event) = events.next().await {
        match event {
            // A list that is still being read is not yet in the store.
            Ok(Event::Init | Event::InitApply(_)) => {}
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => {
                last_error.clear();
                source.set(workers(&store.state(), &service));
            }
            Err(error) => {
                metrics.discovery_failures.with_label_values(&["kubernetes"]).inc();
                let reason = chain(&error);
                if reason != last_error {
                    tracing::warn!(service = %service.name, %reason, "endpoints cannot be watched; the last ones stay in force");
                }
                last_error = reason;
            }
        }
    }
}

/// Pauses between tries, each twice the last one. The pauses of `kube` grow to a minute, to protect API servers with
/// thousands of clients. There are few routers, and a router that pauses for a minute still sends requests to workers
/// that have ended.
struct RetryPauses(Duration);

impl Default for RetryPauses {
    fn default() -> Self {
        Self(PAUSE_MIN)
    }
}

impl Iterator for RetryPauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE_MAX);
        Some(pause)
    }
}

impl Backoff for RetryPauses {
    fn reset(&mut self) {
        self.0 = PAUSE_MIN;
    }
}

/// Returns the workers in a service's slices: those with IPv4 addresses, or without any, those with IPv6 addresses.
///
/// A pod with an address of each family is an endpoint in a slice of each, and is one worker. Slices of host names are
/// ignored: a worker is followed at one address, and a name may have several.
fn workers(slices: &[Arc<EndpointSlice>], service: &KubernetesService) -> Vec<DiscoveredWorker<WorkerAddress>> {
    let of_type = |address_type: &str| -> Vec<_> {
        let slices = slices.iter().filter(|slice| slice.address_type == address_type);
        slices.flat_map(|slice| endpoints(slice, service)).collect()
    };
    let ipv4 = of_type("IPv4");
    if ipv4.is_empty() { of_type("IPv6") } else { ipv4 }
}

/// Returns the workers in a slice.
fn endpoints(slice: &EndpointSlice, service: &KubernetesService) -> Vec<DiscoveredWorker<WorkerAddress>> {
    let number = match &service.port {
        KubernetesPort::Number(number) => Some(*number),
        KubernetesPort::Name(name) => {
            let ports = slice.ports.iter().flatten();
            let named = ports.filter(|port| port.name.as_ref() == Some(name)).find_map(|port| port.port);
            named.and_then(|number| u16::try_from(number).ok())
        }
    };
    let Some(number) = number else { return Vec::new() };
    let mut workers = Vec::new();
    for endpoint in slice.endpoints.iter().flatten() {
        let is_ending = endpoint.conditions.as_ref().and_then(|conditions| conditions.terminating).unwrap_or(false);
        // Every address of an endpoint belongs to the same pod.
        let address = endpoint.addresses.iter().find_map(|address| address.parse::<IpAddr>().ok());
        let worker = address.and_then(|ip| service.worker(SocketAddr::new(ip, number)));
        workers.extend(worker.map(|address| DiscoveredWorker { address, is_ending }));
    }
    workers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Scheme;

    fn service(port: KubernetesPort) -> KubernetesService {
        KubernetesService { scheme: Scheme::Http, namespace: "llm".into(), name: "chat".into(), port }
    }

    fn slice(json: serde_json::Value) -> EndpointSlice {
        serde_json::from_value(json).expect("a slice as the API server writes it")
    }

    #[test]
    fn pauses_grow_to_seconds_and_start_again_after_a_success() {
        let mut pauses = RetryPauses::default();
        let first: Vec<u128> = pauses.by_ref().take(6).map(|pause| pause.as_millis()).collect();
        assert_eq!(first, [250, 500, 1000, 2000, 4000, 4000]);
        pauses.reset();
        assert_eq!(pauses.next(), Some(PAUSE_MIN));
    }

    #[test]
    fn terminating_endpoints_are_removed_and_unready_ones_stay() {
        let slice = slice(serde_json::json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "w-1"},
            "addressType": "IPv4",
            "ports": [{"name": "metrics", "port": 9090}, {"name": "http", "port": 8081}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": false, "serving": true, "terminating": true}},
                {"addresses": ["10.0.0.4"]},
            ],
        }));
        let listed = endpoints(&slice, &service(KubernetesPort::Name("http".into())));
        let shown: Vec<_> = listed.iter().map(|found| (found.address.url.to_string(), found.is_ending)).collect();
        let expected = [("1", false), ("2", false), ("3", true), ("4", false)];
        assert_eq!(shown, expected.map(|(n, is_ending)| (format!("http://10.0.0.{n}:8081/"), is_ending)));
        assert_eq!(
            endpoints(&slice, &service(KubernetesPort::Number(7)))[0].address.url.as_str(),
            "http://10.0.0.1:7/"
        );
        assert_eq!(endpoints(&slice, &service(KubernetesPort::Name("other".into()))), []);
    }

    #[test]
    fn ipv4_and_ipv6_addresses_become_urls_and_host_names_do_not() {
        let slice = slice(serde_json::json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "w-2"},
            "addressType": "IPv6",
            "endpoints": [{"addresses": ["fd00::1"]}, {"addresses": ["host.example"]}],
        }));
        let listed = endpoints(&slice, &service(KubernetesPort::Number(80)));
        let shown: Vec<_> = listed.iter().map(|found| found.address.url.as_str()).collect();
        assert_eq!(shown, ["http://[fd00::1]/"]);
    }

    #[test]
    fn a_pod_with_an_address_of_each_family_is_one_worker() {
        let of_type = |address_type: &str, addresses: &[&str]| {
            let endpoints: Vec<_> =
                addresses.iter().map(|address| serde_json::json!({"addresses": [address]})).collect();
            Arc::new(slice(serde_json::json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": address_type},
                "addressType": address_type, "endpoints": endpoints,
            })))
        };
        let check = |slices: &[Arc<EndpointSlice>], expected: &[&str]| {
            let listed = workers(slices, &service(KubernetesPort::Number(7)));
            let shown: Vec<_> = listed.iter().map(|found| found.address.url.as_str()).collect();
            assert_eq!(shown, expected);
        };
        let (ipv4, none) = (of_type("IPv4", &["10.0.0.1", "10.0.0.2"]), of_type("IPv4", &[]));
        let (ipv6, names) = (of_type("IPv6", &["fd00::1", "fd00::2"]), of_type("FQDN", &["host.example"]));
        let (both, only_ipv6) =
            (["http://10.0.0.1:7/", "http://10.0.0.2:7/"], ["http://[fd00::1]:7/", "http://[fd00::2]:7/"]);
        check(&[ipv6.clone(), ipv4.clone()], &both);
        check(&[ipv4.clone(), names.clone()], &both);
        check(&[none, ipv6.clone()], &only_ipv6);
        check(&[ipv6], &only_ipv6);
        check(&[names], &[]);
    }
}
