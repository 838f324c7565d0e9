//! How the engine is set up, what it turned out to be, and why it could not start.
//!
//! Not here: command-line flags (`crate::config`), the loading itself (`llama`).

use std::path::PathBuf;
use std::time::Duration;

use warmpath_common::block_hash::block_hash;
use warmpath_common::lora::AdapterInfo;
use warmpath_common::model::{Fingerprint, MemoryKind};
use warmpath_worker_core::prefix_tree::BlockHasher;

use super::SelfTestReport;
use super::adapters::AdapterFile;
use super::footprint::{Bytes, Fit};
use super::metadata::MetadataOverride;
use super::placement::Placement;
use super::rope::RopeSettings;
use crate::store::StoreError;

/// Is the largest context that a slot gets when the size is not given.
///
/// Units: tokens. Source: a size that most chats fit into and that most machines can hold for a few slots.
pub const SLOT_CONTEXT_TOKENS_DEFAULT_MAX: u32 = 8192;

/// Cells by which llama.cpp rounds up what a slot has, and so the fewest. Units: tokens.
///
/// Source: `llama-context.cpp`, `n_ctx_seq`.
pub const SLOT_CELLS_STEP: u32 = 256;

/// Is the most slots that one context of llama.cpp can have (`LLAMA_MAX_SEQ`).
pub const SLOTS_MAX: u16 = 256;

/// Says how to load the model and how large everything is.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Names the GGUF file.
    pub model: PathBuf,
    /// Is the number of slots; 1 to [`SLOTS_MAX`].
    pub n_slots: u16,
    /// Is the cells of all slots together; 0 means `n_slots` times the trained context, at most `slot_tokens_max` each.
    pub context_tokens_total: u32,
    /// Most cells of a slot where the cells of all are not given. Units: tokens.
    pub slot_tokens_max: u32,
    /// How cells that are not given are fitted to the memory; absent where they are not.
    pub fit: Option<Fit>,
    /// Is the threads that compute a step with one token per sequence; 0 means one per processor.
    pub threads: u16,
    /// Is the threads that compute a step with prompts in it; 0 means as `threads`.
    pub threads_batch: u16,
    /// Where the model is computed, and how its file is read.
    pub placement: Placement,
    /// Rotation of keys and queries, as far as it is not as the model's file says.
    pub rope: RopeSettings,
    /// Values that take the place of those in the model's file.
    pub metadata_overrides: Vec<MetadataOverride>,
    /// Most tokens that are planned together while nothing decodes.
    pub batch_tokens: u32,
    /// Most tokens of one step, which is a micro-batch; above `n_slots`.
    pub ubatch_tokens: u32,
    /// Is the type of the keys in the KV cache.
    pub cache_type_k: CacheType,
    /// Is the type of the values in the KV cache; a quantized one needs flash attention.
    pub cache_type_v: CacheType,
    /// Says whether to use flash attention.
    pub flash_attn: Switch,
    /// Says whether the slots share one KV buffer.
    pub kv_unified: Switch,
    /// Says how what is left open of these two is settled.
    pub self_test: SelfTest,
    /// Is the most requests that wait for a slot.
    pub queue_max: usize,
    /// Is the longest that an idle engine waits for requests on their way when the first of several comes.
    pub gather_max: Duration,
    /// Is the most logits of prompts' tokens that one step computes, so that the sums over them stall no stream.
    pub listed_logits_max: usize,
    /// Is the tokens of a block in summaries.
    pub block_size_tokens: u32,
    /// Says whether KV state is kept for later requests at all.
    pub prefix_cache: PrefixCache,
    /// Says what is stored of it beyond the slots.
    pub store: StoreConfig,
    /// Is the most tokens that idle slots keep in the KV buffer; absent means half of its cells where slots share one.
    pub prefix_tokens_max: Option<u64>,
    /// Is the distance of partial-state checkpoints in a prompt, where the model needs them; 0 for none but the usual places.
    pub checkpoint_stride_tokens: u32,
    /// Says when state is given other positions.
    pub shifts: ShiftConfig,
    /// Lists the LoRA adapters to load.
    pub adapters: Vec<AdapterFile>,
    /// Says by which costs plans are made.
    pub costs: CostSource,
    /// Hashes blocks: [`warmpath_common::block_hash::block_hash`], unless a test wants collisions.
    pub block_hasher: BlockHasher,
}

/// Says what KV state is stored beyond the slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// Is the most bytes in memory; 0 for no store at all.
    pub ram_bytes: u64,
    /// Is the tier behind it, if there is one.
    pub disk: Option<DiskConfig>,
    /// Is how long stored state stays after its last use.
    pub min_hold: Duration,
    /// Is the number of prefixes that are pinned because they are used most.
    pub pin_top: usize,
}

/// Says where the costs come from by which plans are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostSource {
    /// They are measured all the time.
    Measured,
    /// They stay what is assumed before anything was measured, for tests that need the same plans on every machine.
    Assumed,
}

/// Says when state is given other positions, which makes it approximate: docs/decisions/0012-shifts.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShiftConfig {
    /// Is the shortest run of tokens that is moved to where a prompt has it, where the request does not say; 0 for none.
    pub cache_reuse_tokens: u32,
    /// Says what happens when an answer fills its context.
    pub at_context_end: AtContextEnd,
}

/// Says what happens when an answer fills its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtContextEnd {
    /// It ends.
    #[default]
    Stop,
    /// Its oldest tokens are dropped and it goes on.
    Shift,
}

/// Says why a model's state cannot be given other positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShiftObstacle {
    /// The model does not attend to everything alike.
    #[error("only full attention can be shifted, and this model's memory is {}", memory_words(*memory))]
    Memory {
        /// Is the model's memory.
        memory: MemoryKind,
    },
    /// The model's positions are not ones that llama.cpp can change afterwards.
    #[error("llama.cpp cannot shift the positions of this model")]
    Positions,
    /// Shifting would round every slot's keys again.
    #[error("keys can be shifted only in the cache types f32 and f16")]
    Keys,
    /// Shifting would scale every slot's keys again.
    #[error("keys whose rotation is scaled, as with YaRN, cannot be shifted")]
    Scaling,
}

fn memory_words(memory: MemoryKind) -> &'static str {
    match memory {
        MemoryKind::Full => "full attention",
        MemoryKind::Sliding => "a sliding window",
        MemoryKind::Recurrent => "recurrent",
        MemoryKind::Hybrid => "hybrid",
    }
}

/// Is where and how much state is stored on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Names the folder.
    pub dir: PathBuf,
    /// Is the most bytes.
    pub bytes: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { ram_bytes: 256 << 20, disk: None, min_hold: Duration::from_secs(10), pin_top: 0 }
    }
}

/// Is about what preparing a few prompts takes on a machine that has nothing else to do.
///
/// Source: docs/decisions/0036-batch-plan.md.
const GATHER_MAX_DEFAULT: Duration = Duration::from_millis(5);

/// Is how many logits of prompts' tokens one step computes unless the configuration says otherwise.
///
/// Source: own choice: 16 MiB, some tens of milliseconds to add up; 27 tokens of a vocabulary of 152,000.
const LISTED_LOGITS_MAX_DEFAULT: usize = 4 << 20;

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            model: PathBuf::new(),
            n_slots: 4,
            context_tokens_total: 0,
            slot_tokens_max: SLOT_CONTEXT_TOKENS_DEFAULT_MAX,
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
            checkpoint_stride_tokens: 1024,
            shifts: ShiftConfig::default(),
            adapters: Vec::new(),
            costs: CostSource::Measured,
            block_hasher: block_hash,
        }
    }
}

impl EngineConfig {
    /// Returns whether flash attention is used, unless measured: `Auto` is on where there is a GPU or the values are quantized.
    ///
    /// Source: docs/decisions/0000-measured-before.md: on a CPU a short suffix behind a cached prefix is several times slower with it.
    pub fn flash_attn_settled(&self) -> bool {
        self.flash_attn.choice().unwrap_or(self.placement.is_offloaded() || self.cache_type_v.is_quantized())
    }

    /// Returns whether the KV buffer is unified, unless measured: `Auto` is on where there is a GPU.
    ///
    /// Source: docs/decisions/0000-measured-before.md: on a CPU every step pays for the idle sequences in a unified buffer.
    pub fn kv_unified_settled(&self) -> bool {
        self.kv_unified.choice().unwrap_or(self.placement.is_offloaded())
    }

    /// Returns the cells of all slots together, for a model that was trained on a context of so many tokens.
    pub fn cells_wanted(&self, n_ctx_train: u32) -> u32 {
        match self.context_tokens_total {
            0 => n_ctx_train.clamp(1, self.slot_tokens_max).saturating_mul(u32::from(self.n_slots)),
            given => given,
        }
    }

    /// Names what the stored state of a model depends on, as far as it is known before the model is loaded: equal names mean equal
    /// stored state.
    pub fn state_settings(&self, model: Fingerprint) -> Fingerprint {
        let buffer = (self.flash_attn, self.kv_unified, &self.placement, self.context_tokens_total, self.n_slots);
        let kv = (self.cache_type_k, self.cache_type_v, self.block_size_tokens, &self.rope, &self.metadata_overrides);
        let settings = format!("{model} {buffer:?} {kv:?} {}", env!("CARGO_PKG_VERSION"));
        Fingerprint(blake3::derive_key("warmpath 2026 state settings v1", settings.as_bytes()))
    }

    /// Checks what can be known before the model is loaded.
    ///
    /// Errors: [`StartError::Config`] for a size that is zero, too large or at odds with another.
    pub fn validate(&self) -> Result<(), StartError> {
        let refuse = |reason: &str| Err(StartError::Config { reason: reason.to_owned() });
        if self.n_slots == 0 || self.n_slots > SLOTS_MAX {
            return refuse(&format!("the number of slots must be 1 to {SLOTS_MAX}, not {}", self.n_slots));
        }
        if self.block_size_tokens == 0 {
            return refuse("the block size must be at least 1 token");
        }
        if self.ubatch_tokens <= u32::from(self.n_slots) {
            return refuse("the micro-batch must hold more tokens than there are slots");
        }
        if self.batch_tokens < self.ubatch_tokens {
            return refuse("the batch must hold at least one micro-batch");
        }
        if self.cache_type_v.is_quantized() && !self.flash_attn_settled() {
            return refuse("a quantized V cache needs flash attention, which is turned off");
        }
        Ok(())
    }
}

/// Says yes, no, or what measurements say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Switch {
    /// What is best for the machine.
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

/// Says how [`Switch::Auto`] is settled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SelfTest {
    /// By rule, without measuring.
    #[default]
    Skip,
    /// By measuring at start-up.
    Run {
        /// Names the folder that keeps the result for the next start, if it is to be kept.
        cache: Option<PathBuf>,
    },
}

/// Says whether KV state outlives its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefixCache {
    /// Slots keep what they computed.
    #[default]
    Enabled,
    /// Every request computes everything and leaves nothing behind.
    Disabled,
}

/// Is the number type of keys or values in the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are ggml's")]
pub enum CacheType {
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
    /// Returns whether the type stores blocks of quantized values.
    pub fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// Is what the loaded model and context turned out to be.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineFacts {
    /// Is the longest sequence, prompt and answer together, that one slot can run; a prompt must be shorter.
    pub context_tokens: u32,
    /// Is the number of slots.
    pub n_slots: u16,
    /// Says how far a slot can be rewound, as a probe at start-up found it.
    pub memory: MemoryKind,
    /// Is the size of the vocabulary.
    pub n_vocab: u32,
    /// Is the context that the model was trained on.
    pub n_ctx_train: u32,
    /// Names the model file.
    pub model_fingerprint: Fingerprint,
    /// Names the layout of the KV state.
    pub kv_fingerprint: Fingerprint,
    /// Says whether flash attention is used.
    pub flash_attn: bool,
    /// Says whether the slots share one KV buffer.
    pub kv_unified: bool,
    /// Is the tokens of a block in summaries.
    pub block_size_tokens: u32,
    /// Is the most tokens of one micro-batch, as llama.cpp settled it.
    pub ubatch_tokens: u32,
    /// Is the model in words: architecture, name and size label as far as the file says.
    pub description: String,
    /// Is the number of the model's parameters.
    pub n_params: u64,
    /// Is the size of the model's tensors.
    pub model_bytes: u64,
    /// Says why state cannot be given other positions; absent where it can.
    pub shift_obstacle: Option<ShiftObstacle>,
    /// Lists the LoRA adapters that are loaded.
    pub adapters: Vec<AdapterInfo>,
    /// Is what the self-test found at start-up, if there was one.
    pub self_test: Option<SelfTestReport>,
}

/// Is why the engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration contradicts itself or a limit.
    #[error("the engine's configuration is wrong: {reason}")]
    Config {
        /// Says what to change.
        reason: String,
    },
    /// The model file cannot be used.
    #[error("cannot load the model {}: {reason}", path.display())]
    Model {
        /// Names the file.
        path: PathBuf,
        /// Says why.
        reason: String,
    },
    /// The file holds a model that cannot answer.
    #[error("the model {} cannot be served: {reason}", path.display())]
    Unsupported {
        /// Names the file.
        path: PathBuf,
        /// Says why.
        reason: String,
    },
    /// An adapter cannot be used.
    #[error("cannot load the adapter {}: {reason}", path.display())]
    Adapter {
        /// Names the file.
        path: PathBuf,
        /// Says why.
        reason: String,
    },
    /// llama.cpp could not make the context, as when memory runs out.
    #[error("cannot make a context of {n_slots} slots and {context_tokens_total} tokens: {reason}")]
    Context {
        /// Is the number of slots asked for.
        n_slots: u16,
        /// Is the cells asked for.
        context_tokens_total: u32,
        /// Says why.
        reason: String,
    },
    /// The machine has less memory than is needed.
    #[error("the worker needs {needed} of memory and {available} are available: {parts}; {fits}")]
    Memory {
        /// Memory that is needed.
        needed: Bytes,
        /// Memory that there is.
        available: Bytes,
        /// The parts of what is needed, each with its flag.
        parts: String,
        /// The flag to change.
        fits: String,
    },
    /// A device has less memory than is needed.
    #[error(
        "the worker needs {needed} of {device}'s memory and {available} are free there: {parts}; --n-gpu-layers auto keeps there what fits"
    )]
    DeviceMemory {
        /// The device.
        device: String,
        /// Memory that is needed.
        needed: Bytes,
        /// Memory that is free.
        available: Bytes,
        /// The parts of what is needed, each with its flags.
        parts: String,
    },
    /// The folder for stored state cannot be used.
    #[error("cannot store state on disk")]
    Store(#[source] StoreError),
    /// The engine thread could not be started or ended while it loaded.
    #[error("the engine thread ended while it started: {reason}")]
    Thread {
        /// Says why.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(config: &EngineConfig, expected: Option<&str>) {
        let refusal = config.validate().err().map(|error| error.to_string());
        match expected {
            None => assert_eq!(refusal, None),
            Some(words) => assert!(refusal.as_deref().is_some_and(|text| text.contains(words)), "{refusal:?}"),
        }
    }

    #[test]
    fn refuses_sizes_that_contradict_each_other() {
        let base = EngineConfig::default();
        check(&base, None);
        check(&EngineConfig { n_slots: 0, ..base.clone() }, Some("slots"));
        check(&EngineConfig { n_slots: 257, ..base.clone() }, Some("slots"));
        check(&EngineConfig { block_size_tokens: 0, ..base.clone() }, Some("block size"));
        check(&EngineConfig { n_slots: 8, ubatch_tokens: 8, ..base.clone() }, Some("micro-batch"));
        check(&EngineConfig { batch_tokens: 256, ..base.clone() }, Some("batch"));
        let quantized = EngineConfig { cache_type_v: CacheType::Q8_0, ..base };
        check(&quantized, None);
        assert!(quantized.flash_attn_settled());
        check(&EngineConfig { flash_attn: Switch::Off, ..quantized }, Some("flash attention"));
    }
}
