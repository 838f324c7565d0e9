//! The one llama.cpp backend of a process.
//!
//! llama.cpp may be initialised only once, so all callers share it.

use std::sync::{Once, OnceLock};

use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::{LogOptions, send_logs_to_tracing};

/// Sends llama.cpp's log to `tracing` from now on.
pub fn forward_logs() {
    static LOGS: Once = Once::new();
    LOGS.call_once(|| send_logs_to_tracing(LogOptions::default()));
}

/// Returns the process's llama.cpp backend, initialised at the first call; its log goes to `tracing`.
///
/// If none of ggml's backends is registered by then, llama.cpp searches for the backends' libraries and loads those for
/// the processor.
/// Panics: if something else in the process has initialised llama.cpp.
pub fn backend() -> &'static LlamaBackend {
    static BACKEND: OnceLock<LlamaBackend> = OnceLock::new();
    BACKEND.get_or_init(|| {
        forward_logs();
        LlamaBackend::init().expect("nothing but this function initialises llama.cpp")
    })
}
