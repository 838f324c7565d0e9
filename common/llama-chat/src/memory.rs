//! Memory that a context of llama.cpp takes.
//!
//! The worker creates contexts and knows how much memory the machine has.

use llama_cpp_sys_2::llama_context;

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

unsafe extern "C" {
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
