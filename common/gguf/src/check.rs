//! Check of one GGUF file before llama.cpp loads it: only its header and size are read.
//!
//! llama.cpp's own loader reports unknown architectures and missing tensors.
//!
//! Files that would crash the loader (a short file, weights of a type without kernels) are rejected here, with the file
//! and the reason.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use llama_cpp_sys_2 as sys;

use crate::context::Context;
use crate::error::GgufError;
use crate::scalar::MetadataValue;

/// A checked header: metadata and tensor infos.
#[derive(Debug)]
pub struct Header {
    pub(crate) context: Context,
    architecture: String,
    tensors: Vec<TensorInfo>,
    file_bytes: u64,
}

/// One tensor of a checked file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name.
    pub name: String,
    /// Name of its type, as ggml writes it.
    pub type_name: String,
    /// Start of its data in the file. Units: bytes.
    pub offset_bytes: u64,
    /// Size of its data. Units: bytes.
    pub size_bytes: u64,
}

impl Header {
    /// Returns the model's architecture, `general.architecture`.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Returns the text under `key`, absent if there is none.
    pub fn text(&self, key: &str) -> Option<String> {
        self.context.text(key)
    }

    /// Returns the whole number under `key`, whatever its width; absent if there is none or it is negative.
    pub fn unsigned(&self, key: &str) -> Option<u64> {
        self.context.unsigned(key)
    }

    /// Returns the value under `key`; absent if there is none or it is a list.
    pub fn scalar(&self, key: &str) -> Option<MetadataValue> {
        self.context.scalar(key)
    }

    /// Returns the list of texts under `key` as bytes; absent if there is none.
    pub fn texts(&self, key: &str) -> Option<Vec<Vec<u8>>> {
        self.context.texts(key)
    }

    /// Returns the list of 32-bit numbers under `key`; absent if there is none.
    pub fn numbers(&self, key: &str) -> Option<Vec<i32>> {
        self.context.numbers(key)
    }

    /// Returns the length of the list under `key`, whatever its type; absent if there is none.
    pub fn list_len(&self, key: &str) -> Option<usize> {
        self.context.list_len(key)
    }

    /// Returns the keys in the file's order.
    pub fn keys(&self) -> Vec<String> {
        (0..self.context.n_keys()).map(|idx| self.context.key(idx)).collect()
    }

    /// Returns the tensors in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the number of tensors.
    pub fn n_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Returns the file's size. Units: bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }
}

/// Reads and checks the header of one file, which may be any file of a split model.
///
/// Errors: those of [`check`](crate::check) except `NotFirst` and `Architecture`.
pub(crate) fn check_file(path: &Path) -> Result<Header, GgufError> {
    let file_bytes = check_start(path)?;
    let header_error = |reason: &str| GgufError::Header { path: path.to_owned(), reason: reason.to_owned() };
    let context =
        Context::open(path).ok_or_else(|| header_error("ggml's reader cannot follow its keys and tensors"))?;
    check_keys(&context).map_err(|reason| header_error(&reason))?;
    let tensors = tensors(&context).ok_or_else(|| header_error("its tensors' sizes add up to more than 64 bits"))?;
    for tensor in &tensors {
        check_tensor(path, tensor, file_bytes)?;
    }
    let architecture = context.text("general.architecture").unwrap_or_default();
    Ok(Header { context, architecture, tensors, file_bytes })
}

/// Checks the first bytes, because ggml's own error is less clear; returns the file's size.
fn check_start(path: &Path) -> Result<u64, GgufError> {
    let read_error = |source| GgufError::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(read_error)?;
    let metadata = file.metadata().map_err(read_error)?;
    if !metadata.is_file() {
        return Err(GgufError::NotAFile { path: path.to_owned() });
    }
    let mut start = Vec::new();
    file.by_ref().take(8).read_to_end(&mut start).map_err(read_error)?;
    if start.get(..4) != Some(b"GGUF".as_slice()) {
        start.truncate(4);
        return Err(GgufError::Magic { path: path.to_owned(), magic: start });
    }
    let Some(version) = start.get(4..8).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()) else {
        let reason = format!("the file ends after {} bytes", metadata.len());
        return Err(GgufError::Header { path: path.to_owned(), reason });
    };
    let version = u32::from_le_bytes(version);
    if !(2..=3).contains(&version) {
        return Err(GgufError::Version { path: path.to_owned(), version });
    }
    Ok(metadata.len())
}

/// Rejects keys that ggml reads but aborts on when it copies or writes them: in the C interface a key ends at its first
/// NUL.
fn check_keys(context: &Context) -> Result<(), String> {
    let mut names = std::collections::HashSet::new();
    for idx in 0..context.n_keys() {
        let key = context.key(idx);
        let is_alignment = key == "general.alignment";
        if key.is_empty() || context.find(&key) != Some(idx) || !names.insert(key) {
            return Err(format!("key {idx} has a NUL character in it"));
        }
        if is_alignment && context.key_type(idx) != sys::GGUF_TYPE_UINT32 {
            return Err("general.alignment is not a 32-bit number".to_owned());
        }
    }
    Ok(())
}

fn tensors(context: &Context) -> Option<Vec<TensorInfo>> {
    let raw = context.raw();
    // SAFETY: the context is valid.
    let (n_tensors, data_offset) = unsafe { (sys::gguf_get_n_tensors(raw), sys::gguf_get_data_offset(raw)) };
    (0..n_tensors)
        .map(|idx| {
            // SAFETY: the index is below the number of tensors.
            let (name, kind, offset, size) = unsafe {
                (
                    CStr::from_ptr(sys::gguf_get_tensor_name(raw, idx)),
                    sys::gguf_get_tensor_type(raw, idx),
                    sys::gguf_get_tensor_offset(raw, idx),
                    sys::gguf_get_tensor_size(raw, idx),
                )
            };
            let offset_bytes = (data_offset as u64).checked_add(offset as u64)?;
            offset_bytes.checked_add(size as u64)?;
            Some(TensorInfo {
                name: name.to_string_lossy().into_owned(),
                type_name: type_name(kind),
                offset_bytes,
                size_bytes: size as u64,
            })
        })
        .collect()
}

fn type_name(kind: sys::ggml_type) -> String {
    // SAFETY: the reader accepts only types below `GGML_TYPE_COUNT`; ggml's names are static texts or null.
    let name = unsafe { sys::ggml_type_name(kind) };
    if name.is_null() {
        return format!("number {kind}");
    }
    // SAFETY: not null, and a static text.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Types for which llama.cpp has no matrix product.
///
/// Source: our measurement, before this repository: a worker's process ended after it had loaded a model with such
/// weights.
const TYPES_WITHOUT_KERNELS: [&str; 7] = ["f64", "i8", "i16", "i32", "i64", "q8_1", "q8_K"];

/// Prefixes or suffixes of the names of tensors that hold indices, not weights, and so may be integers.
const INDEX_TENSORS: [&str; 3] = ["d2t", "t2d", "ffn_gate_tid2eid.weight"];

fn check_tensor(path: &Path, tensor: &TensorInfo, file_bytes: u64) -> Result<(), GgufError> {
    let is_index = INDEX_TENSORS.iter().any(|name| tensor.name.starts_with(name) || tensor.name.ends_with(name));
    let is_integer = tensor.type_name.starts_with('i') && !tensor.type_name.starts_with("iq");
    if TYPES_WITHOUT_KERNELS.contains(&tensor.type_name.as_str()) && !(is_index && is_integer) {
        return Err(GgufError::TensorType {
            path: path.to_owned(),
            tensor: tensor.name.clone(),
            type_name: tensor.type_name.clone(),
        });
    }
    let needed_bytes = tensor.offset_bytes + tensor.size_bytes;
    if needed_bytes > file_bytes {
        let tensor = tensor.name.clone();
        return Err(GgufError::Truncated { path: path.to_owned(), tensor, needed_bytes, file_bytes });
    }
    Ok(())
}
