//! Memory that a context of llama.cpp uses on the machine and on its devices.
//!
//! The worker creates contexts and knows how much memory the machine has.

use std::ffi::{CStr, c_char};
use std::ptr;

use llama_cpp_sys_2::llama_context;

/// Most devices that are reported. Source: twice llama.cpp's `LLAMA_MAX_DEVICES`.
const DEVICES_MAX: usize = 32;

/// Memory that a context and its model take. Units: bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ContextMemory {
    /// Weights in their form in the file, which may be mapped from there.
    pub weights_as_in_file: u64,
    /// Weights repacked for the processor.
    pub weights_repacked: u64,
    /// KV cache and recurrent state.
    pub context: u64,
    /// Buffers of the computation.
    pub compute: u64,
}

/// Memory that a context and its model use on a device. Units: bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Name of the device.
    pub name: String,
    /// Memory that is free there; [`u64::MAX`] if the device does not report it.
    pub available: u64,
    /// Weights.
    pub weights: u64,
    /// KV cache and recurrent state.
    pub context: u64,
    /// Buffers of the computation.
    pub compute: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct RawDeviceMemory {
    name: *const c_char,
    available: u64,
    weights: u64,
    context: u64,
    compute: u64,
}

unsafe extern "C" {
    fn wp_device_memory_of(context: *const llama_context, devices: *mut RawDeviceMemory, n_max: usize) -> usize;
    fn wp_context_memory(context: *const llama_context, memory: *mut ContextMemory);
}

/// Returns the memory that `context` and its model take, or would take if the model was loaded without memory.
///
/// # Safety
///
/// `context` must be a live context of llama.cpp that no other thread uses.
pub unsafe fn context_memory(context: *const llama_context) -> ContextMemory {
    let mut memory = ContextMemory::default();
    // SAFETY: the caller vouches for the context; the C++ side fills the struct, whose layout is C's.
    unsafe { wp_context_memory(context, &raw mut memory) };
    memory
}

/// Returns the same for each device that is not the CPU.
///
/// # Safety
///
/// As [`context_memory`].
pub unsafe fn device_memory(context: *const llama_context) -> Vec<DeviceMemory> {
    let nothing = RawDeviceMemory { name: ptr::null(), available: 0, weights: 0, context: 0, compute: 0 };
    let mut devices = [nothing; DEVICES_MAX];
    // SAFETY: the caller vouches for the context; the C++ side fills at most `DEVICES_MAX` structs.
    let n_devices = unsafe { wp_device_memory_of(context, devices.as_mut_ptr(), DEVICES_MAX) };
    let one = |raw: &RawDeviceMemory| DeviceMemory {
        // SAFETY: a device's name lives as long as the program.
        name: unsafe { CStr::from_ptr(raw.name) }.to_string_lossy().into_owned(),
        available: raw.available,
        weights: raw.weights,
        context: raw.context,
        compute: raw.compute,
    };
    devices[..n_devices].iter().map(one).collect()
}
