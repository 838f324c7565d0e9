//! The engine's configuration and start-up errors.
//!
//! Not here: command-line flags (`crate::config`), loading (`llama`), the loaded model's properties (`facts`).

mod draft_model;
pub(crate) mod files;
pub(crate) mod memory;
pub(crate) mod metadata;
pub(crate) mod placement;
pub(crate) mod rope;
pub(crate) mod speculation;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use warmpath_common::block_hash::block_hash;
use warmpath_common::model::Fingerprint;
use warmpath_worker_core::slots::prefix_tree::BlockHasher;
use warmpath_worker_core::store::restore_costs::Costs;

use crate::store::{STATE_VERSION, StoreError};
pub use draft_model::DraftModelConfig;
use files::{AdapterFile, ProjectorConfig};
use memory::{Bytes, Fit};
use metadata::MetadataOverride;
use placement::Placement;
use rope::RopeSettings;
use speculation::SpeculationConfig;

/// Largest default context of a slot.
///
/// Units: tokens. Source: most chats are shorter, and most machines have enough memory for a few such slots.
pub const SLOT_CONTEXT_TOKENS_DEFAULT_MAX: u32 = 8192;

/// Step of a slot's context, which llama.cpp rounds up to a multiple of it; also the smallest context. Units: tokens.
///
/// Source: `llama-context.cpp`, `n_ctx_seq`.
pub const SLOT_CELLS_STEP: u32 = 256;

/// Maximum number of slots of one llama.cpp context (`LLAMA_MAX_SEQ`).
pub const SLOTS_MAX: u16 = 256;

/// Settings of the model and all sizes.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Path of the GGUF file.
    pub model: PathBuf,
    /// Number of slots; 1 to [`SLOTS_MAX`].
    pub n_slots: u16,
    /// Cells of all slots together; 0 means `n_slots` times the trained context, at most `slot_tokens_max` each.
    pub context_tokens_total: u32,
    /// Maximum cells of a slot if `context_tokens_total` is 0. Units: tokens.
    pub slot_tokens_max: u32,
    /// Maximum tokens of a slot, also if its share of the cells is larger; `None` for its share.
    pub slot_limit: Option<u32>,
    /// Settings for fitting a default context to the memory; `None` if it is not fitted.
    pub fit: Option<Fit>,
    /// Threads that compute a step with one token per sequence; 0 means one per processor.
    pub threads: u16,
    /// Threads that compute a step with prompts in it; 0 means the same as `threads`.
    pub threads_batch: u16,
    /// Devices of the model, and the way of reading its file.
    pub placement: Placement,
    /// Settings of rotary position encoding that differ from the model's file.
    pub rope: RopeSettings,
    /// Replacements for values in the model's file.
    pub metadata_overrides: Vec<MetadataOverride>,
    /// Maximum number of tokens that are planned together while no sequence decodes.
    pub batch_tokens: u32,
    /// Maximum number of tokens of one step, which is a micro-batch; greater than `n_slots`.
    pub ubatch_tokens: u32,
    /// Type of the keys in the KV cache.
    pub cache_type_k: CacheType,
    /// Type of the values in the KV cache; a quantized one requires flash attention.
    pub cache_type_v: CacheType,
    /// Setting of flash attention.
    pub flash_attn: Switch,
    /// Setting of a KV buffer that all slots share.
    pub kv_unified: Switch,
    /// Decision method for the settings that are `Auto`.
    pub self_test: SelfTest,
    /// Maximum number of requests that wait for a slot.
    pub queue_max: usize,
    /// Longest time that an idle engine waits for further requests before the first step of a request.
    pub gather_max: Duration,
    /// Maximum number of logits per step for log probabilities of prompts, so that their computation does not delay
    /// streams.
    pub listed_logits_max: usize,
    /// Tokens per block in summaries.
    pub block_size_tokens: u32,
    /// Whether KV state is kept for later requests.
    pub prefix_cache: PrefixCache,
    /// Settings of stored KV state.
    pub store: StoreConfig,
    /// Maximum number of tokens that idle slots keep in the KV buffer; `None` means half of its cells if slots share
    /// one and idle state is moved to the store.
    pub prefix_tokens_max: Option<u64>,
    /// Place of idle state that would make running sequences faster by leaving the KV buffer.
    pub idle_state: IdleState,
    /// Settings of moving state to other positions.
    pub shifts: ShiftConfig,
    /// LoRA adapters to load.
    pub adapters: Vec<AdapterFile>,
    /// Projector to load, with which the model reads media; `None` if it reads only text.
    pub projector: Option<ProjectorConfig>,
    /// Settings of speculative decoding; `None` if it is off.
    pub speculation: Option<SpeculationConfig>,
    /// Draft model; `None` if drafts only come from texts.
    pub draft_model: Option<DraftModelConfig>,
    /// Source of the costs in plans.
    pub costs: CostSource,
    /// Hash of blocks: [`warmpath_common::block_hash::block_hash`], except in tests of collisions.
    pub block_hasher: BlockHasher,
}

/// Settings of stored KV state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// Maximum size in memory; 0 turns the store off. Units: bytes.
    pub ram_bytes: u64,
    /// Disk tier; `None` if there is none.
    pub disk: Option<DiskConfig>,
    /// Time after its last use for which reused state is not evicted.
    pub min_hold: Duration,
}

/// Place of an idle slot's state in a KV buffer that all slots share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdleState {
    /// The store, as soon as the state costs running sequences more time than its export and import.
    #[default]
    Store,
    /// The slot, because clients save slots by number.
    Slot,
}

/// Source of the costs in plans.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CostSource {
    /// Continuous measurements.
    Measured,
    /// Fixed initial estimates, for tests that need the same plans on every machine.
    Assumed,
    /// These costs, for tests of slow machines.
    Given(Costs),
}

/// Settings of moving state to other positions, which makes it approximate: docs/decisions/0012-shifts.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShiftConfig {
    /// Minimum length of a run of tokens that is moved, unless the request sets it; 0 moves none.
    pub cache_reuse_tokens: u32,
    /// Action when a response fills its context.
    pub at_context_end: AtContextEnd,
}

/// Action when a response fills its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtContextEnd {
    /// The response ends.
    #[default]
    Stop,
    /// The oldest tokens are dropped, and the response continues.
    Shift,
}

/// Location and size of the disk tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Path of the folder.
    pub dir: PathBuf,
    /// Maximum size. Units: bytes.
    pub bytes: u64,
}

/// Time after its last use for which reused state is not evicted.
///
/// Source: own choice: requests of one agent or of one batch follow each other within seconds; longer, a flood of
/// prompts that are each used twice would keep the store full.
const MIN_HOLD: Duration = Duration::from_secs(10);

impl Default for StoreConfig {
    fn default() -> Self {
        Self { ram_bytes: 256 << 20, disk: None, min_hold: MIN_HOLD }
    }
}

/// Default of [`EngineConfig::gather_max`]: approximate time to prepare a few prompts on an idle machine.
///
/// Source: docs/decisions/0036-batch-plan.md.
const GATHER_MAX_DEFAULT: Duration = Duration::from_millis(5);

/// Default of [`EngineConfig::listed_logits_max`].
///
/// Source: the logits take 16 MiB and some tens of milliseconds, for 27 tokens with a vocabulary of 152,000.
const LISTED_LOGITS_MAX_DEFAULT: usize = 4 << 20;

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            model: PathBuf::new(),
            n_slots: 4,
            context_tokens_total: 0,
            slot_tokens_max: SLOT_CONTEXT_TOKENS_DEFAULT_MAX,
            slot_limit: None,
            fit: None,
            threads: 0,
            threads_batch: 0,
            placement: Placement::default(),
            rope: RopeSettings::default(),
            metadata_overrides: Vec::new(),
            batch_tokens: 2048,
            ubatch_tokens: 512,
            cache_type_k: CacheType::F16,
            cache_type_v: CacheType::F16,
            flash_attn: Switch::Auto,
            kv_unified: Switch::Auto,
            self_test: SelfTest::default(),
            queue_max: 256,
            gather_max: GATHER_MAX_DEFAULT,
            listed_logits_max: LISTED_LOGITS_MAX_DEFAULT,
            block_size_tokens: warmpath_common::block_hash::BLOCK_SIZE_TOKENS_DEFAULT,
            prefix_cache: PrefixCache::Enabled,
            store: StoreConfig::default(),
            prefix_tokens_max: None,
            idle_state: IdleState::default(),
            shifts: ShiftConfig::default(),
            adapters: Vec::new(),
            projector: None,
            speculation: None,
            draft_model: None,
            costs: CostSource::Measured,
            block_hasher: block_hash,
        }
    }
}

impl EngineConfig {
    /// Returns whether flash attention is used without a measurement: `Auto` is on if there is a GPU or the values are
    /// quantized.
    ///
    /// Source: docs/decisions/0000-measured-before.md: on a CPU, flash attention makes a short suffix after a cached
    /// prefix several times slower.
    pub fn uses_flash_attn(&self) -> bool {
        self.flash_attn.choice().unwrap_or(self.placement.is_offloaded() || self.cache_type_v.is_quantized())
    }

    /// Returns whether the KV buffer is unified without a measurement: `Auto` is on if there is a GPU.
    ///
    /// Source: docs/decisions/0000-measured-before.md: on a CPU, idle sequences in a unified buffer slow every step.
    pub fn uses_unified_kv(&self) -> bool {
        self.kv_unified.choice().unwrap_or(self.placement.is_offloaded())
    }

    /// Returns the number of threads for a step with one token per sequence.
    pub fn n_threads(&self) -> u16 {
        let of_machine = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if self.threads > 0 { self.threads } else { u16::try_from(of_machine()).unwrap_or(u16::MAX) }
    }

    /// Returns the number of threads for a step with prompts in it.
    pub fn n_threads_batch(&self) -> u16 {
        if self.threads_batch > 0 { self.threads_batch } else { self.n_threads() }
    }

    /// Returns the cells of all slots together, for a model with this trained context.
    pub fn cells_wanted(&self, n_ctx_train: u32) -> u32 {
        match self.context_tokens_total {
            0 => n_ctx_train.clamp(1, self.slot_tokens_max).saturating_mul(u32::from(self.n_slots)),
            given => given,
        }
    }

    /// Returns a fingerprint of all settings that decide the format of stored state and are known before the model is
    /// loaded. Equal fingerprints mean interchangeable state.
    pub fn state_settings(&self, model: Fingerprint) -> Fingerprint {
        let buffer = (self.flash_attn, self.kv_unified, &self.placement, self.context_tokens_total, self.n_slots);
        let kv = (self.cache_type_k, self.cache_type_v, self.block_size_tokens, &self.rope, &self.metadata_overrides);
        let settings = format!("{model} {buffer:?} {kv:?} {STATE_VERSION}");
        Fingerprint(blake3::derive_key("warmpath 2026 state settings v1", settings.as_bytes()))
    }

    /// Checks the settings as far as possible before the model is loaded.
    ///
    /// Errors: [`StartError::Config`] for a size that is zero, too large or inconsistent with another size.
    pub fn validate(&self) -> Result<(), StartError> {
        let refuse = |reason: &str| Err(StartError::Config { reason: reason.to_owned() });
        if self.n_slots == 0 || self.n_slots > SLOTS_MAX {
            return refuse(&format!("the number of slots must be 1 to {SLOTS_MAX}, not {}", self.n_slots));
        }
        if self.block_size_tokens == 0 {
            return refuse("the block size must be at least 1 token");
        }
        if self.ubatch_tokens <= u32::from(self.n_slots) {
            return refuse("the micro-batch must have more tokens than there are slots");
        }
        if self.batch_tokens < self.ubatch_tokens {
            return refuse("the batch must be at least as large as a micro-batch");
        }
        if self.cache_type_v.is_quantized() && !self.uses_flash_attn() {
            return refuse("a quantized V cache needs flash attention, which is turned off");
        }
        Ok(())
    }
}

/// A setting that measurements may decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Switch {
    /// The best value for the machine.
    #[default]
    Auto,
    /// Yes.
    On,
    /// No.
    Off,
}

impl Switch {
    fn choice(self) -> Option<bool> {
        match self {
            Self::Auto => None,
            Self::On => Some(true),
            Self::Off => Some(false),
        }
    }
}

/// Decision method for [`Switch::Auto`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SelfTest {
    /// Fixed rules, without measurements.
    #[default]
    Skip,
    /// Measurements at start-up.
    Run {
        /// Folder for the result, which the next start reuses; `None` to measure at each start.
        cache: Option<PathBuf>,
    },
}

/// Whether KV state is kept after its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefixCache {
    /// Slots keep their computed state.
    #[default]
    Enabled,
    /// Every request computes its whole prompt and leaves nothing in the cache.
    Disabled,
}

/// Number type of keys or values in the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are ggml's")]
pub enum CacheType {
    /// F16, or Bf16 if the self-test finds it faster.
    Auto,
    F32,
    F16,
    Bf16,
    Q8_0,
    Q5_1,
    Q5_0,
    Iq4Nl,
    Q4_1,
    Q4_0,
}

impl CacheType {
    /// Returns the type without a measurement: `Auto` is `F16`.
    pub fn without_auto(self) -> Self {
        if self == Self::Auto { Self::F16 } else { self }
    }

    /// Returns whether the type stores blocks of quantized values.
    pub fn is_quantized(self) -> bool {
        !matches!(self, Self::Auto | Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// Reason why the engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is inconsistent or exceeds a limit.
    #[error("the engine's configuration is invalid: {reason}")]
    Config {
        /// Violated condition.
        reason: String,
    },
    /// The model file cannot be used.
    #[error("cannot load the model {}: {reason}", path.display())]
    Model {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// The model in the file cannot generate text.
    #[error("the model {} cannot be served: {reason}", path.display())]
    Unsupported {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// The draft model cannot draft for the model.
    #[error("the model {} cannot draft for the served one: {reason}", path.display())]
    DraftModel {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// An adapter cannot be used.
    #[error("cannot load the adapter {}: {reason}", path.display())]
    Adapter {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// A projector cannot be used.
    #[error("cannot load the projector {}: {reason}", path.display())]
    Projector {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// llama.cpp could not create the context, for example for lack of memory.
    #[error("cannot create a context of {n_slots} slots and {context_tokens_total} tokens: {reason}")]
    Context {
        /// Requested number of slots.
        n_slots: u16,
        /// Requested number of cells.
        context_tokens_total: u32,
        /// Reason.
        reason: String,
    },
    /// The machine has less memory than is needed.
    #[error("the worker needs {needed} of memory and {available} are available: {parts}; {fits}")]
    Memory {
        /// Memory that is needed.
        needed: Bytes,
        /// Memory that is available.
        available: Bytes,
        /// Parts of the needed memory, each with its flag.
        parts: String,
        /// Flag to change.
        fits: String,
    },
    /// llama.cpp cannot determine the needed memory.
    #[error("llama.cpp does not tell what memory the model needs")]
    UnknownMemory,
    /// A device has less memory than is needed.
    #[error(
        "the worker needs {needed} of {device}'s memory and {available} are free there: {parts}; --n-gpu-layers auto keeps there what fits"
    )]
    DeviceMemory {
        /// Name of the device.
        device: String,
        /// Memory that is needed.
        needed: Bytes,
        /// Memory that is free.
        available: Bytes,
        /// Parts of the needed memory, each with its flags.
        parts: String,
    },
    /// The folder for stored state cannot be used.
    #[error("cannot store state on disk")]
    Store(#[source] StoreError),
    /// The engine thread could not be started or ended while it loaded.
    #[error("the engine thread failed to start: {reason}")]
    Thread {
        /// Reason.
        reason: String,
    },
}
