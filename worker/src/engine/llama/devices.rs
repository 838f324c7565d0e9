//! Devices registered in llama.cpp, and their buffers.
//!
//! Not here: the devices that a configuration may use (`placement`), the part of a model on them (`offload`).

use std::ffi::{CStr, CString};

use llama_cpp_2::{LlamaBackendDevice, list_llama_ggml_backend_devices};
use llama_cpp_sys_2 as sys;

use crate::engine::config::placement::Placement;

/// Maximum number of devices of a model. Source: twice llama.cpp's `llama_max_devices`, in case a later release has
/// more.
pub(super) const DEVICES_MAX: usize = 32;

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

pub(super) fn buffer_name(buffer: sys::ggml_backend_buffer_type_t) -> String {
    // SAFETY: a kind of buffer lives as long as the program, and so does its name.
    unsafe { CStr::from_ptr(sys::ggml_backend_buft_name(buffer)) }.to_string_lossy().into_owned()
}

/// Returns the buffer type with this name.
///
/// Errors: lists the existing ones.
pub(super) fn buffer(name: &str) -> Result<sys::ggml_backend_buffer_type_t, String> {
    let all = buffers();
    let device_buffer = all.iter().find(|(known, _)| known == name).map(|(_, buffer)| *buffer);
    device_buffer.ok_or_else(|| {
        let names = all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        format!("--override-tensor: there is no buffer {name}; the buffers are {names}")
    })
}

/// Returns a description of the devices, except the CPU, that a complete configuration uses.
pub(in crate::engine) fn described(placement: &Placement) -> String {
    let devices = list();
    let used = if placement.is_offloaded() { placement.used(&devices).unwrap_or_default() } else { Vec::new() };
    let one = |device: &&LlamaBackendDevice| format!("{} {}", device.name, device.description);
    used.iter().map(one).collect::<Vec<_>>().join(", ")
}
