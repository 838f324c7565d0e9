//! The process that tries one set of CPU kernels: it loads the library, lets it compute, and prints what it found.
//!
//! Not here: what is computed (`products`), who asks and what follows (`backends`).

use std::ffi::c_int;
use std::fmt;
use std::path::Path;

use libloading::Library;
use llama_cpp_sys_2 as sys;

use super::{products, register};

/// Is the first argument of a program that is to run [`check`] and nothing else; the library follows.
pub const CHECK_COMMAND: &str = "check-cpu-variant";

/// Says what a set of CPU kernels is good for on this machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Finding {
    /// It computes what it should.
    Works {
        /// Orders sets by what they use of the processor: the more, the higher.
        score: i64,
    },
    /// This processor lacks what it needs.
    OtherProcessor,
    /// It claims to fit this processor, but does not load, dies, or computes wrong.
    Broken {
        /// Says how.
        reason: String,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works { score } => write!(out, "works (score {score})"),
            Self::OtherProcessor => out.write_str("is for other processors"),
            Self::Broken { reason } => write!(out, "is broken ({reason})"),
        }
    }
}

/// Loads the library `path` into this process and says what it is good for. The process may die of it: it should be one
/// that was started for this.
pub fn check(path: &Path) -> Finding {
    let score = match score(path) {
        Ok(0) => return Finding::OtherProcessor,
        Ok(score) => score,
        Err(error) => return Finding::Broken { reason: format!("does not load: {error}") },
    };
    if let Err(error) = register(path) {
        return Finding::Broken { reason: error.to_string() };
    }
    // SAFETY: reads the registry, to which only this thread has added.
    let device = unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
    match products::try_all(device) {
        Ok(()) => Finding::Works { score },
        Err(fault) => Finding::Broken { reason: fault.to_string() },
    }
}

/// Returns the library's own opinion of how well it suits this processor, 0 for not at all.
fn score(path: &Path) -> Result<i64, libloading::Error> {
    // SAFETY: the operator's own file, whose initialisers are those of a ggml backend; this process is there to see
    // what they do.
    let library = unsafe { Library::new(path)? };
    // SAFETY: ggml's type of that function.
    let score = unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"ggml_backend_score\0")? };
    // SAFETY: takes nothing and reads the processor's features.
    Ok(i64::from(unsafe { score() }))
}
