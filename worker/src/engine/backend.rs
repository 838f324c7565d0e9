//! Interim.
use llama_cpp_2::llama_backend::LlamaBackend;
use std::sync::OnceLock;
pub(super) fn backend() -> &'static LlamaBackend {
    static B: OnceLock<LlamaBackend> = OnceLock::new();
    B.get_or_init(|| LlamaBackend::init().expect("first"))
}
