//! A stock server: a worker that speaks OpenAI's API and publishes no summary. Its state is inferred from this router's
//! own requests.
//!
//! HTTP and polling are in the router's `fleet::stock`. The prefix index receives changes of the assumed blocks as it
//! does from a summary. What a Warmpath worker reports itself is inferred here from requests and responses: which
//! blocks the server holds, how busy it is, how fast it is. The result is approximate: other routers' requests are
//! visible only if the server counts them, and an eviction shows only later, when a response reports less reuse.

mod assumed_cache;
mod model_state;
mod rates;
pub mod reported_error;
mod server_info;
pub mod text_blocks;
mod tokenizer_source;
pub mod usage;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::{RequestId, SlotId};
use warmpath_common::model::Fingerprint;
use warmpath_common::summary::{Change, Load};

pub use self::assumed_cache::AssumedCacheLimits;
use self::assumed_cache::UseNumber;
use self::model_state::{BlockEvidence, ModelState};
pub use self::model_state::{Placed, ReuseReport, SentRequest};
use self::rates::MeasuredRates;
pub use self::server_info::{Residence, ServerInfo, StockModel};
pub use self::tokenizer_source::{Counts, PeerServer, TokenizerSource, place};
use self::usage::Usage;

/// Maximum number of block keys in changes that the tracker has not taken yet; beyond it all assumed blocks are
/// dropped.
///
/// Source: own choice: 1 MB, two million tokens.
const CHANGED_KEYS_MAX: usize = 1 << 17;

/// Shortest computed part of a prompt whose time is used as a measure of a server's speed. Units: tokens.
///
/// Source: own choice: with fewer tokens the time is mostly overhead.
const COMPUTED_TOKENS_MIN: f64 = 16.0;

/// Number of prompt tokens that are assumed to take as long as one token of the response, for a response in one piece
/// that reports no times.
///
/// Source: docs/decisions/0000-measured-before.md: 900-2,600 tokens/s prefill, 7.5 ms a step of one sequence.
const PREFILL_FOR_DECODE: f64 = 16.0;

/// Time after this router's last request at a server in which the server's other load is still of interest.
///
/// Source: own choice: several polls, and short beside the minutes after which servers unload an idle model.
const RECENT: Duration = Duration::from_secs(10);

/// Id of a request at a stock server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerRequestId(u64);

/// End of a response.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResponseEnd {
    /// Token counts and times that the response reported.
    pub usage: Usage,
    /// Whether the response is complete.
    pub is_complete: bool,
    /// Number of its events, each about one token; 0 for a response in one piece.
    pub n_events: u32,
    /// Time at which it ended.
    pub at: Instant,
}

/// Load that a server reports itself, for all its clients together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerStatus {
    /// Number of running requests.
    pub n_running: u32,
    /// Number of waiting requests.
    pub n_waiting: u32,
    /// Counter that only grows while the server lives; `None` if the server has none.
    pub progress: Option<u64>,
}

/// Whether this router uses a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// A request is there, or was within the last ten seconds.
    Recent,
    /// None was.
    Idle,
}

/// Changes since they were last taken.
#[derive(Debug, Default, PartialEq)]
pub struct Updates {
    /// Requests that the load includes.
    pub accepted: Vec<RequestId>,
    /// Whether all blocks that were reported before are dropped.
    pub is_forgotten: bool,
    /// Changes of the assumed blocks.
    pub changes: Vec<Change>,
    /// Current load.
    pub load: Load,
    /// Models whose tokens the server counts differently from this router; each is reported once per start of the
    /// server.
    pub differing: Vec<Fingerprint>,
}

struct ServerRequest {
    n_starts: u64,
    sending: SentRequest,
    /// Previous use of each leading block that could be reused.
    known: Vec<UseNumber>,
    /// Uses of the requests that were running when this one arrived; their blocks may not be available to others.
    busy: Vec<UseNumber>,
    /// Whether its times measure the server's speed: it had the prefill to itself, as far as this router knows, and the
    /// server had its model loaded.
    is_measure: bool,
    sent_at: Instant,
    response_start: Option<ResponseStart>,
}

#[derive(Clone, Copy)]
struct ResponseStart {
    at: Instant,
    used: UseNumber,
}

/// State of one stock server.
pub struct StockServer {
    n_slots: u16,
    models: BTreeMap<Fingerprint, ModelState>,
    speed: MeasuredRates,
    requests: BTreeMap<ServerRequestId, ServerRequest>,
    next_request: u64,
    /// Time at which a request was last known to be there.
    used_at: Option<Instant>,
    /// Number of starts of the server that were noticed; the state of requests from before the last start is lost.
    n_starts: u64,
    others: ServerStatus,
    progress: Option<u64>,
    accepted: Vec<RequestId>,
    changes: Vec<Change>,
    is_forgotten: bool,
    differing: Vec<Fingerprint>,
}

impl Default for StockServer {
    /// Returns a server that has not been found yet.
    fn default() -> Self {
        Self {
            n_slots: 1,
            models: BTreeMap::new(),
            speed: MeasuredRates::default(),
            requests: BTreeMap::new(),
            next_request: 0,
            used_at: None,
            n_starts: 0,
            others: ServerStatus::default(),
            progress: None,
            accepted: Vec::new(),
            changes: Vec::new(),
            is_forgotten: false,
            differing: Vec::new(),
        }
    }
}

impl StockServer {
    /// Records the server's models; the blocks of a model that is gone or has changed are dropped.
    pub fn placed(&mut self, n_slots: u16, models: Vec<Placed>) {
        self.n_slots = n_slots;
        let is_listed =
            |fingerprint: &Fingerprint| models.iter().any(|stock_model| stock_model.fingerprint == *fingerprint);
        let changes = &mut self.changes;
        self.models.retain(|fingerprint, state| {
            let stays = is_listed(fingerprint);
            if !stays {
                state.forget(changes);
            }
            stays
        });
        for stock_model in models {
            match self.models.get_mut(&stock_model.fingerprint) {
                Some(state) => state.place(stock_model, &mut self.changes),
                None => drop(self.models.insert(stock_model.fingerprint, ModelState::new(stock_model))),
            }
        }
        self.bound_changes();
    }

    /// Records that the server was lost or has restarted: it holds nothing that was sent before.
    pub fn lost(&mut self) {
        self.n_starts += 1;
        self.others = ServerStatus::default();
        self.progress = None;
        self.forget();
    }

    fn forget(&mut self) {
        self.models.values_mut().for_each(ModelState::lost);
        self.changes.clear();
        self.is_forgotten = true;
    }

    /// Records a request that is sent to the server.
    pub fn sent(&mut self, request_id: &RequestId, mut sending: SentRequest, now: Instant) -> ServerRequestId {
        // What it may find of the state that is expected there.
        let state = self.models.get(&sending.model).filter(|state| state.is_cut_like(&sending));
        if state.is_none() {
            sending.keys.clear();
        }
        // At least one token is always computed.
        let blocks_max = sending.n_tokens.saturating_sub(1) / sending.block_size_tokens.max(1);
        let n_reusable = sending.keys.len().min(blocks_max as usize);
        // The time to its first byte is a measure of the server only if no other prompt is computed then.
        let is_filling = |request: &ServerRequest| request.response_start.is_none();
        let of_model = self.requests.values().filter(|request| request.sending.model == sending.model);
        let is_undisturbed = self.requests.len() < usize::from(self.n_slots) && !self.requests.values().any(is_filling);
        let is_warm = of_model.clone().any(|request| request.response_start.is_some())
            || self.models.get(&sending.model).is_some_and(|model| model.is_warm(now));
        let request = ServerRequest {
            n_starts: self.n_starts,
            known: state.map_or_else(Vec::new, |model| model.memory.known(&sending.keys[..n_reusable])),
            busy: of_model.filter_map(|request| Some(request.response_start?.used)).collect(),
            is_measure: is_undisturbed && is_warm,
            sending,
            sent_at: now,
            response_start: None,
        };
        let id = ServerRequestId(self.next_request);
        self.next_request += 1;
        self.used_at = Some(now);
        self.requests.insert(id, request);
        self.accepted.push(request_id.clone());
        id
    }

    /// Records that the response to a request has begun: its prompt is computed.
    pub fn begun(&mut self, id: ServerRequestId, now: Instant) {
        let Some(request) = self.requests.get_mut(&id).filter(|request| request.response_start.is_none()) else {
            return;
        };
        let is_lost = request.n_starts != self.n_starts;
        let keys: &[BlockKey] = if is_lost { &[] } else { &request.sending.keys };
        let mut state = self.models.get_mut(&request.sending.model);
        if let Some(state) = state.as_mut().filter(|_| !is_lost) {
            state.generates(now);
        }
        let used = state.map_or(0, |state| state.memory.hold(keys, &mut self.changes));
        request.response_start = Some(ResponseStart { at: now, used });
        self.bound_changes();
    }

    /// Records that a request has left the server, with or without a response; returns the outcome of the prediction.
    pub fn ended(&mut self, id: ServerRequestId, ending: Option<ResponseEnd>) -> Option<ReuseReport> {
        let request = self.requests.remove(&id)?;
        let ending = ending.filter(|_| request.response_start.is_some())?;
        self.learn_speed(&request, &ending);
        let state = self.models.get_mut(&request.sending.model)?;
        let is_same_start = request.n_starts == self.n_starts;
        if is_same_start {
            state.generates(ending.at);
        }
        if is_same_start && state.compare_counts(&request.sending, &ending.usage) {
            self.differing.push(request.sending.model);
        }
        if !request.sending.is_countable {
            return None;
        }
        let (reused, actual) = state.compare_reuse(&request.sending, &ending.usage)?;
        if is_same_start {
            let evidence =
                BlockEvidence { known: &request.known, busy: &request.busy, keys: &request.sending.keys, actual };
            state.correct(evidence, &mut self.changes);
        }
        self.bound_changes();
        Some(reused)
    }

    /// Returns whether requests are there or were a short while ago.
    pub fn activity(&mut self, now: Instant) -> Activity {
        if !self.requests.is_empty() {
            self.used_at = Some(now);
        }
        let is_recent = self.used_at.is_some_and(|used_at| now.saturating_duration_since(used_at) < RECENT);
        if is_recent { Activity::Recent } else { Activity::Idle }
    }

    /// Records the load that the server reports; returns whether the server has restarted since its last report.
    pub fn observed(&mut self, server_status: ServerStatus) -> bool {
        // A server that has just started may have no counter yet.
        let is_new = self.progress.is_some_and(|before| server_status.progress.is_none_or(|now| now < before));
        self.progress = server_status.progress;
        let n_own = u32::try_from(self.requests.len()).unwrap_or(u32::MAX);
        let n_own_running = n_own.min(u32::from(self.n_slots));
        self.others = ServerStatus {
            n_running: server_status.n_running.saturating_sub(n_own_running),
            n_waiting: server_status.n_waiting.saturating_sub(n_own - n_own_running),
            progress: None,
        };
        is_new
    }

    /// Records that the load of other clients is not read: it counts as none.
    pub fn unobserved(&mut self) {
        self.others = ServerStatus::default();
    }

    /// Takes the changes.
    pub fn take_updates(&mut self, now: Instant) -> Updates {
        Updates {
            accepted: std::mem::take(&mut self.accepted),
            is_forgotten: std::mem::take(&mut self.is_forgotten),
            changes: std::mem::take(&mut self.changes),
            load: self.load(now),
            differing: std::mem::take(&mut self.differing),
        }
    }

    fn load(&self, now: Instant) -> Load {
        let n_slots = u32::from(self.n_slots);
        let mut load = Load { rates: self.speed.rates(now), ..Load::default() };
        for (nth, request) in self.requests.values().enumerate() {
            let tokens = u64::from(request.sending.n_tokens.saturating_sub(request.sending.cached_tokens));
            match request.response_start {
                Some(_) => load.n_decoding += 1,
                None if nth < n_slots as usize => load.running_prefill_tokens += tokens,
                None => load.queued_prefill_tokens += tokens,
            }
        }
        let n_own = u32::try_from(self.requests.len()).unwrap_or(u32::MAX);
        let n_all = n_own.saturating_add(self.others.n_running).saturating_add(self.others.n_waiting);
        let n_busy = n_all.min(n_slots);
        load.n_queued = n_all - n_busy;
        load.n_decoding = load.n_decoding.saturating_add(self.others.n_running).min(n_busy);
        load.busy_slots = (0..u16::try_from(n_busy).unwrap_or(self.n_slots)).map(SlotId).collect();
        load.free_cells = self.models.values().map(ModelState::free_tokens).sum();
        load
    }

    fn learn_speed(&mut self, request: &ServerRequest, ending: &ResponseEnd) {
        let ResponseEnd { usage, n_events, at, is_complete } = *ending;
        let ms = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
        let begun_at = request.response_start.map_or(at, |begun_at| begun_at.at);
        let n_answered = f64::from(usage.completion_tokens.unwrap_or(n_events));
        if is_complete {
            self.speed.answered(n_answered);
        }
        let computed_tokens = usage.reuse().map_or(0.0, |(prompt, cached)| {
            // In tokens as this router counts them, the unit of the cost.
            f64::from(prompt - cached) * f64::from(request.sending.n_tokens) / f64::from(prompt)
        });
        let (prefill_ms, step_ms) = if n_events > 0 {
            let step_ms = (n_answered > 1.0).then(|| ms(begun_at, at) / (n_answered - 1.0));
            (ms(request.sent_at, begun_at), step_ms)
        } else {
            let unit_ms = ms(request.sent_at, at) / (computed_tokens + PREFILL_FOR_DECODE * n_answered);
            (computed_tokens * unit_ms, request.is_measure.then_some(PREFILL_FOR_DECODE * unit_ms))
        };
        let prefill_ms = usage.prefill_ms.or(request.is_measure.then_some(prefill_ms));
        if let Some(prefill_ms) = prefill_ms.filter(|_| computed_tokens >= COMPUTED_TOKENS_MIN) {
            self.speed.prefilled(computed_tokens, prefill_ms, at);
        }
        if let Some(step_ms) = usage.decode_step_ms.or(step_ms) {
            self.speed.decoded(step_ms, at);
        }
    }

    fn bound_changes(&mut self) {
        let n_keys = |change: &Change| match change {
            Change::Stored(run) => run.keys.len(),
            Change::Removed(keys) => keys.len(),
            Change::Accepted(_) => 0,
        };
        if self.changes.iter().map(n_keys).sum::<usize>() > CHANGED_KEYS_MAX {
            self.forget();
        }
    }
}

#[cfg(test)]
mod tests;
