//! Stored state for another worker: a run of blocks, found by the hash of its last block.
//!
//! Stored chunks are sent from memory; those that are only on disk are read first. State that only a slot has is stored
//! first, busy slots included, in parts: a step exports as much as takes no longer than a micro-batch, so running
//! responses are delayed as by one more of them.
//!
//! Not here: the endpoint (`crate::http::kv`), the bytes (`crate::store::exchange`), the asking worker
//! (`receiving`).

use std::sync::mpsc::TrySendError;

use tokio::sync::oneshot;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::SlotId;
use warmpath_worker_core::chunk_index::{ChunkId, Part};

use super::KvState;
use crate::engine::api::EngineError;
use crate::engine::handle::{Command, EngineHandle, Place};
use crate::store::exchange::SentPart;

/// Most runs that are sent at a time, those that are being looked up included.
///
/// Source: own choice: each may keep a slot's whole state in memory after it was evicted, and four fill a link.
pub const SENDS_MAX: usize = 4;

/// Reason why no state is sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Transfers are turned off.
    #[error(
        "this worker sends no KV state: it was started with --no-kv-transfer, or its state cannot be used elsewhere"
    )]
    Off,
    /// The caller's state has another identity.
    #[error("this worker's KV state has another layout, or is another model's or another release's")]
    Layout,
    /// The last block is neither stored nor in a slot.
    #[error("this worker does not hold these blocks")]
    Missing,
    /// Too many runs are being sent.
    #[error("this worker is sending KV state to {SENDS_MAX} others already")]
    Busy,
    /// The engine has stopped.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A run of blocks to send; its place is taken until this is dropped.
pub struct SentRun {
    /// Its parts, in the order of the chain.
    pub parts: Vec<SentPart>,
    _place: Place,
}

/// End of a run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunEnd {
    /// Hash of its last block.
    pub last: BlockHash,
    /// Number of its blocks.
    pub n_blocks: usize,
}

/// A run that is being looked up.
pub(crate) struct Sending {
    /// Runs of which the first one that is held is sent, the longest first.
    ends: Vec<RunEnd>,
    /// Parts of the run, which stay in place; empty until it is stored.
    parts: Vec<Part>,
    reply: oneshot::Sender<Result<SentRun, SendError>>,
    place: Place,
}

impl Sending {
    fn chunks(&self) -> Vec<ChunkId> {
        self.parts.iter().map(|part| part.chunk).collect()
    }
}

impl EngineHandle {
    /// Returns the first of these runs of which the last block is held, or fewer of its first blocks if a slot is still
    /// computing the others.
    ///
    /// Cost: waits for the step in progress, for reads from the disk, and for exports from a slot.
    /// Errors: `Missing`, `Busy`, `Engine`.
    pub async fn run_to(&self, ends: Vec<RunEnd>) -> Result<SentRun, SendError> {
        let place = self.shared.sends.take().ok_or(SendError::Busy)?;
        let (reply, answer) = oneshot::channel();
        let sending = Box::new(Sending { ends, parts: Vec::new(), reply, place });
        self.shared.commands.try_send(Command::Send(sending)).map_err(|error| match error {
            TrySendError::Full(_) => SendError::Busy,
            TrySendError::Disconnected(_) => EngineError::Stopped.into(),
        })?;
        answer.await.unwrap_or_else(|_| Err(EngineError::Stopped.into()))
    }

    /// Returns whether a run is being sent or looked up.
    pub fn is_sending(&self) -> bool {
        self.shared.sends.n_taken() > 0
    }
}

impl KvState<'_> {
    /// Looks a run up for another worker, from the next step on.
    pub(crate) fn send(&mut self, sending: Sending) {
        self.sends.push(sending);
    }

    /// Returns whether a run waits for the disk.
    pub(super) fn is_send_reading(&self) -> bool {
        self.sends.iter().any(|sending| self.cache.is_reading(&sending.chunks()))
    }

    /// Looks the runs up, stores a part of what only slots hold, and answers the callers whose runs are in memory.
    pub(super) fn advance_sends(&mut self) {
        let mut export = Export::Allowed;
        for mut sending in std::mem::take(&mut self.sends) {
            let is_wanted = !sending.reply.is_closed();
            if is_wanted && sending.parts.is_empty() && !self.find_run(&mut sending, &mut export) {
                let _ = sending.reply.send(Err(SendError::Missing));
                continue;
            }
            let chunks = sending.chunks();
            if is_wanted && (chunks.is_empty() || self.cache.is_reading(&chunks)) {
                self.sends.push(sending);
                continue;
            }
            let parts = if is_wanted { self.read_parts(&sending) } else { Vec::new() };
            self.cache.let_go(&chunks);
            let Sending { reply, place, .. } = sending;
            let run = if parts.is_empty() { Err(SendError::Missing) } else { Ok(SentRun { parts, _place: place }) };
            // A caller that is gone needs no answer.
            let _ = reply.send(run);
        }
    }

    /// Finds a run in the store, or stores a part of it from a slot; returns whether it is found or may be in a later
    /// step.
    fn find_run(&mut self, sending: &mut Sending, export: &mut Export) -> bool {
        let stored = |end: &RunEnd| self.cache.index().run_to(&end.last, end.n_blocks);
        let held = |end: &RunEnd| match stored(end) {
            run if run.is_empty() => {
                let (slot, n_ready, end) = self.slot_with(*end)?;
                Some((stored(&end), Some((slot, n_ready))))
            }
            run => Some((run, None)),
        };
        match sending.ends.iter().find_map(held) {
            None => return false,
            Some((run, Some((slot, n_ready)))) if run.is_empty() => {
                return match std::mem::replace(export, Export::Done) {
                    Export::Allowed => self.save_blocks(slot, (n_ready, self.export_tokens_max())) > 0,
                    Export::Done => true,
                };
            }
            Some((run, _)) => sending.parts = run,
        }
        self.cache.fetch(&sending.chunks());
        true
    }

    /// Returns the slot with a run's last block, the number of the sequence's computed blocks, and the run without
    /// blocks that the slot has not computed yet; `None` if no slot has any of the run that it may lend.
    fn slot_with(&self, end: RunEnd) -> Option<(SlotId, usize, RunEnd)> {
        let block_size = self.table.block_size_tokens() as usize;
        let mut slots = self.table.iter().filter(|(_, held)| held.lends());
        slots.find_map(|(slot, held)| {
            let chain = self.table.tree().chain(slot);
            let n_wanted = chain.iter().position(|hash| *hash == end.last)? + 1;
            let n_ready = n_wanted.min(held.exact_tokens().len() / block_size);
            let n_blocks = end.n_blocks.checked_sub(n_wanted - n_ready).filter(|n| *n > 0 && n_ready > 0)?;
            Some((slot, n_ready, RunEnd { last: chain[n_ready - 1], n_blocks }))
        })
    }

    /// Returns the most tokens that are exported in one step.
    fn export_tokens_max(&self) -> u32 {
        let (costs, (_, ubatch_tokens)) = (self.cache.costs(), self.llama.batch_limits());
        costs.exported_within(costs.prefill_ms(ubatch_tokens as usize))
    }

    /// Returns a run's parts up to the first one that could not be read.
    fn read_parts(&self, sending: &Sending) -> Vec<SentPart> {
        let parts = sending.parts.iter().map_while(|Part { chunk, blocks }| {
            let (record, payload) = (self.cache.index().record(*chunk)?, self.cache.payload(*chunk)?);
            let block_bytes = payload.len() / record.blocks.len();
            let bytes = blocks.start * block_bytes..blocks.end * block_bytes;
            Some(SentPart { record: record.part(blocks.clone()), payload, bytes })
        });
        parts.collect()
    }
}

/// Whether this step may still export state for another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Export {
    Allowed,
    Done,
}
