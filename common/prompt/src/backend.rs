//! The one llama.cpp backend of a process.
//!
//! Not here: models and contexts. The idea: llama.cpp may be initialised once only, whoever comes first.

use std::sync::OnceLock;

use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::{LogOptions, send_logs_to_tracing};

/// Returns the process's llama.cpp backend, initialised at the first call; its logs go to `tracing`.
///
/// Panics: where something else in the process has initialised llama.cpp.
pub fn backend() -> &'static LlamaBackend {
    static BACKEND: OnceLock<LlamaBackend> = OnceLock::new();
    BACKEND.get_or_init(|| {
        send_logs_to_tracing(LogOptions::default());
        LlamaBackend::init().expect("nothing but this function initialises llama.cpp")
    })
}
