//! Workers found by DNS: every address of a name, which is resolved periodically.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{Source, staying};
use crate::config::{DNS_TIMEOUT, DnsName};
use crate::metrics::Metrics;

/// Follows a name as long as the router runs. If it cannot be resolved or has no address, the last list stays.
pub(super) async fn watch(name: DnsName, pause: Duration, (source, metrics): (Source, Arc<Metrics>)) {
    let mut current = BTreeSet::new();
    let mut last_error = String::new();
    loop {
        match resolve(&name).await {
            Ok(addresses) => {
                last_error.clear();
                if addresses != current {
                    let address = |address: &SocketAddr| name.worker(*address);
                    source.set(addresses.iter().map(address).map(staying).collect());
                    current = addresses;
                }
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

async fn resolve(name: &DnsName) -> std::io::Result<BTreeSet<SocketAddr>> {
    let lookup = tokio::net::lookup_host((name.host.as_str(), name.port));
    let timeout = |_| std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time");
    let addresses: BTreeSet<_> = tokio::time::timeout(DNS_TIMEOUT, lookup).await.map_err(timeout)??.collect();
    if addresses.is_empty() {
        return Err(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}
