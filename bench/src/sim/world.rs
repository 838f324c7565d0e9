//! Virtual time: the order of all events, from the first request to the last response.
//!
//! Workers and routers are in `worker` and `router`, reporting in `outcome`. The events are in a heap; of several
//! events at one time, the one that was scheduled first is handled first. Nothing depends on a clock, so the same trace
//! and the same seed always give the same outcome.

mod ahead;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use warmpath_common::ids::RequestId;
use warmpath_common::prefetch::HotPrefix;
use warmpath_common::summary::{Change, Load};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::ledger::BACKOFF_POLL;
use warmpath_router_core::routing::transfer::Transfer;

use super::network::{Links, Network};
use super::policy::Policy;
use super::router::{FleetShape, Receipt, Router};
use super::trace::Trace;
use super::worker::{self, Worker};

/// Shortest time between two announcements of a worker that contain its load only; changes of blocks are announced
/// immediately.
///
/// Source: docs/decisions/0005-summary-encoding.md: load is pushed on change, at most every 10 ms.
const PUSH_INTERVAL: Duration = Duration::from_millis(10);

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
    /// Workers that join or die, in the order of time.
    pub changes: Vec<FleetChange>,
    /// Network between the workers; absent if they exchange no KV state.
    pub network: Option<Network>,
    /// Seed of everything that is random.
    pub seed: u64,
}

/// One worker's joining or dying.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FleetChange {
    /// Index of the worker in the fleet.
    pub worker: usize,
    /// Time of the change.
    pub at: Duration,
    /// Kind of the change.
    pub what: Presence,
}

/// Whether a worker joins or dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The worker joins and holds nothing; until then it was absent.
    Joins,
    /// The worker dies, with everything that it holds and runs.
    Dies,
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

/// Everything that happened.
#[derive(Debug)]
pub struct History {
    /// Result of each request; absent if it got no first token.
    pub served: Vec<Option<Served>>,
    /// Number of responses that had begun when their worker died.
    pub n_cut_off: usize,
    /// Time of the last event.
    pub ended: Duration,
}

enum Event {
    Arrive { request: usize },
    StepEnds { worker: usize },
    Fetched { worker: usize, life: u64, request: usize, n_blocks: usize },
    CameAhead { worker: usize, life: u64, prefix: Rc<HotPrefix> },
    Push { worker: usize },
    HearChanges { worker: usize, life: u64, changes: Rc<Vec<Change>> },
    HearLoad { worker: usize, life: u64, load: Rc<(Load, Vec<Change>)> },
    Fleet(FleetChange),
}

/// Event with its position: ordered by time, then by when it was scheduled.
struct Scheduled {
    at: Duration,
    number: u64,
    event: Event,
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Scheduled {}

/// State of a request.
#[derive(Default)]
struct Errand {
    router: usize,
    receipt: Option<Receipt>,
    worker: usize,
    predicted_tokens: u32,
    hinted: Option<Transfer>,
    fetched: Option<Fetched>,
    /// Time until which it is held back; absent before that is decided.
    listens_until: Option<Duration>,
    tried: Vec<WorkerIdx>,
}

/// A transfer for a request.
#[derive(Clone, Copy)]
struct Fetched {
    n_tokens: u32,
    /// Bytes and milliseconds.
    measured: (u64, f64),
}

struct Post {
    worker: Worker,
    links: Links,
    /// Prefixes to fetch before requests need them, each with the worker that holds it.
    ahead: VecDeque<(WorkerIdx, HotPrefix)>,
    is_there: bool,
    /// Number of the worker's boot, so that announcements from an earlier boot are ignored.
    life: u64,
    pushed: Option<Duration>,
    is_push_due: bool,
    said: Load,
}

struct World<'t> {
    trace: &'t Trace,
    scene: &'t Scene,
    posts: Vec<Post>,
    routers: Vec<Router>,
    errands: Vec<Errand>,
    served: Vec<Option<Served>>,
    n_cut_off: usize,
    heap: BinaryHeap<Reverse<Scheduled>>,
    n_scheduled: u64,
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
    let joins = |idx: usize| scene.changes.iter().any(|c| c.worker == idx && c.what == Presence::Joins);
    let dies_first =
        |idx: usize| scene.changes.iter().find(|c| c.worker == idx).is_some_and(|c| c.what == Presence::Dies);
    let post = |(idx, shape): (usize, &worker::Shape)| Post {
        worker: Worker::new(*shape, trace.block_tokens),
        links: Links::default(),
        ahead: VecDeque::new(),
        is_there: !joins(idx) || dies_first(idx),
        life: 0,
        pushed: None,
        is_push_due: false,
        said: Load::default(),
    };
    let mut world = World {
        trace,
        scene,
        posts: scene.workers.iter().enumerate().map(post).collect(),
        routers: (0..scene.n_routers as u64).map(|n| Router::new(scene.policy, shape, scene.seed + n)).collect(),
        errands: trace.requests.iter().map(|_| Errand::default()).collect(),
        served: vec![None; trace.requests.len()],
        n_cut_off: 0,
        heap: BinaryHeap::new(),
        n_scheduled: 0,
        now: Duration::ZERO,
        rng: ChaCha8Rng::seed_from_u64(scene.seed),
    };
    world.begin();
    while let Some(Reverse(Scheduled { at, event, .. })) = world.heap.pop() {
        world.now = at;
        world.happen(event);
    }
    History { served: world.served, n_cut_off: world.n_cut_off, ended: world.now }
}

impl World<'_> {
    fn begin(&mut self) {
        for (idx, post) in self.posts.iter().enumerate().filter(|(_, post)| post.is_there) {
            let load = post.worker.load(self.trace);
            self.routers.iter_mut().for_each(|router| router.apply_load(worker_idx(idx), (&load, &[]), Duration::ZERO));
        }
        for change in &self.scene.changes {
            self.schedule(change.at, Event::Fleet(*change));
        }
        for (request, asked) in self.trace.requests.iter().enumerate() {
            self.schedule(Duration::from_secs_f64(asked.at_s), Event::Arrive { request });
        }
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.n_scheduled += 1;
        self.heap.push(Reverse(Scheduled { at, number: self.n_scheduled, event }));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { request } => self.arrive(request),
            Event::StepEnds { worker } => self.step_ends(worker),
            Event::Push { worker } => self.push(worker),
            Event::HearChanges { worker, life, changes } if self.posts[worker].life == life => {
                self.routers.iter_mut().for_each(|router| router.apply_changes(worker_idx(worker), &changes));
            }
            Event::HearLoad { worker, life, load } if self.posts[worker].life == life => {
                let (load, counted) = &*load;
                let now = self.now;
                self.routers.iter_mut().for_each(|router| router.apply_load(worker_idx(worker), (load, counted), now));
            }
            Event::Fetched { worker, life, request, n_blocks } if self.posts[worker].life == life => {
                let ends = self.posts[worker].worker.fetched(self.trace, (request, n_blocks), self.now);
                self.went_on(worker, ends);
            }
            Event::CameAhead { worker, life, prefix } if self.posts[worker].life == life => {
                self.came_ahead(worker, &prefix);
            }
            Event::HearChanges { .. } | Event::HearLoad { .. } | Event::Fetched { .. } | Event::CameAhead { .. } => {}
            Event::Fleet(change) => self.change(change),
        }
    }

    fn arrive(&mut self, request: usize) {
        let errand = &mut self.errands[request];
        let (id, now) = (name(request), self.now);
        if errand.tried.is_empty() {
            let until = match errand.listens_until {
                Some(until) => until,
                None => {
                    errand.router = (self.rng.next_u64() % self.routers.len() as u64) as usize;
                    now + self.routers[errand.router].backoff(&self.trace.requests[request], &id, now)
                }
            };
            errand.listens_until = Some(until);
            if until > now && self.routers[errand.router].may_back_off(&self.trace.requests[request], &id, now) {
                return self.schedule(until.min(now + BACKOFF_POLL), Event::Arrive { request });
            }
        }
        let asked = (&id, &errand.tried[..]);
        let Some(sent) = self.routers[errand.router].choose(&self.trace.requests[request], asked, self.now) else {
            return;
        };
        let worker = sent.worker.0 as usize;
        errand.receipt = Some(sent.receipt);
        errand.worker = worker;
        errand.predicted_tokens = sent.cached_tokens;
        (errand.hinted, errand.fetched) = (sent.transfer, None);
        if let Some(n_blocks) = sent.transfer.and_then(|transfer| self.begin_fetch(request, transfer)) {
            self.posts[worker].worker.fetch(self.trace, (request, id), n_blocks);
            return self.want_push(worker);
        }
        let ends = self.posts[worker].worker.submit(self.trace, (request, id), self.now);
        self.went_on(worker, ends);
    }

    fn went_on(&mut self, worker: usize, ends: Option<Duration>) {
        if let Some(ends) = ends {
            self.schedule(ends, Event::StepEnds { worker });
        }
        self.want_push(worker);
    }

    /// Begins the transfer of a request's state to its worker; returns the number of the prompt's first blocks that
    /// the worker then has, `None` if the peer has no more of them.
    fn begin_fetch(&mut self, request: usize, transfer: Transfer) -> Option<usize> {
        let (worker, peer) = (self.errands[request].worker, transfer.peer.0 as usize);
        let n_held = |idx: usize| self.posts[idx].worker.n_held_blocks(self.trace, request);
        let n_own = n_held(worker);
        let n_there = if self.posts[peer].is_there { n_held(peer) } else { 0 };
        let n_blocks = n_there.min(transfer.blocks as usize);
        let network = self.scene.network.filter(|_| n_blocks > n_own)?;
        let n_tokens = (n_blocks - n_own) as u32 * self.trace.block_tokens;
        let bytes = network.bytes(u64::from(n_tokens));
        let (mut to, mut from) = (self.posts[worker].links, self.posts[peer].links);
        let at = network.transfer((&mut to, &mut from), bytes, self.now);
        (self.posts[worker].links, self.posts[peer].links) = (to, from);
        let measured = (bytes, (at - self.now).as_secs_f64() * 1e3);
        self.errands[request].fetched = Some(Fetched { n_tokens, measured });
        let life = self.posts[worker].life;
        self.schedule(at, Event::Fetched { worker, life, request, n_blocks });
        Some(n_blocks)
    }

    fn step_ends(&mut self, worker: usize) {
        // A step that was cut short has ended at another time.
        if self.posts[worker].worker.step_ends() != Some(self.now) {
            return;
        }
        let (events, next) = self.posts[worker].worker.end_step(self.trace, self.now);
        if let Some(ends) = next {
            self.schedule(ends, Event::StepEnds { worker });
        }
        for event in events {
            match event {
                worker::Event::First { request, cached_tokens } => self.first_token(request, cached_tokens),
                worker::Event::Last { request } => self.release(request),
            }
        }
        self.want_push(worker);
    }

    fn first_token(&mut self, request: usize, cached_tokens: u32) {
        let errand = &self.errands[request];
        let ttft = self.now.saturating_sub(Duration::from_secs_f64(self.trace.requests[request].at_s));
        let Errand { worker, predicted_tokens, fetched, router, .. } = *errand;
        let n_retries = errand.tried.len();
        let fetched_tokens = fetched.map_or(0, |fetched| fetched.n_tokens);
        self.served[request] =
            Some(Served { worker, ttft, cached_tokens, fetched_tokens, predicted_tokens, n_retries });
        if let Some(Transfer { peer, .. }) = errand.hinted {
            let is_less = cached_tokens < predicted_tokens;
            let measured = fetched.map(|fetched| fetched.measured).filter(|_| !is_less);
            if measured.is_some() || is_less {
                self.routers[router].fetched((worker_idx(worker), peer), measured, self.now);
            }
        }
        self.routers[errand.router].first_token(worker_idx(worker), &name(request));
    }

    fn release(&mut self, request: usize) {
        let errand = &mut self.errands[request];
        let receipt = errand.receipt.take().expect("a request that runs was sent");
        self.routers[errand.router].ended(receipt, &name(request));
    }

    fn want_push(&mut self, worker: usize) {
        let post = &mut self.posts[worker];
        if post.worker.has_changes() {
            self.push(worker);
        } else if !std::mem::replace(&mut post.is_push_due, true) {
            let at = post.pushed.map_or(self.now, |last| self.now.max(last + PUSH_INTERVAL));
            self.schedule(at, Event::Push { worker });
        }
    }

    fn push(&mut self, worker: usize) {
        let post = &mut self.posts[worker];
        post.is_push_due = false;
        if !post.is_there {
            return;
        }
        post.pushed = Some(self.now);
        let life = post.life;
        let (counted, changes): (Vec<_>, Vec<_>) =
            post.worker.take_changes().into_iter().partition(|change| matches!(change, Change::Accepted(_)));
        let load = post.worker.load(self.trace);
        let is_news = load != post.said || !counted.is_empty();
        post.said = load.clone();
        if !changes.is_empty() {
            let changes = Rc::new(changes);
            self.schedule(self.now + self.scene.view_age, Event::HearChanges { worker, life, changes });
        }
        if is_news {
            let load = Rc::new((load, counted));
            self.schedule(self.now + self.scene.load_age, Event::HearLoad { worker, life, load });
        }
    }

    fn change(&mut self, change: FleetChange) {
        let (post, now) = (&mut self.posts[change.worker], self.now);
        match change.what {
            Presence::Joins => {
                post.is_there = true;
                post.said = Load::default();
                let load = post.worker.load(self.trace);
                self.routers
                    .iter_mut()
                    .for_each(|router| router.apply_load(worker_idx(change.worker), (&load, &[]), now));
                self.warm(change.worker);
            }
            Presence::Dies => {
                post.is_there = false;
                post.life += 1;
                let lost = post.worker.die();
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
        } else {
            self.errands[request].tried.push(worker);
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
