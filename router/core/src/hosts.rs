//! The hosts as the router sees them at one moment: which models they can load, and which of them serves a name
//! soonest.
//!
//! A host runs one worker for each loaded model. Its workers are followed like all others; its summary adds the names
//! that no worker serves yet. A request for such a name is held, and the router demands the model at the best host: one
//! that has loaded it, else one that loads it, else the one where a load costs least.
//!
//! Not here: following a host and posting demands (the router's `fleet::hosts`), workers (`fleet`).

pub mod agreement;
pub mod stream;
pub mod waiting;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_common::clean_text;
use warmpath_common::host::{FetchedBytes, HostModel, HostSummary, ModelState, RequestFields};

/// Time after the loss of a host's stream in which its models still count as loadable. Later they keep their names, and
/// requests for them are refused, because the host is assumed to be down.
///
/// Source: own choice: longer than a restart of a host, and no longer than a client waits without progress.
pub const LOST_HOST_KEPT: Duration = Duration::from_secs(30);

/// Most reasons in one message. Source: own choice: further hosts usually have the same.
const REASONS_MAX: usize = 3;

/// State of the stream of a host's summaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostLink {
    /// No summary has come yet.
    Connecting,
    /// The stream is open.
    Live,
    /// The stream was lost; the summary is the last one that it gave.
    Lost {
        /// Time of the loss.
        since: Instant,
    },
}

/// View of one host.
#[derive(Debug, Clone)]
pub struct HostView {
    /// Name of the host for operators: its URL.
    pub name: String,
    /// State of its stream.
    pub link: HostLink,
    /// Its last valid summary; absent until the first.
    pub summary: Option<Arc<HostSummary>>,
    /// Reason why the stream ended or could not be opened; absent while it is open.
    pub trouble: Option<Arc<str>>,
}

/// All hosts, in the order of configuration.
#[derive(Debug, Clone, Default)]
pub struct HostsView {
    /// Hosts, in the order of configuration.
    pub hosts: Vec<Arc<HostView>>,
}

/// Whether a request loads its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Autoload {
    /// As the catalogue of the host says.
    #[default]
    ByModel,
    /// It does (`?autoload=true`).
    On,
    /// It does not (`?autoload=false`).
    Off,
}

impl Autoload {
    fn applies_to(self, model: &HostModel) -> bool {
        match self {
            Self::ByModel => model.is_autoloaded,
            Self::On => true,
            Self::Off => false,
        }
    }
}

/// A host's model that a request means.
#[derive(Debug, Clone, Copy)]
pub struct Prospect<'a> {
    /// Index of the host.
    pub host_idx: usize,
    /// The model.
    pub model: &'a HostModel,
}

/// State of a model over all hosts, for lists of models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ListedState {
    /// A worker of one host serves it.
    Loaded,
    /// A host loads it.
    Loading {
        /// Share of the load that is done, from 0 to 1.
        progress: f32,
    },
    /// A host downloads it.
    Downloading(FetchedBytes),
    /// No worker serves it, and a host can load it.
    Unloaded,
    /// No host can load it.
    Failed,
}

/// Reason why no worker of a host serves a model now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelRefusal {
    /// A host loads it, or will.
    #[error("the model `{name}` is not ready yet: {percent} % loaded, about {} s left", seconds(*.remaining))]
    Loading {
        /// Name of the model.
        name: String,
        /// Share of the load that is done.
        percent: u8,
        /// Expected time until it serves.
        remaining: Duration,
    },
    /// A host could load it, but requests do not load it.
    #[error("the model `{name}` is not loaded, and requests do not load it")]
    Unloaded {
        /// Name of the model.
        name: String,
    },
    /// No host can load it.
    #[error("no host can load the model `{name}`: {}", .reasons.join("; "))]
    Impossible {
        /// Name of the model.
        name: String,
        /// Reason of each host, without paths.
        reasons: Vec<String>,
        /// Time until a host tries again; `None` if none does.
        retry: Option<Duration>,
    },
    /// Every host that has it in its catalogue is down.
    #[error("the model `{name}` is not loaded, and the host that could load it cannot be reached")]
    Unreachable {
        /// Name of the model.
        name: String,
    },
}

impl ModelRefusal {
    /// Returns the name of the model.
    pub fn name(&self) -> &str {
        match self {
            Self::Loading { name, .. }
            | Self::Unloaded { name }
            | Self::Impossible { name, .. }
            | Self::Unreachable { name } => name,
        }
    }

    /// Returns the time after which a retry may succeed, if it is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Loading { remaining, .. } => Some(*remaining),
            Self::Impossible { retry, .. } => *retry,
            Self::Unloaded { .. } | Self::Unreachable { .. } => None,
        }
    }
}

fn seconds(time: Duration) -> u64 {
    time.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
}

/// Rank of a host for a demand, the best first: its state, then the time until it serves, with what a load costs other
/// requests and without what the state there saves; of equal hosts, the one with the fewest workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    link: LinkRank,
    state: StateRank,
    time_ms: u64,
    n_workers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LinkRank {
    Live,
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StateRank {
    Loaded,
    Loading,
    Loadable,
    /// Its files come, and the time of the load after that is not known.
    Downloading,
    /// It leaves, and the time of the next load is not known.
    Unloading,
}

impl HostView {
    fn models(&self) -> &[HostModel] {
        self.summary.as_deref().map_or(&[], |summary| &summary.models)
    }

    fn own_name(&self) -> Option<&str> {
        self.summary.as_deref().map(|summary| summary.host.as_str())
    }

    /// Returns the rank of the host by its stream; `None` if it is down.
    fn link_rank(&self, now: Instant) -> Option<LinkRank> {
        match self.link {
            HostLink::Connecting => None,
            HostLink::Live => Some(LinkRank::Live),
            HostLink::Lost { since } if now.saturating_duration_since(since) > LOST_HOST_KEPT => None,
            HostLink::Lost { .. } => Some(LinkRank::Lost),
        }
    }

    /// Returns the rank of the host for a model; `None` if it cannot serve it.
    fn rank(&self, model: &HostModel, now: Instant) -> Option<Rank> {
        let link = self.link_rank(now)?;
        let (state, time_ms) = match model.state {
            ModelState::Loaded { .. } => (StateRank::Loaded, 0),
            ModelState::Loading { remaining_ms, .. } => (StateRank::Loading, remaining_ms),
            ModelState::Loadable { load_ms, wait_ms, evicts_ms, kept_ms, .. } => {
                let cost_ms = wait_ms.saturating_add(load_ms).saturating_add(evicts_ms);
                (StateRank::Loadable, cost_ms.saturating_sub(kept_ms))
            }
            ModelState::Downloading(_) => (StateRank::Downloading, 0),
            ModelState::Unloading { .. } => (StateRank::Unloading, 0),
            ModelState::Impossible { .. } => return None,
        };
        let n_workers = self.models().iter().filter(|model| model.state.worker_url().is_some()).count();
        Some(Rank { link, state, time_ms, n_workers })
    }

    /// Returns whether requests that wait for models may get another answer after `new` than after this view.
    ///
    /// Progress of a load is no such news: the requests wait on.
    pub fn is_news(&self, new: &Self) -> bool {
        let state = |model: &HostModel| {
            let kind = std::mem::discriminant(&model.state);
            (kind, model.state.worker_url().map(str::to_owned))
        };
        let states = |view: &Self| {
            let entry = |model: &HostModel| (model.name.clone(), model.fingerprint, model.is_autoloaded, state(model));
            view.models().iter().map(entry).collect::<Vec<_>>()
        };
        std::mem::discriminant(&self.link) != std::mem::discriminant(&new.link) || states(self) != states(new)
    }
}

impl HostsView {
    /// Replaces the view of the host at an index. Panics: if there is none.
    pub fn set(&mut self, host_idx: usize, view: HostView) {
        self.hosts[host_idx] = Arc::new(view);
    }

    /// Returns every name and alias of the catalogues without duplicates, in their order.
    pub fn names(&self) -> Vec<&str> {
        let mut names_met = HashSet::new();
        let models = self.hosts.iter().flat_map(|host| host.models());
        let names = models.flat_map(|model| std::iter::once(&model.name).chain(&model.aliases));
        names.map(String::as_str).filter(|name| names_met.insert(*name)).collect()
    }

    /// Returns the name that a request means: its own if a catalogue has it, or that of the only model if it has none.
    pub fn meant<'a>(&'a self, name: Option<&'a str>) -> Option<&'a str> {
        match name {
            Some(name) => self.knows(name).then_some(name),
            None => match self.distinct()[..] {
                [only] => Some(only),
                _ => None,
            },
        }
    }

    /// Returns whether a name is in a catalogue.
    pub fn knows(&self, name: &str) -> bool {
        self.named(name).next().is_some()
    }

    /// Returns the first names of the models, each once.
    pub fn distinct(&self) -> Vec<&str> {
        let mut names_met = HashSet::new();
        let mut is_new = |model: &HostModel| {
            let is_new = !names_met.contains(&model.name);
            names_met.extend(std::iter::once(model.name.clone()).chain(model.aliases.iter().cloned()));
            is_new
        };
        let models = self.hosts.iter().flat_map(|host| host.models());
        models.filter(|model| is_new(model)).map(|model| model.name.as_str()).collect()
    }

    /// Returns the fields that requests for a name, or for the only model if they have none, get in place of their own;
    /// `None` if there are none.
    pub fn set_params(&self, name: Option<&str>) -> Option<&RequestFields> {
        let name = self.meant(name)?;
        self.named(name).find_map(|prospect| prospect.model.set_params.get(name))
    }

    /// Returns whether a catalogue has a model.
    pub fn has_models(&self) -> bool {
        self.hosts.iter().any(|host| !host.models().is_empty())
    }

    /// Returns the number of hosts that have not sent a summary yet.
    pub fn n_silent(&self) -> usize {
        self.hosts.iter().filter(|host| host.summary.is_none()).count()
    }

    /// Returns the most models that all hosts together load at a time; 0 for no limit but memory.
    pub fn models_max(&self) -> u32 {
        let mut limits = self.hosts.iter().filter_map(|host| host.summary.as_deref()).map(|summary| summary.models_max);
        let add = |sum: u32, limit: u32| if limit == 0 { None } else { Some(sum.saturating_add(limit)) };
        limits.try_fold(0, add).unwrap_or(0)
    }

    /// Returns whether requests load a model.
    pub fn autoloads(&self) -> bool {
        self.hosts.iter().flat_map(|host| host.models()).any(|model| model.is_autoloaded)
    }

    /// Returns whether a host runs the worker with this URL.
    pub fn runs(&self, worker_url: &str) -> bool {
        let models = self.hosts.iter().flat_map(|host| host.models());
        models.filter_map(|model| model.state.worker_url()).any(|url| url == worker_url)
    }

    /// Returns the host that serves a name soonest, among those that pass `is_usable` and have the right file. Of equal
    /// hosts it is the first by the name that they have themselves, so that all routers choose the same one, however
    /// each addresses them.
    pub fn best(&self, name: &str, now: Instant, is_usable: impl Fn(&Prospect<'_>) -> bool) -> Option<Prospect<'_>> {
        let right = self.right_file(name, now);
        let is_right = |prospect: &Prospect<'_>| prospect.model.fingerprint.is_none_or(|file| Some(file) == right);
        let prospects = self.named(name).filter(|prospect| is_right(prospect) && is_usable(prospect));
        let candidates = prospects.filter_map(|prospect| {
            let rank = self.hosts[prospect.host_idx].rank(prospect.model, now)?;
            Some((rank, prospect))
        });
        candidates
            .min_by_key(|(rank, prospect)| (*rank, self.hosts[prospect.host_idx].own_name()))
            .map(|(_, best)| best)
    }

    /// Returns whether a worker for a name comes if the request waits; with `autoload`, because a host loads it then.
    pub fn is_expected(
        &self,
        name: &str,
        autoload: Autoload,
        now: Instant,
        is_usable: impl Fn(&Prospect<'_>) -> bool,
    ) -> bool {
        let Some(Prospect { model, .. }) = self.best(name, now, is_usable) else { return false };
        match model.state {
            ModelState::Loaded { .. } | ModelState::Loading { .. } => true,
            _ => autoload.applies_to(model),
        }
    }

    /// Returns the host at which a request that waits for a name demands it; `None` if none loads it for a request.
    pub fn demanded(
        &self,
        name: &str,
        autoload: Autoload,
        now: Instant,
        is_usable: impl Fn(&Prospect<'_>) -> bool,
    ) -> Option<Prospect<'_>> {
        self.best(name, now, is_usable).filter(|prospect| autoload.applies_to(prospect.model))
    }

    /// Returns why no worker serves a name of the catalogues now; `None` if no catalogue has it.
    pub fn refusal(
        &self,
        name: &str,
        autoload: Autoload,
        now: Instant,
        is_usable: impl Fn(&Prospect<'_>) -> bool,
    ) -> Option<ModelRefusal> {
        if !self.knows(name) {
            return None;
        }
        let name_owned = name.to_owned();
        let Some(Prospect { model, .. }) = self.best(name, now, is_usable) else {
            return Some(self.no_prospect(name));
        };
        let loading = |percent, remaining_ms| ModelRefusal::Loading {
            name: name_owned.clone(),
            percent,
            remaining: Duration::from_millis(remaining_ms),
        };
        Some(match model.state {
            ModelState::Loaded { .. } => loading(100, 0),
            ModelState::Loading { progress, remaining_ms, .. } => loading((progress * 100.0) as u8, remaining_ms),
            _ if !autoload.applies_to(model) => ModelRefusal::Unloaded { name: name_owned },
            ModelState::Loadable { load_ms, wait_ms, .. } => loading(0, wait_ms.saturating_add(load_ms)),
            ModelState::Downloading(_) | ModelState::Unloading { .. } | ModelState::Impossible { .. } => loading(0, 0),
        })
    }

    /// Returns why none of the hosts with this name in their catalogues can serve it.
    fn no_prospect(&self, name: &str) -> ModelRefusal {
        let (mut reasons, mut retry): (Vec<String>, Option<Duration>) = (Vec::new(), None);
        for Prospect { model, .. } in self.named(name) {
            let ModelState::Impossible { reason, retry_ms } = &model.state else { continue };
            let reason = clean_text::without_paths(reason);
            if reasons.len() < REASONS_MAX && !reasons.contains(&reason) {
                reasons.push(reason);
            }
            retry = retry.into_iter().chain(retry_ms.map(Duration::from_millis)).min();
        }
        let name = name.to_owned();
        if reasons.is_empty() {
            return ModelRefusal::Unreachable { name };
        }
        ModelRefusal::Impossible { name, reasons, retry }
    }

    /// Returns the state of a name for lists of models; `None` if no catalogue has it.
    pub fn listed_state(&self, name: &str) -> Option<ListedState> {
        let state = |prospect: Prospect<'_>| match prospect.model.state {
            ModelState::Loaded { .. } => (0, ListedState::Loaded),
            ModelState::Loading { progress, .. } => (1, ListedState::Loading { progress }),
            ModelState::Downloading(bytes) => (2, ListedState::Downloading(bytes)),
            ModelState::Loadable { .. } | ModelState::Unloading { .. } => (3, ListedState::Unloaded),
            ModelState::Impossible { .. } => (4, ListedState::Failed),
        };
        self.named(name).map(state).min_by_key(|(rank, _)| *rank).map(|(_, state)| state)
    }

    /// Returns the hosts whose worker serves a name, or loads it, or that download it.
    pub fn running<'a>(&'a self, name: &str) -> impl Iterator<Item = Prospect<'a>> {
        let is_running = |prospect: &Prospect<'_>| match prospect.model.state {
            ModelState::Loaded { .. } | ModelState::Loading { .. } | ModelState::Downloading(_) => true,
            ModelState::Unloading { .. } | ModelState::Loadable { .. } | ModelState::Impossible { .. } => false,
        };
        self.named(name).filter(is_running)
    }

    /// Returns the hosts that may remove a name with its files.
    pub fn removable<'a>(&'a self, name: &str) -> impl Iterator<Item = Prospect<'a>> {
        self.named(name).filter(|prospect| prospect.model.is_removable)
    }

    /// Returns the host that downloads a name by an order: one that has it already, else the first whose stream is
    /// open.
    pub fn for_download(&self, name: &str) -> Option<usize> {
        let host_that_has_it = self.named(name).next().map(|prospect| prospect.host_idx);
        host_that_has_it.or_else(|| self.hosts.iter().position(|host| host.link == HostLink::Live))
    }

    /// Returns whether a host that is not down could serve some model.
    pub fn can_serve(&self, now: Instant) -> bool {
        self.hosts.iter().any(|host| host.models().iter().any(|model| host.rank(model, now).is_some()))
    }

    fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = Prospect<'a>> {
        let of_host = move |(host_idx, host): (usize, &'a Arc<HostView>)| {
            host.models().iter().find(|model| model.answers_to(name)).map(|model| Prospect { host_idx, model })
        };
        self.hosts.iter().enumerate().filter_map(of_host)
    }
}

#[cfg(test)]
mod tests;
