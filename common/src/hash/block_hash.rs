//! The block-hash chain: one hash names a whole prefix of tokens.
//!
//! Which worker holds which block is recorded in the router's prefix index and the worker's slot table. A block is
//! `block_size_tokens` tokens. The hash of each block covers the hash before it, so equal hashes mean equal prefixes. A
//! chain starts from a root, which covers everything else that changes the KV state.

use std::fmt;

use crate::hash::hex::{hex_serde, to_hex};
use crate::ids::Token;

/// Context string of the chain's root; a new version of the chain gets a new string.
pub const ROOT_CONTEXT: &str = "warmpath 2026 block chain v1";

/// Version of the hash chain that a worker declares; router and worker must agree.
pub const HASH_VERSION: u16 = 1;

/// Default number of tokens in a block.
///
/// Source: `docs/decisions/0003-block-hash.md`.
pub const BLOCK_SIZE_TOKENS_DEFAULT: u32 = 16;

/// Full hash of a prefix that ends at a block boundary; workers' stores compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    /// Returns the short form that summaries carry: the first 8 bytes.
    pub fn key(&self) -> BlockKey {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[..8]);
        BlockKey(u64::from_le_bytes(bytes))
    }
}

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

hex_serde!(BlockHash, 32, |hash: &BlockHash| hash.0, BlockHash);

/// First 8 bytes of a [`BlockHash`], little-endian. A collision can misroute a request, but cannot make an answer
/// wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey(pub u64);

impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0.to_le_bytes()))
    }
}

hex_serde!(BlockKey, 8, |key: &BlockKey| key.0.to_le_bytes(), |bytes| BlockKey(u64::from_le_bytes(bytes)));

/// Start of a chain: everything besides the tokens that changes the KV state.
#[derive(Debug, Clone, Copy)]
pub struct ChainRoot<'a> {
    /// Fingerprint of the model's weights and metadata.
    pub model_fingerprint: &'a [u8; 32],
    /// Fingerprints and scales of the LoRA adapters in use; empty for none.
    pub lora: &'a [u8],
    /// Salt that separates one tenant's prefixes from another's; empty for none.
    pub cache_salt: &'a [u8],
}

impl ChainRoot<'_> {
    /// Returns the hash that precedes block 0.
    ///
    /// Each variable part is preceded by its length as a little-endian u64, so that no two roots give the same bytes.
    pub fn hash(&self) -> BlockHash {
        let mut hasher = blake3::Hasher::new_derive_key(ROOT_CONTEXT);
        hasher.update(self.model_fingerprint);
        for part in [self.lora, self.cache_salt] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        BlockHash(*hasher.finalize().as_bytes())
    }
}

/// Returns the hash of the block `tokens` that follows the prefix named by `parent`.
///
/// Shape: `tokens` `[block_size_tokens]`. Cost: one blake3 of 32 + 4 x n bytes.
/// Source: vLLM's prefix caching design (hash of parent hash and block tokens).
pub fn block_hash(parent: &BlockHash, tokens: &[Token]) -> BlockHash {
    BlockHasher::default().hash(parent, tokens)
}

/// Hasher of consecutive blocks, which reuses one buffer for their bytes.
#[derive(Debug, Default)]
struct BlockHasher {
    bytes: Vec<u8>,
}

impl BlockHasher {
    fn hash(&mut self, parent: &BlockHash, tokens: &[Token]) -> BlockHash {
        self.bytes.clear();
        self.bytes.extend_from_slice(&parent.0);
        for token in tokens {
            self.bytes.extend_from_slice(&token.to_le_bytes());
        }
        BlockHash(*blake3::hash(&self.bytes).as_bytes())
    }
}

/// Returns the chained hash of every full block of `tokens`.
///
/// Shape: `tokens` `[n]` -> `[n / block_size_tokens]`; a partial last block has no hash.
/// Panics: when `block_size_tokens` is 0.
pub fn block_chain(root: &BlockHash, tokens: &[Token], block_size_tokens: u32) -> Vec<BlockHash> {
    let (mut parent, mut hasher) = (*root, BlockHasher::default());
    tokens
        .chunks_exact(block_size_tokens as usize)
        .map(|block| {
            parent = hasher.hash(&parent, block);
            parent
        })
        .collect()
}

#[cfg(test)]
mod tests;
