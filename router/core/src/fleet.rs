//! The fleet as the router sees it at one moment: an immutable value that many requests read at once.
//!
//! The router's tracker keeps it up to date. Which worker holds which prefix is in `index`; requests that this router
//! has sent and no worker has reported yet are in `ledger`.

pub mod compatibility;
pub mod membership;
mod nearest_names;
pub mod summary_reader;
pub mod summary_stream;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_common::ids::WorkerUid;
use warmpath_common::model::{Capability, ModelInfo};
use warmpath_common::names;
use warmpath_common::summary::{Digest, Load};

use crate::WorkerIdx;
use crate::fleet::compatibility::Mismatch;
use crate::fleet::nearest_names::suggestion;
use crate::hosts::{Autoload, HostsView, ModelRefusal, Prospect};
use crate::stock::TokenizerSource;

/// Age of a view beyond which its worker gets no more requests.
///
/// Source: docs/decisions/0000-measured-before.md: load views that are 5 s old triple the p99; a resync takes well
/// below a second.
pub const STALE_AGE_MAX: Duration = Duration::from_secs(3);

/// Time after a worker has joined for which its models may still be unknown, so that no name is reported as unknown.
///
/// Source: own choice: a worker declares its model's names as soon as it listens, some seconds after its start.
pub const UNDECLARED_GRACE: Duration = Duration::from_secs(60);

/// State of the connection to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionState {
    /// The worker has not reported anything yet.
    Connecting,
    /// The summary stream is open.
    Live,
    /// The summary stream was lost; the view is the last one that it gave.
    Stale {
        /// Time of the loss.
        since: Instant,
    },
    /// The worker cannot be reached.
    Down {
        /// Time at which that was noticed.
        since: Instant,
    },
    /// The worker responds but rejects this router's credentials.
    Refused {
        /// Time at which that was noticed.
        since: Instant,
    },
    /// The worker responds and is still loading its model.
    Loading {
        /// Time at which that was noticed.
        since: Instant,
    },
}

impl ConnectionState {
    /// Returns whether the worker is assumed to be running; true also before its first report.
    pub fn is_there(self) -> bool {
        !matches!(self, Self::Down { .. } | Self::Refused { .. } | Self::Loading { .. })
    }

    /// Returns the time since which its summary is stale; `None` if it is not.
    pub fn stale_since(self) -> Option<Instant> {
        match self {
            Self::Stale { since } => Some(since),
            Self::Connecting | Self::Live | Self::Down { .. } | Self::Refused { .. } | Self::Loading { .. } => None,
        }
    }
}

/// Blocks of a worker in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KnownBlocks {
    /// Number of blocks.
    pub n_blocks: usize,
    /// Digest of the blocks; `None` if the index dropped some for its memory limit, or if the worker has reported
    /// nothing.
    pub digest: Option<Digest>,
    /// Whether these are the blocks that the worker reports now; otherwise those that it reported before its stream was
    /// lost.
    pub is_current: bool,
}

/// View of one worker.
#[derive(Debug, Clone)]
pub struct WorkerView {
    /// Index of the worker in this router.
    pub idx: WorkerIdx,
    /// Name of the worker for people: its URL.
    pub name: String,
    /// The worker's own id; absent until it has reported it.
    pub uid: Option<WorkerUid>,
    /// Boot epoch of the worker's last report, another one after each restart; absent until it has reported it, and for
    /// a stock server.
    pub boot_epoch: Option<u64>,
    /// Declared model; absent until the worker has reported it. The first one of a stock server with several.
    pub model: Option<Arc<ModelInfo>>,
    /// Further models of a stock server; empty for a Warmpath worker.
    pub further: Vec<Arc<ModelInfo>>,
    /// Model names that the worker will serve once it has loaded its model; empty once it serves.
    pub awaited: Vec<String>,
    /// Time at which the worker joined the fleet.
    pub joined_at: Instant,
    /// Last load that the worker reported: at most a second old while the stream is live, otherwise from before the
    /// time in `link`.
    pub load: Load,
    /// Time at which it last computed prompts, or reported another prefill rate.
    pub measured_at: Instant,
    /// State of the connection to the worker.
    pub link: ConnectionState,
    /// Reason why the summary stream ended or could not be opened; absent while it is open.
    pub trouble: Option<Arc<str>>,
    /// Reason why the worker is excluded from the fleet; `None` if it is not.
    pub excluded: Option<Mismatch>,
    /// Blocks of the worker in the index.
    pub blocks: KnownBlocks,
    /// Source of the token counts of a stock server; absent for a Warmpath worker.
    pub stock: Option<TokenizerSource>,
    /// Whether discovery no longer finds the worker, or the worker is terminating.
    pub is_leaving: bool,
}

/// Reason why a worker cannot be given a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unavailable {
    /// The worker has not reported anything yet.
    Connecting,
    /// The worker cannot be reached.
    Down,
    /// The worker rejects this router's credentials.
    Refused,
    /// The worker is loading its model.
    Loading,
    /// The view of the worker is too old.
    Stale,
    /// The worker is incompatible with the fleet.
    Excluded,
    /// The worker is shutting down.
    Draining,
    /// Discovery no longer finds the worker, or the worker is terminating.
    Leaving,
    /// The worker refused a request a moment ago because its queue was full.
    Full,
    /// The worker cannot start a request soon.
    Busy,
    /// The worker reported a moment ago that it cannot serve.
    Unready,
    /// The worker has failed too often.
    BreakerOpen,
    /// This request has already failed at the worker.
    Tried,
}

impl Unavailable {
    /// Returns a short name for metrics and messages.
    pub fn label(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Down => "down",
            Self::Refused => "refused",
            Self::Loading => "loading",
            Self::Stale => "stale",
            Self::Excluded => "excluded",
            Self::Draining => "draining",
            Self::Leaving => "leaving",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::Unready => "unready",
            Self::BreakerOpen => "failing",
            Self::Tried => "tried",
        }
    }
}

impl WorkerView {
    /// Returns the model that the worker declares; `None` if the worker is not connected.
    pub fn declared_model(&self) -> Option<&ModelInfo> {
        self.model.as_deref().filter(|_| self.link.is_there())
    }

    /// Returns the reason in its own reports or its membership why the worker cannot be used; `None` if there is none.
    pub fn unavailable(&self, now: Instant) -> Option<Unavailable> {
        if self.excluded.is_some() {
            return Some(Unavailable::Excluded);
        }
        if self.is_leaving {
            return Some(Unavailable::Leaving);
        }
        match self.link {
            ConnectionState::Connecting => Some(Unavailable::Connecting),
            ConnectionState::Down { .. } => Some(Unavailable::Down),
            ConnectionState::Refused { .. } => Some(Unavailable::Refused),
            ConnectionState::Loading { .. } => Some(Unavailable::Loading),
            ConnectionState::Stale { since } if now.saturating_duration_since(since) > STALE_AGE_MAX => {
                Some(Unavailable::Stale)
            }
            ConnectionState::Stale { .. } | ConnectionState::Live => {
                self.load.draining.then_some(Unavailable::Draining)
            }
        }
    }

    /// Records a load that the worker reports.
    pub fn record_load(&mut self, load: Load, now: Instant) {
        let is_computing = load.running_prefill_tokens > 0 || self.load.running_prefill_tokens > 0;
        if is_computing || load.rates.prefill_tokens_per_s != self.load.rates.prefill_tokens_per_s {
            self.measured_at = now;
        }
        self.load = load;
    }

    /// Returns every model that the worker declares.
    pub fn models(&self) -> impl Iterator<Item = &Arc<ModelInfo>> + Clone {
        self.model.iter().chain(&self.further)
    }

    /// Returns the model that the worker has under a name, if it is in the fleet.
    pub fn model_named(&self, name: &str) -> Option<&Arc<ModelInfo>> {
        let in_fleet = self.models().filter(|_| self.excluded.is_none());
        best_named(in_fleet, Some(name))
    }

    /// Returns the model that the worker has under a name, if it belongs to the pool of `meant`. If one model has the
    /// name and another model's pattern matches it, only workers of the first belong to the pool.
    pub fn model_of_pool(&self, name: &str, meant: &ModelInfo) -> Option<&Arc<ModelInfo>> {
        let own_name = |model: &ModelInfo| model.meant(name).map(|meant| meant.model_name.to_owned());
        // The tokenizer source of a stock server may have changed since the name was looked up.
        let pool = own_name(meant);
        self.model_named(name).filter(|model| pool.is_none() || own_name(model) == pool)
    }

    /// Returns whether the worker is loading the model `name`; no name means any model.
    fn is_loading(&self, name: Option<&str>) -> bool {
        name.map_or(!self.awaited.is_empty(), |name| {
            self.awaited.iter().any(|awaited_name| names::matches(awaited_name, name))
        })
    }

    /// Returns whether the worker will serve `name`, or serves it but is excluded from the fleet. Without a name, any
    /// name that will be served counts.
    fn is_awaited_for(&self, name: Option<&str>) -> bool {
        let is_kept_out = |name| self.excluded.is_some() && self.models().any(|model| model.answers_to(name));
        self.is_loading(name) || name.is_some_and(is_kept_out)
    }

    /// Returns whether the worker has joined recently and has not declared any model.
    fn is_undeclared(&self, now: Instant) -> bool {
        let is_silent = self.model.is_none() && self.awaited.is_empty() && !self.is_leaving;
        is_silent && now.saturating_duration_since(self.joined_at) <= UNDECLARED_GRACE
    }

    /// Returns whether the worker supports `capability`; true also for a worker that has not declared its model yet.
    pub fn can(&self, capability: Option<Capability>) -> bool {
        self.model.is_none() || self.models().any(|model| model.can(capability))
    }
}

/// All workers, ordered by index, and all hosts.
#[derive(Debug, Clone, Default)]
pub struct FleetView {
    /// Workers, ordered by index.
    pub workers: Vec<Arc<WorkerView>>,
    /// Hosts, whose workers are among these.
    pub hosts: Arc<HostsView>,
}

/// Reason why no model can be found for a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No worker has declared a model yet, or none that is compatible.
    #[error("no worker is ready: {n_known} known, {n_connected} connected; a worker connects once its model is loaded")]
    NoWorkers {
        /// Workers that are configured or discovered.
        n_known: usize,
        /// Those of them whose summary stream is open.
        n_connected: usize,
        /// Requested name; `None` if the request has none.
        name: Option<String>,
    },
    /// A worker is still loading the model of that name, or serves it but is excluded from the fleet.
    #[error("{} not ready yet: a worker is loading it", awaited(.name.as_deref()))]
    Loading {
        /// Requested name; `None` if the request has none.
        name: Option<String>,
    },
    /// No worker that has reported serves the name, and some have not reported yet.
    #[error(
        "{} not known yet: {n_undeclared} of the workers and hosts have not reported their models",
        awaited(.name.as_deref())
    )]
    Undeclared {
        /// Requested name; `None` if the request has none.
        name: Option<String>,
        /// Workers that joined recently and have not declared a model, and hosts without a summary.
        n_undeclared: usize,
    },
    /// No worker serves the name.
    #[error("the model `{name}` does not exist{}; available: {}", suggestion(.name, .known), some(.known))]
    Unknown {
        /// Requested name.
        name: String,
        /// Served names.
        known: Vec<String>,
    },
    /// The request names no model, and several could serve it.
    #[error("`model` is missing, and there are several: {}", list(.known))]
    Ambiguous {
        /// The models' names.
        known: Vec<String>,
    },
    /// Workers serve the name, or some name, but none of them supports the task.
    #[error("{} {wanted}; {}", subject(.name.as_deref()), others(.able))]
    Incapable {
        /// Requested name; `None` if the request has none.
        name: Option<String>,
        /// Requested task.
        wanted: Capability,
        /// Models that support it, by name.
        able: Vec<String>,
    },
    /// A host has the model in its catalogue, and none of its workers serves it.
    #[error(transparent)]
    Host(#[from] ModelRefusal),
}

impl LookupError {
    /// Returns the requested name, if the request has one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::NoWorkers { name, .. }
            | Self::Loading { name }
            | Self::Undeclared { name, .. }
            | Self::Incapable { name, .. } => name.as_deref(),
            Self::Unknown { name, .. } => Some(name),
            Self::Host(refusal) => Some(refusal.name()),
            Self::Ambiguous { .. } => None,
        }
    }
}

fn some(names: &[String]) -> String {
    if names.is_empty() { "none yet".to_owned() } else { list(names) }
}

fn awaited(name: Option<&str>) -> String {
    name.map_or_else(|| "a model is".to_owned(), |name| format!("the model `{name}` is"))
}

fn subject(name: Option<&str>) -> String {
    name.map_or_else(|| "no model here serves".to_owned(), |name| format!("the model `{name}` does not serve"))
}

fn others(names: &[String]) -> String {
    if names.is_empty() { "no other model does either".to_owned() } else { format!("models that do: {}", list(names)) }
}

/// Maximum number of names that a message lists.
///
/// Source: own choice: longer lists are not read; `/v1/models` has all names.
const LISTED_MAX: usize = 64;

fn list(names: &[String]) -> String {
    let quoted_names: Vec<_> = names.iter().take(LISTED_MAX).map(|name| format!("`{name}`")).collect();
    let quoted_names = quoted_names.join(", ");
    match names.len().checked_sub(LISTED_MAX) {
        Some(n_more) if n_more > 0 => format!("{quoted_names} and {n_more} more"),
        _ => quoted_names,
    }
}

impl FleetView {
    /// Returns the worker with an index, if there is one. Cost: O(log workers).
    pub fn worker(&self, idx: WorkerIdx) -> Option<&Arc<WorkerView>> {
        self.workers.binary_search_by_key(&idx, |worker| worker.idx).ok().map(|place| &self.workers[place])
    }

    /// Returns one more than the largest index in use.
    pub fn n_places(&self) -> usize {
        self.workers.last().map_or(0, |worker| worker.idx.0 as usize + 1)
    }

    /// Returns the model that a request that needs `capability` means; without a name, the only model that supports it.
    ///
    /// Errors: every [`LookupError`]. Workers that are down count: their model exists.
    pub fn lookup(
        &self,
        name: Option<&str>,
        capability: Option<Capability>,
        now: Instant,
    ) -> Result<Arc<ModelInfo>, LookupError> {
        if name.is_none() && self.hosts_have_another_model() {
            return Err(LookupError::Ambiguous { known: self.names() });
        }
        let able = self.models().filter(|model| model.can(capability));
        let Some(meant) = best_named(able.clone(), name) else {
            let is_named = best_named(self.models(), name).is_some();
            return Err(self.refusal(name, capability.filter(|_| is_named), now));
        };
        if name.is_none() && able.into_iter().any(|model| model.fingerprint != meant.fingerprint) {
            return Err(LookupError::Ambiguous { known: self.names_for(capability) });
        }
        Ok(Arc::clone(meant))
    }

    /// Returns the model that a request that needs `capability` means; a name that no model has counts as no name.
    ///
    /// Errors: those of [`Self::lookup`]; `Unknown` instead of `Ambiguous`.
    pub fn lookup_any(
        &self,
        name: &str,
        capability: Option<Capability>,
        now: Instant,
    ) -> Result<Arc<ModelInfo>, LookupError> {
        let lookup = self.lookup(Some(name), capability, now);
        if !matches!(lookup, Err(LookupError::Unknown { .. })) {
            return lookup;
        }
        match self.lookup(None, capability, now) {
            Err(LookupError::Ambiguous { .. }) => lookup,
            only => only,
        }
    }

    /// Returns why no worker serves a name, or has `capability` under it.
    fn refusal(&self, name: Option<&str>, capability: Option<Capability>, now: Instant) -> LookupError {
        let owned_name = name.map(str::to_owned);
        if capability.is_none()
            && let Some(refusal) = self.host_refusal(name, Autoload::On, now)
        {
            return refusal.into();
        }
        // The name may be served soon.
        if self.workers.iter().any(|worker| worker.is_awaited_for(name)) {
            return LookupError::Loading { name: owned_name };
        }
        let has_models = self.models().next().is_some();
        let n_silent_workers = self.workers.iter().filter(|worker| self.is_undeclared(worker, now)).count();
        let n_undeclared = n_silent_workers + self.hosts.n_silent();
        let has_models = has_models || self.hosts.has_models();
        if n_undeclared > 0 && has_models {
            return LookupError::Undeclared { name: owned_name, n_undeclared };
        }
        // No other name will be known soon.
        let is_awaiting = self.workers.iter().any(|worker| !worker.awaited.is_empty());
        match (owned_name, capability) {
            (name, Some(capability)) => {
                LookupError::Incapable { name, wanted: capability, able: self.names_for(Some(capability)) }
            }
            (Some(name), None) if has_models || (is_awaiting && n_undeclared == 0) => {
                LookupError::Unknown { name, known: self.names() }
            }
            (name, None) => {
                let n_connected = self.workers.iter().filter(|worker| worker.link == ConnectionState::Live).count();
                LookupError::NoWorkers { n_known: self.workers.len(), n_connected, name }
            }
        }
    }

    /// Returns whether a request that needs `capability` is worth holding: no available worker serves it, and a worker
    /// is loading the model or has joined recently without declaring one.
    pub fn is_awaited(&self, name: Option<&str>, capability: Option<Capability>, now: Instant) -> bool {
        let suits = |model: &Arc<ModelInfo>| name.is_none_or(|name| model.answers_to(name)) && model.can(capability);
        let is_ready = |worker: &WorkerView| worker.unavailable(now).is_none() && worker.models().any(suits);
        let may_come = |worker: &WorkerView| match worker.link {
            ConnectionState::Refused { .. } => false,
            _ => worker.is_loading(name) || self.is_undeclared(worker, now),
        };
        let mut workers = self.workers.iter().map(Arc::as_ref).filter(|worker| !worker.is_leaving);
        workers.clone().any(may_come) && !workers.any(is_ready)
    }

    /// Returns whether a request is worth holding because of a host: no available worker but those of
    /// `tried_workers` serves its name, and a worker of a host comes if the request waits.
    pub fn awaits_host(
        &self,
        name: Option<&str>,
        autoload: Autoload,
        now: Instant,
        tried_workers: &[WorkerIdx],
    ) -> bool {
        let Some(name) = self.hosts.meant(name) else { return false };
        !self.serves(name, now, tried_workers)
            && self.hosts.is_expected(name, autoload, now, |prospect| self.is_usable(prospect))
    }

    /// Returns the host at which a request for a name demands its model, and the model there; no host whose index is in
    /// `refusing_hosts`.
    pub fn demanded(
        &self,
        name: Option<&str>,
        autoload: Autoload,
        now: Instant,
        refusing_hosts: &[usize],
    ) -> Option<Prospect<'_>> {
        let is_usable =
            |prospect: &Prospect<'_>| self.is_usable(prospect) && !refusing_hosts.contains(&prospect.host_idx);
        self.hosts.demanded(self.hosts.meant(name)?, autoload, now, is_usable)
    }

    /// Returns why the hosts do not serve a name of their catalogues now; `None` if an available worker serves it, if
    /// no catalogue has it, or if only a worker that is excluded from the fleet serves it.
    pub fn host_refusal(&self, name: Option<&str>, autoload: Autoload, now: Instant) -> Option<ModelRefusal> {
        let name = self.hosts.meant(name)?;
        let is_usable = |prospect: &Prospect<'_>| self.is_usable(prospect);
        let is_kept_out = |worker: &Arc<WorkerView>| worker.excluded.is_some() && worker.is_awaited_for(Some(name));
        let is_expected = || self.hosts.is_expected(name, autoload, now, is_usable);
        if self.serves(name, now, &[]) || (self.workers.iter().any(is_kept_out) && !is_expected()) {
            return None;
        }
        self.hosts.refusal(name, autoload, now, is_usable)
    }

    /// Returns whether a worker has joined recently and its model's name is not known. Hosts name the models of their
    /// workers.
    fn is_undeclared(&self, worker: &WorkerView, now: Instant) -> bool {
        worker.is_undeclared(now) && !self.hosts.runs(&worker.name)
    }

    /// Returns whether an available worker other than `tried_workers` serves a name.
    fn serves(&self, name: &str, now: Instant, tried_workers: &[WorkerIdx]) -> bool {
        let is_left =
            |worker: &&Arc<WorkerView>| worker.unavailable(now).is_none() && !tried_workers.contains(&worker.idx);
        let mut workers = self.workers.iter().filter(is_left);
        workers.any(|worker| worker.model_named(name).is_some())
    }

    /// Returns whether this router may use the worker of a host's model, as far as the worker has shown it.
    fn is_usable(&self, prospect: &Prospect<'_>) -> bool {
        let Some(url) = prospect.model.state.worker_url() else { return true };
        let is_refused = |worker: &Arc<WorkerView>| {
            worker.excluded.is_some() || matches!(worker.link, ConnectionState::Refused { .. })
        };
        !self.workers.iter().any(|worker| worker.name == url && is_refused(worker))
    }

    /// Returns whether the hosts have several models, or one beside a model of another worker.
    fn hosts_have_another_model(&self) -> bool {
        match self.hosts.distinct()[..] {
            [] => false,
            [only] => self.models().any(|model| !model.answers_to(only)),
            [..] => true,
        }
    }

    fn models(&self) -> impl Iterator<Item = &Arc<ModelInfo>> + Clone {
        self.workers.iter().filter(|worker| worker.excluded.is_none()).flat_map(|worker| worker.models())
    }

    /// Returns all names without duplicates: those of the hosts' catalogues, then those of the other workers.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.hosts.names().into_iter().map(str::to_owned).collect();
        let host_names: HashSet<String> = names.iter().cloned().collect();
        names.extend(self.names_for(None).into_iter().filter(|name| !host_names.contains(name)));
        names
    }

    fn names_for(&self, capability: Option<Capability>) -> Vec<String> {
        let mut names_met = HashSet::new();
        let names = self.models().filter(|model| model.can(capability)).flat_map(|model| model.all_names());
        names.filter(|name| names_met.insert(name.clone())).collect()
    }
}

/// Returns the model that matches a name best, the first one of several; without a name, the first model.
fn best_named<'a>(models: impl Iterator<Item = &'a Arc<ModelInfo>>, name: Option<&str>) -> Option<&'a Arc<ModelInfo>> {
    let rank = |model: &ModelInfo| name.map_or(Some(0), |name| model.meant(name).map(|meant| meant.rank()));
    let candidates = models.filter_map(|model| Some((rank(model)?, model)));
    candidates.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, model)| model)
}

#[cfg(test)]
mod tests;
