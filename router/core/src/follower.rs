//! Follows the summary of one worker from stream to stream: decoded frames in, changes of the view out.
//!
//! Not here: bytes and sockets (the router's subscriber), the view itself (`index`, `fleet`).
//! The idea: a stream is one snapshot and then updates without a gap. A snapshot is collected until its end and then
//! replaces the view as a whole; until then the old view stays. Anything else than the next expected frame, and anything
//! that cannot be true, ends the stream. The next one is asked for what comes behind the view, as long as the view can be
//! trusted; the worker's ring has it, or a snapshot comes.

use warmpath_common::summary::{Body, Change, Digest, Frame, Load, Opening, Run, Stamp};

/// Bounds what a worker may say.
#[derive(Debug, Clone, Copy)]
pub struct FollowerLimits {
    /// Is the most blocks of one worker.
    pub blocks_max: usize,
}

/// Is a worker that has begun to show a snapshot: it can be used, whatever it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct NewWorker {
    /// Orders the snapshot.
    pub stamp: Stamp,
    /// Declares the model and the load.
    pub opening: Opening,
}

/// Is a complete snapshot of what a worker holds.
#[derive(Debug, Clone, PartialEq)]
pub struct NewView {
    /// Orders the snapshot.
    pub stamp: Stamp,
    /// Lists what is held.
    pub runs: Vec<Run>,
}

/// Says what a frame changes.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A snapshot has begun: model and load are known, the blocks are as before.
    Opened(Box<NewWorker>),
    /// Nothing yet: the frame is part of a snapshot that is not complete.
    Partial,
    /// All blocks are replaced.
    Replace(Box<NewView>),
    /// The view is right and updates follow.
    Resumed,
    /// The view changes.
    Update {
        /// Lists the changes in order.
        changes: Vec<Change>,
        /// Is the new load, where it changed.
        load: Option<Load>,
        /// Is the digest of the blocks after the changes, where the worker says it.
        digest: Option<Digest>,
    },
}

/// Says why a stream cannot be followed any further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A frame came where another kind of frame has to stand.
    #[error("a frame `{got}` came where `{expected}` has to stand")]
    OutOfPlace {
        /// Names the frame that came.
        got: &'static str,
        /// Names what may stand there.
        expected: &'static str,
    },
    /// Updates are missing.
    #[error("update {got} came where update {expected} has to stand")]
    Gap {
        /// Is the number that came.
        got: u64,
        /// Is the number that had to come.
        expected: u64,
    },
    /// An update came twice, or an old one came late.
    #[error("update {got} came again")]
    Duplicate {
        /// Is the number that came.
        got: u64,
    },
    /// The stream goes on as another worker, or as another life of the worker.
    #[error("the stream changed its worker or its life")]
    Identity,
    /// The worker shows an older state than it has shown before.
    #[error("the snapshot is of {got}, an older life or state than {newest}")]
    OldLife {
        /// Is the snapshot's stamp.
        got: Stamp,
        /// Is the newest stamp that was seen.
        newest: Stamp,
    },
    /// The frames of one snapshot show different states, or some are missing.
    #[error("the frames of a snapshot do not belong together")]
    TornSnapshot,
    /// The worker claims more blocks than are believed.
    #[error("the worker claims more than {blocks_max} blocks")]
    TooManyBlocks {
        /// Is the limit.
        blocks_max: usize,
    },
    /// A run has no blocks.
    #[error("a run has no blocks")]
    EmptyRun,
    /// A slot is named that the worker does not have.
    #[error("slot {slot} is named, of {n_slots}")]
    UnknownSlot {
        /// Is the slot.
        slot: u16,
        /// Is the number of slots.
        n_slots: u16,
    },
    /// A load says what cannot be.
    #[error("the load says {field} = {value}")]
    Load {
        /// Names the field.
        field: &'static str,
        /// Is its value.
        value: String,
    },
}

impl Violation {
    /// Returns whether only the order is wrong, so that the view is right up to here.
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
            Self::OldLife { .. } => "old_life",
            Self::TornSnapshot => "torn_snapshot",
            Self::TooManyBlocks { .. } => "too_many_blocks",
            Self::EmptyRun => "empty_run",
            Self::UnknownSlot { .. } => "unknown_slot",
            Self::Load { .. } => "load",
        }
    }
}

/// Is where in a stream the next frame stands.
enum State {
    Closed,
    Opened,
    Snapshot { stamp: Stamp, n_slots: u16, runs: Vec<Run>, digest: Digest },
    Live(Progress),
}

/// Says whether a stream has brought the view any further.
#[derive(PartialEq, Eq)]
enum Progress {
    None,
    Some,
}

/// Is the view that the caller keeps.
#[derive(Clone, Copy)]
struct Known {
    stamp: Stamp,
    n_slots: u16,
}

/// Follows one worker through all its streams.
pub struct Follower {
    limits: FollowerLimits,
    state: State,
    /// Is absent where there is no view, or none to go on from.
    view: Option<Known>,
    /// Is the newest stamp that was believed, also of a view that is gone.
    newest: Option<Stamp>,
    /// Is the stamp of the last snapshot that was refused because it was old.
    refused: Option<Stamp>,
}

impl Follower {
    /// Returns a follower of a worker of which nothing has been read.
    pub fn new(limits: FollowerLimits) -> Self {
        Self { limits, state: State::Closed, view: None, newest: None, refused: None }
    }

    /// Begins a new stream; returns the stamp behind which it should go on, or `None` where a snapshot is needed.
    pub fn open(&mut self) -> Option<Stamp> {
        self.state = State::Opened;
        self.view.map(|view| view.stamp)
    }

    /// Takes note that the view is gone or cannot be trusted, so that the next stream starts with a snapshot.
    pub fn forget(&mut self) {
        self.view = None;
    }

    /// Takes the next frame.
    ///
    /// Errors: any [`Violation`]; the stream must then be dropped, and the next one be opened by [`Self::open`].
    pub fn apply(&mut self, frame: Frame) -> Result<Step, Violation> {
        let state = std::mem::replace(&mut self.state, State::Closed);
        // A stream whose first frame is out of order again would go on so for ever.
        let is_in_vain = matches!(state, State::Live(Progress::None));
        self.advance(state, frame).inspect_err(|violation| {
            if !violation.is_of_order() || is_in_vain {
                self.view = None;
            }
        })
    }

    fn advance(&mut self, state: State, Frame { stamp, body }: Frame) -> Result<Step, Violation> {
        match (state, body) {
            (State::Opened, Body::Begin(opening)) => self.begin(stamp, opening),
            (State::Opened, Body::Resumed) => {
                let view = self.view.filter(|view| view.stamp == stamp).ok_or(Violation::Identity)?;
                (self.state, self.newest) = (State::Live(Progress::None), Some(view.stamp));
                Ok(Step::Resumed)
            }
            (State::Snapshot { stamp: opened, .. }, _) if opened != stamp => Err(Violation::TornSnapshot),
            (State::Snapshot { n_slots, mut runs, mut digest, .. }, Body::Runs(more)) => {
                self.check_runs(more.iter(), n_slots)?;
                more.iter().flat_map(|run| &run.keys).for_each(|key| digest.add(*key));
                self.check_n_blocks(usize::try_from(digest.n_blocks).unwrap_or(usize::MAX))?;
                runs.extend(more);
                self.state = State::Snapshot { stamp, n_slots, runs, digest };
                Ok(Step::Partial)
            }
            (State::Snapshot { digest: got, .. }, Body::End(digest)) if got != digest => Err(Violation::TornSnapshot),
            (State::Snapshot { n_slots, runs, .. }, Body::End(_)) => {
                self.view = Some(Known { stamp, n_slots });
                self.state = State::Live(Progress::Some);
                Ok(Step::Replace(Box::new(NewView { stamp, runs })))
            }
            (State::Live(_), Body::Update { changes, load, digest }) => {
                let view = self.view.ok_or(Violation::Identity)?;
                check_order(view.stamp, stamp)?;
                let stored = changes.iter().filter_map(|change| match change {
                    Change::Stored(run) => Some(run),
                    Change::Removed(_) | Change::Accepted(_) => None,
                });
                self.check_runs(stored, view.n_slots)?;
                load.iter().try_for_each(|load| check_load(load, view.n_slots))?;
                (self.view, self.newest) = (Some(Known { stamp, ..view }), Some(stamp));
                self.state = State::Live(Progress::Some);
                Ok(Step::Update { changes, load, digest })
            }
            (State::Closed | State::Opened, body) => Err(out_of_place(&body, "begin or resumed")),
            (State::Snapshot { .. }, body) => Err(out_of_place(&body, "runs or end")),
            (State::Live(_), body) => Err(out_of_place(&body, "update")),
        }
    }

    fn begin(&mut self, stamp: Stamp, opening: Box<Opening>) -> Result<Step, Violation> {
        self.check_life(stamp)?;
        let n_slots = opening.model.n_slots;
        check_load(&opening.load, n_slots)?;
        self.state = State::Snapshot { stamp, n_slots, runs: Vec::new(), digest: Digest::default() };
        Ok(Step::Opened(Box::new(NewWorker { stamp, opening: *opening })))
    }

    /// Checks that the worker does not go back in time.
    ///
    /// What is older is most likely a replay, or another process that has the same address and identity. A machine whose
    /// clock was put back is what remains: it shows the same life again, and is believed then.
    fn check_life(&mut self, stamp: Stamp) -> Result<(), Violation> {
        let is_older = |than: Stamp| {
            stamp.worker_uid == than.worker_uid && (stamp.boot_epoch, stamp.seq) < (than.boot_epoch, than.seq)
        };
        let is_shown_again = |refused: Stamp| stamp.is_same_life(refused) && !is_older(refused);
        match self.newest.filter(|newest| is_older(*newest)) {
            Some(newest) if !self.refused.is_some_and(is_shown_again) => {
                self.refused = Some(stamp);
                Err(Violation::OldLife { got: stamp, newest })
            }
            _ => {
                (self.newest, self.refused) = (Some(stamp), None);
                Ok(())
            }
        }
    }

    /// Checks the number of blocks that a worker holds after a step.
    ///
    /// Errors: [`Violation::TooManyBlocks`].
    pub fn check_n_blocks(&self, n_blocks: usize) -> Result<(), Violation> {
        let blocks_max = self.limits.blocks_max;
        if n_blocks > blocks_max { Err(Violation::TooManyBlocks { blocks_max }) } else { Ok(()) }
    }

    /// Checks runs by themselves.
    fn check_runs<'a>(&self, mut runs: impl Iterator<Item = &'a Run>, n_slots: u16) -> Result<(), Violation> {
        runs.try_for_each(|run| {
            if run.keys.is_empty() {
                return Err(Violation::EmptyRun);
            }
            run.slot.map_or(Ok(()), |slot| check_slot(slot.0, n_slots))
        })
    }
}

fn out_of_place(body: &Body, expected: &'static str) -> Violation {
    let got = match body {
        Body::Begin(_) => "begin",
        Body::Runs(_) => "runs",
        Body::End(_) => "end",
        Body::Update { .. } => "update",
        Body::Resumed => "resumed",
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
    // Where nothing is generated, a step takes no time and an answer has no tokens; nobody computes at no speed.
    let rates = [
        ("prefill_tokens_per_s", load.rates.prefill_tokens_per_s, f32::MIN_POSITIVE),
        ("decode_step_ms", load.rates.decode_step_ms, 0.0),
        ("answer_tokens", load.rates.answer_tokens, 0.0),
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
