//! Runs what recurses deeply on a stack of its own.

use crate::error::ChatError;

/// Is the stack for what may recurse: as deep as JSON of 128 levels through llama.cpp's schemas, or answers that nest
/// [`crate::DEPTH_MAX`] levels. Only what is touched costs memory. Units: bytes.
///
/// Source: measured, an answer's level costs some 4 kB, a schema's some 6 kB; times four.
pub(crate) const STACK_BYTES: usize = 256 << 20;

/// Returns what `work` returns, run on a stack of [`STACK_BYTES`].
pub(crate) fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, ChatError> + Send) -> Result<T, ChatError> {
    let strange = |reason: String| ChatError::Strange { reason };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat format".to_owned()).stack_size(STACK_BYTES);
        let running = thread.spawn_scoped(scope, work).map_err(|error| strange(error.to_string()))?;
        running.join().unwrap_or_else(|_| Err(strange("its thread panicked".to_owned())))
    })
}
