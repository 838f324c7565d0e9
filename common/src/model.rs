//! A worker's declaration of its model: everything router and worker must agree on before a prompt can be hashed.
//!
//! Fingerprints are computed in `warmpath-gguf`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::lora::adapter::{AdapterInfo, Applied};

pub use crate::hash::fingerprint::Fingerprint;

/// Kind of a sequence's memory, by the positions to which it can be rewound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Full attention: can be rewound to any token.
    Full,
    /// Sliding-window attention with all cells kept in the buffer: can be rewound to any token.
    Sliding,
    /// Recurrent state: a sequence can only be resumed at its end.
    Recurrent,
    /// Attention and recurrent layers: like recurrent.
    Hybrid,
}

impl MemoryKind {
    /// Returns whether a sequence can be cut back to any of its tokens.
    pub fn rewinds_anywhere(self) -> bool {
        matches!(self, Self::Full | Self::Sliding)
    }

    /// Returns whether exported state can be cut back to any of its tokens.
    ///
    /// The exported state of a sliding window contains only the window before its end.
    pub fn stored_state_rewinds(self) -> bool {
        self == Self::Full
    }
}

/// A kind of request that a worker can serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Continuing a text.
    Completion,
    /// Replying to a conversation; the model has a chat template.
    Chat,
    /// Calling tools; the chat template shows them to the model.
    Tools,
    /// Computing vectors of texts.
    Embedding,
    /// Scoring documents for a query.
    Rerank,
}

impl Capability {
    /// All capabilities.
    pub const ALL: [Self; 5] = [Self::Completion, Self::Chat, Self::Tools, Self::Embedding, Self::Rerank];

    /// Returns the name of the capability that clients see.
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

/// Combination of the states of a text's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// They are not combined: each token has its own vector.
    None,
    /// Their mean.
    Mean,
    /// The state of the first token.
    Cls,
    /// The state of the last token.
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

/// Result of an embedding worker for a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbeddingInfo {
    /// Combination of the tokens' states.
    pub pooling: Pooling,
    /// Length of a vector; 1 for a score.
    pub dimensions: u32,
}

impl std::fmt::Display for EmbeddingInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pooling to {} numbers", self.pooling, self.dimensions)
    }
}

/// Longest default variables of a chat template. Units: bytes of JSON.
///
/// Source: own choice: some hundred times as much as any model's.
pub const TEMPLATE_KWARGS_BYTES_MAX: usize = 16 << 10;

/// A worker's declaration of its model and of how it hashes prompts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Model names that clients may use; responses carry the first one.
    pub names: Vec<String>,
    /// Fingerprint of the GGUF file: header, size and sampled tensor bytes.
    pub fingerprint: Fingerprint,
    /// Fingerprint of the layout of the KV state: KV types, flash attention, rope settings.
    pub kv_fingerprint: Fingerprint,
    /// Fingerprint of the chat template in use: the model's own, or the one that a flag sets.
    pub chat_template_fingerprint: Fingerprint,
    /// Default variables of the chat template, a JSON object with sorted names; its fingerprint includes them.
    pub chat_template_kwargs: String,
    /// Version of the hash chain, [`crate::hash::block_hash::HASH_VERSION`].
    pub hash_version: u16,
    /// Number of tokens in a block.
    pub block_size_tokens: u32,
    /// Whether a text prompt starts with the vocabulary's BOS token.
    pub add_bos: bool,
    /// Whether a text prompt ends with the vocabulary's EOS token.
    pub add_eos: bool,
    /// Longest sequence, prompt and output together, that one slot can run; for an embedding worker, the longest text.
    pub context_tokens: u32,
    /// Context that the model was trained on; `None` if its file does not contain it.
    pub n_ctx_train: Option<u32>,
    /// Number of slots.
    pub n_slots: u16,
    /// Kind of memory, by the positions to which a sequence can be rewound.
    pub memory: MemoryKind,
    /// Size of the vocabulary; tokens in a request must be smaller.
    pub n_vocab: u32,
    /// Kinds of requests that the worker can serve.
    pub capabilities: Vec<Capability>,
    /// Result for a text; `None` if the model generates text.
    pub embedding: Option<EmbeddingInfo>,
    /// Loaded LoRA adapters.
    pub adapters: Vec<AdapterInfo>,
    /// Adapter that is applied if a request selects none.
    pub adapter_in_force: Option<Applied>,
    /// KV state that the worker exchanges with other workers; `None` if it exchanges none.
    pub kv_transfer: Option<KvTransfer>,
    /// How the model reads images and audio; `None` if it reads text alone.
    pub media: Option<MediaReading>,
}

/// Kinds of input besides text, as llama-server shows them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Modalities {
    /// Whether the model takes images.
    pub vision: bool,
    /// Whether the model takes audio.
    pub audio: bool,
}

impl fmt::Display for Modalities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.vision, self.audio) {
            (true, true) => "text, images and audio",
            (true, false) => "text and images",
            (false, true) => "text and audio",
            (false, false) => "text only",
        })
    }
}

/// A model's way of reading images and audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MediaReading {
    /// Fingerprint of everything besides a medium's content that decides its embeddings.
    pub fingerprint: Fingerprint,
    /// Kinds of media.
    pub modalities: Modalities,
}

/// KV state that workers exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvTransfer {
    /// Identity of the state's layout: workers can use each other's state only if it is equal.
    pub layout: Fingerprint,
    /// Size of a token's state. Units: bytes.
    pub bytes_per_token: u64,
}

impl ModelInfo {
    /// Returns the declaration of a model without a name that generates text, has these sizes and nothing further.
    pub fn text(
        fingerprint: Fingerprint,
        block_size_tokens: u32,
        context_tokens: u32,
        n_slots: u16,
        n_vocab: u32,
    ) -> Self {
        Self {
            names: Vec::new(),
            fingerprint,
            kv_fingerprint: fingerprint,
            chat_template_fingerprint: fingerprint,
            chat_template_kwargs: "{}".to_owned(),
            hash_version: crate::block_hash::HASH_VERSION,
            block_size_tokens,
            add_bos: false,
            add_eos: false,
            context_tokens,
            n_ctx_train: None,
            n_slots,
            memory: MemoryKind::Full,
            n_vocab,
            capabilities: vec![Capability::Completion, Capability::Chat],
            embedding: None,
            adapters: Vec::new(),
            adapter_in_force: None,
            kv_transfer: None,
            media: None,
        }
    }

    /// Returns whether the worker supports `capability`; true if it is `None`.
    pub fn can(&self, capability: Option<Capability>) -> bool {
        capability.is_none_or(|capability| self.capabilities.contains(&capability))
    }

    /// Returns the kinds of input besides text that the model takes.
    pub fn modalities(&self) -> Modalities {
        self.media.map_or_else(Modalities::default, |reading| reading.modalities)
    }
}
