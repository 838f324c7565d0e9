//! A model's weights in another of ggml's types, by llama.cpp's own quantizer.
//!
//! The cost of a step depends on ggml's kernels for a type on a processor, so a real model is tried with several types.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use llama_cpp_2::{LogOptions, send_logs_to_tracing};

/// Type of a model's large matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightType {
    /// Numbers of 16 bits.
    F16,
    /// Blocks of 32 numbers of 4 bits with a scale.
    Q4_0,
    /// Blocks of 32 numbers of 4 bits with a scale and an offset.
    Q4_1,
}

impl WeightType {
    fn ftype(self) -> llama_cpp_sys_2::llama_ftype {
        match self {
            Self::F16 => llama_cpp_sys_2::LLAMA_FTYPE_MOSTLY_F16,
            Self::Q4_0 => llama_cpp_sys_2::LLAMA_FTYPE_MOSTLY_Q4_0,
            Self::Q4_1 => llama_cpp_sys_2::LLAMA_FTYPE_MOSTLY_Q4_1,
        }
    }
}

/// Writes the model at `from` to `out` with weights of `weight_type`, on all processors.
///
/// A file at `out` is replaced once the new one is whole.
/// Errors: llama.cpp cannot read or convert the model, `out` cannot be written.
pub fn quantize(from: &Path, weight_type: WeightType, out: &Path) -> anyhow::Result<()> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let temporary = tempfile::NamedTempFile::new_in(folder)?.into_temp_path();
    let c_path = |path: &Path| CString::new(path.as_os_str().as_bytes()).context("a path contains a zero byte");
    let (from_path, out_path) = (c_path(from)?, c_path(&temporary)?);
    // llama.cpp logs a line for each of some hundred tensors; no caller has a subscriber of `tracing`.
    send_logs_to_tracing(LogOptions::default());
    // SAFETY: it may be called more than once, from any thread.
    unsafe { llama_cpp_sys_2::llama_backend_init() };
    // SAFETY: it returns a value and reads nothing.
    let mut params = unsafe { llama_cpp_sys_2::llama_model_quantize_default_params() };
    params.ftype = weight_type.ftype();
    params.allow_requantize = true;
    params.nthread = std::thread::available_parallelism().map_or(1, |n| n.get() as i32);
    // SAFETY: both paths are texts that end with a zero, and the parameters point to nothing; all outlive the call.
    let status =
        unsafe { llama_cpp_sys_2::llama_model_quantize(from_path.as_ptr(), out_path.as_ptr(), &raw const params) };
    ensure!(status == 0, "llama.cpp cannot quantize {} to {weight_type:?}", from.display());
    // A temporary file is readable only by its owner; a model may be read by others.
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o644))?;
    temporary.persist(out).with_context(|| format!("cannot write {}", out.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::made::preset::Preset;
    use crate::model::made::write::write_model;

    #[test]
    fn writes_complete_models_and_no_file_if_it_fails() {
        let folder = tempfile::tempdir().expect("a folder");
        let (made, out) = (folder.path().join("made.gguf"), folder.path().join("q4_0.gguf"));
        write_model(Preset::Tiny, 1, None, &made).expect("the model is made");
        quantize(&made, WeightType::Q4_0, &out).expect("llama.cpp quantizes it");
        warmpath_gguf::check(&out).expect("it is a GGUF file");
        let size = |path: &Path| path.metadata().expect("the file exists").len();
        assert!(size(&out) < size(&made), "{} of {}", size(&out), size(&made));
        let nothing = folder.path().join("nothing.gguf");
        assert!(quantize(&folder.path().join("absent.gguf"), WeightType::Q4_0, &nothing).is_err());
        assert!(!nothing.exists());
    }
}
