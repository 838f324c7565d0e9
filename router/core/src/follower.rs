//! Follows one summary stream of one worker: decoded frames in, changes of the view out.
//!
//! Not here: bytes and sockets (the router's subscriber), the view itself (`index`, `fleet`).
//! The idea: a stream is one snapshot and then updates without a gap. A snapshot is collected until its end and then
//! replaces the view as a whole; until then the old view stays. Anything else than the next expected frame, and anything
//! that cannot be true, ends the stream: the caller drops it and asks for a new snapshot.

use warmpath_common::model::ModelInfo;
use warmpath_common::summary::{Body, Change, Frame, Load, Run, Stamp};

/// Bounds what a worker may say.
#[derive(Debug, Clone, Copy)]
pub struct FollowerLimits {
    /// Is the most blocks of one worker.
    pub blocks_max: usize,
}

/// Is a complete snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct NewView {
    /// Orders the snapshot.
    pub stamp: Stamp,
    /// Declares the model.
    pub model: ModelInfo,
    /// Lists what is held.
    pub runs: Vec<Run>,
    /// Says how busy the worker is.
    pub load: Load,
}

/// Says what a frame changes.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing yet: the frame is part of a snapshot that is not complete.
    Partial,
    /// The whole view is replaced.
    Replace(Box<NewView>),
    /// The view changes.
    Update {
        /// Lists the changes in order.
        changes: Vec<Change>,
        /// Is the new load, where it changed.
        load: Option<Load>,
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
    /// The frames of one snapshot show different states.
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
    /// Returns a short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::OutOfPlace { .. } => "out_of_place",
            Self::Gap { .. } => "gap",
            Self::Duplicate { .. } => "duplicate",
            Self::Identity => "identity",
            Self::TornSnapshot => "torn_snapshot",
            Self::TooManyBlocks { .. } => "too_many_blocks",
            Self::EmptyRun => "empty_run",
            Self::UnknownSlot { .. } => "unknown_slot",
            Self::Load { .. } => "load",
        }
    }
}

enum State {
    Fresh,
    Snapshot { stamp: Stamp, model: Box<ModelInfo>, runs: Vec<Run>, n_blocks: usize },
    Live { stamp: Stamp, n_slots: u16 },
}

/// Follows one stream from its first byte to its end.
pub struct Follower {
    state: State,
    limits: FollowerLimits,
}

impl Follower {
    /// Returns a follower of a stream of which nothing has been read.
    pub fn new(limits: FollowerLimits) -> Self {
        Self { state: State::Fresh, limits }
    }

    /// Takes the next frame.
    ///
    /// Errors: any [`Violation`]; the stream must then be dropped, whatever the follower would say to later frames.
    pub fn apply(&mut self, frame: Frame) -> Result<Step, Violation> {
        let Frame { stamp, body } = frame;
        match (std::mem::replace(&mut self.state, State::Fresh), body) {
            (State::Fresh, Body::Begin(model)) => {
                self.state = State::Snapshot { stamp, model, runs: Vec::new(), n_blocks: 0 };
                Ok(Step::Partial)
            }
            (State::Fresh, body) => Err(out_of_place(&body, "begin")),
            (State::Snapshot { stamp: opened, .. }, _) if opened != stamp => Err(Violation::TornSnapshot),
            (State::Snapshot { model, mut runs, n_blocks, .. }, Body::Runs(more)) => {
                let n_blocks = n_blocks + self.check_runs(more.iter(), model.n_slots)?;
                self.check_n_blocks(n_blocks)?;
                runs.extend(more);
                self.state = State::Snapshot { stamp, model, runs, n_blocks };
                Ok(Step::Partial)
            }
            (State::Snapshot { model, runs, .. }, Body::End(load)) => {
                check_load(&load, model.n_slots)?;
                self.state = State::Live { stamp, n_slots: model.n_slots };
                Ok(Step::Replace(Box::new(NewView { stamp, model: *model, runs, load })))
            }
            (State::Snapshot { .. }, body) => Err(out_of_place(&body, "runs or end")),
            (State::Live { stamp: last, n_slots }, Body::Update { changes, load }) => {
                check_order(last, stamp)?;
                let stored = changes.iter().filter_map(|change| match change {
                    Change::Stored(run) => Some(run),
                    Change::Removed(_) | Change::Accepted(_) => None,
                });
                self.check_runs(stored, n_slots)?;
                load.iter().try_for_each(|load| check_load(load, n_slots))?;
                self.state = State::Live { stamp, n_slots };
                Ok(Step::Update { changes, load })
            }
            (State::Live { .. }, body) => Err(out_of_place(&body, "update")),
        }
    }

    /// Checks the number of blocks that a worker holds after a step.
    ///
    /// Errors: [`Violation::TooManyBlocks`].
    pub fn check_n_blocks(&self, n_blocks: usize) -> Result<(), Violation> {
        let blocks_max = self.limits.blocks_max;
        if n_blocks > blocks_max { Err(Violation::TooManyBlocks { blocks_max }) } else { Ok(()) }
    }

    /// Checks runs by themselves; returns the number of their blocks.
    fn check_runs<'a>(&self, runs: impl Iterator<Item = &'a Run>, n_slots: u16) -> Result<usize, Violation> {
        let mut n_blocks = 0;
        for run in runs {
            if run.keys.is_empty() {
                return Err(Violation::EmptyRun);
            }
            n_blocks += run.keys.len();
            run.slot.map_or(Ok(()), |slot| check_slot(slot.0, n_slots))?;
        }
        Ok(n_blocks)
    }
}

fn out_of_place(body: &Body, expected: &'static str) -> Violation {
    let got = match body {
        Body::Begin(_) => "begin",
        Body::Runs(_) => "runs",
        Body::End(_) => "end",
        Body::Update { .. } => "update",
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
    let rates = [
        ("prefill_tokens_per_s", load.rates.prefill_tokens_per_s),
        ("decode_step_ms", load.rates.decode_step_ms),
        ("answer_tokens", load.rates.answer_tokens),
    ];
    for (field, rate) in rates {
        if let Some(rate) = rate
            && !(rate.is_finite() && rate > 0.0)
        {
            return nonsense(field, &rate);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
