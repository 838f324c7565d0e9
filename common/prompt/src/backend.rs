//! The one llama.cpp backend of a process.
//!
//! Not here: models and contexts. The idea: llama.cpp may be initialised once only, whoever comes first.

use std::sync::{Once, OnceLock};

use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::{LogOptions, send_logs_to_tracing};

/// Sends what llama.cpp logs to `tracing` from here on.
pub fn hear_logs() {
    static HEARD: Once = Once::new();
    HEARD.call_once(|| send_logs_to_tracing(LogOptions::default()));
}

/// Returns the process's llama.cpp backend, initialised at the first call; its logs go to `tracing`.
///
/// Where no backend of ggml is registered by then, llama.cpp looks for libraries of them and loads those that suit the processor.
/// Panics: where something else in the process has initialised llama.cpp.
pub fn backend() -> &'static LlamaBackend {
    static BACKEND: OnceLock<LlamaBackend> = OnceLock::new();
    BACKEND.get_or_init(|| {
        hear_logs();
        LlamaBackend::init().expect("nothing but this function initialises llama.cpp")
    })
}
