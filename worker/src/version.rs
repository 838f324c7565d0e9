//! The text of `--version`: this release, the llama.cpp that is built in, and the features that are compiled in.
//!
//! Not here: the devices of this machine (`--list-devices`).

use std::ffi::CStr;
use std::sync::LazyLock;

use crate::store::STATE_VERSION;

/// Cargo features, each with whether it is compiled in.
const FEATURES: [(&str, bool); 5] = [
    ("cuda", cfg!(feature = "cuda")),
    ("dynamic-backends", cfg!(feature = "dynamic-backends")),
    ("metal", cfg!(feature = "metal")),
    ("rocm", cfg!(feature = "rocm")),
    ("vulkan", cfg!(feature = "vulkan")),
];

/// Returns the text after the program's name.
pub fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        // SAFETY: a constant string of the library.
        let ggml = unsafe { CStr::from_ptr(llama_cpp_sys_2::ggml_version()) }.to_string_lossy();
        let built_features = FEATURES.iter().filter(|(_, is_built)| *is_built);
        let features: Vec<&str> = built_features.map(|(name, _)| *name).collect();
        let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
        let version = env!("CARGO_PKG_VERSION");
        format!("{version}\nllama.cpp: llama-cpp-sys-2 {STATE_VERSION}, ggml {ggml}\nfeatures: {features}")
    });
    &TEXT
}
