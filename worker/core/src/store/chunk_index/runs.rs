//! Runs of stored blocks to send to another worker, found by their last block.
//!
//! The requesting worker compares the tokens; this worker only gets the hash of the last block. Not here: look-ups of a
//! prompt (`chunk_index`).

use std::ops::Range;

use warmpath_common::block_hash::BlockHash;

use super::entry::{ChunkRecord, StateKind};
use super::{ChunkId, ChunkIndex};

/// Consecutive blocks of one chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkPart {
    /// Identifier of the chunk.
    pub chunk: ChunkId,
    /// Range of the blocks, counted from the chunk's first.
    pub blocks: Range<usize>,
}

impl ChunkRecord {
    /// Returns the record of a non-empty range of a chunk's blocks, counted from its first.
    ///
    /// The size is that of the range's part of the payload. The record names no tenant and has the default priority.
    pub fn part(&self, blocks: Range<usize>) -> Self {
        let n = self.tokens.len() / self.blocks.len();
        Self {
            kind: StateKind::Chunk,
            root: self.root,
            first_block: self.first_block + blocks.start,
            parent: blocks.start.checked_sub(1).map_or(self.parent, |before| Some(self.blocks[before])),
            tokens: self.tokens[blocks.start * n..blocks.end * n].into(),
            n_bytes: self.n_bytes / self.blocks.len() as u64 * blocks.len() as u64,
            blocks: self.blocks[blocks].into(),
            priority: 0,
            tenant: None,
        }
    }
}

impl ChunkIndex {
    /// Returns the last `n_blocks` stored blocks of the chain that ends with the block `last`, in the order of the
    /// chain. There are fewer if the chain is shorter, and none if that block is not stored.
    ///
    /// Cost: O(chunks of the run).
    pub fn run_to(&self, last: &BlockHash, n_blocks: usize) -> Vec<ChunkPart> {
        let mut parts = Vec::new();
        let mut n_left = n_blocks;
        let mut next = self.blocks.get(last).copied();
        while let Some((chunk, offset)) = next.filter(|_| n_left > 0) {
            let n = n_left.min(offset + 1);
            parts.push(ChunkPart { chunk, blocks: offset + 1 - n..offset + 1 });
            n_left -= n;
            let before = self.chunks[&chunk].record.parent;
            next = before.and_then(|before| self.blocks.get(&before).copied());
        }
        parts.reverse();
        parts
    }
}
