//! What a worker declares about its model: everything router and worker must agree on before a prompt can be hashed.
//!
//! Not here: how a fingerprint is taken (`warmpath-gguf`).

use serde::{Deserialize, Serialize};

use crate::block_hash::hex_serde;
use crate::lora::{AdapterInfo, Applied};

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

/// Names something that a worker can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Going on with a text.
    Completion,
    /// Answering a conversation: the model has a chat template.
    Chat,
    /// Calling tools: the chat template shows them to the model.
    Tools,
    /// Making vectors of texts.
    Embedding,
    /// Scoring documents for a query.
    Rerank,
}

impl Capability {
    /// Lists every capability.
    pub const ALL: [Self; 5] = [Self::Completion, Self::Chat, Self::Tools, Self::Embedding, Self::Rerank];

    /// Returns the capability as clients read it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Completion => "completion",
            Self::Chat => "chat",
            Self::Tools => "tools",
            Self::Embedding => "embedding",
            Self::Rerank => "rerank",
        }
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.label())
    }
}

/// Says what is made of the states of a text's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// Nothing: each token has its own vector.
    None,
    /// Their mean.
    Mean,
    /// The first one's state.
    Cls,
    /// The last one's state.
    Last,
    /// A score, by the model's classification head.
    Rank,
}

impl std::fmt::Display for Pooling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
            Self::Rank => "rank",
        })
    }
}

/// Declares what an embedding worker makes of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbeddingInfo {
    /// Says what is made of the tokens' states.
    pub pooling: Pooling,
    /// Is the length of a vector; 1 for a score.
    pub dimensions: u32,
}

impl std::fmt::Display for EmbeddingInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pooling to {} numbers", self.pooling, self.dimensions)
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
    /// Is the longest sequence, prompt and answer together, that one slot can run; of an embedding worker the longest text.
    pub context_tokens: u32,
    /// Is the context that the model was trained on; absent where its file does not say.
    pub n_ctx_train: Option<u32>,
    /// Is the number of slots.
    pub n_slots: u16,
    /// Says where a sequence can be resumed.
    pub memory: MemoryKind,
    /// Is the size of the vocabulary; a token in a request must be below it.
    pub n_vocab: u32,
    /// Lists what the worker can be asked for.
    pub capabilities: Vec<Capability>,
    /// Says what is made of texts; absent where text is generated.
    pub embedding: Option<EmbeddingInfo>,
    /// Lists the LoRA adapters that are loaded.
    pub adapters: Vec<AdapterInfo>,
    /// Is the adapter that is applied where a request says nothing.
    pub adapter_in_force: Option<Applied>,
}

impl ModelInfo {
    /// Returns whether the worker can be asked for `wanted`; for nothing in particular every worker can.
    pub fn can(&self, wanted: Option<Capability>) -> bool {
        wanted.is_none_or(|wanted| self.capabilities.contains(&wanted))
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Returns a declaration in which nothing is wrong.
    pub(crate) fn model() -> ModelInfo {
        ModelInfo {
            names: vec!["m".into()],
            fingerprint: Fingerprint([1; 32]),
            kv_fingerprint: Fingerprint([2; 32]),
            chat_template_fingerprint: Fingerprint([3; 32]),
            hash_version: crate::block_hash::HASH_VERSION,
            block_size_tokens: 32,
            add_bos: false,
            add_eos: false,
            context_tokens: 8192,
            n_ctx_train: None,
            n_slots: 4,
            memory: MemoryKind::Full,
            n_vocab: 1000,
            capabilities: vec![Capability::Completion],
            embedding: None,
            adapters: Vec::new(),
            adapter_in_force: None,
        }
    }
}
