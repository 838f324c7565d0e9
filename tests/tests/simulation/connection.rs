//! The connection of one summary stream: bytes arrive in order, late and in pieces; a fault may damage them.

use std::collections::VecDeque;
use std::time::Instant;

use warmpath_common::summary::{Digest, Frame, FrameBody, Load, Stamp, with_length};
use warmpath_router_core::WorkerIdx;

use super::rng::SeededRng;
use super::router::FRAMES_PER_S_MAX;

/// Bytes that the network takes before the worker has to wait.
const WINDOW_BYTES: usize = 2048;
/// Frames that a worker queues for a subscriber; with more it disconnects it.
const QUEUE_MAX: usize = 48;
/// Longest piece in which bytes arrive.
const PIECE_BYTES_MAX: usize = 500;

/// One attempt of a router to open a worker's summary stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscriber {
    /// Index of the router.
    pub router: usize,
    /// Number of the router's boot.
    pub boot: u64,
    /// Index of the worker in that router.
    pub worker: WorkerIdx,
    /// Number of the attempt to open a stream.
    pub attempt: u64,
}

/// Part of a response that arrives at the router.
#[derive(Debug)]
pub enum Arrival {
    /// The head of the response.
    Head,
    /// Bytes of the body.
    Bytes(Vec<u8>),
    /// The end of the body.
    End,
}

/// Damage to a stream, by the network or by a faulty worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// A bit of a frame changes.
    Flip,
    /// Bytes of a frame are missing.
    Truncate,
    /// A frame is lost.
    Drop,
    /// A frame arrives twice.
    Double,
    /// Two frames change places.
    Swap,
    /// Random bytes arrive.
    Garbage,
    /// An update with an impossible load arrives.
    ImpossibleLoad,
    /// An update with a wrong digest arrives.
    WrongDigest,
    /// More frames arrive than the limit allows.
    Flood,
    /// The connection breaks in the middle of a frame.
    Cut,
}

impl Damage {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Flip,
        Self::Truncate,
        Self::Drop,
        Self::Double,
        Self::Swap,
        Self::Garbage,
        Self::ImpossibleLoad,
        Self::WrongDigest,
        Self::Flood,
        Self::Cut,
    ];

    /// Returns whether this many queued frames are enough for it.
    fn fits(self, n_queued: usize) -> bool {
        match self {
            Self::Flip | Self::Truncate | Self::Drop | Self::Double | Self::Cut => n_queued > 0,
            Self::Swap => n_queued > 1,
            Self::Flood => n_queued == 0,
            Self::Garbage | Self::ImpossibleLoad | Self::WrongDigest => true,
        }
    }
}

/// The connection of one stream.
pub struct Connection {
    /// The router's attempt.
    pub subscriber: Subscriber,
    /// Index of the worker's host.
    pub host: usize,
    /// Position at which the stream began; its boot is that of the worker's process.
    pub boot: Stamp,
    /// Whether bytes were damaged, so that the router may read other blocks than the worker sent.
    pub is_damaged: bool,
    /// Whether an event for its next arrival is scheduled.
    pub is_scheduled: bool,
    /// Damage to the next frames.
    armed: Option<Damage>,
    /// Frames that the worker has queued.
    queue: VecDeque<Vec<u8>>,
    /// Parts in transit.
    wire: VecDeque<Arrival>,
    has_ended: bool,
    /// Number of the last update that was queued.
    last: u64,
    /// Time of the last arrival.
    pub arrived: Instant,
}

impl Connection {
    /// Returns a connection that begins with these frames.
    pub fn new(
        (subscriber, host): (Subscriber, usize),
        boot: Stamp,
        frames: impl IntoIterator<Item = impl AsRef<[u8]>>,
        now: Instant,
    ) -> Self {
        Self {
            subscriber,
            host,
            boot,
            is_damaged: false,
            is_scheduled: false,
            armed: None,
            queue: frames.into_iter().map(|frame| frame.as_ref().to_vec()).collect(),
            wire: VecDeque::from([Arrival::Head]),
            has_ended: false,
            last: boot.seq,
            arrived: now,
        }
    }

    /// Queues a frame; disconnects a subscriber that is too far behind.
    pub fn send(&mut self, frame: &[u8], rng: &mut SeededRng) {
        if self.has_ended {
            return;
        }
        self.queue.push_back(frame.to_vec());
        self.last += 1;
        if self.queue.len() > QUEUE_MAX {
            self.queue.clear();
            self.end();
        }
        self.fill_wire(rng);
    }

    /// Ends the stream after the parts in transit.
    pub fn end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.wire.push_back(Arrival::End);
        }
    }

    /// Returns whether a part is in transit.
    pub fn is_busy(&self) -> bool {
        !self.wire.is_empty()
    }

    /// Returns the next part that arrives, and sends more.
    pub fn take(&mut self, rng: &mut SeededRng) -> Option<Arrival> {
        let arrival = self.wire.pop_front();
        self.fill_wire(rng);
        arrival
    }

    /// Damages the next frames, as soon as enough are queued.
    pub fn arm(&mut self, damage: Damage) {
        self.armed = Some(damage);
    }

    /// Sends queued frames as far as the window allows.
    pub fn fill_wire(&mut self, rng: &mut SeededRng) {
        match self.armed {
            // The first of the two waits for the second.
            Some(Damage::Swap) if self.queue.len() < 2 => return,
            Some(damage) if !self.has_ended && damage.fits(self.queue.len()) => {
                self.armed = None;
                self.damage(damage, rng);
            }
            _ => {}
        }
        let bytes = |arrival: &Arrival| if let Arrival::Bytes(bytes) = arrival { bytes.len() } else { 0 };
        let mut n_left = WINDOW_BYTES.saturating_sub(self.wire.iter().map(bytes).sum());
        while n_left > 0
            && !self.has_ended
            && let Some(frame) = self.queue.pop_front()
        {
            n_left = n_left.saturating_sub(frame.len());
            let mut rest = &frame[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(1 + rng.below(PIECE_BYTES_MAX)));
                self.wire.push_back(Arrival::Bytes(piece.to_vec()));
                rest = after;
            }
        }
    }

    /// Damages the queued frames.
    fn damage(&mut self, damage: Damage, rng: &mut SeededRng) {
        // Frames that are lost, doubled or swapped are those of the worker, and are noticed at once.
        self.is_damaged |= !matches!(damage, Damage::Drop | Damage::Double | Damage::Swap | Damage::Cut);
        let n_queued = self.queue.len();
        let place = if n_queued > 0 { rng.below(n_queued) } else { 0 };
        match damage {
            Damage::Flip => self.flip(place, rng),
            Damage::Truncate => {
                if let Some(frame) = self.queue.get_mut(place) {
                    let at = if is_header(frame) { 0 } else { rng.below(frame.len()) };
                    frame.drain(at..frame.len().min(at + 1 + rng.below(8)));
                }
            }
            Damage::Drop => drop(self.queue.remove(place)),
            Damage::Double => {
                if let Some(frame) = self.queue.get(place).cloned() {
                    self.queue.insert(place, frame);
                }
            }
            Damage::Swap => {
                let place = rng.below(n_queued - 1);
                self.queue.swap(place, place + 1);
            }
            Damage::Garbage => self.queue.insert(place, (0..rng.below(60)).map(|_| rng.below(256) as u8).collect()),
            Damage::ImpossibleLoad => {
                let load = Load { n_decoding: u32::MAX, ..Load::default() };
                let frame = self.forged(Some(load), None);
                self.queue.push_back(frame);
            }
            Damage::WrongDigest => {
                let frame = self.forged(None, Some(Digest { n_blocks: 3, sum: 7 }));
                self.queue.push_back(frame);
            }
            Damage::Flood => {
                let frames = (0..=FRAMES_PER_S_MAX).flat_map(|_| self.forged(None, None)).collect();
                self.wire.push_back(Arrival::Bytes(frames));
            }
            Damage::Cut => {
                if let Some(frame) = self.queue.front() {
                    let part = frame[..rng.below(frame.len())].to_vec();
                    self.wire.push_back(Arrival::Bytes(part));
                }
                self.end();
            }
        }
    }

    /// Changes a bit of an update or of a part of a snapshot.
    fn flip(&mut self, place: usize, rng: &mut SeededRng) {
        let Some(frame) = self.queue.get_mut(place) else { return };
        let at = if is_header(frame) { 4 } else { rng.below(frame.len()) };
        frame[at] ^= 1 << rng.below(8);
    }

    /// Returns an update that the worker has not made, with the next number.
    fn forged(&mut self, load: Option<Load>, digest: Option<Digest>) -> Vec<u8> {
        self.last += 1;
        let stamp = Stamp { seq: self.last, ..self.boot };
        with_length(&Frame { stamp, body: FrameBody::Update { changes: Vec::new(), load, digest } }.encode())
    }
}

/// Returns whether a frame begins a snapshot. It has no checksum: the declaration of a model is as right as TCP
/// delivers it, so only its length or version is damaged.
fn is_header(frame: &[u8]) -> bool {
    let decoded = frame.get(4..).and_then(|content| Frame::decode(content).ok());
    matches!(decoded, Some(Frame { body: FrameBody::Begin(_), .. }))
}
