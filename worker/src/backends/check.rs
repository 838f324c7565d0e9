//! The process that tries one set of CPU kernels: it loads the library, runs it, and prints the result.
//!
//! Not here: the computations (`kernel_check`), the caller and its choice (`backends`).

use std::ffi::c_int;
use std::fmt;
use std::path::Path;

use libloading::Library;
use llama_cpp_sys_2 as sys;

use super::{kernel_check, register};

/// First argument of a process that only runs [`check`]; the path of the library follows.
pub const CHECK_COMMAND: &str = "check-cpu-variant";

/// Result of trying a set of CPU kernels on this machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum KernelTrial {
    /// The set computes correctly.
    Works {
        /// Score, which is higher the more of the processor's features the set uses.
        score: i64,
    },
    /// The processor lacks features that the set needs.
    OtherProcessor,
    /// The set claims to support this processor, but does not load, crashes, or computes wrong results.
    Broken {
        /// Reason.
        reason: String,
    },
}

impl fmt::Display for KernelTrial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works { score } => write!(out, "works (score {score})"),
            Self::OtherProcessor => out.write_str("is for other processors"),
            Self::Broken { reason } => write!(out, "is broken ({reason})"),
        }
    }
}

/// Loads the library `path` into this process and checks it. This may end the process, so it must run in a separate
/// one.
pub fn check(path: &Path) -> KernelTrial {
    let score = match score(path) {
        Ok(0) => return KernelTrial::OtherProcessor,
        Ok(score) => score,
        Err(error) => return KernelTrial::Broken { reason: format!("does not load: {error}") },
    };
    if let Err(error) = register(path) {
        return KernelTrial::Broken { reason: error.to_string() };
    }
    // SAFETY: reads the registry, to which only this thread has added.
    let device = unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
    match kernel_check::try_all(device) {
        Ok(()) => KernelTrial::Works { score },
        Err(fault) => KernelTrial::Broken { reason: fault.to_string() },
    }
}

/// Returns the library's own score for this processor, 0 if it is not supported.
fn score(path: &Path) -> Result<i64, libloading::Error> {
    // SAFETY: the operator's own file, whose initialisers are those of a ggml backend; this process exists to try them.
    let library = unsafe { Library::new(path)? };
    // SAFETY: ggml's type of that function.
    let score = unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"ggml_backend_score\0")? };
    // SAFETY: has no parameters and reads the processor's features.
    Ok(i64::from(unsafe { score() }))
}
