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
use warmpath_worker_core::checkpoints;
use warmpath_worker_core::chunk_index::{ChunkId, Prefix};
use warmpath_worker_core::slot_table::{Acquire, AfterUse, Shift};

use super::store::SequenceState;
use super::{KvState, SlotOwner};
use crate::engine::api::cache::{CHECKPOINTS_MAX, CacheError, Reply, SlotCheckpoint, SlotState};

/// An export of a slot that waits for checkpoints that are only on disk.
pub(crate) struct WaitingExport {
    taken: SlotState,
    /// Position and chunk of each checkpoint that is being read.
    awaited: Vec<(usize, ChunkId)>,
    reply: Reply<SlotState>,
}

impl WaitingExport {
    fn chunks(&self) -> Vec<ChunkId> {
        self.awaited.iter().map(|(_, chunk)| *chunk).collect()
    }
}

impl KvState<'_> {
    /// Exports a slot's state, and sends it once its checkpoints are in memory.
    pub(crate) fn begin_export(&mut self, slot: SlotId, reply: Reply<SlotState>) {
        match self.export_slot(slot) {
            Ok((taken, awaited)) => {
                let export = WaitingExport { taken, awaited, reply };
                self.cache.fetch(&export.chunks());
                self.exports.push(export);
                self.finish_exports();
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Sends the complete exports. Checkpoints that could not be read are left out.
    pub(super) fn finish_exports(&mut self) {
        let cache = &self.cache;
        let is_complete = |export: &mut WaitingExport| !cache.is_reading(&export.chunks());
        let complete: Vec<WaitingExport> = self.exports.extract_if(.., is_complete).collect();
        for WaitingExport { mut taken, awaited, reply } in complete {
            let read = awaited.iter().filter_map(|(n_tokens, chunk)| {
                Some(SlotCheckpoint { n_tokens: *n_tokens, partial: self.cache.payload(*chunk)? })
            });
            taken.checkpoints.extend(read);
            taken.checkpoints.sort_by_key(|checkpoint| checkpoint.n_tokens);
            let chunks: Vec<ChunkId> = awaited.iter().map(|(_, chunk)| *chunk).collect();
            self.cache.release(&chunks);
            // The caller may have gone.
            drop(reply.send(Ok(taken)));
        }
    }

    /// Returns a slot's state with the checkpoints that are in memory, and those that must be read from disk first.
    fn export_slot(&mut self, slot: SlotId) -> Result<(SlotState, Vec<(usize, ChunkId)>), CacheError> {
        let held = self.table.slot(slot);
        let Some(root) = held.root().copied().filter(|_| !held.tokens().is_empty()) else {
            return Err(CacheError::SlotEmpty { slot });
        };
        let state = self.llama.export(slot).map(<[u8]>::to_vec);
        let state = state.map_err(|error| CacheError::Export { slot, reason: error.to_string() })?;
        let (tokens, n_exact) = (held.tokens().to_vec(), held.exact_tokens().len());
        let (mut checkpoints, mut awaited) = (Vec::new(), Vec::new());
        for (n_tokens, chunk) in self.checkpoints_of(&root, &tokens[..n_exact]) {
            match self.cache.payload(chunk) {
                Some(partial) => checkpoints.push(SlotCheckpoint { n_tokens, partial }),
                None => awaited.push((n_tokens, chunk)),
            }
        }
        Ok((SlotState { root, tokens, n_exact, state, checkpoints }, awaited))
    }

    /// Returns the checkpoints at which a sequence with these tokens could resume, up to the limit, each with its
    /// position.
    fn checkpoints_of(&self, root: &BlockHash, tokens: &[Token]) -> Vec<(usize, ChunkId)> {
        if self.table.memory().stored_state_rewinds() {
            return Vec::new();
        }
        let chain = self.table.tree().chain_of(root, tokens);
        let stored = self.cache.index().checkpoints(&Prefix { root: *root, chain: &chain, tokens });
        let block_size = self.table.block_size_tokens() as usize;
        let places = stored.iter().map(|stored| (stored.n_blocks * block_size, stored.chunk));
        checkpoints::spread(places.collect(), CHECKPOINTS_MAX)
    }

    pub(crate) fn import_slot(&mut self, slot: SlotId, saved: &SlotState) -> Result<u32, CacheError> {
        let unfit = |reason: String| CacheError::Unfit { slot, reason };
        let n_tokens = u32::try_from(saved.tokens.len()).unwrap_or(u32::MAX);
        let context_tokens = self.table.context_tokens();
        if n_tokens == 0 || n_tokens > context_tokens || saved.n_exact > saved.tokens.len() {
            return Err(unfit(format!("it has {n_tokens} tokens, and a slot has room for {context_tokens}")));
        }
        self.save(slot);
        self.clear_slot(slot);
        self.llama.import(slot, &saved.state, n_tokens).map_err(|error| unfit(error.to_string()))?;
        let (last, before) = saved.tokens.split_last().expect("there is at least one token");
        self.table.acquire(Acquire {
            slot,
            prompt: &saved.tokens,
            n_start_tokens: before.len() as u32,
            // The export of a sliding window has only the part that is needed to continue.
            rewinds_to_tokens: if self.table.memory().stored_state_rewinds() { 0 } else { n_tokens },
            root: saved.root,
            prompt_chain: &[],
            after_use: AfterUse::Keep,
        });
        self.table.extend(slot, &[*last]);
        self.table.shift(slot, Shift { from_token: saved.n_exact as u32, n_dropped: 0 });
        let after_use = self.table.release(slot);
        debug_assert_eq!(after_use, AfterUse::Keep, "as it was acquired");
        self.owners[usize::from(slot.0)] = SlotOwner::nobody();
        self.unsaved.insert(slot);
        self.store_checkpoints(saved);
        Ok(n_tokens)
    }

    fn store_checkpoints(&mut self, saved: &SlotState) {
        let tokens = &saved.tokens[..saved.n_exact];
        let chain = self.table.tree().chain_of(&saved.root, tokens);
        let SlotOwner { tenant, priority, .. } = SlotOwner::nobody();
        for SlotCheckpoint { n_tokens, partial } in &saved.checkpoints {
            let n_blocks = n_tokens / self.table.block_size_tokens() as usize;
            let (Some(tokens), Some(chain)) = (tokens.get(..*n_tokens), chain.get(..n_blocks)) else { continue };
            let prefix = Prefix { root: saved.root, chain, tokens };
            self.cache.store_checkpoint(partial.clone(), &SequenceState { prefix, tenant, priority });
        }
    }
}
