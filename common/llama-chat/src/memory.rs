//! What a context of llama.cpp takes of the machine's memory.
//!
//! Not here: making contexts, and what memory there is (the worker).

use llama_cpp_sys_2::llama_context;

/// Memory that a context and its model take. Units: bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ContextMemory {
    /// Weights as they are in the file, which may be mapped from there.
    pub weights_as_in_file: u64,
    /// Weights laid out anew for the processor.
    pub weights_repacked: u64,
    /// KV cache and recurrent state.
    pub context: u64,
    /// Buffers of the computation.
    pub compute: u64,
}

unsafe extern "C" {
    fn wp_context_memory(context: *const llama_context, memory: *mut ContextMemory);
}

/// Returns what `context` and its model take, or would take where the model was loaded without memory.
///
/// # Safety
///
/// `context` must be a live context of llama.cpp that no other thread uses.
pub unsafe fn context_memory(context: *const llama_context) -> ContextMemory {
    let mut memory = ContextMemory::default();
    // SAFETY: the caller vouches for the context; the other side fills the struct, whose layout is C's.
    unsafe { wp_context_memory(context, &raw mut memory) };
    memory
}
