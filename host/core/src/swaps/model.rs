//! One model: its worker's state, who waits for it, how often it is used, how it failed.

use std::collections::BTreeMap;

use warmpath_common::host::{DEMAND_TTL_MS, Demand, FetchedBytes, ModelState};
use warmpath_common::model::Fingerprint;

use super::{Action, Cause, DRAIN_MS, Ended, IDLE_GRACE_MS, LoadTimes};
use crate::catalogue::Entry;
use crate::memory::DeviceBytes;

/// First pause after a failed load; it doubles with each further failure. Source: as that of `warmpath serve` for
/// programs that end.
const PAUSE_MIN_MS: u64 = 1_000;
/// Longest pause after a failed load. Source: own choice: a person who mends a file does not wait longer.
const PAUSE_MAX_MS: u64 = 5 * 60_000;
/// Time for which a model must have been loaded so that its failures are forgotten. Source: as [`PAUSE_MIN_MS`].
const STEADY_MS: u64 = 60_000;
/// Time in which the weight of a use halves. Source: own choice: a person returns to a model within the hour.
const USE_HALF_LIFE_MS: f64 = 30.0 * 60_000.0;
/// Expected speed of a first load. Units: bytes per millisecond. Source: a SATA disk reads 500 MB/s.
const BYTES_PER_MS: u64 = 500_000;
/// Expected duration of the parts of a load that do not depend on size. Units: milliseconds. Source: the self-test and
/// the start of a process take about half a second.
const LOAD_MIN_MS: u64 = 500;

/// A model of the catalogue.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) entry: Entry,
    /// Whether the catalogue still has it.
    pub(super) is_listed: bool,
    /// Whether its worker runs with flags of a former catalogue.
    pub(super) is_outdated: bool,
    /// Whether its file is on this machine.
    pub(super) is_local: bool,
    /// Download of its files, if one runs.
    pub(super) download: Option<FetchedBytes>,
    /// Whether the caller finds out what it takes.
    pub(super) is_projecting: bool,
    /// What it is expected to take.
    pub(super) projection: Option<DeviceBytes>,
    /// Fingerprint of its file, once it has been read.
    pub(super) fingerprint: Option<Fingerprint>,
    /// The most that its process took.
    pub(super) measured: DeviceBytes,
    pub(super) state: State,
    /// Requests that wait, by router.
    pub(super) demands: BTreeMap<String, Waiting>,
    /// Whether it waits for memory that is being freed.
    pub(super) is_next: bool,
    /// Wish to have it loaded without a request.
    pub(super) want: Option<Want>,
    /// Whether a person has unloaded it and its worker has not been told yet.
    pub(super) is_unloading: bool,
    pub(super) failure: Option<Failure>,
    /// Requests, of which older ones count less.
    uses: f64,
    /// Milliseconds in which it had requests; older ones count less.
    busy_ms: f64,
    /// Time for which both are given.
    uses_ms: u64,
    /// Time since which it has requests; `None` while it has none.
    busy_since_ms: Option<u64>,
    /// Time that the last load took.
    load_ms: Option<u64>,
}

/// State of a model's worker.
#[derive(Debug)]
pub(super) enum State {
    /// There is none.
    Unloaded,
    /// It starts, or loads.
    Loading { since_ms: u64, wanted_ms: u64, url: Option<String>, progress: f32 },
    /// It serves.
    Loaded { since_ms: u64, url: String, n_running: u32, idle_since_ms: u64, was_used: bool },
    /// It finishes its answers and keeps its cache.
    Draining { url: String, n_running: u32, quiet_since_ms: Option<u64>, is_killed: bool },
}

/// Requests that wait at one router.
#[derive(Debug)]
pub(super) struct Waiting {
    since_ms: u64,
    /// Time of the router's first demand.
    arrived_ms: u64,
    expires_ms: u64,
}

/// Wish to have a model loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Want {
    pub(super) since_ms: u64,
    /// Whether others leave for it.
    pub(super) evicts: bool,
}

/// Failure of a load, or of a worker.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) reason: String,
    /// Time of the next try; [`u64::MAX`] for none.
    pub(super) retry_ms: u64,
    /// Failures since it last ran for a while.
    pub(super) n: u32,
}

impl Model {
    pub(super) fn new(entry: Entry) -> Self {
        Self {
            entry,
            is_listed: true,
            is_outdated: false,
            is_local: true,
            download: None,
            is_projecting: false,
            projection: None,
            fingerprint: None,
            measured: DeviceBytes::default(),
            state: State::Unloaded,
            demands: BTreeMap::new(),
            is_next: false,
            want: None,
            is_unloading: false,
            failure: None,
            uses: 0.0,
            busy_ms: 0.0,
            uses_ms: 0,
            busy_since_ms: None,
            load_ms: None,
        }
    }

    pub(super) fn has_worker(&self) -> bool {
        !matches!(self.state, State::Unloaded)
    }

    /// Returns the memory that counts against the budget while it has a worker.
    pub(super) fn charged(&self) -> DeviceBytes {
        self.projection.as_ref().unwrap_or(&DeviceBytes::default()).max(&self.measured)
    }

    /// Returns the expected duration of a load.
    fn expected_load_ms(&self) -> u64 {
        let bytes = self.charged().total().max(self.entry.file_bytes);
        self.load_ms.unwrap_or(LOAD_MIN_MS + bytes / BYTES_PER_MS)
    }

    /// Returns the value of keeping it, for each byte.
    pub(super) fn value(&self, now_ms: u64) -> f64 {
        self.recent_uses(now_ms) * self.expected_load_ms() as f64 / self.charged().total().max(1) as f64
    }

    /// Returns the expected time of loading it again: that of a load, by the chance that it is used.
    pub(super) fn reload_ms(&self, now_ms: u64) -> u64 {
        (self.expected_load_ms() as f64 * self.recent_uses(now_ms).min(1.0)) as u64
    }

    fn recent_uses(&self, now_ms: u64) -> f64 {
        self.uses * self.weight(now_ms)
    }

    /// Returns the weight of what was counted last.
    fn weight(&self, now_ms: u64) -> f64 {
        (-(now_ms.saturating_sub(self.uses_ms) as f64) / USE_HALF_LIFE_MS).exp2()
    }

    /// Counts requests and time with requests.
    fn count(&mut self, n_requests: u32, busy_ms: u64, now_ms: u64) {
        let weight = self.weight(now_ms);
        self.uses = self.uses * weight + f64::from(n_requests);
        self.busy_ms = self.busy_ms * weight + busy_ms as f64;
        self.uses_ms = now_ms;
    }

    /// Returns the time that a request took here on average. As long may its prompt take without the state that is kept
    /// here, because most of a conversation's prompt was computed before.
    fn kept_ms(&self) -> u64 {
        if self.uses > 0.0 { (self.busy_ms / self.uses) as u64 } else { 0 }
    }

    /// Returns since when it waits to be loaded; `None` if nobody waits, or it has a worker.
    pub(super) fn waits_since(&self) -> Option<u64> {
        if self.has_worker() {
            return None;
        }
        let demands = self.demands.values().map(|waiting| waiting.since_ms);
        demands.chain(self.want.map(|want| want.since_ms)).min()
    }

    /// Returns whether its memory or its files come, if it waits to be loaded. A model that waits until others have no
    /// requests may be loaded elsewhere before.
    fn is_coming(&self) -> bool {
        self.is_next || self.projection.is_none() || self.download.is_some()
    }

    /// Returns the time for which it has waited to be loaded.
    pub(super) fn waited_ms(&self, now_ms: u64) -> u64 {
        self.waits_since().map_or(0, |since_ms| now_ms.saturating_sub(since_ms))
    }

    /// Returns the expected time until others with requests leave for it. As long as it has waited for less than a load
    /// takes, its turn is expected soon: no other model must leave elsewhere.
    pub(super) fn turn_ms(&self, swap_wait_max_ms: u64, now_ms: u64) -> u64 {
        let Some(since_ms) = self.waits_since() else { return swap_wait_max_ms };
        let waited_ms = now_ms.saturating_sub(since_ms);
        let left_ms = swap_wait_max_ms.saturating_sub(waited_ms);
        if waited_ms < self.expected_load_ms() { left_ms.min(DRAIN_MS) } else { left_ms }
    }

    /// Returns the time since the first demand for it arrived; [`u64::MAX`] if a person wants it.
    pub(super) fn demanded_ms(&self, now_ms: u64) -> u64 {
        let arrivals = self.demands.values().map(|waiting| waiting.arrived_ms);
        arrivals.min().filter(|_| self.want.is_none()).map_or(u64::MAX, |ms| now_ms.saturating_sub(ms))
    }

    /// Returns whether others leave for it.
    pub(super) fn evicts(&self) -> bool {
        !self.demands.is_empty() || self.want.is_some_and(|want| want.evicts)
    }

    /// Returns whether it may leave for another, apart from its requests.
    pub(super) fn may_leave(&self) -> bool {
        !self.entry.is_pinned && matches!(self.state, State::Loaded { .. })
    }

    /// Returns whether it has been loaded for as long as loading it took.
    pub(super) fn has_stayed(&self, now_ms: u64) -> bool {
        let State::Loaded { since_ms, .. } = self.state else { return false };
        now_ms.saturating_sub(since_ms) >= self.load_ms.unwrap_or(0)
    }

    /// Returns whether it is loaded and has no requests, neither here nor on their way.
    pub(super) fn is_idle(&self, now_ms: u64) -> bool {
        let State::Loaded { n_running, idle_since_ms, .. } = self.state else { return false };
        n_running == 0 && self.demands.is_empty() && now_ms.saturating_sub(idle_since_ms) >= IDLE_GRACE_MS
    }

    /// Returns since when it has no requests; [`u64::MAX`] if it has some, or is not loaded.
    pub(super) fn idle_since_ms(&self) -> u64 {
        match self.state {
            State::Loaded { n_running: 0, idle_since_ms, .. } => idle_since_ms,
            _ => u64::MAX,
        }
    }

    pub(super) fn demand(&mut self, demand: &Demand, now_ms: u64) {
        let was_used = matches!(self.state, State::Loaded { was_used: true, .. });
        if demand.n_waiting == 0 || was_used {
            self.demands.remove(&demand.router);
            return;
        }
        let since_ms = now_ms.saturating_sub(demand.oldest_wait_ms);
        let expires_ms = now_ms.saturating_add(DEMAND_TTL_MS);
        let arrived_ms = self.demands.get(&demand.router).map_or(now_ms, |waiting| waiting.arrived_ms);
        self.demands.insert(demand.router.clone(), Waiting { since_ms, arrived_ms, expires_ms });
    }

    /// Forgets demands of routers that do not repeat them.
    pub(super) fn expire(&mut self, now_ms: u64) {
        self.demands.retain(|_, waiting| waiting.expires_ms > now_ms);
    }

    /// Returns why its worker must end although nobody needs its memory, if it must.
    pub(super) fn leaves(&self, now_ms: u64) -> Option<Cause> {
        let is_stale = self.entry.ttl_ms.is_some_and(|ttl_ms| match self.state {
            State::Loaded { n_running: 0, idle_since_ms, .. } => {
                !self.entry.is_pinned && self.demands.is_empty() && now_ms.saturating_sub(idle_since_ms) >= ttl_ms
            }
            _ => false,
        });
        match self.state {
            State::Unloaded | State::Draining { .. } => None,
            State::Loading { .. } | State::Loaded { .. } if self.is_unloading => Some(Cause::Order),
            State::Loading { .. } | State::Loaded { .. } if self.is_outdated => Some(Cause::Catalogue),
            State::Loading { .. } | State::Loaded { .. } => is_stale.then_some(Cause::Idle),
        }
    }

    pub(super) fn project(&mut self) -> Action {
        self.is_projecting = true;
        Action::Project(self.entry.name.clone())
    }

    pub(super) fn start(&mut self, now_ms: u64) -> Action {
        let wanted_ms = self.waits_since().unwrap_or(now_ms);
        self.want = None;
        self.state = State::Loading { since_ms: now_ms, wanted_ms, url: None, progress: 0.0 };
        Action::Start(self.entry.name.clone())
    }

    pub(super) fn drain(&mut self, cause: Cause, now_ms: u64) -> Action {
        self.is_unloading = false;
        let (url, n_running) = match std::mem::replace(&mut self.state, State::Unloaded) {
            State::Loaded { url, n_running, .. } => (url, n_running),
            State::Loading { url, .. } => (url.unwrap_or_default(), 0),
            State::Unloaded | State::Draining { .. } => (String::new(), 0),
        };
        let quiet_since_ms = (n_running == 0).then_some(now_ms);
        self.state = State::Draining { url, n_running, quiet_since_ms, is_killed: false };
        Action::Drain(self.entry.name.clone(), cause)
    }

    /// Returns the kill of a worker that has no answers left and does not end.
    pub(super) fn overdue_end(&mut self, now_ms: u64) -> Option<Action> {
        let State::Draining { quiet_since_ms: Some(quiet_since_ms), is_killed, .. } = &mut self.state else {
            return None;
        };
        let is_overdue = now_ms.saturating_sub(*quiet_since_ms) >= self.entry.stop_timeout_ms;
        if !is_overdue || *is_killed {
            return None;
        }
        *is_killed = true;
        Some(Action::Kill(self.entry.name.clone()))
    }

    /// Records that it is loaded; returns the times of the load.
    pub(super) fn ready(&mut self, now_ms: u64) -> Option<LoadTimes> {
        let expected_ms = self.expected_load_ms();
        let State::Loading { since_ms, wanted_ms, url, .. } = &mut self.state else { return None };
        let url = url.take().unwrap_or_default();
        let load_ms = now_ms.saturating_sub(*since_ms);
        let waited_ms = now_ms.saturating_sub(*wanted_ms);
        self.load_ms = Some(load_ms);
        self.state = State::Loaded { since_ms: now_ms, url, n_running: 0, idle_since_ms: now_ms, was_used: false };
        Some(LoadTimes { load_ms, expected_ms, waited_ms })
    }

    pub(super) fn measure(&mut self, memory: Option<DeviceBytes>) {
        if let Some(memory) = memory {
            self.measured = self.measured.max(&memory);
        }
    }

    pub(super) fn running(&mut self, n_now: u32, now_ms: u64) {
        match &mut self.state {
            State::Loaded { n_running, idle_since_ms, was_used, .. } => {
                let n_new = n_now.saturating_sub(*n_running);
                if *n_running > 0 && n_now == 0 {
                    *idle_since_ms = now_ms;
                }
                *n_running = n_now;
                if n_new > 0 {
                    *was_used = true;
                    // The requests that waited are here.
                    self.demands.clear();
                }
                let busy_ms = self.busy_since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
                self.busy_since_ms = (n_now > 0).then_some(now_ms);
                self.count(n_new, busy_ms, now_ms);
            }
            State::Draining { n_running, quiet_since_ms, .. } => {
                *n_running = n_now;
                *quiet_since_ms = if n_now == 0 { quiet_since_ms.or(Some(now_ms)) } else { None };
            }
            State::Unloaded | State::Loading { .. } => {}
        }
    }

    pub(super) fn exited(&mut self, reason: String, now_ms: u64) -> Ended {
        self.is_unloading = false;
        match std::mem::replace(&mut self.state, State::Unloaded) {
            State::Unloaded | State::Draining { .. } => Ended::Left,
            State::Loading { .. } => {
                self.fail_load(reason, now_ms);
                Ended::LoadFailed
            }
            State::Loaded { since_ms, .. } => {
                let n_before = self.failure.as_ref().map_or(0, |failure| failure.n);
                let n_before = if now_ms.saturating_sub(since_ms) >= STEADY_MS { 0 } else { n_before };
                // A first crash is repaired at once, for the requests that it has interrupted.
                let pause_ms = n_before.checked_sub(1).map_or(0, pause_ms);
                self.failure = Some(Failure { reason, retry_ms: now_ms.saturating_add(pause_ms), n: n_before + 1 });
                if self.entry.is_pinned {
                    self.want = Some(Want { since_ms: now_ms, evicts: true });
                }
                Ended::Crashed
            }
        }
    }

    pub(super) fn fail_load(&mut self, reason: String, now_ms: u64) {
        let n_before = self.failure.as_ref().map_or(0, |failure| failure.n);
        let retry_ms = now_ms.saturating_add(pause_ms(n_before));
        self.failure = Some(Failure { reason, retry_ms, n: n_before + 1 });
        // Routers whose requests still wait repeat their demands; a person has the reason.
        self.demands.clear();
        let is_pinned = self.entry.is_pinned;
        self.want = self.want.or(is_pinned.then_some(Want { since_ms: now_ms, evicts: true })).filter(|_| is_pinned);
    }

    /// Returns its state for routers; `obstacle` is why it cannot be loaded.
    pub(super) fn describe(&self, obstacle: Option<Failure>, now_ms: u64) -> ModelState {
        let load_ms = self.expected_load_ms();
        match &self.state {
            State::Loaded { url, n_running, idle_since_ms, .. } => ModelState::Loaded {
                worker_url: url.clone(),
                n_running: *n_running,
                idle_ms: if *n_running > 0 { 0 } else { now_ms.saturating_sub(*idle_since_ms) },
                load_ms,
            },
            State::Draining { url, .. } => ModelState::Unloading { worker_url: url.clone() },
            State::Loading { since_ms, url, progress, .. } => {
                let elapsed_ms = now_ms.saturating_sub(*since_ms);
                let of_progress = elapsed_ms as f64 * f64::from((1.0 - progress) / progress.max(f32::EPSILON));
                let of_before = load_ms.saturating_sub(elapsed_ms);
                // The beginning of a load says little about its end.
                let remaining_ms =
                    if self.load_ms.is_none() && *progress > 0.1 { of_progress as u64 } else { of_before };
                ModelState::Loading { worker_url: url.clone(), progress: *progress, remaining_ms }
            }
            State::Unloaded => match obstacle {
                Some(Failure { reason, retry_ms, .. }) => {
                    let retry_ms = (retry_ms < u64::MAX).then(|| retry_ms.saturating_sub(now_ms));
                    ModelState::Impossible { reason, retry_ms }
                }
                None if self.waits_since().is_some() && self.is_coming() => {
                    // Its files come first.
                    let share = |bytes: FetchedBytes| bytes.done_bytes as f32 / bytes.total_bytes.max(1) as f32;
                    let progress = self.download.map_or(0.0, share).min(1.0);
                    ModelState::Loading { worker_url: None, progress, remaining_ms: load_ms }
                }
                None if let Some(bytes) = self.download => ModelState::Downloading(bytes),
                None => ModelState::Loadable {
                    memory_bytes: self.projection.as_ref().map_or(self.entry.file_bytes, DeviceBytes::total),
                    load_ms,
                    wait_ms: 0,
                    evicts_ms: 0,
                    kept_ms: self.kept_ms(),
                    is_local: self.is_local,
                },
            },
        }
    }
}

/// Returns the pause after a failure that follows `n_before` others.
fn pause_ms(n_before: u32) -> u64 {
    2_u64
        .checked_pow(n_before)
        .and_then(|factor| PAUSE_MIN_MS.checked_mul(factor))
        .unwrap_or(u64::MAX)
        .min(PAUSE_MAX_MS)
}
