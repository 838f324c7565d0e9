//! Which file counts as right if hosts have different files under one name.
//!
//! The file of the most workers counts, as among workers; without workers that of the most hosts; of equal ones that of
//! the first host by name. All routers see these, so all load the same file. A host that is down does not count.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

use warmpath_common::model::Fingerprint;

use super::{HostsView, Prospect};

/// A model whose file at one host is not the right one, so that no request loads it there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherFile {
    /// Index of the host.
    pub host_idx: usize,
    /// Name of the model at the host.
    pub model: String,
    /// Fingerprint of its file there.
    pub file: Fingerprint,
    /// Fingerprint of the right file.
    pub right: Fingerprint,
}

impl fmt::Display for OtherFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, file, right, .. } = self;
        write!(f, "the host has the model `{model}` with fingerprint = {file}, the fleet with {right}")
    }
}

/// A host that has a file under a name.
#[derive(Debug, Clone, Copy)]
struct Claim<'a> {
    file: Fingerprint,
    host: &'a str,
    has_worker: bool,
}

/// Returns the file that counts as right; `None` if no host claims one.
fn best_supported<'a>(claims: impl Iterator<Item = Claim<'a>>) -> Option<Fingerprint> {
    let mut support: HashMap<Fingerprint, (Reverse<usize>, Reverse<usize>, &str)> = HashMap::new();
    for Claim { file, host, has_worker } in claims {
        let (n_workers, n_hosts, first) = support.entry(file).or_insert((Reverse(0), Reverse(0), host));
        n_workers.0 += usize::from(has_worker);
        n_hosts.0 += 1;
        *first = host.min(first);
    }
    support.into_iter().min_by_key(|(file, support)| (*support, *file)).map(|(file, _)| file)
}

impl HostsView {
    /// Returns the file that counts as right under a name; `None` if no host that is up knows its file.
    pub(super) fn right_file(&self, name: &str, now: Instant) -> Option<Fingerprint> {
        best_supported(self.named(name).filter_map(|prospect| self.claim(prospect, now)))
    }

    /// Returns the models whose files are not the right ones, by host.
    pub fn other_files(&self, now: Instant) -> Vec<OtherFile> {
        let mut claims: HashMap<&str, Vec<(Prospect<'_>, Claim<'_>)>> = HashMap::new();
        for (host_idx, host) in self.hosts.iter().enumerate() {
            for model in host.models() {
                let prospect = Prospect { host_idx, model };
                let Some(claim) = self.claim(prospect, now) else { continue };
                for name in std::iter::once(&model.name).chain(&model.aliases) {
                    claims.entry(name).or_default().push((prospect, claim));
                }
            }
        }
        let mut others = Vec::new();
        for claims in claims.into_values() {
            let Some(right) = best_supported(claims.iter().map(|(_, claim)| *claim)) else { continue };
            others.extend(claims.iter().filter(|(_, claim)| claim.file != right).map(|(prospect, claim)| OtherFile {
                host_idx: prospect.host_idx,
                model: prospect.model.name.clone(),
                file: claim.file,
                right,
            }));
        }
        others.sort_by(|a, b| (a.host_idx, &a.model, a.right).cmp(&(b.host_idx, &b.model, b.right)));
        others.dedup_by(|a, b| (a.host_idx, &a.model) == (b.host_idx, &b.model));
        others
    }

    fn claim<'a>(&'a self, prospect: Prospect<'a>, now: Instant) -> Option<Claim<'a>> {
        let host = &self.hosts[prospect.host_idx];
        host.link_rank(now)?;
        let has_worker = prospect.model.state.worker_url().is_some();
        Some(Claim { file: prospect.model.fingerprint?, host: host.own_name()?, has_worker })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use warmpath_common::host::{HostModel, HostSummary, ModelState};

    use super::*;
    use crate::hosts::{HostLink, HostView, LOST_HOST_KEPT};

    fn idle(name: &str, file: Option<u8>) -> HostView {
        host(name, file, ModelState::Impossible { reason: "no".into(), retry_ms: None })
    }

    fn busy(name: &str, file: Option<u8>) -> HostView {
        host(name, file, ModelState::Unloading { worker_url: "http://w".into() })
    }

    fn host(name: &str, file: Option<u8>, state: ModelState) -> HostView {
        let fingerprint = file.map(|byte| Fingerprint([byte; 32]));
        let aliases = vec!["alias".to_owned()];
        let models = vec![HostModel { fingerprint, aliases, ..HostModel::new("m", state) }];
        let summary = HostSummary { host: name.into(), models, ..HostSummary::default() };
        HostView { name: name.into(), link: HostLink::Live, summary: Some(Arc::new(summary)), trouble: None }
    }

    #[test]
    fn the_file_of_workers_counts_then_that_of_most_hosts_then_that_of_the_first_by_name() {
        let check = |hosts: &[HostView], expected: &[usize]| {
            let now = Instant::now();
            let view = HostsView { hosts: hosts.iter().cloned().map(Arc::new).collect() };
            let others: Vec<usize> = view.other_files(now).into_iter().map(|other| other.host_idx).collect();
            assert_eq!(others, expected, "{hosts:?}");
            let best = view.best("alias", now, |_| true);
            assert!(best.is_none_or(|best| !expected.contains(&best.host_idx)));
        };
        check(&[], &[]);
        check(&[idle("b", Some(1)), idle("a", Some(1))], &[]);
        check(&[idle("b", Some(1)), idle("a", Some(2))], &[0]);
        check(&[idle("b", Some(1)), idle("c", Some(1)), idle("a", Some(2))], &[2]);
        check(&[idle("b", Some(1)), idle("c", Some(1)), busy("a", Some(2))], &[0, 1]);
        check(&[busy("b", Some(1)), idle("a", None)], &[]);
        let down = Instant::now().checked_sub(LOST_HOST_KEPT + Duration::from_secs(1)).expect("the machine is older");
        let lost = HostView { link: HostLink::Lost { since: down }, ..idle("a", Some(2)) };
        check(&[idle("b", Some(1)), lost], &[]);
    }
}
