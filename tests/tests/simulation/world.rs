//! One run in virtual time: workers, routers, clients, the network between them, and the order of all events.
//!
//! The events are in a heap; of several events at one time, the one that was scheduled first happens first. Everything
//! random comes from the seed. A run has three parts: faults, calm with traffic, and quiet; what must hold then is in
//! `checks`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use warmpath_common::ids::WorkerUid;
use warmpath_common::summary::Stamp;
use warmpath_router::fleet::client::Clients;

use super::connection::{Connection, Follower};
use super::dice::Dice;
use super::faults::Heal;
use super::life::Life;
use super::model::Build;
use super::requests::{Conversation, Reply, Request};
use super::router::Router;
use super::worker::{Job, Worker};

/// Time in which faults happen.
const FAULTS_LAST: Duration = Duration::from_secs(15);
/// Time of traffic without faults.
const CALM_LASTS: Duration = Duration::from_secs(8);
/// Time without traffic, after the last request has ended.
const QUIET_LASTS: Duration = Duration::from_secs(3);

/// Something that happens.
pub enum Event {
    /// A router's request for a summary stream arrives at the worker.
    Dial(Follower),
    /// A router's attempt to open a stream fails, unless it has succeeded.
    DialFails(Follower, DialFailure),
    /// A router opens a stream.
    Open(Follower),
    /// Something arrives on a connection.
    Arrive(u64),
    /// A router looks at a stream's silence.
    Silence(Follower),
    /// A router compares its members with discovery.
    Look { router: usize, life: u64 },
    /// A router's tracker applies its reports.
    Track { router: usize, life: u64 },
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
    Leave(u64),
    /// A fault happens.
    Fault,
    /// A fault ends.
    Heal(Heal),
}

/// Reason why a stream cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialFailure {
    /// Nothing listens.
    Down,
    /// The worker loads its model.
    Loading,
    /// Nothing has arrived in time.
    Silent,
}

struct Scheduled {
    at: Instant,
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

/// Process at a worker's address.
pub enum Process {
    /// Nothing listens.
    Down,
    /// The model is being loaded.
    Loading(Build),
    /// The worker serves.
    Up(Box<Worker>),
}

/// Address of a worker.
pub struct Host {
    /// Its process.
    pub process: Process,
    /// Life of the process, with the number 0.
    pub life: Stamp,
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
    /// Number of its lives.
    pub life: u64,
    /// Whether it reads its streams slowly.
    pub is_slow: bool,
}

/// What a run does with its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// Nothing.
    Ignore,
    /// Prints it.
    Print,
}

/// One run.
pub struct World {
    /// Present time.
    pub now: Instant,
    /// Randomness.
    pub dice: Dice,
    /// Addresses of workers.
    pub hosts: Vec<Host>,
    /// Addresses of routers.
    pub routers: Vec<RouterHost>,
    /// Open connections.
    pub connections: BTreeMap<u64, Connection>,
    /// Every life of every worker, by uid and boot epoch.
    pub lives: BTreeMap<(u64, u64), Life>,
    /// Pairs of router and worker between which nothing arrives.
    pub cut_off: BTreeSet<(usize, usize)>,
    /// Conversations of the clients.
    pub conversations: Vec<Conversation>,
    /// Requests that have not ended.
    pub requests: BTreeMap<u64, Request>,
    /// Number of requests so far.
    pub n_requests: u64,
    /// Number of attempts so far.
    pub n_attempts: u64,
    /// Whether faults happen.
    pub is_hostile: bool,
    /// Whether clients send turns by themselves.
    pub has_traffic: bool,
    /// How often each thing happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// Factory of the routers' clients, which are never used.
    pub clients: Clients,
    start: Instant,
    heap: BinaryHeap<Reverse<Scheduled>>,
    n_scheduled: u64,
    n_connections: u64,
    log: Log,
}

impl World {
    /// Returns a world in which nothing has happened.
    pub fn new(seed: u64, clients: Clients, log: Log) -> Self {
        let start = Instant::now();
        let mut dice = Dice::new(seed);
        let (n_hosts, n_routers) = (2 + dice.below(4), 1 + dice.below(3));
        let host = |idx| Host {
            process: Process::Down,
            life: Stamp { worker_uid: WorkerUid(idx + 1), boot_epoch: 1_000_000_000, seq: 0 },
            start: 0,
            is_listed: true,
            step: None,
            tick: None,
        };
        let mut world = Self {
            now: start,
            hosts: (0..n_hosts as u64).map(host).collect(),
            routers: (0..n_routers).map(|_| RouterHost { router: None, life: 0, is_slow: false }).collect(),
            connections: BTreeMap::new(),
            lives: BTreeMap::new(),
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
            heap: BinaryHeap::new(),
            n_scheduled: 0,
            n_connections: 0,
            log,
            dice,
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
        self.probe();
        self.check_bookings();
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

    /// Runs for a time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(Reverse(next)) = self.heap.peek()
            && next.at <= end
        {
            let Some(Reverse(Scheduled { at, event, .. })) = self.heap.pop() else { break };
            self.now = at;
            self.happen(event);
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Open(follower) => self.open(follower),
            Event::Dial(follower) => self.dial_arrives(follower),
            Event::DialFails(follower, why) => self.dial_fails(follower, why),
            Event::Arrive(connection) => self.arrive(connection),
            Event::Silence(follower) => self.check_silence(follower),
            Event::Look { router, life } => self.look(router, life),
            Event::Track { router, life } => self.track(router, life),
            Event::Step { host, start } => self.step_ends(host, start),
            Event::Tick { host, start } => self.tick(host, start),
            Event::Loaded { host, start } => self.loaded(host, start),
            Event::Turn(conversation) => self.turn(conversation),
            Event::Try(request) => self.try_request(request),
            Event::Submit { host, router, job } => self.submit(host, router, job),
            Event::Reply { host, router, attempt, reply } => self.reply((host, router), attempt, reply),
            Event::Timeout(attempt) => self.timeout(attempt),
            Event::Cancel { host, router, attempt } => self.cancel(host, router, attempt),
            Event::Leave(request) => self.leave(request),
            Event::Fault => self.fault(),
            Event::Heal(heal) => self.heal(heal),
        }
    }

    /// Schedules an event.
    pub fn at(&mut self, at: Instant, event: Event) {
        self.n_scheduled += 1;
        self.heap.push(Reverse(Scheduled { at, number: self.n_scheduled, event }));
    }

    /// Schedules an event after a random number of milliseconds.
    pub fn after(&mut self, ms: std::ops::Range<u64>, event: Event) {
        let delay = self.dice.ms(ms);
        self.at(self.now + delay, event);
    }

    /// Schedules an event at the other end of a link.
    pub fn across(&mut self, event: Event) {
        let is_late = self.is_hostile && self.dice.one_in(20);
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

    /// Counts something that happened.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Logs something that happened.
    pub fn note(&self, text: impl FnOnce() -> String) {
        if self.log == Log::Print {
            eprintln!("{:6} ms  {}", self.elapsed_ms(), text());
        }
    }
}
