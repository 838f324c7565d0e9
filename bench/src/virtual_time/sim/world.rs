//! Virtual time: the order of all events, from the first request to the last response.
//!
//! Workers and routers are in `worker` and `router`, reporting in `outcome`. Nothing depends on a clock, so the same
//! trace and the same seed always give the same outcome.

mod ahead;

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use warmpath_common::ids::RequestId;
use warmpath_common::prefetch::HotPrefix;
use warmpath_common::summary::{Change, Load};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::ledger::{BACKOFF_POLL, Ticket};
use warmpath_router_core::routing::transfer::Transfer;

use super::network::{Links, Network};
use super::policy::Policy;
use super::router::{FleetShape, Router};
use super::trace::Trace;
use super::worker::{self, Worker};
use crate::virtual_time::simulated::engine::Progress;
use crate::virtual_time::simulated::event_queue::EventQueue;

/// Shortest time between two announcements of a worker that contain its load only; changes of blocks are announced
/// immediately.
///
/// Source: docs/decisions/0005-summary-encoding.md: load is pushed on change, at most every 10 ms.
const PUSH_INTERVAL: Duration = Duration::from_millis(10);

/// Factor by which a worker becomes slower.
///
/// Source: a worker beside four busy loops on two processors.
const SLOWDOWN: f64 = 10.0;

/// The fleet and the settings of a run.
#[derive(Debug, Clone)]
pub struct Scene {
    /// Rule by which workers are chosen.
    pub policy: Policy,
    /// Size and speed of each worker.
    pub workers: Vec<worker::Shape>,
    /// Number of routers; each request arrives at a random one.
    pub n_routers: usize,
    /// Delay after which a router learns what a worker holds.
    pub view_age: Duration,
    /// Delay after which a router learns a worker's load.
    pub load_age: Duration,
    /// Workers that join, die or slow down, in the order of time.
    pub changes: Vec<FleetChange>,
    /// Network between the workers; absent if they exchange no KV state.
    pub network: Option<Network>,
    /// Seed of everything that is random.
    pub seed: u64,
}

/// One worker's joining, dying or slowing down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FleetChange {
    /// Index of the worker in the fleet.
    pub worker: usize,
    /// Time of the change.
    pub at: Duration,
    /// Kind of the change.
    pub what: FleetEvent,
}

/// What happens to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetEvent {
    /// The worker joins and holds nothing; until then it was absent.
    Joins,
    /// The worker dies, with everything that it holds and runs.
    Dies,
    /// The worker becomes ten times slower, as when other programs take its processors.
    Slows,
}

/// Result of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Served {
    /// Worker that generated the response.
    pub worker: usize,
    /// Time from its arrival to its first token.
    pub ttft: Duration,
    /// Prompt tokens that were reused. Units: tokens.
    pub cached_tokens: u32,
    /// Prompt tokens of which another worker sent the state. Units: tokens.
    pub fetched_tokens: u32,
    /// Prompt tokens that the router expected to be reused. Units: tokens.
    pub predicted_tokens: u32,
    /// Number of workers that died while they had it.
    pub n_retries: usize,
}

/// Results of a run.
#[derive(Debug)]
pub struct History {
    /// Result of each request; absent if it got no first token.
    pub served: Vec<Option<Served>>,
    /// Number of responses that had begun when their worker died.
    pub n_cut_off: usize,
    /// Time of the last event.
    pub ended: Duration,
    /// Numbers of blocks that all workers have read from disk and written to it.
    pub n_disk_blocks: [u64; 2],
}

enum Event {
    Arrive { request: usize },
    StepEnds { worker: usize },
    ReadEnds { worker: usize, boot: u64 },
    Fetched { worker: usize, boot: u64, request: usize, n_blocks: usize },
    Prefetched { worker: usize, boot: u64, prefix: Rc<HotPrefix> },
    Push { worker: usize },
    ChangesArrive { worker: usize, boot: u64, changes: Rc<Vec<Change>> },
    LoadArrives { worker: usize, boot: u64, load: Rc<(Load, Vec<Change>)> },
    Fleet(FleetChange),
}

/// State of a request.
#[derive(Default)]
struct RequestState {
    arrived: Duration,
    /// Request that the client sends after the response.
    next: Option<usize>,
    router: usize,
    ticket: Option<Ticket>,
    worker: usize,
    predicted_tokens: u32,
    hinted: Option<Transfer>,
    fetched: Option<Fetched>,
    /// End of its backoff; `None` before the router has chosen one.
    backs_off_until: Option<Duration>,
    tried: Vec<WorkerIdx>,
}

/// A transfer for a request.
#[derive(Clone, Copy)]
struct Fetched {
    n_tokens: u32,
    /// Bytes and milliseconds.
    measured: (u64, f64),
}

struct WorkerHost {
    worker: Worker,
    links: Links,
    /// Prefixes to fetch before requests need them, each with the worker that holds it.
    ahead: VecDeque<(WorkerIdx, HotPrefix)>,
    is_up: bool,
    /// Number of the worker's boot, so that announcements from an earlier boot are ignored.
    boot: u64,
    pushed: Option<Duration>,
    is_push_due: bool,
    announced_load: Load,
    /// End of the read from disk that is scheduled last.
    read_end: Option<Duration>,
}

struct World<'t> {
    trace: &'t Trace,
    scene: &'t Scene,
    hosts: Vec<WorkerHost>,
    routers: Vec<Router>,
    states: Vec<RequestState>,
    served: Vec<Option<Served>>,
    n_cut_off: usize,
    /// First requests of the sessions that have not begun.
    later: VecDeque<usize>,
    events: EventQueue<Duration, Event>,
    now: Duration,
    rng: ChaCha8Rng,
}

/// Runs the whole trace and returns its history.
pub fn run(trace: &Trace, scene: &Scene) -> History {
    let shape = FleetShape {
        n_workers: scene.workers.len() as u32,
        n_slots: scene.workers.first().map_or(1, |worker| worker.n_slots),
        block_tokens: trace.block_tokens,
        network: scene.network,
    };
    let joins = |idx: usize| scene.changes.iter().any(|c| c.worker == idx && c.what == FleetEvent::Joins);
    let dies_first =
        |idx: usize| scene.changes.iter().find(|c| c.worker == idx).is_some_and(|c| c.what == FleetEvent::Dies);
    let host = |(idx, shape): (usize, &worker::Shape)| WorkerHost {
        worker: Worker::new(*shape, trace.block_tokens),
        links: Links::default(),
        ahead: VecDeque::new(),
        is_up: !joins(idx) || dies_first(idx),
        boot: 0,
        pushed: None,
        is_push_due: false,
        announced_load: Load::default(),
        read_end: None,
    };
    let mut world = World {
        trace,
        scene,
        hosts: scene.workers.iter().enumerate().map(host).collect(),
        routers: (0..scene.n_routers as u64).map(|n| Router::new(scene.policy, shape, scene.seed + n)).collect(),
        states: trace.requests.iter().map(|_| RequestState::default()).collect(),
        served: vec![None; trace.requests.len()],
        n_cut_off: 0,
        later: trace.later.iter().copied().collect(),
        events: EventQueue::default(),
        now: Duration::ZERO,
        rng: ChaCha8Rng::seed_from_u64(scene.seed),
    };
    world.begin();
    while let Some((at, event)) = world.events.pop() {
        world.now = at;
        world.handle(event);
    }
    let n_disk_blocks = world.hosts.iter().map(|host| host.worker.n_disk_blocks());
    let n_disk_blocks = n_disk_blocks.fold([0; 2], |sum, n| [sum[0] + n[0], sum[1] + n[1]]);
    History { served: world.served, n_cut_off: world.n_cut_off, ended: world.now, n_disk_blocks }
}

impl World<'_> {
    fn begin(&mut self) {
        for (idx, host) in self.hosts.iter().enumerate().filter(|(_, host)| host.is_up) {
            let load = host.worker.load();
            self.routers.iter_mut().for_each(|router| router.apply_load(worker_idx(idx), &load, &[], Duration::ZERO));
        }
        for change in &self.scene.changes {
            self.schedule(change.at, Event::Fleet(*change));
        }
        let trace = self.trace;
        for (request, asked) in trace.requests.iter().enumerate() {
            match asked.follows {
                Some(previous) => self.states[previous].next = Some(request),
                None if self.later.contains(&request) => {}
                None => self.send(request, Duration::ZERO),
            }
        }
    }

    /// Schedules the arrival of a request, at its time after `since`.
    fn send(&mut self, request: usize, since: Duration) {
        let at = since + Duration::from_secs_f64(self.trace.requests[request].at_s);
        self.states[request].arrived = at;
        self.schedule(at, Event::Arrive { request });
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.events.schedule(at, event);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive { request } => self.arrive(request),
            Event::StepEnds { worker } => self.step_ends(worker),
            Event::Push { worker } => self.push(worker),
            Event::ChangesArrive { worker, boot, changes } if self.hosts[worker].boot == boot => {
                self.routers.iter_mut().for_each(|router| router.apply_changes(worker_idx(worker), &changes));
            }
            Event::LoadArrives { worker, boot, load } if self.hosts[worker].boot == boot => {
                let (load, counted) = &*load;
                let now = self.now;
                self.routers.iter_mut().for_each(|router| router.apply_load(worker_idx(worker), load, counted, now));
            }
            Event::Fetched { worker, boot, request, n_blocks } if self.hosts[worker].boot == boot => {
                let end = self.hosts[worker].worker.fetched(self.trace, request, n_blocks, self.now);
                self.step_planned(worker, end);
            }
            Event::ReadEnds { worker, boot } if self.hosts[worker].boot == boot => {
                let end = self.hosts[worker].worker.read_ended(self.now);
                self.step_planned(worker, end);
            }
            Event::Prefetched { worker, boot, prefix } if self.hosts[worker].boot == boot => {
                self.prefetched(worker, &prefix);
            }
            Event::ChangesArrive { .. }
            | Event::LoadArrives { .. }
            | Event::ReadEnds { .. }
            | Event::Fetched { .. }
            | Event::Prefetched { .. } => {}
            Event::Fleet(change) => self.change(change),
        }
    }

    fn arrive(&mut self, request: usize) {
        let state = &mut self.states[request];
        let (id, now) = (name(request), self.now);
        if state.tried.is_empty() {
            let until = match state.backs_off_until {
                Some(until) => until,
                None => {
                    state.router = (self.rng.next_u64() % self.routers.len() as u64) as usize;
                    now + self.routers[state.router].backoff(&self.trace.requests[request], &id, now)
                }
            };
            state.backs_off_until = Some(until);
            if until > now && self.routers[state.router].may_back_off(&self.trace.requests[request], &id, now) {
                return self.schedule(until.min(now + BACKOFF_POLL), Event::Arrive { request });
            }
        }
        let router = &mut self.routers[state.router];
        let Some(dispatch) = router.choose(&self.trace.requests[request], &id, &state.tried, self.now) else {
            return;
        };
        let worker = dispatch.worker.0 as usize;
        state.ticket = Some(dispatch.ticket);
        state.worker = worker;
        state.predicted_tokens = dispatch.cached_tokens;
        (state.hinted, state.fetched) = (dispatch.transfer, None);
        if let Some(n_blocks) = dispatch.transfer.and_then(|transfer| self.begin_fetch(request, transfer)) {
            self.hosts[worker].worker.fetch(self.trace, request, id, n_blocks);
            return self.want_push(worker);
        }
        let end = self.hosts[worker].worker.submit(self.trace, request, id, self.now);
        self.step_planned(worker, end);
    }

    fn step_planned(&mut self, worker: usize, end: Option<Duration>) {
        if let Some(end) = end {
            self.schedule(end, Event::StepEnds { worker });
        }
        let WorkerHost { worker: reader, read_end, boot, .. } = &mut self.hosts[worker];
        let next_read = reader.next_read(self.now);
        if let Some(at) = next_read.filter(|_| *read_end != next_read) {
            let boot = *boot;
            *read_end = next_read;
            self.schedule(at, Event::ReadEnds { worker, boot });
        }
        self.want_push(worker);
    }

    /// Begins the transfer of a request's state to its worker; returns the number of the prompt's first blocks that
    /// the worker then has, `None` if the peer has no more of them.
    fn begin_fetch(&mut self, request: usize, transfer: Transfer) -> Option<usize> {
        let (worker, peer) = (self.states[request].worker, transfer.peer.0 as usize);
        let n_held = |idx: usize| self.hosts[idx].worker.n_held_blocks(self.trace, request);
        let n_own = n_held(worker);
        let n_there = if self.hosts[peer].is_up { n_held(peer) } else { 0 };
        let n_blocks = n_there.min(transfer.blocks as usize);
        let network = self.scene.network.filter(|_| n_blocks > n_own)?;
        let n_tokens = (n_blocks - n_own) as u32 * self.trace.block_tokens;
        let bytes = network.bytes(u64::from(n_tokens));
        let (mut to, mut from) = (self.hosts[worker].links, self.hosts[peer].links);
        let at = network.transfer(&mut to, &mut from, bytes, self.now);
        (self.hosts[worker].links, self.hosts[peer].links) = (to, from);
        let measurement = (bytes, (at - self.now).as_secs_f64() * 1e3);
        self.states[request].fetched = Some(Fetched { n_tokens, measured: measurement });
        let boot = self.hosts[worker].boot;
        self.schedule(at, Event::Fetched { worker, boot, request, n_blocks });
        Some(n_blocks)
    }

    fn step_ends(&mut self, worker: usize) {
        // A step that was cut short has ended at another time.
        if self.hosts[worker].worker.step_end() != Some(self.now) {
            return;
        }
        let (progress, next_end) = self.hosts[worker].worker.end_step(self.now);
        for (request, progress) in progress {
            match progress {
                Progress::First { cached_tokens } => self.first_token(request as usize, cached_tokens),
                Progress::Last { .. } => {
                    self.release(request as usize);
                    self.answered(request as usize);
                }
            }
        }
        self.step_planned(worker, next_end);
    }

    /// Lets the client of a complete response go on: with its session, or with one that has not begun.
    fn answered(&mut self, request: usize) {
        let next = match self.states[request].next {
            None => self.later.pop_front(),
            next => next,
        };
        if let Some(next) = next {
            self.send(next, self.now);
        }
    }

    fn first_token(&mut self, request: usize, cached_tokens: u32) {
        let state = &self.states[request];
        let ttft = self.now.saturating_sub(state.arrived);
        let RequestState { worker, predicted_tokens, fetched: fetched_state, router, .. } = *state;
        let n_retries = state.tried.len();
        let fetched_tokens = fetched_state.map_or(0, |fetched_state| fetched_state.n_tokens);
        self.served[request] =
            Some(Served { worker, ttft, cached_tokens, fetched_tokens, predicted_tokens, n_retries });
        if let Some(Transfer { peer, .. }) = state.hinted {
            let router = &mut self.routers[router];
            if cached_tokens < predicted_tokens {
                router.fetch_failed(worker_idx(worker), peer, self.now);
            } else if let Some(fetched_state) = fetched_state {
                let (bytes, took_ms) = fetched_state.measured;
                router.fetched(worker_idx(worker), peer, bytes, took_ms, self.now);
            }
        }
        self.routers[state.router].first_token(worker_idx(worker), &name(request));
    }

    fn release(&mut self, request: usize) {
        let state = &mut self.states[request];
        let ticket = state.ticket.take().expect("a request that runs was sent");
        self.routers[state.router].ended(ticket, &name(request));
    }

    fn want_push(&mut self, worker: usize) {
        let host = &mut self.hosts[worker];
        if host.worker.has_changes() {
            self.push(worker);
        } else if !std::mem::replace(&mut host.is_push_due, true) {
            let at = host.pushed.map_or(self.now, |last| self.now.max(last + PUSH_INTERVAL));
            self.schedule(at, Event::Push { worker });
        }
    }

    fn push(&mut self, worker: usize) {
        let host = &mut self.hosts[worker];
        host.is_push_due = false;
        if !host.is_up {
            return;
        }
        host.pushed = Some(self.now);
        let boot = host.boot;
        let (counted, changes): (Vec<_>, Vec<_>) =
            host.worker.take_changes().into_iter().partition(|change| matches!(change, Change::Accepted(_)));
        let load = host.worker.load();
        let is_news = load != host.announced_load || !counted.is_empty();
        host.announced_load = load.clone();
        if !changes.is_empty() {
            let changes = Rc::new(changes);
            self.schedule(self.now + self.scene.view_age, Event::ChangesArrive { worker, boot, changes });
        }
        if is_news {
            let load = Rc::new((load, counted));
            self.schedule(self.now + self.scene.load_age, Event::LoadArrives { worker, boot, load });
        }
    }

    fn change(&mut self, change: FleetChange) {
        let (host, now) = (&mut self.hosts[change.worker], self.now);
        match change.what {
            FleetEvent::Joins => {
                host.is_up = true;
                host.announced_load = Load::default();
                let load = host.worker.load();
                self.routers
                    .iter_mut()
                    .for_each(|router| router.apply_load(worker_idx(change.worker), &load, &[], now));
                self.warm(change.worker);
            }
            FleetEvent::Slows => host.worker.slow_down(SLOWDOWN),
            FleetEvent::Dies => {
                host.is_up = false;
                host.boot += 1;
                let lost = host.worker.die();
                let idx = worker_idx(change.worker);
                self.routers.iter_mut().for_each(|router| router.lost(idx, now));
                for request in lost {
                    self.lose(request, idx);
                }
            }
        }
    }

    /// Sends a request of a dead worker again, unless its response had begun.
    fn lose(&mut self, request: usize, worker: WorkerIdx) {
        self.release(request);
        if self.served[request].is_some() {
            self.n_cut_off += 1;
            self.answered(request);
        } else {
            self.states[request].tried.push(worker);
            self.schedule(self.now, Event::Arrive { request });
        }
    }
}

fn worker_idx(idx: usize) -> WorkerIdx {
    WorkerIdx(idx as u32)
}

fn name(request: usize) -> RequestId {
    RequestId::new(&format!("r{request}")).expect("a letter and digits are visible ASCII")
}
