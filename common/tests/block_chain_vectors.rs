//! The block-hash chain gives the published vectors, which `vectors/make.py` makes without this code.
//!
//! Not here: the chain's properties (`src/block_hash/tests.rs`).

use serde::Deserialize;
use warmpath_common::block_hash::{BlockHash, BlockKey, ChainRoot, block_chain};
use warmpath_common::ids::Token;
use warmpath_common::model::Fingerprint;

#[derive(Deserialize)]
struct Vector {
    name: String,
    model_fingerprint: Fingerprint,
    lora: String,
    cache_salt: String,
    block_size_tokens: u32,
    tokens: Vec<Token>,
    root: BlockHash,
    block_hashes: Vec<BlockHash>,
    block_keys: Vec<BlockKey>,
}

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(pair).collect()
}

#[test]
fn gives_the_published_vectors() {
    let vectors: Vec<Vector> = serde_json::from_str(include_str!("vectors/block_chain.json")).expect("vectors");
    assert!(vectors.len() >= 10);
    for vector in vectors {
        let (lora, cache_salt) = (bytes(&vector.lora), bytes(&vector.cache_salt));
        let root = ChainRoot { model_fingerprint: &vector.model_fingerprint.0, lora: &lora, cache_salt: &cache_salt };
        assert_eq!(root.hash(), vector.root, "{}", vector.name);
        let hashes = block_chain(&vector.root, &vector.tokens, vector.block_size_tokens);
        assert_eq!(hashes, vector.block_hashes, "{}", vector.name);
        let keys: Vec<BlockKey> = hashes.iter().map(BlockHash::key).collect();
        assert_eq!(keys, vector.block_keys, "{}", vector.name);
    }
}
