//! The part of a model that is computed on devices: as configured, or as much as fits there.
//!
//! Not here: the devices that a configuration may use (`placement`), the memory of a context (`measure`).

use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::{Mutex, Once, PoisonError};

use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_sys_2 as sys;
use tracing::{info, warn};

use super::devices::{DEVICES_MAX, buffer_name, list};
use super::measure::{raw, wanted_context};
use super::params::ModelParams;
use crate::engine::config::placement::{GpuLayers, Numa, Placement, TensorOverride};
use crate::engine::config::{EngineConfig, StartError};

/// Memory that stays free on each device. Units: bytes. Source: the default of llama-server's `--fit-target`.
const MARGIN_BYTES: usize = 1 << 30;

/// Returns a configuration that names the device of each part.
///
/// A complete configuration stays as it is. Cost: if `--n-gpu-layers` is not given and there is a GPU, the model's
/// metadata is read several times. Errors: `Config` for a device or a buffer that does not exist, `DraftModel` for a
/// device of the draft model.
pub fn with_devices(config: EngineConfig) -> Result<EngineConfig, StartError> {
    if let Some(draft) = &config.draft_model {
        let refuse = |reason| StartError::DraftModel { path: draft.path.clone(), reason };
        draft.placement.used(&list()).map_err(refuse)?;
    }
    with_devices_beside(config, wanted_context)
}

/// Returns a configuration that names the device of each part: checks the configured devices, and determines how many
/// layers fit beside a context if their number is not configured. A complete configuration does not change.
///
/// `context` returns the settings of the context, which shares the devices with the layers.
/// Cost: for an incomplete configuration, the model's metadata is read several times.
/// Errors: `Config` for a device, a buffer or an index that does not exist.
pub(crate) fn with_devices_beside(
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
        if let Some(fitted_config) = context(&config).and_then(|context| fit(&config, raw(&context))) {
            config.placement = fitted_config;
        }
        let names: Vec<&str> = used.iter().map(|device| device.name.as_str()).collect();
        info!(devices = ?names, n_gpu_layers = ?config.placement.n_gpu_layers, "layers on devices");
    }
    Ok(config)
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
    let chosen_overrides = overrides.iter().take_while(|one| !one.pattern.is_null());
    placement.overrides.extend(chosen_overrides.map(|one| TensorOverride {
        // SAFETY: llama.cpp's patterns live as long as the program.
        pattern: unsafe { CStr::from_ptr(one.pattern) }.to_string_lossy().into_owned(),
        buffer: buffer_name(one.buft),
    }));
    Some(placement)
}
