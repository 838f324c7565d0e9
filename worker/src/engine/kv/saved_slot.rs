//! Export and import of a slot's state, with its checkpoints.
//!
//! State that cannot be cut back is only useful for the next turn of the same conversation. So the checkpoints of the
//! slot's tokens are exported with it, and an import stores them: the same prompt, and one that branches off earlier,
//! resume there. Checkpoints that are only on disk are read first. The slot may serve other requests in the meantime,
//! because its own state has been copied.
//!
//! Not here: the file (`crate::store::slot_file`), when a slot is idle (`thread`).

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{SlotId, Token};
use warmpath_worker_core::slots::checkpoints;
use warmpath_worker_core::slots::slot_table::{Acquire, AfterUse, Shift};
use warmpath_worker_core::store::chunk_index::{CheckpointPlace, ChunkId, Prefix};

use super::store::{Cache, SequenceState};
use super::{KvState, SlotOwner};
use crate::engine::api::cache::{CHECKPOINTS_MAX, CacheError, Reply, SlotCheckpoint, SlotState};

/// An export of a slot that waits for checkpoints that are only on disk.
struct SlotExport {
    state: SlotState,
    /// Position and chunk of each checkpoint that is being read.
    on_disk: Vec<(usize, ChunkId)>,
    reply: Reply<SlotState>,
}

impl SlotExport {
    fn chunks(&self) -> Vec<ChunkId> {
        self.on_disk.iter().map(|(_, chunk)| *chunk).collect()
    }
}

/// Exports of slots that wait for the disk.
#[derive(Default)]
pub(crate) struct SlotExports(Vec<SlotExport>);

impl SlotExports {
    /// Returns whether no export waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Exports a slot's state, and sends it once its checkpoints are in memory.
    pub(crate) fn begin(&mut self, slot: SlotId, reply: Reply<SlotState>, kv: &mut KvState<'_>) {
        match export_slot(slot, kv) {
            Ok((state, on_disk)) => {
                let export = SlotExport { state, on_disk, reply };
                kv.cache.fetch(&export.chunks());
                self.0.push(export);
                self.finish(&mut kv.cache);
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Sends the complete exports. Checkpoints that could not be read are left out.
    pub(crate) fn finish(&mut self, cache: &mut Cache) {
        let is_complete = |export: &mut SlotExport| !cache.is_reading(&export.chunks());
        let complete: Vec<SlotExport> = self.0.extract_if(.., is_complete).collect();
        for export in complete {
            let chunks = export.chunks();
            let SlotExport { mut state, on_disk, reply } = export;
            let reads = on_disk
                .into_iter()
                .filter_map(|(n_tokens, chunk)| Some(SlotCheckpoint { n_tokens, partial: cache.payload(chunk)? }));
            state.checkpoints.extend(reads);
            state.checkpoints.sort_by_key(|checkpoint| checkpoint.n_tokens);
            cache.release(&chunks);
            // The caller may have gone.
            drop(reply.send(Ok(state)));
        }
    }
}

/// Returns a slot's state with the checkpoints that are in memory, and those that must be read from disk first.
fn export_slot(slot: SlotId, kv: &mut KvState<'_>) -> Result<(SlotState, Vec<(usize, ChunkId)>), CacheError> {
    let contents = kv.table.slot(slot);
    let Some(root) = contents.root().copied().filter(|_| !contents.tokens().is_empty()) else {
        return Err(CacheError::SlotEmpty { slot });
    };
    let state = kv.llama.export(slot).map(<[u8]>::to_vec);
    let state = state.map_err(|error| CacheError::Export { slot, reason: error.to_string() })?;
    let (tokens, n_exact) = (contents.tokens().to_vec(), contents.exact_tokens().len());
    let (mut checkpoints, mut on_disk) = (Vec::new(), Vec::new());
    for (n_tokens, chunk) in checkpoints_of(&root, &tokens[..n_exact], kv) {
        match kv.cache.payload(chunk) {
            Some(partial) => checkpoints.push(SlotCheckpoint { n_tokens, partial }),
            None => on_disk.push((n_tokens, chunk)),
        }
    }
    Ok((SlotState { root, tokens, n_exact, state, checkpoints }, on_disk))
}

/// Returns the checkpoints at which a sequence with these tokens could resume, up to the limit, each with its position.
fn checkpoints_of(root: &BlockHash, tokens: &[Token], kv: &KvState<'_>) -> Vec<(usize, ChunkId)> {
    if kv.table.memory().stored_state_rewinds() {
        return Vec::new();
    }
    let chain = kv.table.tree().chain_of(root, tokens);
    let checkpoints = kv.cache.index().checkpoints(&Prefix { root: *root, chain: &chain, tokens });
    let block_size = kv.table.block_size_tokens() as usize;
    let places = checkpoints.iter().map(|checkpoint| (checkpoint.n_blocks * block_size, checkpoint.chunk));
    checkpoints::spread(places.collect(), CHECKPOINTS_MAX)
}

/// Imports a state into an idle slot; returns its number of tokens. The slot's former state is stored first.
///
/// Errors: `Unfit`; the slot is then empty.
pub(crate) fn import_slot(slot: SlotId, slot_state: &SlotState, kv: &mut KvState<'_>) -> Result<u32, CacheError> {
    let unfit = |reason: String| CacheError::Unfit { slot, reason };
    let n_tokens = u32::try_from(slot_state.tokens.len()).unwrap_or(u32::MAX);
    let context_tokens = kv.table.context_tokens();
    if n_tokens == 0 || n_tokens > context_tokens || slot_state.n_exact > slot_state.tokens.len() {
        return Err(unfit(format!("it has {n_tokens} tokens, and a slot has room for {context_tokens}")));
    }

    // The state takes the place of the slot's own.
    kv.save(slot);
    kv.clear_slot(slot);
    kv.llama.import(slot, &slot_state.state, n_tokens).map_err(|error| unfit(error.to_string()))?;

    // The table records it as if a request had computed it and ended.
    let (last, before) = slot_state.tokens.split_last().expect("there is at least one token");
    kv.table.acquire(Acquire {
        slot,
        prompt: &slot_state.tokens,
        n_start_tokens: before.len() as u32,
        // The export of a sliding window has only the part that is needed to continue.
        rewinds_to_tokens: if kv.table.memory().stored_state_rewinds() { 0 } else { n_tokens },
        root: slot_state.root,
        prompt_chain: &[],
        after_use: AfterUse::Keep,
    });
    kv.table.extend(slot, &[*last]);
    kv.table.shift(slot, Shift { from_token: slot_state.n_exact as u32, n_dropped: 0 });
    let after_use = kv.table.release(slot);
    debug_assert_eq!(after_use, AfterUse::Keep, "as it was acquired");
    kv.owners[usize::from(slot.0)] = SlotOwner::nobody();
    kv.unsaved.insert(slot);
    store_checkpoints(slot_state, kv);
    Ok(n_tokens)
}

fn store_checkpoints(slot_state: &SlotState, kv: &mut KvState<'_>) {
    let tokens = &slot_state.tokens[..slot_state.n_exact];
    let chain = kv.table.tree().chain_of(&slot_state.root, tokens);
    let SlotOwner { tenant, priority, .. } = SlotOwner::nobody();
    for SlotCheckpoint { n_tokens, partial } in &slot_state.checkpoints {
        let n_blocks = n_tokens / kv.table.block_size_tokens() as usize;
        let (Some(tokens), Some(chain)) = (tokens.get(..*n_tokens), chain.get(..n_blocks)) else { continue };
        let prefix = Prefix { root: slot_state.root, chain, tokens };
        let sequence_state = SequenceState { prefix, tenant, priority };
        kv.cache.store_checkpoint(partial.clone(), &sequence_state, CheckpointPlace::End);
    }
}
