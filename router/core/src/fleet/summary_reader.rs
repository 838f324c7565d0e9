//! The reader of one worker's summary, across its streams: takes decoded frames, returns changes of the view.
//!
//! The router's subscriber reads bytes and sockets; the view itself is in `index` and `fleet`. A stream is one
//! snapshot, or a confirmation that the view is right, followed by updates without a gap. A snapshot is collected until
//! its end and then replaces the view as a whole; the old view stays until then. Any frame other than the next expected
//! one, and any impossible value, ends the stream. As long as the view can be trusted, the next stream is opened at the
//! view's position: the worker sends the missed updates from its replay buffer, or else a snapshot.

use warmpath_common::summary::{Change, Digest, Frame, FrameBody, Load, Run, SnapshotHeader, Stamp};

/// A worker that has begun to send a snapshot. It can be used before the blocks have arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct NewWorker {
    /// Stamp of the snapshot.
    pub stamp: Stamp,
    /// Declared model and load.
    pub opening: SnapshotHeader,
}

/// A complete snapshot of a worker's blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct NewView {
    /// Stamp of the snapshot.
    pub stamp: Stamp,
    /// Block runs that the worker holds.
    pub runs: Vec<Run>,
}

/// Effect of a frame on the view.
#[derive(Debug, Clone, PartialEq)]
pub enum FrameEffect {
    /// A snapshot has begun: model and load are known, the blocks are unchanged.
    Opened(Box<NewWorker>),
    /// Nothing yet: the frame is part of an incomplete snapshot.
    Partial,
    /// All blocks are replaced.
    Replace(Box<NewView>),
    /// The view is up to date; updates follow.
    Resumed,
    /// The view changes.
    Update {
        /// Changes in order.
        changes: Vec<Change>,
        /// New load, if it changed.
        load: Option<Load>,
        /// Digest of the blocks after the changes, if the worker sends one.
        digest: Option<Digest>,
    },
}

/// Reason why a stream cannot be read any further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A frame arrived where another kind of frame was expected.
    #[error("frame `{got}` arrived where `{expected}` was expected")]
    OutOfPlace {
        /// Kind of the frame that arrived.
        got: &'static str,
        /// Kinds that were expected.
        expected: &'static str,
    },
    /// Updates are missing.
    #[error("update {got} arrived where update {expected} was expected")]
    Gap {
        /// Number that arrived.
        got: u64,
        /// Number that was expected.
        expected: u64,
    },
    /// An update arrived twice or late.
    #[error("update {got} arrived again")]
    Duplicate {
        /// Number that arrived.
        got: u64,
    },
    /// The stream continues as another worker, or with another boot epoch.
    #[error("the stream changed to another worker or boot epoch")]
    Identity,
    /// The worker sends an older state than it has sent before.
    #[error("the snapshot is of {got}, an older epoch or state than {newest}")]
    OldBoot {
        /// Stamp of the snapshot.
        got: Stamp,
        /// Newest stamp so far.
        newest: Stamp,
    },
    /// The frames of one snapshot belong to different states, or some are missing.
    #[error("the frames of a snapshot do not belong together")]
    TornSnapshot,
    /// The worker reports more blocks than are allowed.
    #[error("the worker claims more than {blocks_max} blocks")]
    TooManyBlocks {
        /// Limit.
        blocks_max: usize,
    },
    /// A block run is empty.
    #[error("a run has no blocks")]
    EmptyRun,
    /// A slot is named that the worker does not have.
    #[error("slot {slot} is named, but the worker has {n_slots} slots")]
    UnknownSlot {
        /// Named slot.
        slot: u16,
        /// Number of slots.
        n_slots: u16,
    },
    /// A load has an impossible value.
    #[error("the load says {field} = {value}")]
    Load {
        /// Name of the field.
        field: &'static str,
        /// Reported value.
        value: String,
    },
}

impl Violation {
    /// Returns whether only the order of the frames is wrong, so that the view before this frame can be trusted.
    fn is_of_order(&self) -> bool {
        matches!(self, Self::Gap { .. } | Self::Duplicate { .. })
    }

    /// Returns a short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::OutOfPlace { .. } => "out_of_place",
            Self::Gap { .. } => "gap",
            Self::Duplicate { .. } => "duplicate",
            Self::Identity => "identity",
            Self::OldBoot { .. } => "old_life",
            Self::TornSnapshot => "torn_snapshot",
            Self::TooManyBlocks { .. } => "too_many_blocks",
            Self::EmptyRun => "empty_run",
            Self::UnknownSlot { .. } => "unknown_slot",
            Self::Load { .. } => "load",
        }
    }
}

/// Position in a stream, which decides what the next frame may be.
enum StreamPhase {
    Closed,
    Opened,
    Snapshot { stamp: Stamp, n_slots: u16, runs: Vec<Run>, digest: Digest },
    Live(StreamProgress),
}

/// Whether a stream has advanced the view.
#[derive(PartialEq, Eq)]
enum StreamProgress {
    None,
    Some,
}

/// Position of the view that the caller keeps.
#[derive(Clone, Copy)]
struct ViewPosition {
    stamp: Stamp,
    n_slots: u16,
}

/// Reader of one worker's summary, across all its streams.
pub struct SummaryReader {
    /// Maximum number of blocks of the worker.
    blocks_max: usize,
    state: StreamPhase,
    /// Position of the view; `None` if there is no view, or none that can be continued.
    view: Option<ViewPosition>,
    /// Newest accepted stamp, also of a view that is gone.
    newest: Option<Stamp>,
    /// Stamp of the last snapshot that was rejected for its age.
    refused_stamp: Option<Stamp>,
}

impl SummaryReader {
    /// Returns a reader of a worker that has sent nothing yet, and may report at most `blocks_max` blocks.
    pub fn new(blocks_max: usize) -> Self {
        Self { blocks_max, state: StreamPhase::Closed, view: None, newest: None, refused_stamp: None }
    }

    /// Begins a new stream; returns the stamp after which it should continue, or `None` if a snapshot is needed.
    pub fn open(&mut self) -> Option<Stamp> {
        self.state = StreamPhase::Opened;
        self.view.map(|view| view.stamp)
    }

    /// Records that the view is gone or cannot be trusted, so that the next stream starts with a snapshot.
    pub fn forget(&mut self) {
        self.view = None;
    }

    /// Applies the next frame.
    ///
    /// Errors: any [`Violation`]; the stream must then be dropped, and the next one be opened by [`Self::open`].
    pub fn apply(&mut self, frame: Frame) -> Result<FrameEffect, Violation> {
        let state = std::mem::replace(&mut self.state, StreamPhase::Closed);
        // If the first update of a stream is out of order again, resuming would repeat that forever.
        let is_in_vain = matches!(state, StreamPhase::Live(StreamProgress::None));
        self.advance(state, frame).inspect_err(|violation| {
            if !violation.is_of_order() || is_in_vain {
                self.view = None;
            }
        })
    }

    fn advance(&mut self, state: StreamPhase, Frame { stamp, body }: Frame) -> Result<FrameEffect, Violation> {
        match (state, body) {
            (StreamPhase::Opened, FrameBody::Begin(opening)) => self.begin(stamp, opening),
            (StreamPhase::Opened, FrameBody::Resumed) => {
                let view = self.view.filter(|view| view.stamp == stamp).ok_or(Violation::Identity)?;
                (self.state, self.newest) = (StreamPhase::Live(StreamProgress::None), Some(view.stamp));
                Ok(FrameEffect::Resumed)
            }
            (StreamPhase::Snapshot { stamp: opened, .. }, _) if opened != stamp => Err(Violation::TornSnapshot),
            (StreamPhase::Snapshot { n_slots, mut runs, mut digest, .. }, FrameBody::Runs(more)) => {
                self.check_runs(more.iter(), n_slots)?;
                more.iter().flat_map(|run| &run.keys).for_each(|key| digest.add(*key));
                self.check_n_blocks(usize::try_from(digest.n_blocks).unwrap_or(usize::MAX))?;
                runs.extend(more);
                self.state = StreamPhase::Snapshot { stamp, n_slots, runs, digest };
                Ok(FrameEffect::Partial)
            }
            // Only a complete snapshot replaces the view; until then the old one stays in use.
            (StreamPhase::Snapshot { digest: got, .. }, FrameBody::End(digest)) if got != digest => {
                Err(Violation::TornSnapshot)
            }
            (StreamPhase::Snapshot { n_slots, runs, .. }, FrameBody::End(_)) => {
                self.view = Some(ViewPosition { stamp, n_slots });
                self.state = StreamPhase::Live(StreamProgress::Some);
                Ok(FrameEffect::Replace(Box::new(NewView { stamp, runs })))
            }
            (StreamPhase::Live(_), FrameBody::Update { changes, load, digest }) => {
                let view = self.view.ok_or(Violation::Identity)?;
                check_order(view.stamp, stamp)?;
                // Everything is checked before anything is applied.
                let stored_runs = changes.iter().filter_map(|change| match change {
                    Change::Stored(run) => Some(run),
                    Change::Removed(_) | Change::Accepted(_) => None,
                });
                self.check_runs(stored_runs, view.n_slots)?;
                load.iter().try_for_each(|load| check_load(load, view.n_slots))?;
                (self.view, self.newest) = (Some(ViewPosition { stamp, ..view }), Some(stamp));
                self.state = StreamPhase::Live(StreamProgress::Some);
                Ok(FrameEffect::Update { changes, load, digest })
            }
            (StreamPhase::Closed | StreamPhase::Opened, body) => Err(out_of_place(&body, "begin or resumed")),
            (StreamPhase::Snapshot { .. }, body) => Err(out_of_place(&body, "runs or end")),
            (StreamPhase::Live(_), body) => Err(out_of_place(&body, "update")),
        }
    }

    fn begin(&mut self, stamp: Stamp, opening: Box<SnapshotHeader>) -> Result<FrameEffect, Violation> {
        self.check_boot(stamp)?;
        let n_slots = opening.model.n_slots;
        check_load(&opening.load, n_slots)?;
        self.state = StreamPhase::Snapshot { stamp, n_slots, runs: Vec::new(), digest: Digest::default() };
        Ok(FrameEffect::Opened(Box::new(NewWorker { stamp, opening: *opening })))
    }

    /// Checks that the snapshot is not older than the newest accepted state.
    ///
    /// An older state is most likely a replay, or another process with the same address and identity. It can also come
    /// from a machine whose clock was set back; such a worker sends the same epoch again and is then accepted.
    fn check_boot(&mut self, stamp: Stamp) -> Result<(), Violation> {
        let is_older = |than: Stamp| {
            stamp.worker_uid == than.worker_uid && (stamp.boot_epoch, stamp.seq) < (than.boot_epoch, than.seq)
        };
        let is_shown_again = |refused_stamp: Stamp| stamp.is_same_boot(refused_stamp) && !is_older(refused_stamp);
        match self.newest.filter(|newest| is_older(*newest)) {
            Some(newest) if !self.refused_stamp.is_some_and(is_shown_again) => {
                self.refused_stamp = Some(stamp);
                Err(Violation::OldBoot { got: stamp, newest })
            }
            _ => {
                (self.newest, self.refused_stamp) = (Some(stamp), None);
                Ok(())
            }
        }
    }

    /// Checks the number of blocks that a worker holds after a step.
    ///
    /// Errors: [`Violation::TooManyBlocks`].
    pub fn check_n_blocks(&self, n_blocks: usize) -> Result<(), Violation> {
        let blocks_max = self.blocks_max;
        if n_blocks > blocks_max { Err(Violation::TooManyBlocks { blocks_max }) } else { Ok(()) }
    }

    /// Checks that each run has blocks and names an existing slot.
    fn check_runs<'a>(&self, mut runs: impl Iterator<Item = &'a Run>, n_slots: u16) -> Result<(), Violation> {
        runs.try_for_each(|run| {
            if run.keys.is_empty() {
                return Err(Violation::EmptyRun);
            }
            run.slot.map_or(Ok(()), |slot| check_slot(slot.0, n_slots))
        })
    }
}

fn out_of_place(body: &FrameBody, expected: &'static str) -> Violation {
    let got = match body {
        FrameBody::Begin(_) => "begin",
        FrameBody::Runs(_) => "runs",
        FrameBody::End(_) => "end",
        FrameBody::Update { .. } => "update",
        FrameBody::Resumed => "resumed",
    };
    Violation::OutOfPlace { got, expected }
}

fn check_order(last: Stamp, next: Stamp) -> Result<(), Violation> {
    if (last.worker_uid, last.boot_epoch) != (next.worker_uid, next.boot_epoch) {
        return Err(Violation::Identity);
    }
    if next.seq <= last.seq {
        return Err(Violation::Duplicate { got: next.seq });
    }
    if next.seq - last.seq > 1 {
        return Err(Violation::Gap { got: next.seq, expected: last.seq + 1 });
    }
    Ok(())
}

fn check_slot(slot: u16, n_slots: u16) -> Result<(), Violation> {
    if slot < n_slots { Ok(()) } else { Err(Violation::UnknownSlot { slot, n_slots }) }
}

fn check_load(load: &Load, n_slots: u16) -> Result<(), Violation> {
    load.busy_slots.iter().try_for_each(|slot| check_slot(slot.0, n_slots))?;
    let nonsense = |field, value: &dyn ToString| Err(Violation::Load { field, value: value.to_string() });
    if load.busy_slots.len() > usize::from(n_slots) {
        return nonsense("busy_slots", &load.busy_slots.len());
    }
    if load.n_decoding > u32::from(n_slots) {
        return nonsense("n_decoding", &load.n_decoding);
    }
    // A worker that generates nothing may report steps of no time and responses of no tokens, but never a prefill rate
    // of zero.
    let rates = [
        ("prefill_tokens_per_s", load.rates.prefill_tokens_per_s, f32::MIN_POSITIVE),
        ("decode_step_ms", load.rates.decode_step_ms, 0.0),
        ("answer_tokens", load.rates.answer_tokens, 0.0),
        ("encode_ms_per_token", load.rates.encode_ms_per_token, 0.0),
        ("processor_wait", load.rates.processor_wait, 0.0),
    ];
    for (field, rate, min) in rates {
        if let Some(rate) = rate
            && !(rate.is_finite() && rate >= min)
        {
            return nonsense(field, &rate);
        }
    }
    Ok(())
}

#[cfg(test)]
mod consistency;
#[cfg(test)]
mod tests;
