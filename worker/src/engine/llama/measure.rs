//! Memory that a model and its context would take, as llama.cpp reports it without allocating it.
//!
//! llama.cpp can load only a model's metadata and plan contexts for it, like its own `--fit`. The settings of the
//! context are those of the real one. Not here: the use of these values (`footprint`).

use std::ffi::CString;
use std::ptr::NonNull;

use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_sys_2 as sys;
use warmpath_llama_chat::{ContextMemory, DeviceMemory, context_memory, device_memory};

use super::params::ModelParams;
use super::{context_params, heads};
use crate::engine::config::EngineConfig;

/// Maximum length of a metadata value, including the final NUL. Source: architectures and types have some twenty bytes.
const META_BYTES_MAX: usize = 128;

/// Memory of a context. Units: bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextBytes {
    /// Cells of all slots together.
    pub(crate) n_cells: u64,
    /// KV cache and recurrent state.
    pub(crate) context: u64,
    /// Buffers of the computation.
    pub(crate) compute: u64,
}

/// Memory that llama.cpp reports for a model and configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportedMemory {
    /// Cells that the configuration wants.
    pub(crate) wanted_cells: u64,
    /// Weights that are mapped from the file.
    pub(crate) mapped: u64,
    /// Weights that are copied, and adapters.
    pub(crate) copied: u64,
    /// Memory on each device that is not the CPU, for all wanted cells.
    pub(crate) devices: Vec<DeviceMemory>,
    /// Memory for at most the largest measured number of cells.
    pub(crate) large: ContextBytes,
    /// Memory for half as many cells.
    pub(crate) small: ContextBytes,
}

/// A model without weights in memory, freed when it is dropped.
pub(crate) struct Outline(NonNull<sys::llama_model>);

impl Drop for Outline {
    fn drop(&mut self) {
        // SAFETY: the pointer came from llama.cpp and is freed once, here; no context of it is left.
        unsafe { sys::llama_model_free(self.0.as_ptr()) };
    }
}

impl Outline {
    /// Returns the outline of a configuration's model; `None` if llama.cpp cannot read it.
    ///
    /// Cost: reads the model's metadata.
    pub(crate) fn load(config: &EngineConfig) -> Option<Self> {
        // llama.cpp must be initialised.
        let _ = warmpath_prompt::backend();
        let path = CString::new(config.model.as_os_str().as_encoded_bytes()).ok()?;
        let model_params = ModelParams::new(config).ok()?;
        let mut params = model_params.raw();
        params.no_alloc = true;
        params.load_mode = sys::LLAMA_LOAD_MODE_NONE;
        // SAFETY: path and parameters live through the call.
        NonNull::new(unsafe { sys::llama_model_load_from_file(path.as_ptr(), params) }).map(Self)
    }

    /// Returns the value of a key of the metadata in the model's file, if it is short.
    pub(crate) fn meta(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let mut value = [0_u8; META_BYTES_MAX];
        // SAFETY: the model is alive; key and buffer live through the call, which writes at most the given number of
        // bytes.
        let n_bytes = unsafe {
            sys::llama_model_meta_val_str(self.0.as_ptr(), key.as_ptr(), value.as_mut_ptr().cast(), value.len())
        };
        let value = value.get(..usize::try_from(n_bytes).ok()?)?;
        std::str::from_utf8(value).ok().map(str::to_owned)
    }

    /// Returns the memory of a context; `None` if llama.cpp cannot determine it.
    pub(crate) fn context(&self, params: &LlamaContextParams) -> Option<(ContextMemory, Vec<DeviceMemory>)> {
        let params = raw(params);
        // SAFETY: the model is alive, and stays so until the context is freed below.
        let context = NonNull::new(unsafe { sys::llama_init_from_model(self.0.as_ptr(), params) })?;
        // SAFETY: the context is alive and this thread's.
        let memory = unsafe { (context_memory(context.as_ptr()), device_memory(context.as_ptr())) };
        // SAFETY: it came from llama.cpp and is freed once.
        unsafe { sys::llama_free(context.as_ptr()) };
        Some(memory)
    }

    /// Returns the memory of a context for generating, with at most `n_cells` cells in total.
    fn generating(&self, config: &EngineConfig, n_cells: u64) -> Option<(ContextMemory, Vec<DeviceMemory>)> {
        self.context(&context_params(config, u32::try_from(n_cells).ok()?))
    }
}

/// Returns a context's settings as llama.cpp's struct: llama-cpp-2 has only accessors for single fields.
pub(super) fn raw(params: &LlamaContextParams) -> sys::llama_context_params {
    // SAFETY: no arguments.
    let mut raw = unsafe { sys::llama_context_default_params() };
    raw.n_ctx = params.n_ctx().map_or(0, std::num::NonZeroU32::get);
    raw.n_seq_max = params.n_seq_max();
    raw.n_batch = params.n_batch();
    raw.n_ubatch = params.n_ubatch();
    raw.n_rs_seq = params.n_rs_seq();
    raw.ctx_type = params.context_type().into();
    raw.n_threads = params.n_threads();
    raw.n_threads_batch = params.n_threads_batch();
    raw.type_k = params.type_k().into();
    raw.type_v = params.type_v().into();
    raw.flash_attn_type = params.flash_attention_policy();
    raw.kv_unified = params.kv_unified();
    raw.swa_full = params.swa_full();
    raw.embeddings = params.embeddings();
    raw.pooling_type = params.pooling_type().into();
    raw.offload_kqv = params.offload_kqv();
    raw.op_offload = params.op_offload();
    raw.no_perf = params.no_perf();
    raw
}

/// Returns the memory of a configuration; `None` if llama.cpp cannot determine it.
///
/// Cost: that of reading the model's metadata twice.
pub(in crate::engine) fn ask(config: &EngineConfig, asked_cells_max: u64) -> Option<ReportedMemory> {
    let model = Outline::load(config)?;
    let wanted_cells = wanted_cells(&model, config);
    let large_cells = wanted_cells.min(asked_cells_max);
    let (large, large_devices) = model.generating(config, large_cells)?;
    let small_cells = (large_cells / 2).max(1);
    let (small, small_devices) = model.generating(config, small_cells)?;
    let context_bytes =
        |n_cells, memory: &ContextMemory| ContextBytes { n_cells, context: memory.context, compute: memory.compute };
    let adapters = config.adapters.iter().filter_map(|adapter| std::fs::metadata(&adapter.path).ok());
    let bytes_copied = adapters.fold(large.weights_repacked, |sum, file| sum.saturating_add(file.len()));
    let (mapped, bytes_copied) = match config.placement.load_mode.gives_back() {
        true => (large.weights_as_in_file, bytes_copied),
        false => (0, bytes_copied.saturating_add(large.weights_as_in_file)),
    };
    let n_between = large_cells.saturating_sub(small_cells).max(1);
    let n_more = wanted_cells.saturating_sub(large_cells);
    let devices = large_devices.into_iter().map(|large| {
        let small = small_devices.iter().find(|small| small.name == large.name);
        let (context, compute) = small.map_or((0, 0), |small| (small.context, small.compute));
        let grown = |large: u64, small: u64| {
            let cell = large.saturating_sub(small).div_ceil(n_between);
            large.saturating_add(n_more.saturating_mul(cell))
        };
        DeviceMemory { context: grown(large.context, context), compute: grown(large.compute, compute), ..large }
    });
    Some(ReportedMemory {
        wanted_cells,
        mapped,
        copied: bytes_copied,
        devices: devices.collect(),
        large: context_bytes(large_cells, &large),
        small: context_bytes(small_cells, &small),
    })
}

/// Returns the memory of the context of a configuration's draft heads, for slots of `slot_tokens`; `None` without
/// heads.
///
/// Cost: that of reading the model's metadata.
pub(in crate::engine) fn heads(config: &EngineConfig, slot_tokens: u32) -> Option<(ContextMemory, Vec<DeviceMemory>)> {
    if !heads::are_wanted(config) {
        return None;
    }
    let model = Outline::load(config)?;
    heads::has_heads(config, &|key| model.meta(key)).then(|| model.context(&heads::params(config, slot_tokens)))?
}

fn wanted_cells(model: &Outline, config: &EngineConfig) -> u64 {
    let file = |key: &str| model.meta(key);
    config.cells_wanted(config.rope.extended(&config.metadata(&file))).into()
}

/// Returns the settings of a configuration's context; `None` if llama.cpp cannot read the model.
///
/// Cost: that of reading the model's metadata.
pub(in crate::engine) fn wanted_context(config: &EngineConfig) -> Option<LlamaContextParams> {
    Some(context_params(config, u32::try_from(wanted_cells(&Outline::load(config)?, config)).ok()?))
}
