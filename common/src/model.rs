//! What a worker declares about its model: everything router and worker must agree on before a prompt can be hashed.
//!
//! Not here: how a fingerprint is taken (`warmpath-gguf`).

use serde::{Deserialize, Serialize};

use crate::block_hash::hex_serde;

/// Names a model file or a KV layout by 32 bytes of blake3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::block_hash::to_hex(&self.0))
    }
}

hex_serde!(Fingerprint, 32, |print: &Fingerprint| print.0, Fingerprint);

/// Says how far a sequence's memory can be rewound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Full attention: rewinds to any token.
    Full,
    /// Sliding-window attention, the whole of it kept in the buffer: rewinds to any token.
    Sliding,
    /// Recurrent state: only the end of what was computed can be resumed.
    Recurrent,
    /// Attention and recurrent layers: as recurrent.
    Hybrid,
}

impl MemoryKind {
    /// Returns whether a sequence can be cut back to any of its tokens.
    pub fn rewinds_anywhere(self) -> bool {
        matches!(self, Self::Full | Self::Sliding)
    }

    /// Returns whether exported state can be cut back to any of its tokens.
    ///
    /// An export of a sliding window holds the window before its end only.
    pub fn stored_state_rewinds(self) -> bool {
        self == Self::Full
    }
}

/// Declares a worker's model and how it hashes prompts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Lists the names under which clients may ask for the model; the first is the one that responses carry.
    pub names: Vec<String>,
    /// Names the GGUF file: header, size and sampled tensor bytes.
    pub fingerprint: Fingerprint,
    /// Names the layout of the KV state: KV types, flash attention, rope settings.
    pub kv_fingerprint: Fingerprint,
    /// Names the chat template in use, which a flag may replace.
    pub chat_template_fingerprint: Fingerprint,
    /// Is the version of the hash chain, [`crate::block_hash::HASH_VERSION`].
    pub hash_version: u16,
    /// Is the number of tokens in a block.
    pub block_size_tokens: u32,
    /// Says whether a text prompt starts with the vocabulary's BOS token.
    pub add_bos: bool,
    /// Says whether a text prompt ends with the vocabulary's EOS token.
    pub add_eos: bool,
    /// Is the longest sequence, prompt and answer together, that one slot can run.
    pub context_tokens: u32,
    /// Is the number of slots.
    pub n_slots: u16,
    /// Says where a sequence can be resumed.
    pub memory: MemoryKind,
    /// Is the size of the vocabulary; a token in a request must be below it.
    pub n_vocab: u32,
}
