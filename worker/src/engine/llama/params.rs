//! llama.cpp's parameters of models and contexts, from a configuration.
//!
//! llama.cpp's parameters have pointers to lists and texts, so these types own the data. Not here: the memory that they
//! need (`measure`), the existence of devices (`devices`).

use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, NonNull};

use llama_cpp_2::context::params::{LlamaContextParams, RopeScalingType};
use llama_cpp_2::model::LlamaModel;
use llama_cpp_sys_2 as sys;

use super::{Progress, devices, heads};
use crate::engine::config::metadata::{KEY_BYTES_MAX, MetadataOverride, MetadataValue, TEXT_BYTES_MAX};
use crate::engine::config::placement::{GpuLayers, LoadMode, SplitMode};
use crate::engine::config::rope::{RopeScaling, RopeSettings};
use crate::engine::config::{EngineConfig, StartError};

/// Parameters of a model, with the data that they point to.
pub(super) struct ModelParams {
    raw: sys::llama_model_params,
    /// Devices, with a null pointer at the end; the next two lists have an empty entry at the end.
    devices: Vec<sys::ggml_backend_dev_t>,
    overrides: Vec<sys::llama_model_tensor_buft_override>,
    metadata: Vec<sys::llama_model_kv_override>,
    /// Patterns that the overrides of tensors point to.
    _patterns: Vec<CString>,
    /// Shares, one for each device that llama.cpp can have.
    tensor_split: Vec<f32>,
}

impl ModelParams {
    /// Returns the parameters of a configuration with completed devices.
    ///
    /// Errors: `Config` for the name of a device or a buffer that does not exist.
    pub(super) fn new(config: &EngineConfig) -> Result<Self, StartError> {
        let placement = &config.placement;
        let refuse = |reason: String| StartError::Config { reason };
        let chosen_devices =
            placement.devices.as_ref().map(|names| devices::by_names(names)).transpose().map_err(refuse)?;
        let named_overrides = placement.overrides.iter().map(|one| {
            let pattern =
                CString::new(one.pattern.as_str()).map_err(|_| "--override-tensor: contains a NUL".to_owned())?;
            Ok((pattern, devices::buffer(&one.buffer)?))
        });
        let (patterns, buffers): (Vec<CString>, Vec<_>) =
            named_overrides.collect::<Result<Vec<_>, String>>().map_err(refuse)?.into_iter().unzip();
        let entry = |(pattern, buft): (*const _, _)| sys::llama_model_tensor_buft_override { pattern, buft };
        let overrides = patterns.iter().map(|pattern| pattern.as_ptr()).zip(buffers).map(entry);
        let n_devices_max = devices::n_max();
        let mut tensor_split = placement.tensor_split.clone();
        tensor_split.resize(n_devices_max.max(tensor_split.len()), 0.0);
        // SAFETY: no arguments.
        let raw = unsafe { sys::llama_model_default_params() };
        let mut params = Self {
            raw,
            devices: chosen_devices.unwrap_or_default().into_iter().chain([ptr::null_mut()]).collect(),
            overrides: overrides.chain([entry((ptr::null(), ptr::null_mut()))]).collect(),
            metadata: config.metadata_overrides.iter().map(raw_override).chain([NO_OVERRIDE]).collect(),
            _patterns: patterns,
            tensor_split,
        };
        params.set(config);
        Ok(params)
    }

    fn set(&mut self, config: &EngineConfig) {
        let placement = &config.placement;
        let raw = &mut self.raw;
        raw.n_gpu_layers = match placement.n_gpu_layers {
            GpuLayers::Auto | GpuLayers::All => -1,
            GpuLayers::Count(n_layers) => i32::try_from(n_layers).unwrap_or(i32::MAX),
        };
        raw.split_mode = match placement.split_mode {
            SplitMode::None => sys::LLAMA_SPLIT_MODE_NONE,
            SplitMode::Layer => sys::LLAMA_SPLIT_MODE_LAYER,
            SplitMode::Row => sys::LLAMA_SPLIT_MODE_ROW,
            SplitMode::Tensor => sys::LLAMA_SPLIT_MODE_TENSOR,
        };
        raw.load_mode = match placement.load_mode {
            LoadMode::Auto => sys::LLAMA_LOAD_MODE_AUTO,
            LoadMode::None => sys::LLAMA_LOAD_MODE_NONE,
            LoadMode::Mmap => sys::LLAMA_LOAD_MODE_MMAP,
            LoadMode::Mlock => sys::LLAMA_LOAD_MODE_MLOCK,
            LoadMode::MmapMlock => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
            LoadMode::DirectIo => sys::LLAMA_LOAD_MODE_DIRECT_IO,
        };
        // Without offloading, there may be no device with this index.
        raw.main_gpu = if placement.is_offloaded() { i32::try_from(placement.main_gpu).unwrap_or(0) } else { 0 };
        raw.check_tensors = placement.check_tensors;
        raw.use_extra_bufts = placement.repack;
        raw.no_host = placement.no_host;
        raw.load_mtp = heads::are_wanted(config);
        if placement.devices.is_some() {
            raw.devices = self.devices.as_mut_ptr();
        }
        if !placement.tensor_split.is_empty() && placement.is_offloaded() {
            raw.tensor_split = self.tensor_split.as_ptr();
        }
        if self.overrides.len() > 1 {
            raw.tensor_buft_overrides = self.overrides.as_ptr();
        }
        if self.metadata.len() > 1 {
            raw.kv_overrides = self.metadata.as_ptr();
        }
    }

    /// Returns llama.cpp's own struct, which is valid as long as these parameters.
    pub(super) fn raw(&self) -> sys::llama_model_params {
        self.raw
    }

    /// Loads a model; returns `None` if llama.cpp refuses it or `progress` stops it.
    pub(super) fn load(&self, path: &CStr, mut progress: Progress) -> Option<LlamaModel> {
        // llama.cpp must be initialised.
        let _ = warmpath_prompt::backend();
        let mut params = self.raw;
        params.progress_callback = Some(report);
        params.progress_callback_user_data = ptr::from_mut(&mut progress).cast();
        // SAFETY: path and parameters live through the call; llama.cpp keeps only a copy of the shares after it.
        let model = unsafe { sys::llama_model_load_from_file(path.as_ptr(), params) };
        NonNull::new(model).map(owned)
    }
}

/// Returns the model of a pointer, which is freed when the model is dropped.
fn owned(model: NonNull<sys::llama_model>) -> LlamaModel {
    const { assert!(size_of::<LlamaModel>() == size_of::<NonNull<sys::llama_model>>()) };
    // SAFETY: `LlamaModel` is transparent over such a pointer, and nothing else owns the model. The bindings, whose
    // version is fixed, can load a model only with parameters that lack half of llama.cpp's.
    unsafe { std::mem::transmute(model) }
}

/// Reports the loaded share to the [`Progress`] that `progress` points to.
unsafe extern "C" fn report(share: f32, progress: *mut c_void) -> bool {
    // SAFETY: the pointer comes from `load`, which waits until llama.cpp has finished.
    let progress = unsafe { &mut *progress.cast::<Progress>() };
    progress(share)
}

/// End of a list of overrides: an empty key.
const NO_OVERRIDE: sys::llama_model_kv_override = sys::llama_model_kv_override {
    tag: sys::LLAMA_KV_OVERRIDE_TYPE_INT,
    key: [0; 128],
    __bindgen_anon_1: sys::llama_model_kv_override__bindgen_ty_1 { val_i64: 0 },
};

fn raw_override(one: &MetadataOverride) -> sys::llama_model_kv_override {
    let value = |tag, value| (tag, value);
    let (tag, anonymous) = match &one.value {
        MetadataValue::Int(number) => {
            value(sys::LLAMA_KV_OVERRIDE_TYPE_INT, sys::llama_model_kv_override__bindgen_ty_1 { val_i64: *number })
        }
        MetadataValue::Float(number) => {
            value(sys::LLAMA_KV_OVERRIDE_TYPE_FLOAT, sys::llama_model_kv_override__bindgen_ty_1 { val_f64: *number })
        }
        MetadataValue::Bool(yes) => {
            value(sys::LLAMA_KV_OVERRIDE_TYPE_BOOL, sys::llama_model_kv_override__bindgen_ty_1 { val_bool: *yes })
        }
        MetadataValue::Str(text) => {
            let val_str = bytes(text, TEXT_BYTES_MAX);
            value(sys::LLAMA_KV_OVERRIDE_TYPE_STR, sys::llama_model_kv_override__bindgen_ty_1 { val_str })
        }
    };
    sys::llama_model_kv_override { tag, key: bytes(&one.key, KEY_BYTES_MAX), __bindgen_anon_1: anonymous }
}

/// Returns a text as a C field; texts that are too long are refused before.
fn bytes(text: &str, n_max: usize) -> [std::ffi::c_char; 128] {
    let mut field = [0; 128];
    for (place, byte) in field.iter_mut().zip(text.bytes().take(n_max)) {
        *place = std::ffi::c_char::from_ne_bytes([byte]);
    }
    field
}

/// Sets a configuration's rotation.
pub(crate) fn with_rope(params: LlamaContextParams, rope: &RopeSettings) -> LlamaContextParams {
    let scaling = match rope.scaling {
        None => RopeScalingType::Unspecified,
        Some(RopeScaling::None) => RopeScalingType::None,
        Some(RopeScaling::Linear) => RopeScalingType::Linear,
        Some(RopeScaling::Yarn) => RopeScalingType::Yarn,
    };
    // Zero or a negative value means llama.cpp's value from the file.
    params
        .with_rope_scaling_type(scaling)
        .with_rope_freq_base(rope.freq_base.unwrap_or(0.0))
        .with_rope_freq_scale(rope.freq_scale.unwrap_or(0.0))
        .with_yarn_orig_ctx(rope.yarn_orig_ctx.unwrap_or(0))
        .with_yarn_ext_factor(rope.yarn_ext_factor.unwrap_or(-1.0))
        .with_yarn_attn_factor(rope.yarn_attn_factor.unwrap_or(-1.0))
        .with_yarn_beta_slow(rope.yarn_beta_slow.unwrap_or(-1.0))
        .with_yarn_beta_fast(rope.yarn_beta_fast.unwrap_or(-1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_has_llama_cpps_memory_layout() {
        let of = |value| raw_override(&MetadataOverride { key: "a.b".to_owned(), value });
        let text = |field: &[std::ffi::c_char]| {
            // SAFETY: every field ends with NUL.
            unsafe { CStr::from_ptr(field.as_ptr()) }.to_str().expect("UTF-8").to_owned()
        };
        let number = of(MetadataValue::Int(-7));
        assert_eq!((text(&number.key), number.tag), ("a.b".to_owned(), sys::LLAMA_KV_OVERRIDE_TYPE_INT));
        // SAFETY: the tag says which field was written.
        assert_eq!(unsafe { number.__bindgen_anon_1.val_i64 }, -7);
        let long = of(MetadataValue::Str("é".repeat(63)));
        // SAFETY: as above.
        assert_eq!(text(unsafe { &long.__bindgen_anon_1.val_str }), "é".repeat(63));
    }
}
