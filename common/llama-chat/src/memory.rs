//! Memory that a context or a projector of llama.cpp uses on the machine and on its devices.
//!
//! The worker creates contexts and knows how much memory the machine has.

use std::ffi::{CStr, c_char};
use std::ptr;

use llama_cpp_sys_2::{llama_context, mtmd_context_params};

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
    fn wp_projector_memory(
        path: *const c_char,
        params: *const mtmd_context_params,
        host: *mut u64,
        devices: *mut RawDeviceMemory,
        n_max: usize,
    ) -> usize;
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
    let mut devices = [RawDeviceMemory::NOTHING; DEVICES_MAX];
    // SAFETY: the caller vouches for the context; the C++ side fills at most `DEVICES_MAX` structs.
    let n_devices = unsafe { wp_device_memory_of(context, devices.as_mut_ptr(), DEVICES_MAX) };
    devices[..n_devices].iter().map(RawDeviceMemory::named).collect()
}

impl RawDeviceMemory {
    const NOTHING: Self = Self { name: ptr::null(), available: 0, weights: 0, context: 0, compute: 0 };

    /// Returns what the C++ side has written.
    fn named(&self) -> DeviceMemory {
        DeviceMemory {
            // SAFETY: a device's name lives as long as the program.
            name: unsafe { CStr::from_ptr(self.name) }.to_string_lossy().into_owned(),
            available: self.available,
            weights: self.weights,
            context: self.context,
            compute: self.compute,
        }
    }
}

/// Returns the memory that a projector would take of the machine, and of each device as weights; nothing if llama.cpp
/// cannot read its file.
///
/// Cost: reads the file's metadata, and reserves the buffers of the computation for a moment.
pub fn projector_memory(path: &CStr, params: &mtmd_context_params) -> (u64, Vec<DeviceMemory>) {
    let mut host = 0;
    let mut devices = [RawDeviceMemory::NOTHING; DEVICES_MAX];
    // SAFETY: path and parameters live through the call; the C++ side fills at most `DEVICES_MAX` structs.
    let n_devices =
        unsafe { wp_projector_memory(path.as_ptr(), params, &raw mut host, devices.as_mut_ptr(), DEVICES_MAX) };
    (host, devices[..n_devices].iter().map(RawDeviceMemory::named).collect())
}
