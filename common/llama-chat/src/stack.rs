//! Large stack for code that recurses deeply.

use crate::error::ChatError;

/// Stack for recursion over JSON of 128 levels in llama.cpp's schemas, or over answers that nest [`crate::DEPTH_MAX`]
/// levels. Only the used part costs memory. Units: bytes.
///
/// Source: measured, an answer's level costs some 4 kB, a schema's some 6 kB; times four.
pub(crate) const STACK_BYTES: usize = 256 << 20;

/// Runs `work` on a stack of [`STACK_BYTES`] and returns its result.
pub(crate) fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, ChatError> + Send) -> Result<T, ChatError> {
    let strange = |reason: String| ChatError::Strange { reason };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat format".to_owned()).stack_size(STACK_BYTES);
        let running = thread.spawn_scoped(scope, work).map_err(|error| strange(error.to_string()))?;
        running.join().unwrap_or_else(|_| Err(strange("its thread panicked".to_owned())))
    })
}
