//! The most valuable stored prefixes: a new worker fetches them from others, and others fetch them from a worker that
//! drains.
//!
//! Prefixes are in the reverse order of eviction: first those that were used after they were stored, and among these
//! the most recently used. Not here: state that is only in slots (the engine).

use std::cmp::Reverse;
use std::collections::HashSet;

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;

use super::entry::{Chunk, StateKind};
use super::{ChunkId, ChunkIndex};

impl ChunkIndex {
    /// Returns stored prefixes as roots and tokens, the most valuable first: each ends with a chunk, and none is the
    /// start of an earlier one.
    ///
    /// Blocks in `listed_blocks` count as listed already; the blocks of the result are added. The result has at most
    /// `n_tokens_max` tokens in unlisted blocks. Cost: O(n log n), and O(tokens of the result).
    pub fn hot_prefixes(
        &self,
        n_tokens_max: usize,
        listed_blocks: &mut HashSet<BlockHash>,
    ) -> Vec<(BlockHash, Vec<Token>)> {
        let mut chunks: Vec<(ChunkId, &Chunk)> =
            self.of_kind(StateKind::Chunk).map(|(id, chunk)| (*id, chunk)).collect();
        // The chunks of a path have the same time of use. The last chunk comes first, because its prefix includes them
        // all.
        chunks.sort_unstable_by_key(|(id, chunk)| {
            (chunk.n_hits == 0, Reverse(chunk.last_used_ms), Reverse(chunk.record.first_block), *id)
        });
        let mut prefixes = Vec::new();
        let mut n_left = n_tokens_max;
        for (id, chunk) in chunks {
            let last = chunk.record.blocks[chunk.record.blocks.len() - 1];
            if listed_blocks.contains(&last) {
                continue;
            }
            let (tokens, blocks) = self.path_to(id);
            let n_new = blocks.iter().filter(|hash| !listed_blocks.contains(*hash)).count();
            let Some(n_left_after) = n_left.checked_sub(n_new * self.limits.block_size_tokens as usize) else { break };
            n_left = n_left_after;
            listed_blocks.extend(blocks);
            prefixes.push((chunk.record.root, tokens));
        }
        prefixes
    }

    /// Returns the tokens and blocks of a chunk's sequence, from the first to the chunk's last.
    fn path_to(&self, id: ChunkId) -> (Vec<Token>, Vec<BlockHash>) {
        let mut path = Vec::new();
        let mut next = Some((id, usize::MAX));
        while let Some((id, n_blocks)) = next {
            let chunk = &self.chunks[&id];
            let (record, n_blocks) = (&chunk.record, n_blocks.min(chunk.record.blocks.len()));
            path.push((record, n_blocks));
            // A chunk may follow any block of its parent.
            next = chunk.parent.map(|parent| (parent, record.first_block - self.chunks[&parent].record.first_block));
        }
        let block_tokens = self.limits.block_size_tokens as usize;
        let (mut tokens, mut blocks) = (Vec::new(), Vec::new());
        for (record, n_blocks) in path.into_iter().rev() {
            tokens.extend_from_slice(&record.tokens[..n_blocks * block_tokens]);
            blocks.extend_from_slice(&record.blocks[..n_blocks]);
        }
        (tokens, blocks)
    }
}
