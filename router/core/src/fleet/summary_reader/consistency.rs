//! The main property of the summary reader: whatever happens to the streams, the view is always a state that the worker
//! had, and it becomes the worker's current state once the streams are undisturbed.
//!
//! Single violations are tested in `tests`. The model is a naive worker that remembers all its states, the replay
//! buffer of real workers, and a connection that loses, duplicates, swaps and replays frames and may break.

use std::collections::{BTreeSet, HashMap, VecDeque};

use proptest::prelude::*;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::WorkerUid;
use warmpath_common::summary::{ReplayBuffer, ReplayLimits, Resume, RunState, SizedUpdate, Snapshot, Tier};

use super::*;
use crate::testing::{idle, model};

type Held = BTreeSet<BlockKey>;

/// Events that can happen.
#[derive(Debug, Clone)]
enum Event {
    /// The worker stores blocks.
    Store(u64, u64),
    /// The worker removes blocks.
    Remove(u64, u64),
    /// The worker restarts, empty.
    Restart,
    /// That many frames arrive.
    Deliver(usize),
    /// A frame in transit is lost.
    Lose(usize),
    /// A frame in transit arrives twice.
    Double(usize),
    /// Two adjacent frames in transit are swapped.
    Swap(usize),
    /// A frame that was sent long ago arrives again.
    Replay(usize),
    /// The connection breaks, with all frames in transit.
    Cut,
    /// The router loses a block from its view without noticing.
    Forget,
}

struct Worker {
    held: Held,
    replay_buffer: ReplayBuffer<Frame>,
    /// Blocks that were held at each stamp.
    past: HashMap<(u64, u64), Held>,
    sent: Vec<Frame>,
}

impl Worker {
    fn new(boot_epoch: u64) -> Self {
        let stamp = Stamp { worker_uid: WorkerUid(1), boot_epoch, seq: 0 };
        // A short buffer, so that snapshots are needed too.
        let limits = ReplayLimits { updates_max: 6, bytes_max: usize::MAX };
        let past_holdings = HashMap::from([((boot_epoch, 0), Held::new())]);
        Self {
            held: Held::new(),
            replay_buffer: ReplayBuffer::new(limits, stamp),
            past: past_holdings,
            sent: Vec::new(),
        }
    }

    fn update(&mut self, change: Option<Change>) -> Frame {
        match &change {
            Some(Change::Stored(run)) => self.held.extend(&run.keys),
            Some(Change::Removed(keys)) => self.held.retain(|key| !keys.contains(key)),
            Some(Change::Accepted(_)) | None => {}
        }
        let (changes, digest) = (change.into_iter().collect(), Some(Digest::of(&self.held)));
        let body = FrameBody::Update { changes, load: None, digest };
        let frame = self.replay_buffer.push(|stamp| SizedUpdate { update: Frame { stamp, body }, n_bytes: 1 });
        self.past.insert((frame.stamp.boot_epoch, frame.stamp.seq), self.held.clone());
        self.sent.push(frame.clone());
        frame
    }

    fn restart(&mut self) {
        let mut next = Self::new(self.replay_buffer.last().boot_epoch + 1);
        next.past.extend(self.past.drain());
        next.sent = std::mem::take(&mut self.sent);
        *self = next;
    }

    fn stream(&self, after: Option<Stamp>) -> VecDeque<Frame> {
        if let Some((stamp, missed)) = after.and_then(|after| Some((after, self.replay_buffer.since(after)?))) {
            return std::iter::once(Frame { stamp, body: FrameBody::Resumed }).chain(missed).collect();
        }
        let runs = if self.held.is_empty() { Vec::new() } else { vec![run(self.held.iter().copied().collect())] };
        Snapshot { stamp: self.replay_buffer.last(), model: model(), runs, load: idle() }.into_frames().into()
    }
}

fn run(keys: Vec<BlockKey>) -> Run {
    Run { keys, tier: Tier::Resident, state: RunState::Ready, resume: Resume::EveryBlock, slot: None }
}

fn keys(from: u64, n: u64) -> Vec<BlockKey> {
    (from..from + n).map(BlockKey).collect()
}

struct Router {
    reader: SummaryReader,
    view: Held,
    /// Stamp of the state that the view shows; absent before the first snapshot.
    at: Option<Stamp>,
    /// Whether a block was removed from the view without the router's knowledge.
    is_spoilt: bool,
    wire: VecDeque<Frame>,
    n_resumed: usize,
}

impl Router {
    fn connect(&mut self, worker: &Worker) {
        self.wire = worker.stream(self.reader.open());
    }

    /// Applies the next frame as the router's tasks do together.
    fn deliver(&mut self, worker: &Worker) {
        let Some(frame) = self.wire.pop_front() else { return };
        let stamp = frame.stamp;
        let digest = match self.reader.apply(frame) {
            Err(_) => return self.connect(worker),
            Ok(FrameEffect::Opened(_) | FrameEffect::Partial) => None,
            Ok(FrameEffect::Resumed) => {
                self.n_resumed += 1;
                None
            }
            Ok(FrameEffect::Replace(new)) => {
                self.view = new.runs.iter().flat_map(|run| &run.keys).copied().collect();
                (self.at, self.is_spoilt) = (Some(new.stamp), false);
                None
            }
            Ok(FrameEffect::Update { changes, digest, .. }) => {
                for change in changes {
                    match change {
                        Change::Stored(run) => self.view.extend(run.keys),
                        Change::Removed(keys) => self.view.retain(|key| !keys.contains(key)),
                        Change::Accepted(_) => {}
                    }
                }
                self.at = Some(stamp);
                digest
            }
        };
        if digest.is_some_and(|digest| digest != Digest::of(&self.view)) {
            self.reader.forget();
            self.connect(worker);
        }
    }
}

fn happen(event: &Event, worker: &mut Worker, router: &mut Router) {
    let place = |idx: usize, n: usize| idx % n.max(1);
    match *event {
        Event::Store(from, n) => router.wire.push_back(worker.update(Some(Change::Stored(run(keys(from, n)))))),
        Event::Remove(from, n) => router.wire.push_back(worker.update(Some(Change::Removed(keys(from, n))))),
        Event::Restart => {
            worker.restart();
            router.connect(worker);
        }
        Event::Deliver(n) => (0..n).for_each(|_| router.deliver(worker)),
        Event::Lose(idx) => drop(router.wire.remove(place(idx, router.wire.len()))),
        Event::Double(idx) => {
            let idx = place(idx, router.wire.len());
            if let Some(frame) = router.wire.get(idx).cloned() {
                router.wire.insert(idx, frame);
            }
        }
        Event::Swap(idx) => {
            let idx = place(idx, router.wire.len());
            if idx + 1 < router.wire.len() {
                router.wire.swap(idx, idx + 1);
            }
        }
        Event::Replay(idx) => {
            if let Some(frame) = worker.sent.get(place(idx, worker.sent.len())) {
                router.wire.push_front(frame.clone());
            }
        }
        Event::Cut => router.connect(worker),
        Event::Forget => router.is_spoilt |= router.view.pop_first().is_some(),
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0_u64..30, 1_u64..6).prop_map(|(from, n)| Event::Store(from, n)),
        4 => (0_u64..30, 1_u64..6).prop_map(|(from, n)| Event::Remove(from, n)),
        1 => Just(Event::Restart),
        8 => (1_usize..8).prop_map(Event::Deliver),
        1 => (0_usize..8).prop_map(Event::Lose),
        1 => (0_usize..8).prop_map(Event::Double),
        1 => (0_usize..8).prop_map(Event::Swap),
        1 => (0_usize..60).prop_map(Event::Replay),
        2 => Just(Event::Cut),
        1 => Just(Event::Forget),
    ]
}

proptest! {
    #[test]
    fn the_view_is_always_a_past_state_of_the_worker_and_finally_its_current_one(
        events in prop::collection::vec(any_event(), 0..120)
    ) {
        let mut worker = Worker::new(1);
        let reader = SummaryReader::new(100);
        let mut router =
            Router { reader, view: Held::new(), at: None, is_spoilt: false, wire: VecDeque::new(), n_resumed: 0 };
        router.connect(&worker);
        for event in &events {
            happen(event, &mut worker, &mut router);
            if let Some(at) = router.at.filter(|_| !router.is_spoilt) {
                let then = &worker.past[&(at.boot_epoch, at.seq)];
                prop_assert_eq!(&router.view, then, "after {:?} at {}", event, at);
            }
        }
        // From here on the connection is reliable. A frame in transit may still be rejected once; the heartbeat carries
        // the digest.
        router.connect(&worker);
        let heartbeat = worker.update(None);
        router.wire.push_back(heartbeat);
        while !router.wire.is_empty() {
            router.deliver(&worker);
        }
        prop_assert_eq!(&router.view, &worker.held);
        prop_assert_eq!(router.at, Some(worker.replay_buffer.last()));
    }
}

#[test]
fn a_short_interruption_is_repaired_from_the_ring_and_a_long_one_by_a_snapshot() {
    for (n_missed, n_resumed) in [(0, 1), (6, 1), (7, 0)] {
        let mut worker = Worker::new(1);
        let reader = SummaryReader::new(100);
        let mut router =
            Router { reader, view: Held::new(), at: None, is_spoilt: false, wire: VecDeque::new(), n_resumed: 0 };
        router.connect(&worker);
        happen(&Event::Deliver(9), &mut worker, &mut router);
        (0..n_missed).for_each(|n| drop(worker.update(Some(Change::Stored(run(keys(n, 1)))))));
        router.connect(&worker);
        happen(&Event::Deliver(9), &mut worker, &mut router);
        assert_eq!((router.n_resumed, &router.view), (n_resumed, &worker.held), "{n_missed} missed");
    }
}
