//! Stored state for another worker: a run of blocks, found by the hash of its last block.
//!
//! Stored chunks are sent from memory; those that are only on disk are read first. If the disk is late, the run ends
//! before the first of them. State that is only in a slot, even a busy one, is stored first, in parts: each step
//! exports at most as much as takes the time of a micro-batch, so running responses are delayed by one more micro-batch
//! per step.
//!
//! Not here: the endpoint (`crate::http::fleet::kv`), the bytes (`crate::store::exchange`), the asking worker
//! (`receiving`).

use tokio::sync::oneshot;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::SlotId;
use warmpath_worker_core::store::chunk_index::{ChunkId, ChunkPart};

use super::KvState;
use super::store::Cache;
use crate::engine::api::EngineError;
use crate::engine::sequence::places::HeldPlace;
use crate::store::exchange::SentPart;

/// Maximum number of runs that are being sent or looked up at a time.
///
/// Source: each of them may keep a slot's whole state in memory although it was evicted, and four of them saturate
/// a link.
pub const SENDS_MAX: usize = 4;

/// Reason why no state is sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Transfers are turned off.
    #[error(
        "this worker sends no KV state: it was started with --no-kv-transfer, or its state cannot be used elsewhere"
    )]
    Off,
    /// The caller's model or KV layout differs.
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

/// A run of blocks to send. It counts towards [`SENDS_MAX`] until it is dropped.
pub struct SentRun {
    /// Parts, in the order of the chain.
    pub parts: Vec<SentPart>,
    _place: HeldPlace,
}

/// End of a run of blocks, which names the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunEnd {
    /// Hash of its last block.
    pub last: BlockHash,
    /// Number of its blocks.
    pub n_blocks: usize,
}

/// A run that is being looked up.
pub(crate) struct RunLookup {
    /// Acceptable runs, the longest first; the first one that is cached is sent.
    ends: Vec<RunEnd>,
    /// Parts of the run, which are not evicted; empty until the run is stored.
    parts: Vec<ChunkPart>,
    reply: oneshot::Sender<Result<SentRun, SendError>>,
    place: HeldPlace,
}

/// Runs of blocks that other workers have asked for.
#[derive(Default)]
pub(crate) struct OutgoingRuns(Vec<RunLookup>);

impl OutgoingRuns {
    /// Looks a run up for another worker, from the next step on.
    pub(crate) fn add(&mut self, lookup: RunLookup) {
        self.0.push(lookup);
    }

    /// Returns whether no run is being looked up.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the next step stores a part of a run from a slot.
    pub(crate) fn is_storing(&self) -> bool {
        self.0.iter().any(|lookup| lookup.parts.is_empty())
    }

    /// Looks the runs up, stores a part of the state that is only in slots, and replies to the callers whose runs are
    /// in memory.
    pub(crate) fn advance(&mut self, kv: &mut KvState<'_>) {
        let mut export = ExportBudget::Allowed;
        for mut lookup in std::mem::take(&mut self.0) {
            let is_wanted = !lookup.reply.is_closed();
            if is_wanted && lookup.parts.is_empty() && !lookup.find(kv, &mut export) {
                let _ = lookup.reply.send(Err(SendError::Missing));
                continue;
            }
            let chunks = lookup.chunks();
            if is_wanted && (chunks.is_empty() || kv.cache.is_reading(&chunks)) {
                self.0.push(lookup);
                continue;
            }
            let parts = if is_wanted { lookup.read_parts(&kv.cache) } else { Vec::new() };
            kv.cache.release(&chunks);
            let RunLookup { reply, place, .. } = lookup;
            let run = if parts.is_empty() { Err(SendError::Missing) } else { Ok(SentRun { parts, _place: place }) };
            // The caller may have gone.
            let _ = reply.send(run);
        }
    }
}

/// A run of which at least a part is only in a slot.
struct RunInSlot {
    slot: SlotId,
    /// Number of the sequence's computed blocks, up to the end of the run.
    n_ready: usize,
    /// The run without blocks that are not computed yet.
    end: RunEnd,
}

impl RunLookup {
    /// Returns the look-up of the first of these runs that is cached.
    pub(crate) fn new(ends: Vec<RunEnd>, reply: oneshot::Sender<Result<SentRun, SendError>>, place: HeldPlace) -> Self {
        Self { ends, parts: Vec::new(), reply, place }
    }

    fn chunks(&self) -> Vec<ChunkId> {
        self.parts.iter().map(|part| part.chunk).collect()
    }

    /// Finds the run in the store, or stores a part of it from a slot; returns whether it is found or may be in a later
    /// step.
    fn find(&mut self, kv: &mut KvState<'_>, export: &mut ExportBudget) -> bool {
        for end in &self.ends {
            let mut run = kv.cache.index().run_to(&end.last, end.n_blocks);
            if run.is_empty() {
                let Some(in_slot) = slot_with(*end, kv) else { continue };
                run = kv.cache.index().run_to(&in_slot.end.last, in_slot.end.n_blocks);
                if run.is_empty() {
                    return match std::mem::replace(export, ExportBudget::Done) {
                        ExportBudget::Allowed => {
                            kv.save_blocks(in_slot.slot, in_slot.n_ready, export_tokens_max(kv)) > 0
                        }
                        ExportBudget::Done => true,
                    };
                }
            }
            self.parts = run;
            kv.cache.fetch(&self.chunks());
            return true;
        }
        false
    }

    /// Returns the run's parts up to the first one that is not in memory, because it could not be read or not yet.
    fn read_parts(&self, cache: &Cache) -> Vec<SentPart> {
        let parts = self.parts.iter().map_while(|ChunkPart { chunk, blocks }| {
            let (record, payload) = (cache.index().record(*chunk)?, cache.payload(*chunk)?);
            let block_bytes = payload.len() / record.blocks.len();
            let bytes = blocks.start * block_bytes..blocks.end * block_bytes;
            Some(SentPart { record: record.part(blocks.clone()), payload, bytes })
        });
        parts.collect()
    }
}

/// Returns the slot with a run's last block; `None` if no slot has blocks of the run that may be shared.
fn slot_with(end: RunEnd, kv: &KvState<'_>) -> Option<RunInSlot> {
    let block_size = kv.table.block_size_tokens() as usize;
    let mut slots = kv.table.iter().filter(|(_, slot)| slot.lends());
    slots.find_map(|(slot, state)| {
        let chain = kv.table.tree().chain(slot);
        let n_wanted = chain.iter().position(|hash| *hash == end.last)? + 1;
        let n_ready = n_wanted.min(state.exact_tokens().len() / block_size);
        let n_blocks = end.n_blocks.checked_sub(n_wanted - n_ready).filter(|n| *n > 0 && n_ready > 0)?;
        Some(RunInSlot { slot, n_ready, end: RunEnd { last: chain[n_ready - 1], n_blocks } })
    })
}

/// Returns the maximum number of tokens that are exported in one step.
fn export_tokens_max(kv: &KvState<'_>) -> u32 {
    let (costs, (_, ubatch_tokens)) = (kv.cache.costs(), kv.llama.batch_limits());
    costs.exported_within(costs.prefill_ms(ubatch_tokens as usize))
}

/// Whether this step may still export state for another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExportBudget {
    Allowed,
    Done,
}
