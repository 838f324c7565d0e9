//! Devices registered in llama.cpp, and the part of a model that fits on them.
//!
//! Not here: the devices that a configuration may use (`placement`), the memory of a context (`measure`).

use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::{Mutex, Once, PoisonError};

use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::{LlamaBackendDevice, list_llama_ggml_backend_devices};
use llama_cpp_sys_2 as sys;
use tracing::{info, warn};

use super::measure::raw;
use super::params::ModelParams;
use crate::engine::config::placement::{GpuLayers, Numa, Placement, TensorOverride};
use crate::engine::config::{EngineConfig, StartError};

/// Memory that stays free on each device. Units: bytes. Source: the default of llama-server's `--fit-target`.
const MARGIN_BYTES: usize = 1 << 30;

/// Maximum number of devices of a model. Source: twice llama.cpp's `llama_max_devices`, in case a later release has
/// more.
const DEVICES_MAX: usize = 32;

/// Returns the registered devices, the CPU among them.
pub fn list() -> Vec<LlamaBackendDevice> {
    // llama.cpp must be initialised.
    let _ = warmpath_prompt::backend();
    list_llama_ggml_backend_devices()
}

/// Returns the maximum number of devices of a model.
pub(super) fn n_max() -> usize {
    // SAFETY: no arguments.
    unsafe { sys::llama_max_devices() }.min(DEVICES_MAX)
}

/// Returns llama.cpp's own pointers to devices.
///
/// Errors: names the missing device.
pub(super) fn by_names(names: &[String]) -> Result<Vec<sys::ggml_backend_dev_t>, String> {
    let one = |name: &String| {
        let text = CString::new(name.as_str()).map_err(|_| format!("--device {name}: contains a NUL"))?;
        // SAFETY: a text that ends with NUL; devices stay registered as long as the program runs.
        let device = unsafe { sys::ggml_backend_dev_by_name(text.as_ptr()) };
        if device.is_null() { Err(format!("--device {name}: no such device")) } else { Ok(device) }
    };
    names.iter().map(one).collect()
}

/// Returns every buffer type with its name.
fn buffers() -> Vec<(String, sys::ggml_backend_buffer_type_t)> {
    // SAFETY: no arguments.
    let n_devices = unsafe { sys::ggml_backend_dev_count() };
    let one = |idx| {
        // SAFETY: an index below the count.
        let buffer = unsafe { sys::ggml_backend_dev_buffer_type(sys::ggml_backend_dev_get(idx)) };
        (!buffer.is_null()).then(|| (buffer_name(buffer), buffer))
    };
    (0..n_devices).filter_map(one).collect()
}

/// Returns the buffer type of page-locked host memory of the first device with a KV cache; `None` if the KV cache is
/// not on a device, or the device has no such memory.
pub(super) fn host_memory(placement: &Placement) -> Option<sys::ggml_backend_buffer_type_t> {
    if !placement.offloads_kv() {
        return None;
    }
    let first = placement.used(&list()).ok()?.first()?.name.clone();
    let device = *by_names(&[first]).ok()?.first()?;
    // SAFETY: a registered device.
    let kind = unsafe { sys::ggml_backend_dev_host_buffer_type(device) };
    // SAFETY: a kind of buffer lives as long as the program.
    let is_usable = !kind.is_null() && unsafe { sys::ggml_backend_buft_is_host(kind) };
    is_usable.then_some(kind)
}

fn buffer_name(buffer: sys::ggml_backend_buffer_type_t) -> String {
    // SAFETY: a kind of buffer lives as long as the program, and so does its name.
    unsafe { CStr::from_ptr(sys::ggml_backend_buft_name(buffer)) }.to_string_lossy().into_owned()
}

/// Returns the buffer type with this name.
///
/// Errors: lists the existing ones.
pub(super) fn buffer(name: &str) -> Result<sys::ggml_backend_buffer_type_t, String> {
    let all = buffers();
    let found = all.iter().find(|(known, _)| known == name).map(|(_, buffer)| *buffer);
    found.ok_or_else(|| {
        let names = all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        format!("--override-tensor: there is no buffer {name}; the buffers are {names}")
    })
}

/// Completes a configuration with the devices of each part: checks the given ones, and determines how many layers fit
/// if the number is not given. A complete configuration does not change.
///
/// `context` returns the settings of the context, which shares the devices with the layers.
/// Cost: for an incomplete configuration, the model's metadata is read several times.
/// Errors: `Config` for a device, a buffer or an index that does not exist.
pub(crate) fn settle(
    config: EngineConfig,
    context: impl FnOnce(&EngineConfig) -> Option<LlamaContextParams>,
) -> Result<EngineConfig, StartError> {
    let devices = list();
    let mut config = config;
    set_numa(config.placement.numa);
    let used = config.placement.used(&devices).map_err(|reason| StartError::Config { reason })?;
    if used.is_empty() {
        if config.placement.asks_for_device() {
            warn!("llama.cpp found no GPU; the model runs on the CPU (docs/accelerators.md)");
        }
        config.placement.n_gpu_layers = GpuLayers::Count(0);
    }
    // Names of buffers are checked here.
    ModelParams::new(&config)?;
    if config.placement.n_gpu_layers == GpuLayers::Auto {
        config.placement.n_gpu_layers = GpuLayers::All;
        if let Some(fitted) = context(&config).and_then(|context| fit(&config, raw(&context))) {
            config.placement = fitted;
        }
        let names: Vec<&str> = used.iter().map(|device| device.name.as_str()).collect();
        info!(devices = ?names, n_gpu_layers = ?config.placement.n_gpu_layers, "layers on devices");
    }
    Ok(config)
}

/// Returns a description of the devices, except the CPU, that a complete configuration uses.
pub(in crate::engine) fn described(placement: &Placement) -> String {
    let devices = list();
    let used = if placement.is_offloaded() { placement.used(&devices).unwrap_or_default() } else { Vec::new() };
    let one = |device: &&LlamaBackendDevice| format!("{} {}", device.name, device.description);
    used.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Sets the placement of threads, once per process, because llama.cpp cannot change it later.
fn set_numa(numa: Option<Numa>) {
    static TOLD: Once = Once::new();
    let Some(numa) = numa else { return };
    TOLD.call_once(|| {
        let strategy = match numa {
            Numa::Distribute => sys::GGML_NUMA_STRATEGY_DISTRIBUTE,
            Numa::Isolate => sys::GGML_NUMA_STRATEGY_ISOLATE,
            Numa::Numactl => sys::GGML_NUMA_STRATEGY_NUMACTL,
        };
        // SAFETY: llama.cpp is initialised, and nothing computes yet.
        unsafe { sys::llama_numa_init(strategy) };
    });
}

/// Returns the placement with as many layers, or parts of layers, as fit; `None` if llama.cpp finds no placement, for
/// example because the given shares do not fit.
fn fit(config: &EngineConfig, mut context: sys::llama_context_params) -> Option<Placement> {
    /// Serializes the calls, because llama.cpp redirects the process's log while it measures.
    static FITTING: Mutex<()> = Mutex::new(());
    let _fitting = FITTING.lock().unwrap_or_else(PoisonError::into_inner);
    let path = CString::new(config.model.as_os_str().as_encoded_bytes()).ok()?;
    let params = ModelParams::new(config).ok()?;
    let mut raw = params.raw();
    // SAFETY: no arguments.
    let n_overrides_max = unsafe { sys::llama_max_tensor_buft_overrides() };
    let mut margins = [MARGIN_BYTES; DEVICES_MAX];
    let mut shares = [0.0_f32; DEVICES_MAX];
    let nothing = sys::llama_model_tensor_buft_override { pattern: ptr::null(), buft: ptr::null_mut() };
    let mut overrides = vec![nothing; n_overrides_max + 1];
    // SAFETY: all of these live through the call, and the lists are as long as llama.cpp says that it writes and reads.
    let status = unsafe {
        sys::llama_rs_fit_params(
            path.as_ptr(),
            &raw mut raw,
            &raw mut context,
            shares.as_mut_ptr(),
            overrides.as_mut_ptr(),
            margins.as_mut_ptr(),
            0,
            ptr::null(),
            sys::GGML_LOG_LEVEL_WARN,
        )
    };
    if status != 0 {
        return None;
    }
    let mut placement = config.placement.clone();
    if raw.n_gpu_layers >= 0 {
        placement.n_gpu_layers = GpuLayers::Count(raw.n_gpu_layers.unsigned_abs());
    }
    if shares.iter().any(|share| *share > 0.0) {
        let n_shares = shares.iter().rposition(|share| *share > 0.0).map_or(0, |last| last + 1);
        placement.tensor_split = shares[..n_shares].to_vec();
    }
    let chosen = overrides.iter().take_while(|one| !one.pattern.is_null());
    placement.overrides.extend(chosen.map(|one| TensorOverride {
        // SAFETY: llama.cpp's patterns live as long as the program.
        pattern: unsafe { CStr::from_ptr(one.pattern) }.to_string_lossy().into_owned(),
        buffer: buffer_name(one.buft),
    }));
    Some(placement)
}
