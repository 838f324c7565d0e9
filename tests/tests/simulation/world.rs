//! One run in virtual time: workers, routers, clients, the network between them, and the order of all events.
//!
//! Everything random comes from the seed. A run has three phases: traffic with faults, traffic without faults, and no
//! traffic. The invariants that hold in each are in `checks`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use warmpath_bench::simulated::event_queue::EventQueue;
use warmpath_common::ids::WorkerUid;
use warmpath_common::summary::Stamp;
use warmpath_router::fleet::client::Clients;

use super::boot::Boot;
use super::connection::{Connection, Subscriber};
use super::faults::Heal;
use super::model::Build;
use super::requests::{Conversation, Reply, Request};
use super::rng::SeededRng;
use super::router::Router;
use super::worker::{Job, Worker};

/// Length of the phase with faults.
const FAULTS_LAST: Duration = Duration::from_secs(15);
/// Length of the phase with traffic and without faults.
const CALM_LASTS: Duration = Duration::from_secs(8);
/// Length of the phase without traffic, which begins when the last request has ended.
const QUIET_LASTS: Duration = Duration::from_secs(3);

/// Event of a run.
pub enum Event {
    /// A router's request for a summary stream arrives at the worker.
    Dial(Subscriber),
    /// A router's attempt to open a stream fails, unless it has succeeded.
    DialFails(Subscriber, DialFailure),
    /// A router opens a stream.
    Open(Subscriber),
    /// The next bytes arrive on a connection.
    Arrive(u64),
    /// A router checks how long a stream has been silent.
    Silence(Subscriber),
    /// A router compares its members with discovery.
    Discover { router: usize, boot: u64 },
    /// A router's tracker applies its reports.
    Track { router: usize, boot: u64 },
    /// A worker's step ends.
    Step { host: usize, start: u64 },
    /// A worker's next frame is due.
    Tick { host: usize, start: u64 },
    /// A worker has loaded its model.
    Loaded { host: usize, start: u64 },
    /// A client sends the next turn of a conversation.
    Turn(usize),
    /// A router tries to send a request.
    Try(u64),
    /// An attempt arrives at its worker.
    Submit { host: usize, router: usize, job: Job },
    /// A worker's reply arrives at the router.
    Reply { host: usize, router: usize, attempt: u64, reply: Reply },
    /// An attempt has no first byte in time.
    Timeout(u64),
    /// The connection of an attempt is closed by the router.
    Cancel { host: usize, router: usize, attempt: u64 },
    /// A client closes its connection.
    Disconnect(u64),
    /// A fault happens.
    Fault,
    /// A fault ends.
    Heal(Heal),
}

/// Reason why a stream cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialFailure {
    /// No process listens.
    Down,
    /// The worker loads its model.
    Loading,
    /// No bytes have arrived in time.
    Silent,
}

/// Process at a worker's address.
pub enum WorkerProcess {
    /// No process listens.
    Down,
    /// The model is being loaded.
    Loading(Build),
    /// The worker serves.
    Up(Box<Worker>),
}

/// Address of a worker.
pub struct Host {
    /// Its process.
    pub process: WorkerProcess,
    /// Boot of the process, as a stamp whose number is 0.
    pub boot: Stamp,
    /// Number of starts so far.
    pub start: u64,
    /// Whether discovery lists it.
    pub is_listed: bool,
    /// End of the running step for which an event is scheduled.
    pub step: Option<Instant>,
    /// Time for which a tick is scheduled.
    pub tick: Option<Instant>,
}

/// Address of a router.
pub struct RouterHost {
    /// Its process; `None` while it is down.
    pub router: Option<Box<Router>>,
    /// Number of its boots.
    pub boot: u64,
    /// Whether it reads its streams slowly.
    pub is_slow: bool,
}

/// Use of a run's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// It is dropped.
    Ignore,
    /// It is printed.
    Print,
}

/// One run.
pub struct World {
    /// Present time.
    pub now: Instant,
    /// Randomness.
    pub rng: SeededRng,
    /// Addresses of workers.
    pub hosts: Vec<Host>,
    /// Addresses of routers.
    pub routers: Vec<RouterHost>,
    /// Open connections.
    pub connections: BTreeMap<u64, Connection>,
    /// Every boot of every worker, by uid and boot epoch.
    pub boots: BTreeMap<(u64, u64), Boot>,
    /// Pairs of router and worker whose network link is down.
    pub cut_off: BTreeSet<(usize, usize)>,
    /// Conversations of the clients.
    pub conversations: Vec<Conversation>,
    /// Requests that have not ended.
    pub requests: BTreeMap<u64, Request>,
    /// Number of requests so far.
    pub n_requests: u64,
    /// Number of attempts so far.
    pub n_attempts: u64,
    /// Whether faults are scheduled.
    pub is_hostile: bool,
    /// Whether clients send turns by themselves.
    pub has_traffic: bool,
    /// Number of events of each kind.
    pub counts: BTreeMap<&'static str, u64>,
    /// Factory of the routers' HTTP clients, through which the simulation sends nothing.
    pub clients: Clients,
    start: Instant,
    events: EventQueue<Instant, Event>,
    n_connections: u64,
    log: Log,
}

impl World {
    /// Returns a world before its first event.
    pub fn new(seed: u64, clients: Clients, log: Log) -> Self {
        let start = Instant::now();
        let mut rng = SeededRng::new(seed);
        let (n_hosts, n_routers) = (2 + rng.below(4), 1 + rng.below(3));
        let host = |idx| Host {
            process: WorkerProcess::Down,
            boot: Stamp { worker_uid: WorkerUid(idx + 1), boot_epoch: 1_000_000_000, seq: 0 },
            start: 0,
            is_listed: true,
            step: None,
            tick: None,
        };
        let mut world = Self {
            now: start,
            hosts: (0..n_hosts as u64).map(host).collect(),
            routers: (0..n_routers).map(|_| RouterHost { router: None, boot: 0, is_slow: false }).collect(),
            connections: BTreeMap::new(),
            boots: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            conversations: Vec::new(),
            requests: BTreeMap::new(),
            n_requests: 0,
            n_attempts: 0,
            is_hostile: true,
            has_traffic: true,
            counts: BTreeMap::new(),
            clients,
            start,
            events: EventQueue::default(),
            n_connections: 0,
            log,
            rng,
        };
        for idx in 0..n_hosts {
            let build = if idx == 0 { Build::USUAL } else { world.any_build() };
            world.start_worker(idx, build);
        }
        (0..n_routers).for_each(|idx| world.start_router(idx));
        world.begin_conversations();
        world.after(0..500, Event::Fault);
        world
    }

    /// Runs to the end; panics when an invariant is broken.
    pub fn run(&mut self) {
        self.run_for(FAULTS_LAST);
        self.is_hostile = false;
        self.heal_all();
        self.run_for(CALM_LASTS);
        self.has_traffic = false;
        self.finish_requests();
        self.run_for(QUIET_LASTS);
        self.check_quiet();
        if self.is_tied() {
            self.count("tied models");
        }
        self.probe();
        self.check_nothing_in_flight();
    }

    /// Runs until no request is left.
    pub fn finish_requests(&mut self) {
        for _ in 0..400 {
            if self.requests.is_empty() {
                return;
            }
            self.run_for(Duration::from_millis(100));
        }
        panic!("{} requests do not end", self.requests.len());
    }

    /// Handles the events of this time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some((at, event)) = self.events.pop_until(&end) {
            self.now = at;
            self.handle(event);
        }
        self.now = end;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Open(subscriber) => self.open(subscriber),
            Event::Dial(subscriber) => self.dial_arrives(subscriber),
            Event::DialFails(subscriber, why) => self.dial_fails(subscriber, why),
            Event::Arrive(connection) => self.arrive(connection),
            Event::Silence(subscriber) => self.check_silence(subscriber),
            Event::Discover { router, boot } => self.discover(router, boot),
            Event::Track { router, boot } => self.track(router, boot),
            Event::Step { host, start } => self.step_ends(host, start),
            Event::Tick { host, start } => self.tick(host, start),
            Event::Loaded { host, start } => self.loaded(host, start),
            Event::Turn(conversation) => self.turn(conversation),
            Event::Try(request) => self.try_request(request),
            Event::Submit { host, router, job } => self.submit(host, router, job),
            Event::Reply { host, router, attempt, reply } => self.reply((host, router), attempt, reply),
            Event::Timeout(attempt) => self.timeout(attempt),
            Event::Cancel { host, router, attempt } => self.cancel(host, router, attempt),
            Event::Disconnect(request) => self.disconnect(request),
            Event::Fault => self.fault(),
            Event::Heal(heal) => self.heal(heal),
        }
    }

    /// Schedules an event.
    pub fn at(&mut self, at: Instant, event: Event) {
        self.events.schedule(at, event);
    }

    /// Schedules an event after a random number of milliseconds.
    pub fn after(&mut self, ms: std::ops::Range<u64>, event: Event) {
        let delay = self.rng.ms(ms);
        self.at(self.now + delay, event);
    }

    /// Schedules an event that crosses the network.
    pub fn transmit(&mut self, event: Event) {
        let is_late = self.is_hostile && self.rng.one_in(20);
        self.after(if is_late { 5..300 } else { 0..4 }, event);
    }

    /// Adds a connection.
    pub fn connect(&mut self, connection: Connection) -> u64 {
        self.n_connections += 1;
        self.connections.insert(self.n_connections, connection);
        self.n_connections
    }

    /// Returns the time since the start. Units: milliseconds.
    pub fn elapsed_ms(&self) -> u64 {
        (self.now - self.start).as_millis() as u64
    }

    /// Counts an event of this kind.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Writes a line of the log.
    pub fn note(&self, text: impl FnOnce() -> String) {
        if self.log == Log::Print {
            eprintln!("{:6} ms  {}", self.elapsed_ms(), text());
        }
    }
}
