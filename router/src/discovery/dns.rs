//! Workers found by DNS: the addresses of a name, which is resolved periodically.
//!
//! A server with an IPv4 and an IPv6 address is one worker, so only one family counts: IPv4 if the name has any such
//! address, since most servers listen at 127.0.0.1 or 0.0.0.0 alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::source::{Source, staying};
use crate::config::{DNS_TIMEOUT, DnsName, WorkerAddress};
use crate::metrics::Metrics;

/// Follows a name as long as the router runs. If it cannot be resolved or has no usable address, the last list stays.
pub(super) async fn watch(name: DnsName, pause: Duration, source: Source, metrics: Arc<Metrics>) {
    let mut current = Answer::default();
    let mut last_error = String::new();
    loop {
        match resolve(&name).await {
            Ok(answer) => {
                last_error.clear();
                let skipped = &answer.skipped;
                if !skipped.is_empty() && *skipped != current.skipped {
                    tracing::warn!(host = %name.host, ?skipped, "a URL cannot hold some addresses of the name");
                }
                if answer.workers != current.workers {
                    source.set(answer.workers.values().cloned().map(staying).collect());
                }
                current = answer;
            }
            Err(error) => {
                metrics.discovery_failures.with_label_values(&["dns"]).inc();
                let reason = error.to_string();
                if reason != last_error {
                    tracing::warn!(host = %name.host, %reason, "name cannot be resolved; its last addresses stay in force");
                }
                last_error = reason;
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// The addresses of a name at one time.
#[derive(Debug, Default)]
struct Answer {
    /// Workers at the addresses of one family.
    workers: BTreeMap<SocketAddr, WorkerAddress>,
    /// Addresses that a URL cannot hold.
    skipped: BTreeSet<SocketAddr>,
}

impl Answer {
    /// Returns the IPv4 addresses, or without any, the IPv6 addresses.
    fn of(name: &DnsName, addresses: &[SocketAddr]) -> Self {
        // A URL can hold every IPv4 address.
        let is_ipv4 = addresses.iter().any(SocketAddr::is_ipv4);
        let mut answer = Self::default();
        for &address in addresses {
            match name.worker(address) {
                None => {
                    answer.skipped.insert(address);
                }
                Some(worker) if address.is_ipv4() == is_ipv4 => {
                    answer.workers.insert(address, worker);
                }
                Some(_) => {}
            }
        }
        answer
    }
}

/// Returns the addresses of a name, at least one of them usable.
///
/// Errors: the resolver's; `TimedOut` if it does not respond; `NotFound` without a usable address.
async fn resolve(name: &DnsName) -> io::Result<Answer> {
    let lookup = tokio::net::lookup_host((name.host.as_str(), name.port));
    let timeout = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
    let addresses = tokio::time::timeout(DNS_TIMEOUT, lookup).await.map_err(timeout)??;
    let answer = Answer::of(name, &addresses.collect::<Vec<_>>());
    match (answer.workers.is_empty(), answer.skipped.is_empty()) {
        (false, _) => Ok(answer),
        (true, true) => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        (true, false) => Err(io::Error::new(io::ErrorKind::NotFound, "a URL cannot hold the name's addresses")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Scheme, WorkerApi};

    fn name(host: &str) -> DnsName {
        DnsName { scheme: Scheme::Http, host: host.into(), port: 8081, api: WorkerApi::Warmpath }
    }

    fn check(addresses: &[&str], expected: &[&str], expected_skipped: &[&str]) {
        let addresses: Vec<_> = addresses.iter().map(|text| text.parse().expect("an address")).collect();
        let answer = Answer::of(&name("workers.example"), &addresses);
        let workers: Vec<_> = answer.workers.values().map(|worker| worker.url.as_str()).collect();
        let skipped: Vec<_> = answer.skipped.iter().map(SocketAddr::to_string).collect();
        assert_eq!(workers, expected);
        assert_eq!(skipped, expected_skipped);
    }

    #[test]
    fn the_ipv4_addresses_of_a_name_count_or_without_any_the_ipv6_addresses() {
        let ipv4 = ["http://10.0.0.1:8081/", "http://10.0.0.2:8081/"];
        let ipv6 = ["http://[fd00::1]:8081/", "http://[fd00::2]:8081/"];
        check(&["10.0.0.2:8081", "10.0.0.1:8081", "[fd00::1]:8081", "[fd00::2]:8081"], &ipv4, &[]);
        check(&["[fd00::2]:8081", "10.0.0.1:8081", "[fd00::1]:8081", "10.0.0.2:8081"], &ipv4, &[]);
        check(&["10.0.0.1:8081", "10.0.0.2:8081", "10.0.0.1:8081"], &ipv4, &[]);
        check(&["[fd00::1]:8081", "[fd00::2]:8081"], &ipv6, &[]);
        check(&[], &[], &[]);
        check(&["[::1]:8081", "127.0.0.1:8081"], &["http://127.0.0.1:8081/"], &[]);
        check(&["[::1]:8081"], &["http://[::1]:8081/"], &[]);
    }

    #[test]
    fn addresses_that_a_url_cannot_hold_are_skipped() {
        let skipped = ["[fe80::1%2]:8081"];
        check(&["[fd00::1]:8081", "[fe80::1%2]:8081", "10.0.0.1:8081"], &["http://10.0.0.1:8081/"], &skipped);
        check(&["[fd00::1]:8081", "[fe80::1%2]:8081"], &["http://[fd00::1]:8081/"], &skipped);
        check(&["[fe80::1%2]:8081"], &[], &skipped);
    }

    #[tokio::test]
    async fn a_name_without_a_usable_address_is_a_failed_lookup() {
        let error = resolve(&name("fe80::1%1")).await.expect_err("its only address has a zone");
        assert_eq!(error.to_string(), "a URL cannot hold the name's addresses");
    }
}
