//! A slot's state handed out and taken in again, with what resumes it before its end.
//!
//! Not here: the file that it is written to (`crate::store::slot_file`), when a slot is idle (`thread`).
//! The idea: an export of memory that cannot be cut back serves the next turn only. So the checkpoints of the slot's tokens go with
//! it, and come into the store when it is taken in: the same prompt, and one that branches off earlier, resume there.

use std::sync::Arc;

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{SlotId, Token};
use warmpath_worker_core::checkpoints;
use warmpath_worker_core::chunk_index::Prefix;
use warmpath_worker_core::slot_table::{Acquire, AfterUse, Shift};

use super::cache::Kept;
use super::inspect::CacheError;
use super::step::{Owner, Stepper};

/// Most checkpoints that go with a slot's state.
///
/// Source: llama-server's own `--ctx-checkpoints` was 8 at first; of a sliding window each takes as much as the end of the state.
pub const CHECKPOINTS_MAX: usize = 8;

/// Everything that a slot holds, to be put into a slot again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// Root of the tokens' chain.
    pub root: BlockHash,
    /// Tokens.
    pub tokens: Vec<Token>,
    /// Number of the first of them whose state is what computing them gives; all unless there was a shift.
    pub n_exact: usize,
    /// Their state as llama.cpp exports it.
    pub state: Vec<u8>,
    /// Partial states at the ends of whole blocks of the exact tokens, the first one first; none where the state can be cut back.
    pub checkpoints: Vec<SlotCheckpoint>,
}

/// Partial state behind a slot's first tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotCheckpoint {
    /// Number of the tokens before it, whole blocks.
    pub n_tokens: usize,
    /// The state as llama.cpp exports it.
    pub partial: Arc<[u8]>,
}

impl Stepper<'_> {
    pub(super) fn export_slot(&mut self, slot: SlotId) -> Result<SlotState, CacheError> {
        let held = self.table.slot(slot);
        let Some(root) = held.root().copied().filter(|_| !held.tokens().is_empty()) else {
            return Err(CacheError::SlotEmpty { slot });
        };
        let state = self.llama.export(slot).map(<[u8]>::to_vec);
        let state = state.map_err(|error| CacheError::Export { slot, reason: error.to_string() })?;
        let (tokens, n_exact) = (held.tokens().to_vec(), held.exact_tokens().len());
        Ok(SlotState { root, n_exact, state, checkpoints: self.checkpoints_of(&root, &tokens[..n_exact]), tokens })
    }

    /// Returns the checkpoints in memory from which a sequence with these tokens could go on, as many as may go with its state.
    fn checkpoints_of(&self, root: &BlockHash, tokens: &[Token]) -> Vec<SlotCheckpoint> {
        if self.table.memory().stored_state_rewinds() {
            return Vec::new();
        }
        let chain = self.table.tree().chain_of(root, tokens);
        let stored = self.cache.index().checkpoints(&Prefix { root: *root, chain: &chain, tokens });
        let block_size = self.table.block_size_tokens() as usize;
        let at_hand = stored.iter().filter_map(|stored| {
            let partial = self.cache.payload(stored.chunk)?;
            Some(SlotCheckpoint { n_tokens: stored.n_blocks * block_size, partial })
        });
        checkpoints::spread(at_hand.collect(), CHECKPOINTS_MAX)
    }

    pub(super) fn import_slot(&mut self, slot: SlotId, saved: &SlotState) -> Result<u32, CacheError> {
        let unfit = |reason: String| CacheError::Unfit { slot, reason };
        let n_tokens = u32::try_from(saved.tokens.len()).unwrap_or(u32::MAX);
        if n_tokens == 0 || n_tokens > self.context_tokens || saved.n_exact > saved.tokens.len() {
            return Err(unfit(format!("it has {n_tokens} tokens, a slot has room for {}", self.context_tokens)));
        }
        self.save(slot);
        self.erase_slot(slot);
        self.llama.import(slot, &saved.state, n_tokens).map_err(|error| unfit(error.to_string()))?;
        let (last, before) = saved.tokens.split_last().expect("there is at least one token");
        self.table.acquire(Acquire {
            slot,
            prompt: &saved.tokens,
            n_start_tokens: before.len() as u32,
            // An export holds of a sliding window what is needed to go on, and no more.
            rewinds_to_tokens: if self.table.memory().stored_state_rewinds() { 0 } else { n_tokens },
            root: saved.root,
            prompt_chain: &[],
            after_use: AfterUse::Keep,
        });
        self.table.extend(slot, &[*last]);
        self.table.shift(slot, Shift { from_token: saved.n_exact as u32, n_dropped: 0 });
        let after_use = self.table.release(slot);
        debug_assert_eq!(after_use, AfterUse::Keep, "as it was acquired");
        self.owners[usize::from(slot.0)] = Owner::nobody();
        self.unsaved.insert(slot);
        self.store_checkpoints(saved);
        Ok(n_tokens)
    }

    fn store_checkpoints(&mut self, saved: &SlotState) {
        let tokens = &saved.tokens[..saved.n_exact];
        let chain = self.table.tree().chain_of(&saved.root, tokens);
        let Owner { tenant, priority, .. } = Owner::nobody();
        for SlotCheckpoint { n_tokens, partial } in &saved.checkpoints {
            let n_blocks = n_tokens / self.table.block_size_tokens() as usize;
            let (Some(tokens), Some(chain)) = (tokens.get(..*n_tokens), chain.get(..n_blocks)) else { continue };
            let prefix = Prefix { root: saved.root, chain, tokens };
            self.cache.store_checkpoint(Arc::clone(partial), &Kept { prefix, tenant, priority });
        }
    }
}
