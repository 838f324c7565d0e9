//! Hidden states of a model's last layer, which draft heads read.
//!
//! Not here: contexts and heads (the worker's).

use std::ffi::c_int;
use std::slice;

use llama_cpp_sys_2::llama_context;

unsafe extern "C" {
    fn wp_write_hidden(context: *mut llama_context, tokens: c_int);
    fn wp_hidden(context: *mut llama_context, idx: c_int) -> *const f32;
}

/// Tokens of a batch whose hidden states are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenStates {
    /// No token.
    None,
    /// Tokens whose logits are computed.
    WithLogits,
    /// Every token.
    All,
}

/// Chooses the hidden states that further batches of a context write.
///
/// # Safety
///
/// `context` must be a live context of llama.cpp that no other thread uses.
pub unsafe fn write_hidden(context: *mut llama_context, tokens: HiddenStates) {
    let tokens = match tokens {
        HiddenStates::None => 0,
        HiddenStates::WithLogits => 1,
        HiddenStates::All => 2,
    };
    // SAFETY: the caller vouches for the context.
    unsafe { wp_write_hidden(context, tokens) };
}

/// Returns the hidden state of the last batch's token at `idx`, with `width` floats; `None` if it was not written.
///
/// # Safety
///
/// As [`write_hidden`]. `width` must be the output width of the context's model. The state is valid until the next
/// batch.
pub unsafe fn hidden<'c>(context: *mut llama_context, idx: i32, width: usize) -> Option<&'c [f32]> {
    // SAFETY: the caller vouches for the context.
    let floats = unsafe { wp_hidden(context, idx) };
    // SAFETY: llama.cpp writes as many floats for each token as its model's output is wide.
    (!floats.is_null()).then(|| unsafe { slice::from_raw_parts(floats, width) })
}
