//! The keys of a prompt's blocks, with a cache for repeated prefixes.
//!
//! A block's hash depends only on the hash before it and on its own tokens. So the cache holds stretches of blocks: the
//! tokens, the hash before them and the hash after them. The next turn of a chat compares tokens, many at a time, and
//! hashes only new ones. Tokens are always compared, so the keys are the same with and without the cache.
//!
//! Not here: the hash of a block (`warmpath_common::block_hash`).

use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, Equivalent};
use moka::sync::Cache;
use warmpath_common::block_hash::{BlockHash, BlockKey, block_chain};
use warmpath_common::ids::Token;

/// Blocks per stretch.
///
/// Source: own choice: a look-up costs as much as some two blocks, and half a stretch per prompt is hashed on average.
const STRETCH_BLOCKS: usize = 64;

/// Most memory of the stretches: some 7 million tokens of prompts.
///
/// Source: own choice: four bytes for each token, eight for each block.
const CHAINS_BYTES_MAX: u64 = 32 << 20;

/// Memory of an entry besides its tokens and keys: the hashes before and after, `Arc` headers, the cache's own nodes.
///
/// Source: the sizes of moka 0.12's `ValueEntry`, deque nodes and hash table slot, rounded up.
const ENTRY_OVERHEAD_BYTES: usize = 384;

/// Cache of stretches.
pub(super) struct BlockKeyCache {
    stretches: Cache<KeyedBlocks, Arc<Reached>, DefaultHashBuilder>,
}

/// Some blocks after a prefix; the number of tokens gives the block size.
#[derive(Debug, PartialEq, Eq, Hash)]
struct KeyedBlocks {
    start: BlockHash,
    tokens: Box<[Token]>,
}

/// A stretch to look up.
#[derive(Hash)]
struct LookupKey<'a> {
    start: BlockHash,
    tokens: &'a [Token],
}

impl Equivalent<KeyedBlocks> for LookupKey<'_> {
    fn equivalent(&self, known: &KeyedBlocks) -> bool {
        self.start == known.start && *self.tokens == *known.tokens
    }
}

/// Result of a stretch.
struct Reached {
    keys: Box<[BlockKey]>,
    end: BlockHash,
}

impl Default for BlockKeyCache {
    fn default() -> Self {
        Self::new(CHAINS_BYTES_MAX)
    }
}

impl BlockKeyCache {
    fn new(bytes_max: u64) -> Self {
        let stretches = Cache::builder()
            .max_capacity(bytes_max)
            .weigher(|stretch: &KeyedBlocks, reached: &Arc<Reached>| {
                let bytes = size_of_val(&*stretch.tokens) + size_of_val(&*reached.keys) + ENTRY_OVERHEAD_BYTES;
                u32::try_from(bytes).unwrap_or(u32::MAX)
            })
            .build_with_hasher(DefaultHashBuilder::default());
        Self { stretches }
    }

    /// Returns the key of every full block of `tokens`, equal to those of [`block_chain`].
    pub(super) fn keys(&self, root: &BlockHash, tokens: &[Token], block_size_tokens: u32) -> Vec<BlockKey> {
        let mut keys = Vec::with_capacity(tokens.len() / block_size_tokens as usize);
        let mut start = *root;
        let stretches = tokens.chunks_exact(STRETCH_BLOCKS * block_size_tokens as usize);
        let rest = stretches.remainder();
        for tokens in stretches {
            let reached = self.reached(LookupKey { start, tokens }, block_size_tokens);
            keys.extend_from_slice(&reached.keys);
            start = reached.end;
        }
        keys.extend(block_chain(&start, rest, block_size_tokens).iter().map(BlockHash::key));
        keys
    }

    fn reached(&self, asked: LookupKey<'_>, block_size_tokens: u32) -> Arc<Reached> {
        if let Some(reached) = self.stretches.get(&asked) {
            return reached;
        }
        let LookupKey { start, tokens } = asked;
        let chain = block_chain(&start, tokens, block_size_tokens);
        let end = chain.last().copied().unwrap_or(start);
        let reached = Arc::new(Reached { keys: chain.iter().map(BlockHash::key).collect(), end });
        self.stretches.insert(KeyedBlocks { start, tokens: tokens.into() }, Arc::clone(&reached));
        reached
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOT: BlockHash = BlockHash([7; 32]);

    fn hashed(tokens: &[Token], block_size_tokens: u32) -> Vec<BlockKey> {
        block_chain(&ROOT, tokens, block_size_tokens).iter().map(BlockHash::key).collect()
    }

    #[test]
    fn remembered_blocks_are_bounded() {
        let chains = BlockKeyCache::new(20_000);
        for n in 0..200 {
            let tokens: Vec<Token> = (n..n + 300).collect();
            assert_eq!(chains.keys(&ROOT, &tokens, 1), hashed(&tokens, 1));
            chains.stretches.run_pending_tasks();
            assert!(chains.stretches.weighted_size() <= 20_000);
        }
        assert!(chains.stretches.entry_count() > 2);
    }

    proptest! {
        #[test]
        fn keys_are_those_of_the_chain_whatever_was_cached(
            prompts in prop::collection::vec((0..4u32, 0..400usize, 0..400usize, 1..4u32), 1..12),
        ) {
            let chains = BlockKeyCache::default();
            for (seed, common, own, block_size_tokens) in prompts {
                // Prompts begin alike and diverge somewhere.
                let tokens: Vec<Token> = (0..common as u32).chain((0..own as u32).map(|n| n * (seed + 2))).collect();
                prop_assert_eq!(chains.keys(&ROOT, &tokens, block_size_tokens), hashed(&tokens, block_size_tokens));
                prop_assert_eq!(chains.keys(&ROOT, &tokens, block_size_tokens), hashed(&tokens, block_size_tokens));
            }
        }
    }
}
