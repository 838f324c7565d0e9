//! llama.cpp as the engine uses it: load, context, KV operations, one batch at a time.
//!
//! Not here: the tokens to decode (`warmpath_worker_core::batches::batch_plan`), sampling (`sampler`).

pub(crate) mod adapters;
pub(crate) mod devices;
mod embeddings;
mod finite;
pub(crate) mod heads;
mod layout;
pub(crate) mod measure;
pub(crate) mod offload;
mod params;
mod probe;
mod rollback;
mod shift;
mod staging;
mod state;
mod threads;
mod window;

pub(super) use embeddings::raw_context;
pub(super) use layout::RopeFactors;
pub(crate) use params::with_rope;
pub(super) use shift::obstacle as shift_obstacle;
pub(super) use state::StateError;

use std::ffi::CString;
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::Path;

use llama_cpp_2::DecodeError;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_sys_2 as sys;
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::lora::{AdapterInfo, Applied};
use warmpath_common::model::{Fingerprint, MemoryKind};
use warmpath_worker_core::batches::compute_threads::ThreadWaits;

use super::api::facts::EngineFacts;
use super::config::{CacheType, EngineConfig, SLOTS_MAX, StartError};
use super::media::RunAttention;
use adapters::Adapters;
use embeddings::EmbeddingBatch;
use params::ModelParams;
use rollback::Rollback;
use staging::StagingBuffer;
pub(crate) use threads::StepThreads;
use window::Window;

/// Callback that receives the loaded share of a model and returns whether to continue.
pub(crate) type Progress = Box<dyn FnMut(f32) -> bool + Send>;

/// Loads the model.
///
/// Errors: `Model` if the file is missing or llama.cpp refuses it, `Unsupported` if it cannot generate.
pub(crate) fn load(config: &EngineConfig, progress: Progress) -> Result<LlamaModel, StartError> {
    let path = &config.model;
    let fail = |reason: String| StartError::Model { path: path.clone(), reason };
    std::fs::File::open(path).map_err(|error| fail(error.to_string()))?;
    let params = ModelParams::new(config)?;
    let c_path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| fail(error.to_string()))?;
    let model = params.load(&c_path, progress);
    let model = model.ok_or_else(|| fail("llama.cpp refuses it; its log says why".to_owned()))?;
    let architecture = model.meta_val_str("general.architecture").unwrap_or_default();
    if architecture.starts_with("t5") {
        let reason = format!("the architecture {architecture} has an encoder, and only decoders are served");
        return Err(StartError::Unsupported { path: path.clone(), reason });
    }
    Ok(model)
}

/// Additional cells of a shared buffer, for importing a chunk while every slot is full.
///
/// Source: the default length of a chunk.
const SPARE_CELLS: u32 = 256;

/// Creates the context of `model`.
fn context<'m>(model: &'m LlamaModel, config: &EngineConfig) -> Result<LlamaContext<'m>, StartError> {
    let n_ctx = config.cells_wanted(n_ctx_train(model, config));
    model.new_context(warmpath_prompt::backend(), context_params(config, n_ctx)).map_err(|error| StartError::Context {
        n_slots: config.n_slots,
        context_tokens_total: n_ctx,
        reason: error.to_string(),
    })
}

/// Returns the settings of a context of `n_cells` cells for slots, with the spare sequence and its cells beyond them.
fn context_params(config: &EngineConfig, n_cells: u32) -> LlamaContextParams {
    let (spare_sequences, spare_cells) = match SpareSequence::of(config) {
        SpareSequence::One => (1, SPARE_CELLS),
        SpareSequence::None => (0, 0),
    };
    let flash_attn = match config.uses_flash_attn() {
        true => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        false => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
    };
    let params = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(n_cells.saturating_add(spare_cells)))
        .with_n_seq_max(u32::from(config.n_slots) + spare_sequences)
        .with_n_batch(config.batch_tokens)
        .with_n_ubatch(config.ubatch_tokens)
        .with_n_rs_seq(rollback::tokens_wanted(config))
        .with_n_threads(config.n_threads().into())
        .with_n_threads_batch(config.n_threads_batch().into())
        .with_type_k(kv_type(config.cache_type_k))
        .with_type_v(kv_type(config.cache_type_v))
        .with_flash_attention_policy(flash_attn)
        .with_kv_unified(config.uses_unified_kv())
        // All cells of a sliding window stay in the buffer, so that a sequence can be cut back to any token.
        .with_swa_full(true)
        .with_offload_kqv(config.placement.offloads_kv())
        .with_op_offload(config.placement.offloads_products())
        .with_no_perf(true);
    with_rope(params, &config.rope)
}

/// Properties of a model besides those that llama.cpp reports.
#[derive(Debug, Clone)]
pub(crate) struct Probed {
    /// Kind of memory, which decides how far a slot can be rewound.
    pub(super) memory: MemoryKind,
    /// Whether the model reads images or audio.
    pub(super) reads_media: bool,
    /// Fingerprint of the model file.
    pub(super) model_fingerprint: Fingerprint,
    /// Whether the model's rotation depends on the size of the context.
    pub(super) rope_factors: RopeFactors,
    /// Loaded adapters.
    pub(super) adapters: Vec<AdapterInfo>,
}

/// Whether a token's logits are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logits {
    /// The logits are computed, because the next token will be chosen.
    Wanted,
    /// The logits are not computed.
    Unwanted,
}

/// Whether there is a spare sequence without a slot, for exporting ranges of a shared buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpareSequence {
    One,
    None,
}

impl SpareSequence {
    fn of(config: &EngineConfig) -> Self {
        if config.uses_unified_kv() && config.n_slots < SLOTS_MAX { Self::One } else { Self::None }
    }
}

/// Runner of batches on one context; sequence ids are slot ids.
pub(crate) struct Llama<'m> {
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
    /// Embeddings that are computed instead of the batch; empty for a batch of tokens.
    embeddings: EmbeddingBatch,
    adapters: Adapters,
    n_slots: u16,
    kv_unified: bool,
    spare_sequence: SpareSequence,
    /// Window of the layers with local attention.
    window: Window,
    /// Whether a part of the state is recurrent and cannot be cut.
    has_recurrent: bool,
    /// Tokens by which recurrent state can be rolled back.
    rollback: Rollback,
    /// Number of each slot's first tokens that may be in cells shared with another slot; also for the spare sequence.
    n_shared: Vec<u32>,
    /// Threads of the steps; `None` if they are always the configured ones.
    threads: Option<StepThreads>,
    /// Buffer of exports, and of states to import.
    staging: StagingBuffer,
    /// Whether a copy or shift could not be computed since [`Self::take_failed_move`].
    has_failed_move: bool,
}

impl<'m> Llama<'m> {
    /// Creates the context of `model`.
    ///
    /// Errors: `Context` if llama.cpp refuses, for example for lack of memory.
    pub(super) fn open(model: &'m LlamaModel, config: &EngineConfig) -> Result<Self, StartError> {
        let llama = Self::with_context(context(model, config)?, config);
        let has_recurrent = model.is_recurrent() || model.is_hybrid() || llama.rollback.is_possible();
        Ok(Self { window: Window::suggested(model, config), has_recurrent, ..llama })
    }

    /// Returns the runner of a context without a window and recurrent state.
    fn with_context(context: LlamaContext<'m>, config: &EngineConfig) -> Self {
        let batch = LlamaBatch::new(context.n_batch() as usize, 1);
        let rollback = Rollback::of(&context);
        Self {
            context,
            batch,
            embeddings: EmbeddingBatch::default(),
            adapters: Adapters::default(),
            n_slots: config.n_slots,
            kv_unified: config.uses_unified_kv(),
            spare_sequence: SpareSequence::of(config),
            window: Window::None,
            has_recurrent: false,
            rollback,
            n_shared: vec![0; usize::from(config.n_slots) + 1],
            threads: None,
            staging: StagingBuffer::new(devices::host_memory(&config.placement)),
            has_failed_move: false,
        }
    }

    /// Returns the runner with the adapters that its batches may use.
    pub(super) fn with_adapters(self, adapters: Adapters) -> Self {
        Self { adapters, ..self }
    }

    /// Returns the runner with fewer threads than configured while other programs take the processors.
    pub(super) fn with_fewer_threads_where_busy(self, config: &EngineConfig) -> Self {
        Self { threads: Some(StepThreads::new(config)), ..self }
    }

    /// Returns 1 if all slots share one buffer, else the number of buffers.
    pub(super) fn n_streams(&self) -> u32 {
        if self.kv_unified { 1 } else { u32::from(self.n_slots) }
    }

    /// Returns the maximum number of tokens of a batch and of a micro-batch.
    pub(super) fn batch_limits(&self) -> (u32, u32) {
        (self.context.n_batch(), self.context.n_ubatch())
    }

    /// Cuts a slot's sequence back to its first `n_keep` tokens and returns whether they are all there.
    ///
    /// After `false` the state of the sequence is undefined; [`Self::clear`] it.
    pub(super) fn rewind(&mut self, slot: SlotId, n_keep: u32) -> bool {
        let is_cut = self.remove_after(slot, n_keep);
        let n_shared = &mut self.n_shared[usize::from(slot.0)];
        *n_shared = n_keep.min(*n_shared);
        is_cut && self.resumes(slot, n_keep)
    }

    /// Returns whether a slot that was cut back to `n_keep` tokens has all cells that the next token attends to.
    ///
    /// A sliding window's oldest cells may have been reused, or were not imported.
    fn resumes(&self, slot: SlotId, n_keep: u32) -> bool {
        let first = self.context.kv_cache_seq_pos_min(i32::from(slot.0));
        self.has_recurrent || u32::try_from(first).is_ok_and(|first| first <= self.window.first_needed(n_keep))
    }

    /// Returns the smallest number of tokens to which a slot can be cut back: more than 0 if a sliding window's oldest
    /// cells are gone.
    pub(super) fn rewinds_to(&self, slot: SlotId) -> u32 {
        let first = u32::try_from(self.context.kv_cache_seq_pos_min(i32::from(slot.0))).unwrap_or(0);
        if self.has_recurrent { 0 } else { self.window.kept_min(first) }
    }

    /// Removes a slot's sequence; this cannot fail.
    pub(super) fn clear(&mut self, slot: SlotId) {
        let result = self.context.clear_kv_cache_seq(Some(u32::from(slot.0)), None, None);
        debug_assert_eq!(result, Ok(true), "a whole sequence can always be removed");
        self.n_shared[usize::from(slot.0)] = 0;
    }

    /// Removes all sequences with the data of every cell.
    ///
    /// Removing a sequence leaves its keys and values in the cells. Attention also reads masked cells, and a mask does
    /// not change NaN. A new recurrent state is the one in its cell times 0, which is NaN if that one was.
    /// Source: `llama_kv_cache::get_n_kv`, which rounds the number of cells up to a multiple of 256, and `build_rs`.
    pub(super) fn clear_all(&mut self) {
        self.context.clear_kv_cache();
        self.n_shared.fill(0);
    }

    /// Returns the last position of a slot's sequence, for checks; `None` if it has no state.
    pub(super) fn last_position(&self, slot: SlotId) -> Option<u32> {
        u32::try_from(self.context.kv_cache_seq_pos_max(i32::from(slot.0))).ok()
    }

    /// Puts a token into the batch and returns its index.
    pub(super) fn push(&mut self, slot: SlotId, position: u32, token: Token, logits: Logits) -> i32 {
        let idx = self.batch.n_tokens();
        let token = LlamaToken(i32::try_from(token).expect("tokens were checked against the vocabulary"));
        let position = i32::try_from(position).expect("a position is below the context's size, an i32");
        let result = self.batch.add(token, position, &[i32::from(slot.0)], logits == Logits::Wanted);
        result.expect("the batch plan respects the batch's size");
        self.rollback.push(slot);
        idx
    }

    /// Returns the number of tokens in the batch.
    pub(super) fn n_pushed(&self) -> u32 {
        self.batch.n_tokens().unsigned_abs() + self.embeddings.n_tokens()
    }

    /// Replaces the batch by embeddings of a slot's next tokens; returns the index of the last one.
    ///
    /// Shape: `floats` `[positions x width]`. Only the last token's logits may be wanted.
    pub(super) fn push_embeddings(
        &mut self,
        slot: SlotId,
        positions: Range<u32>,
        floats: &[f32],
        attention: RunAttention,
        logits: Logits,
    ) -> i32 {
        debug_assert_eq!(self.batch.n_tokens(), 0, "a batch has either tokens or embeddings");
        let place = |n: u32| i32::try_from(n).expect("a position is below the context's size, an i32");
        let positions = place(positions.start)..place(positions.end);
        self.embeddings.fill(i32::from(slot.0), positions, floats, attention, logits)
    }

    /// Empties the batch.
    pub(super) fn reset_batch(&mut self) {
        self.batch.clear();
        self.rollback.reset_batch();
        self.embeddings.clear();
    }

    /// Makes all further batches use `adapter`.
    ///
    /// Errors: a description of the failure.
    pub(super) fn apply(&mut self, adapter: Option<Applied>) -> Result<(), String> {
        self.adapters.apply(&mut self.context, adapter)
    }

    /// Computes the batch; it stays in place until [`Self::reset_batch`].
    pub(super) fn decode(&mut self) -> Result<(), DecodeError> {
        let n_tokens = self.n_pushed();
        let Self { context, batch, embeddings, threads, .. } = self;
        let mut decode = |context: &mut LlamaContext<'_>| match embeddings.is_empty() {
            true => context.decode(batch),
            false => embeddings.decode(context),
        };
        let result = match threads {
            Some(threads) => threads.decode(context, n_tokens, decode),
            None => decode(context),
        };
        self.rollback.computed(&result);
        result
    }

    /// Sets the threads of further steps: those with one token, and others.
    #[cfg(test)]
    pub(super) fn set_threads(&mut self, n_threads: u16, n_threads_batch: u16) {
        threads::set_threads(&mut self.context, n_threads, n_threads_batch);
    }

    /// Forgets which cells slots share.
    #[cfg(test)]
    pub(in crate::engine) fn forget_shared_cells(&mut self) {
        self.n_shared.fill(0);
    }

    /// Returns how long threads waited for a processor in the last window of steps that has ended, once.
    pub(super) fn take_waits(&mut self) -> Option<ThreadWaits> {
        self.threads.as_mut()?.take_waits()
    }

    /// Returns the logits of the batch's token at `idx`, which must have requested them.
    pub(super) fn logits(&self, idx: i32) -> &[f32] {
        self.context.get_logits_ith(idx)
    }

    /// Returns whether the logits of the batch's token at `idx` come from finite state.
    pub(super) fn is_state_finite(&self, idx: i32) -> bool {
        finite::is_state_finite(self.logits(idx))
    }

    /// Returns the number of cells that one sequence can have, by which llama.cpp chooses a model's rope factors.
    fn sequence_cells(&self) -> u32 {
        let n_streams = if self.kv_unified { 1 } else { u32::from(self.n_slots) };
        self.context.n_ctx() / n_streams
    }

    /// Returns the longest sequence of a slot.
    ///
    /// Even in a unified buffer each slot is limited to its share of the cells, so that they never run out.
    pub(super) fn slot_tokens(&self, model: &LlamaModel, config: &EngineConfig) -> u32 {
        let spare_cells = if self.spare_sequence == SpareSequence::One { SPARE_CELLS } else { 0 };
        let per_slot = (self.context.n_ctx() - spare_cells) / u32::from(config.n_slots);
        let n_ctx_train = n_ctx_train(model, config);
        let slot_tokens = per_slot.min(config.slot_limit.unwrap_or(u32::MAX));
        if n_ctx_train == 0 { slot_tokens } else { slot_tokens.min(n_ctx_train) }
    }

    /// Returns the properties of the loaded model and context.
    pub(super) fn facts(&self, model: &LlamaModel, config: &EngineConfig, probe: Probed) -> EngineFacts {
        let rejected_max = if probe.memory.rewinds_anywhere() { u32::MAX } else { self.rolls_back_max() };
        EngineFacts {
            shift_obstacle: shift_obstacle(model, config, &probe),
            context_tokens: self.slot_tokens(model, config),
            is_limited: config.slot_limit == Some(self.slot_tokens(model, config)),
            n_slots: config.n_slots,
            memory: probe.memory,
            n_vocab: model.n_vocab().unsigned_abs(),
            n_ctx_train: n_ctx_train(model, config),
            model_fingerprint: probe.model_fingerprint,
            kv_fingerprint: layout::fingerprint(model, config, probe.rope_factors.chosen(self.sequence_cells())),
            flash_attn: config.uses_flash_attn(),
            kv_unified: config.uses_unified_kv(),
            block_size_tokens: config.block_size_tokens,
            ubatch_tokens: self.context.n_ubatch(),
            description: describe(model, &config.model),
            n_params: model.n_params(),
            model_bytes: model.size(),
            adapters: probe.adapters,
            exchange: None,
            drafted_max: config.speculation.map_or(0, |_| rejected_max),
        }
    }
}

/// Returns the context that the model supports; 0 if its file does not have it.
///
/// llama.cpp's own value is not used, because it changes with the first context if RoPE is scaled.
fn n_ctx_train(model: &LlamaModel, config: &EngineConfig) -> u32 {
    let file = |key: &str| model.meta_val_str(key).ok();
    config.rope.extended(&config.metadata(&file))
}

/// Returns a description of the model: architecture, size label and name, if the file has them.
pub(crate) fn describe(model: &LlamaModel, path: &Path) -> String {
    let meta = |key| model.meta_val_str(key).ok().filter(|value: &String| !value.is_empty());
    let file = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = meta("general.name").unwrap_or_else(file);
    let parts = [meta("general.architecture"), meta("general.size_label"), Some(name)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn kv_type(kind: CacheType) -> KvCacheType {
    match kind.without_auto() {
        CacheType::F32 => KvCacheType::F32,
        CacheType::Auto | CacheType::F16 => KvCacheType::F16,
        CacheType::Bf16 => KvCacheType::BF16,
        CacheType::Q8_0 => KvCacheType::Q8_0,
        CacheType::Q5_1 => KvCacheType::Q5_1,
        CacheType::Q5_0 => KvCacheType::Q5_0,
        CacheType::Iq4Nl => KvCacheType::IQ4_NL,
        CacheType::Q4_1 => KvCacheType::Q4_1,
        CacheType::Q4_0 => KvCacheType::Q4_0,
    }
}
