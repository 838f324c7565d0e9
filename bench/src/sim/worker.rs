//! A simulated worker: requests in, steps of virtual time, first tokens and announcements out.
//!
//! Not here: virtual time itself (`world`), who gets which request (`router`).
//! The idea: what decides is production code: the slot plan says where a request starts and whom it waits for, the batch plan who
//! computes how much in a step, the chunk index what is found, kept and evicted, the averages what the worker says of its speed.
//! Modelled instead: a step takes the time of its prompt tokens at the worker's rate, plus that of one decoding step where anything
//! decodes; answers leave nothing behind. As in the engine's thread, what comes during a step is looked at when that ends; until
//! then it is said to wait, and what it promises to fill. A batch is a step as a whole, where the engine has one for each micro-batch.

mod cache;

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::{RequestId, SlotId};
use warmpath_common::summary::{Change, Load};
use warmpath_router_core::cost::RESTORE_RAM_MS_PER_TOKEN;
use warmpath_worker_core::arrivals::Arrivals;
use warmpath_worker_core::batch_plan::{Passes, Pending, Room, Work, plan};
use warmpath_worker_core::promises::{PromiseId, Promises};
use warmpath_worker_core::rates::Averages;
use warmpath_worker_core::slot_plan::{Decision, SlotPlan};

use super::trace::Trace;
use cache::Cache;

/// Is the room in a batch.
///
/// Source: the defaults of `warmpath-worker --batch-size` and `--ubatch-size`.
const ROOM: Room = Room { batch_tokens: 2048, ubatch_tokens: 512, passes: Passes::Together };

/// Is how large and how fast a worker is.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Is the number of slots.
    pub n_slots: u16,
    /// Is the most blocks that it keeps.
    pub n_blocks_max: u64,
    /// Units: prompt tokens per second.
    pub prefill_tokens_per_s: f64,
    /// Is the time of a step that decodes. Units: milliseconds.
    pub decode_step_ms: f64,
}

/// Is one worker.
#[derive(Debug)]
pub struct Worker {
    shape: Shape,
    block_tokens: u32,
    cache: Cache,
    averages: Averages,
    /// Lists the requests that have come since the running step began.
    inbox: Vec<(usize, Duration)>,
    /// Has the same ones, as the load counts them.
    arrivals: Arrivals,
    queue: VecDeque<Queued>,
    running: Vec<Running>,
    step: Option<Step>,
    /// Is the time to bring stored blocks to the sequences that have started since the last step. Units: milliseconds.
    restore_ms: f64,
    promises: Promises,
    /// Has the blocks that are said to be there or filling.
    said: HashSet<BlockKey>,
    /// Lists what is to be said of blocks.
    changes: Vec<Change>,
    accepted: Vec<Change>,
}

/// Is a request that waits for a slot, or for another to compute what it starts from.
#[derive(Debug)]
struct Queued {
    request: usize,
    /// Is when it came.
    came: Duration,
    /// Counts the blocks that were expected to be cached when it came.
    n_cached: usize,
}

#[derive(Debug)]
struct Running {
    request: usize,
    slot: SlotId,
    /// Counts the prompt's first blocks that are computed.
    n_blocks_done: usize,
    /// Is when it came.
    came: Duration,
    n_cached_tokens: u32,
    n_computed: u32,
    n_answered: u32,
}

/// Is what the worker does until the step's end.
#[derive(Debug)]
struct Step {
    /// Lists slots and the tokens they compute.
    shares: Vec<(SlotId, u32)>,
    /// Is how often the shares are computed one after the other; more than once only where all of them decode.
    n_repeats: u32,
    one: Duration,
    /// Is the part of `one` that brought stored blocks, of which a worker does not measure its speed.
    restore: Duration,
    started: Duration,
}

/// Says what has become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Its first token has been sent.
    First {
        /// Names the request.
        request: usize,
        /// Is how much of its prompt was reused. Units: tokens.
        cached_tokens: u32,
    },
    /// Its answer is complete.
    Last {
        /// Names the request.
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
            inbox: Vec::new(),
            arrivals: Arrivals::default(),
            queue: VecDeque::new(),
            running: Vec::new(),
            step: None,
            restore_ms: 0.0,
            promises: Promises::default(),
            said: HashSet::new(),
            changes: Vec::new(),
            accepted: Vec::new(),
        }
    }

    /// Takes a request in; returns when the step ends that runs from now on, if it is another one.
    pub fn submit(&mut self, trace: &Trace, request: (usize, RequestId), now: Duration) -> Option<Duration> {
        let (request, id) = request;
        self.promise(trace, request);
        self.accepted.push(Change::Accepted(id));
        self.inbox.push((request, now));
        if let Some(step) = &mut self.step {
            // A stretch of decoding ends with the step that runs now.
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

    /// Ends the running step; returns what came of it and when the next step ends.
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
            self.averages.answer(ended.n_answered);
            events.push(Event::Last { request: ended.request });
        }
        self.admit(trace, now);
        (events, self.begin_step(trace, now))
    }

    /// Ends the worker's life; returns the requests that it had.
    pub fn die(&mut self) -> Vec<usize> {
        let running = self.running.iter().map(|running| running.request);
        let waiting =
            self.queue.iter().map(|queued| queued.request).chain(self.inbox.iter().map(|(request, ..)| *request));
        let lost = running.chain(waiting).collect();
        *self = Self::new(self.shape, self.block_tokens);
        lost
    }

    /// Returns whether anything has changed since it was last taken.
    pub fn has_changes(&mut self) -> bool {
        self.pass_changes();
        !self.changes.is_empty() || !self.accepted.is_empty()
    }

    /// Takes what has changed since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.pass_changes();
        self.changes.append(&mut self.accepted);
        std::mem::take(&mut self.changes)
    }

    /// Returns how busy the worker is.
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

    /// Takes in what has come since the last step, and starts whoever can start now, in the order of their arrival.
    fn admit(&mut self, trace: &Trace, now: Duration) {
        for (request, came) in std::mem::take(&mut self.inbox) {
            self.arrivals.leave(promise_id(request));
            let n_cached = self.cache.n_usable(&trace.requests[request]);
            self.queue.push_back(Queued { request, came, n_cached });
        }
        let mut idx = 0;
        while idx < self.queue.len() {
            match self.cache.plan(&trace.requests[self.queue[idx].request]) {
                Decision::NoSlot => return,
                Decision::WaitFor { .. } => idx += 1,
                Decision::Fetch(_) => unreachable!("there is no disk to read from"),
                Decision::Start(plan) => {
                    let queued = self.queue.remove(idx).expect("the index is below the length");
                    self.start(trace, (queued, &plan), now);
                }
            }
        }
    }

    /// Tells of a request what it promises to fill.
    fn promise(&mut self, trace: &Trace, request: usize) {
        self.pass_changes();
        let asked = &trace.requests[request];
        let n_said = asked.keys.iter().take_while(|key| self.said.contains(*key)).count();
        let n_cached_tokens = n_said.min(asked.reusable_blocks(self.block_tokens)) as u32 * self.block_tokens;
        self.arrivals.come(promise_id(request), asked.prompt_tokens - n_cached_tokens);
        let changes = self.promises.make(promise_id(request), asked.keys.clone(), |_, key| self.said.contains(key));
        self.say(changes);
    }

    /// Takes over what the cache has to say.
    fn pass_changes(&mut self) {
        for change in self.cache.take_changes() {
            let changes = self.promises.pass(change);
            self.say(changes);
        }
    }

    fn say(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            match &change {
                Change::Stored(run) => self.said.extend(&run.keys),
                Change::Removed(keys) => keys.iter().for_each(|key| _ = self.said.remove(key)),
                Change::Accepted(_) => {}
            }
            self.changes.push(change);
        }
    }

    fn start(&mut self, trace: &Trace, (queued, plan): (Queued, &SlotPlan), now: Duration) {
        let Queued { request, came, .. } = queued;
        self.cache.start(&trace.requests[request], plan, millis(now));
        self.pass_changes();
        let settled = self.promises.settle(promise_id(request));
        self.say(settled);
        let n_cached_tokens = plan.start.n_tokens() * self.block_tokens;
        self.restore_ms += f64::from(n_cached_tokens) * RESTORE_RAM_MS_PER_TOKEN;
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
        let pending: Vec<Pending> = self
            .running
            .iter()
            .map(|running| Pending {
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
            self.averages.step(n_prefill, decode.len() as u32, step.one - step.restore);
        }
    }

    /// Gives a sequence the tokens that a step has computed of it; says when its prompt is whole.
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

fn promise_id(request: usize) -> PromiseId {
    PromiseId(request as u64)
}

fn millis(now: Duration) -> u64 {
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
