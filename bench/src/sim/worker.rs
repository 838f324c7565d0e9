//! A simulated worker: takes requests, runs steps of virtual time, returns first tokens and announcements.
//!
//! Not here: virtual time (`world`), routing (`router`). Production code makes the decisions: the slot plan chooses a
//! request's slot and the request that it waits for, the batch plan divides each step, the chunk index finds, keeps and
//! evicts state, and the averages give the reported speed. Modelled instead: a step takes the time of its prompt tokens
//! at the worker's rate, plus that of one decoding step if anything decodes; generated tokens are not kept. As in the
//! engine's thread, requests that arrive during a step are admitted when it ends; until then they are reported as
//! waiting, and their blocks as early announcements. A batch is one step, where the engine has one for each
//! micro-batch.

mod cache;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::{RequestId, SlotId};
use warmpath_common::prefetch::HotPrefix;
use warmpath_common::summary::{Change, Load};
use warmpath_worker_core::batch_plan::{BatchLimits, Passes, RunningSequence, Work, plan};
use warmpath_worker_core::chunk_index::ChunkId;
use warmpath_worker_core::pending_prefills::{AnnouncementId, PendingPrefills};
use warmpath_worker_core::rates::{Averages, StepCounts};
use warmpath_worker_core::slot_plan::{SlotDecision, SlotPlan};
use warmpath_worker_core::unadmitted_requests::Arrivals;

use super::trace::Trace;
use cache::Cache;

/// Size of a batch.
///
/// Source: the defaults of `warmpath-worker --batch-size` and `--ubatch-size`.
const ROOM: BatchLimits = BatchLimits { batch_tokens: 2048, ubatch_tokens: 512, passes: Passes::Together };

/// Time to bring one stored token's KV state into a slot. Units: milliseconds.
///
/// Source: docs/decisions/0000-measured-before.md: 2,048 tokens in 2-3 ms.
const RESTORE_MS_PER_TOKEN: f64 = 0.0015;

/// Size and speed of a worker.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Number of slots.
    pub n_slots: u16,
    /// Maximum number of blocks that it keeps.
    pub n_blocks_max: u64,
    /// Prefill speed. Units: prompt tokens per second.
    pub prefill_tokens_per_s: f64,
    /// Time of a step that decodes. Units: milliseconds.
    pub decode_step_ms: f64,
}

/// One worker.
#[derive(Debug)]
pub struct Worker {
    shape: Shape,
    block_tokens: u32,
    cache: Cache,
    averages: Averages,
    /// Requests that wait for state from another worker.
    fetching: Vec<usize>,
    /// Chunks that stay in place for the requests that fetched them, until these start.
    held: HashMap<usize, Vec<ChunkId>>,
    /// Requests that have arrived since the running step began.
    inbox: Vec<(usize, Duration)>,
    /// The same requests, as the load counts them.
    arrivals: Arrivals,
    queue: VecDeque<Queued>,
    running: Vec<Running>,
    step: Option<Step>,
    /// Time to restore stored blocks for the sequences that have started since the last step. Units: milliseconds.
    restore_ms: f64,
    pending_prefills: PendingPrefills,
    /// Blocks that were announced as ready or filling.
    announced: HashSet<BlockKey>,
    /// Changes of blocks that must be announced.
    changes: Vec<Change>,
    accepted: Vec<Change>,
}

/// A request that waits for a slot, or for another request that computes its prefix.
#[derive(Debug)]
struct Queued {
    request: usize,
    /// Time of its arrival.
    came: Duration,
    /// Number of blocks that were expected to be cached when it was queued.
    n_cached: usize,
}

#[derive(Debug)]
struct Running {
    request: usize,
    slot: SlotId,
    /// Number of the prompt's leading blocks that are computed.
    n_blocks_done: usize,
    /// Time of its arrival.
    came: Duration,
    n_cached_tokens: u32,
    n_computed: u32,
    n_answered: u32,
}

/// Work of the worker until the end of the step.
#[derive(Debug)]
struct Step {
    /// Slots with the number of tokens that they compute.
    shares: Vec<(SlotId, u32)>,
    /// Number of times that the shares are computed in a row; more than one only if all of them decode.
    n_repeats: u32,
    one: Duration,
    /// Part of `one` that restored stored blocks, which the measured speed does not include.
    restore: Duration,
    started: Duration,
}

/// Progress of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Its first token has been sent.
    First {
        /// The request.
        request: usize,
        /// Prompt tokens that were reused. Units: tokens.
        cached_tokens: u32,
    },
    /// Its response is complete.
    Last {
        /// The request.
        request: usize,
    },
}

impl Worker {
    /// Returns a worker that holds nothing.
    pub fn new(shape: Shape, block_tokens: u32) -> Self {
        Self {
            shape,
            block_tokens,
            cache: Cache::new(shape, block_tokens),
            averages: Averages::default(),
            fetching: Vec::new(),
            held: HashMap::new(),
            inbox: Vec::new(),
            arrivals: Arrivals::default(),
            queue: VecDeque::new(),
            running: Vec::new(),
            step: None,
            restore_ms: 0.0,
            pending_prefills: PendingPrefills::default(),
            announced: HashSet::new(),
            changes: Vec::new(),
            accepted: Vec::new(),
        }
    }

    /// Makes every further step slower.
    pub fn slow_down(&mut self, factor: f64) {
        self.shape.prefill_tokens_per_s /= factor;
        self.shape.decode_step_ms *= factor;
    }

    /// Takes a request; returns the end of the running step if that has changed.
    pub fn submit(&mut self, trace: &Trace, request: (usize, RequestId), now: Duration) -> Option<Duration> {
        let (request, id) = request;
        self.announce(trace, request, 0);
        self.accepted.push(Change::Accepted(id));
        self.enter(trace, request, now)
    }

    /// Takes a request that waits for state of its first `n_blocks` from another worker ([`Worker::fetched`]).
    pub fn fetch(&mut self, trace: &Trace, (request, id): (usize, RequestId), n_blocks: usize) {
        self.announce(trace, request, n_blocks);
        self.accepted.push(Change::Accepted(id));
        self.fetching.push(request);
    }

    /// Takes the state of a request's first `n_blocks`, which may then start; returns the end of the running step if
    /// that has changed.
    pub fn fetched(&mut self, trace: &Trace, (request, n_blocks): (usize, usize), now: Duration) -> Option<Duration> {
        self.fetching.retain(|waiting| *waiting != request);
        let held = self.cache.bring(&trace.requests[request], n_blocks, millis(now));
        self.held.insert(request, held);
        self.pass_changes();
        self.enter(trace, request, now)
    }

    /// Returns how many of the request's leading blocks the worker could send.
    pub fn n_held_blocks(&self, trace: &Trace, request: usize) -> usize {
        self.cache.n_usable(&trace.requests[request])
    }

    /// Returns the stored prefixes, the ones most worth having first.
    pub fn hot_prefixes(&self) -> Vec<HotPrefix> {
        self.cache.hot_prefixes()
    }

    /// Returns how many blocks of a prefix are missing, if they fit without an eviction.
    pub fn n_wanted_blocks(&self, prefix: &HotPrefix) -> Option<usize> {
        let n_missing = prefix.tokens.len() - self.cache.n_stored(prefix);
        (n_missing > 0 && n_missing as u64 <= self.cache.free_blocks()).then_some(n_missing)
    }

    /// Takes a prefix that another worker has sent before a request needs it.
    pub fn bring_ahead(&mut self, prefix: &HotPrefix, now: Duration) {
        self.cache.bring_ahead(prefix, millis(now));
        self.pass_changes();
    }

    fn enter(&mut self, trace: &Trace, request: usize, now: Duration) -> Option<Duration> {
        self.inbox.push((request, now));
        if let Some(step) = &mut self.step {
            // A sequence of decoding steps ends with the one that runs now.
            let n_begun = (now - step.started).as_nanos() / step.one.as_nanos().max(1) + 1;
            let n_repeats = u32::try_from(n_begun).unwrap_or(u32::MAX).min(step.n_repeats);
            let is_cut = n_repeats < step.n_repeats;
            step.n_repeats = n_repeats;
            return is_cut.then(|| step.ends());
        }
        self.admit(trace, now);
        self.begin_step(trace, now)
    }

    /// Returns when the running step ends.
    pub fn step_ends(&self) -> Option<Duration> {
        self.step.as_ref().map(Step::ends)
    }

    /// Ends the running step; returns its events and the end of the next step.
    pub fn end_step(&mut self, trace: &Trace, now: Duration) -> (Vec<Event>, Option<Duration>) {
        let mut events = Vec::new();
        let step = self.step.take().expect("a step's end is only scheduled for a step");
        self.measure(&step);
        for (slot, n_tokens) in &step.shares {
            let idx = self.running.iter().position(|running| running.slot == *slot).expect("a share has its sequence");
            events.extend(self.advance(trace, idx, n_tokens * step.n_repeats));
        }
        let is_over = |running: &Running| running.n_answered >= trace.requests[running.request].answer_tokens;
        let (over, running) = std::mem::take(&mut self.running).into_iter().partition(is_over);
        self.running = running;
        let over: Vec<Running> = over;
        for ended in over {
            self.cache.end(&trace.requests[ended.request], ended.slot, millis(now));
            self.averages.answer_ended(ended.n_answered);
            events.push(Event::Last { request: ended.request });
        }
        self.admit(trace, now);
        (events, self.begin_step(trace, now))
    }

    /// Ends the worker; returns the requests that it had.
    pub fn die(&mut self) -> Vec<usize> {
        let running = self.running.iter().map(|running| running.request);
        let waiting =
            self.queue.iter().map(|queued| queued.request).chain(self.inbox.iter().map(|(request, ..)| *request));
        let lost = running.chain(waiting).chain(self.fetching.iter().copied()).collect();
        *self = Self::new(self.shape, self.block_tokens);
        lost
    }

    /// Returns whether there are changes that have not been taken yet.
    pub fn has_changes(&mut self) -> bool {
        self.pass_changes();
        !self.changes.is_empty() || !self.accepted.is_empty()
    }

    /// Takes the changes since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.pass_changes();
        self.changes.append(&mut self.accepted);
        std::mem::take(&mut self.changes)
    }

    /// Returns the load of the worker.
    pub fn load(&self, trace: &Trace) -> Load {
        let queued = self.queue.iter().map(|queued| {
            let n_cached_tokens = queued.n_cached as u64 * u64::from(self.block_tokens);
            u64::from(trace.requests[queued.request].prompt_tokens) - n_cached_tokens
        });
        let left = |running: &Running| trace.requests[running.request].prompt_tokens - running.n_computed;
        self.arrivals.beside(&Load {
            queued_prefill_tokens: queued.sum(),
            running_prefill_tokens: self.running.iter().map(|running| u64::from(left(running))).sum(),
            n_queued: u32::try_from(self.queue.len()).unwrap_or(u32::MAX),
            n_decoding: self.running.iter().filter(|running| left(running) == 0).count() as u32,
            busy_slots: self.running.iter().map(|running| running.slot).collect(),
            free_cells: self.cache.free_blocks() * u64::from(self.block_tokens),
            draining: false,
            rates: self.averages.rates(),
        })
    }

    /// Queues the requests that have arrived since the last step, and starts those that can start, in the order of
    /// their arrival.
    fn admit(&mut self, trace: &Trace, now: Duration) {
        for (request, came) in std::mem::take(&mut self.inbox) {
            self.arrivals.leave(announcement_id(request));
            let n_cached = self.cache.n_usable(&trace.requests[request]);
            self.queue.push_back(Queued { request, came, n_cached });
        }
        let mut idx = 0;
        while idx < self.queue.len() {
            match self.cache.plan(&trace.requests[self.queue[idx].request]) {
                SlotDecision::NoSlot => return,
                SlotDecision::WaitFor { .. } => idx += 1,
                SlotDecision::Fetch(_) => unreachable!("there is no disk to read from"),
                SlotDecision::Start(plan) => {
                    let queued = self.queue.remove(idx).expect("the index is below the length");
                    self.start(trace, (queued, &plan), now);
                }
            }
        }
    }

    /// Announces the blocks that a new request will compute or fetch; it fetches the first `n_fetched`.
    fn announce(&mut self, trace: &Trace, request: usize, n_fetched: usize) {
        self.pass_changes();
        let asked = &trace.requests[request];
        let n_announced = asked.keys.iter().take_while(|key| self.announced.contains(*key)).count();
        let n_cached_tokens =
            n_announced.max(n_fetched).min(asked.reusable_blocks(self.block_tokens)) as u32 * self.block_tokens;
        self.arrivals.come(announcement_id(request), asked.prompt_tokens - n_cached_tokens);
        let changes = self
            .pending_prefills
            .make(announcement_id(request), asked.keys.clone(), |_, key| self.announced.contains(key));
        self.add_changes(changes);
    }

    /// Announces the changes of the cache.
    fn pass_changes(&mut self) {
        for change in self.cache.take_changes() {
            let changes = self.pending_prefills.pass(change);
            self.add_changes(changes);
        }
    }

    fn add_changes(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            match &change {
                Change::Stored(run) => self.announced.extend(&run.keys),
                Change::Removed(keys) => keys.iter().for_each(|key| _ = self.announced.remove(key)),
                Change::Accepted(_) => {}
            }
            self.changes.push(change);
        }
    }

    fn start(&mut self, trace: &Trace, (queued, plan): (Queued, &SlotPlan), now: Duration) {
        let Queued { request, came, .. } = queued;
        self.cache.start(&trace.requests[request], plan, millis(now));
        self.cache.let_go(self.held.remove(&request).unwrap_or_default());
        self.pass_changes();
        let resolved = self.pending_prefills.resolve(announcement_id(request));
        self.add_changes(resolved);
        let n_cached_tokens = plan.start.n_tokens() * self.block_tokens;
        self.restore_ms += f64::from(n_cached_tokens) * RESTORE_MS_PER_TOKEN;
        let n_computed = n_cached_tokens;
        self.averages.prompt(trace.requests[request].prompt_tokens - n_cached_tokens);
        self.running.push(Running {
            request,
            slot: plan.slot,
            n_blocks_done: plan.start.n_tokens() as usize,
            came,
            n_cached_tokens,
            n_computed,
            n_answered: 0,
        });
    }

    fn begin_step(&mut self, trace: &Trace, now: Duration) -> Option<Duration> {
        debug_assert!(self.step.is_none(), "one step at a time");
        let left = |running: &Running| trace.requests[running.request].prompt_tokens - running.n_computed;
        let work = |n_tokens| if n_tokens == 0 { Work::Decode } else { Work::Prefill { n_tokens, ends: true } };
        let pending: Vec<RunningSequence> = self
            .running
            .iter()
            .map(|running| RunningSequence {
                slot: running.slot,
                work: work(left(running)),
                waited: now - running.came,
                passed_tokens: 0,
            })
            .collect();
        if pending.is_empty() {
            return None;
        }
        let n_decoding = pending.iter().filter(|pending| pending.work == Work::Decode).count();
        let shares: Vec<(SlotId, u32)> = plan(&pending, ROOM, self.averages.pace(), self.queue.len())
            .into_iter()
            .map(|share| (share.slot, share.n_tokens))
            .collect();
        let n_repeats = if n_decoding == pending.len() { self.n_decode_steps(trace) } else { 1 };
        let n_prefill: u32 = shares.iter().map(|share| share.1).sum::<u32>() - n_decoding as u32;
        let decode_ms = if n_decoding > 0 { self.shape.decode_step_ms } else { 0.0 };
        let ms = f64::from(n_prefill) / self.shape.prefill_tokens_per_s * 1e3 + decode_ms;
        let restore_ms = std::mem::take(&mut self.restore_ms);
        let one = Duration::from_secs_f64((ms + restore_ms) / 1e3);
        let step = Step { shares, n_repeats, one, restore: Duration::from_secs_f64(restore_ms / 1e3), started: now };
        Some(self.step.insert(step).ends())
    }

    /// Returns how many steps the running sequences decode before the first of them ends.
    fn n_decode_steps(&self, trace: &Trace) -> u32 {
        let left = |running: &Running| trace.requests[running.request].answer_tokens - running.n_answered;
        self.running.iter().map(left).min().unwrap_or(1)
    }

    fn measure(&mut self, step: &Step) {
        let is_decoding = |slot: SlotId| self.running.iter().any(|r| r.slot == slot && r.n_answered > 0);
        type Shares<'a> = Vec<&'a (SlotId, u32)>;
        let (decode, prefill): (Shares<'_>, Shares<'_>) = step.shares.iter().partition(|(slot, _)| is_decoding(*slot));
        let n_prefill = prefill.iter().map(|share| share.1).sum();
        for _ in 0..step.n_repeats {
            self.averages.step(StepCounts::undrafted(n_prefill, decode.len() as u32), step.one - step.restore);
        }
    }

    /// Gives a sequence the tokens that a step has computed; returns the first token's event once its prompt is
    /// complete.
    fn advance(&mut self, trace: &Trace, idx: usize, n_tokens: u32) -> Option<Event> {
        let running = &mut self.running[idx];
        let request = &trace.requests[running.request];
        if running.n_answered > 0 {
            running.n_answered += n_tokens;
            return None;
        }
        running.n_computed += n_tokens;
        let is_whole = running.n_computed == request.prompt_tokens;
        let n_blocks = if is_whole { request.ids.len() } else { (running.n_computed / self.block_tokens) as usize };
        let done = std::mem::replace(&mut running.n_blocks_done, n_blocks)..n_blocks;
        self.cache.extend(request, running.slot, done);
        running.n_answered = u32::from(is_whole);
        let (request, cached_tokens) = (running.request, running.n_cached_tokens);
        is_whole.then_some(Event::First { request, cached_tokens })
    }
}

impl Step {
    fn ends(&self) -> Duration {
        self.started + self.one * self.n_repeats
    }
}

fn announcement_id(request: usize) -> AnnouncementId {
    AnnouncementId(request as u64)
}

fn millis(now: Duration) -> u64 {
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
