//! Properties of the loaded model and its context, as the engine found them.
//!
//! Not here: the configuration (`config`), the declaration for routers (`warmpath_common::model`).

use warmpath_common::lora::AdapterInfo;
use warmpath_common::model::{Fingerprint, MemoryKind};

use super::errors::ShiftObstacle;
use crate::store::Identity;

/// Properties of the loaded model and its context.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineFacts {
    /// Longest sequence, prompt and response together, of one slot; a prompt must be shorter.
    pub context_tokens: u32,
    /// Whether `slot_limit` makes it so short.
    pub is_limited: bool,
    /// Number of slots.
    pub n_slots: u16,
    /// Kind of memory, which decides how far a slot can be rewound; determined by a probe at start-up.
    pub memory: MemoryKind,
    /// Size of the vocabulary.
    pub n_vocab: u32,
    /// Context size in training.
    pub n_ctx_train: u32,
    /// Fingerprint of the model file.
    pub model_fingerprint: Fingerprint,
    /// Fingerprint of the KV layout.
    pub kv_fingerprint: Fingerprint,
    /// Whether flash attention is used.
    pub flash_attn: bool,
    /// Whether the slots share one KV buffer.
    pub kv_unified: bool,
    /// Tokens per block in summaries.
    pub block_size_tokens: u32,
    /// Maximum number of tokens of a micro-batch, as decided by llama.cpp.
    pub ubatch_tokens: u32,
    /// Description of the model: architecture, name and size label as far as the file has them.
    pub description: String,
    /// Number of the model's parameters.
    pub n_params: u64,
    /// Size of the model's tensors.
    pub model_bytes: u64,
    /// Reason why state cannot be moved to other positions; `None` if it can.
    pub shift_obstacle: Option<ShiftObstacle>,
    /// Loaded LoRA adapters.
    pub adapters: Vec<AdapterInfo>,
    /// State that other workers can use; `None` if the worker has no store, or its state cannot be cut into blocks.
    pub exchange: Option<Exchange>,
    /// Maximum length of a draft whose rejected tokens can be removed; 0 if responses are not drafted.
    pub drafted_max: u32,
}

/// Stored state that other workers can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Identity of the state. Workers with equal identities can use each other's state.
    pub identity: Identity,
    /// Size of a token's state. Units: bytes.
    pub token_bytes: u64,
    /// Maximum size in memory. Units: bytes.
    pub ram_bytes: u64,
}
