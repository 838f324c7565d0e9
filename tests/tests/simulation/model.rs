//! Models that the workers serve, and their correct answers.

use warmpath_common::block_hash::{BlockHash, ChainRoot};
use warmpath_common::ids::Token;
use warmpath_common::mix::mix;
use warmpath_common::model::{Fingerprint, ModelInfo};

/// Longest sequence. Units: tokens.
pub const CONTEXT_TOKENS: u32 = 256;

/// A model file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// The model that most workers serve.
    Alpha,
    /// Another file that is served under the same name.
    OtherAlpha,
    /// Another model.
    Beta,
}

impl Model {
    /// Names that clients use.
    pub const NAMES: [&str; 2] = ["alpha", "beta"];

    /// Returns the name that clients use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alpha | Self::OtherAlpha => "alpha",
            Self::Beta => "beta",
        }
    }

    /// Returns the model of a fingerprint.
    pub fn of(fingerprint: Fingerprint) -> Option<Self> {
        [Self::Alpha, Self::OtherAlpha, Self::Beta].into_iter().find(|model| model.fingerprint() == fingerprint)
    }

    fn fingerprint(self) -> Fingerprint {
        Fingerprint([self as u8 + 1; 32])
    }

    /// Returns token `idx` of the answer to the prompt whose KV state is `cells`.
    pub fn answer(self, cells: &[Token], idx: u32) -> Token {
        let begin = u64::from(self.fingerprint().0[0]) << 32 | u64::from(idx);
        let hash = cells.iter().fold(mix(begin), |hash, token| mix(hash ^ u64::from(*token)));
        (hash % 1000) as Token
    }
}

/// Model and layout that one process of a worker serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    /// Model file.
    pub model: Model,
    /// Length of a block. Units: tokens.
    pub block_size_tokens: u32,
    /// Number of slots.
    pub n_slots: u16,
    /// Version of the KV layout.
    pub kv_layout: u8,
}

impl Build {
    /// Build with which all workers start.
    pub const USUAL: Self = Self { model: Model::Alpha, block_size_tokens: 4, n_slots: 3, kv_layout: 1 };

    /// Returns the root of every chain: the clients send no salts.
    pub fn root(&self) -> BlockHash {
        root(&self.declared())
    }

    /// Returns the declaration that the worker sends to routers.
    pub fn declared(&self) -> ModelInfo {
        let Self { model, block_size_tokens, n_slots, kv_layout } = *self;
        ModelInfo {
            names: vec![model.name().into()],
            kv_fingerprint: Fingerprint([kv_layout; 32]),
            ..ModelInfo::text(model.fingerprint(), block_size_tokens, CONTEXT_TOKENS, n_slots, 1000)
        }
    }
}

/// Returns the root of a model's chains.
pub fn root(model: &ModelInfo) -> BlockHash {
    ChainRoot { model_fingerprint: &model.fingerprint.0, lora: &[], cache_salt: &[] }.hash()
}
