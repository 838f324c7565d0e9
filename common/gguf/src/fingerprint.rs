//! Names a model by the content of its files without reading all of them.
//!
//! Not here: the KV layout's fingerprint (the worker). The idea: two files that differ in metadata, tensor infos or size
//! always differ in name; two that differ only in weights differ where a sample falls, and every tensor is sampled.
//! The name of a split model is made of the names of all its files.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use warmpath_common::model::Fingerprint;

use crate::check::Header;
use crate::error::GgufError;
use crate::shards::Model;

/// Is the context string of the fingerprint; a new way of taking it gets a new string.
const CONTEXT: &str = "warmpath 2026 model fingerprint v1";
/// The same for the fingerprint of a split model, which is made of those of its files.
const SPLIT_CONTEXT: &str = "warmpath 2026 split model fingerprint v1";
/// Is how many places are sampled in each tensor, its ends included.
///
/// Source: 4 x 4 KiB of the 1,000 tensors of a large model are 16 MB: read in well under a second from a disk.
const SAMPLES_PER_TENSOR: u64 = 4;
/// Is the size of one sample. Units: bytes.
const SAMPLE_BYTES: u64 = 4096;

/// Returns the fingerprint of the model at `path`.
///
/// Errors: those of [`Model::open`] and [`Model::fingerprint`]. Cost: the headers and 16 KiB a tensor.
pub fn fingerprint(path: &Path) -> Result<Fingerprint, GgufError> {
    Model::open(path)?.fingerprint()
}

impl Model {
    /// Returns the model's fingerprint: of each of its files the header, the size, samples of every tensor.
    ///
    /// Errors: `Read`. Cost: 16 KiB a tensor.
    pub fn fingerprint(&self) -> Result<Fingerprint, GgufError> {
        let mut files = self.files().map(|(path, header)| fingerprint_of(path, header));
        if self.n_files() == 1 {
            return files.next().expect("a model has a file");
        }
        let mut hasher = blake3::Hasher::new_derive_key(SPLIT_CONTEXT);
        for file in files {
            hasher.update(&file?.0);
        }
        Ok(Fingerprint(*hasher.finalize().as_bytes()))
    }
}

/// Returns the fingerprint of one file.
fn fingerprint_of(path: &Path, header: &Header) -> Result<Fingerprint, GgufError> {
    let read_error = |source| GgufError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read_error)?;
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(&header.file_bytes().to_le_bytes());
    let metadata = header.context.bytes();
    hasher.update(&(metadata.len() as u64).to_le_bytes());
    hasher.update(&metadata);
    for tensor in header.tensors() {
        for offset in sample_offsets(tensor.size_bytes) {
            let mut sample = vec![0; SAMPLE_BYTES.min(tensor.size_bytes - offset) as usize];
            file.read_exact_at(&mut sample, tensor.offset_bytes + offset).map_err(read_error)?;
            hasher.update(&sample);
        }
    }
    Ok(Fingerprint(*hasher.finalize().as_bytes()))
}

/// Returns where the samples of a tensor begin: evenly spread, the last one at its end.
fn sample_offsets(size_bytes: u64) -> Vec<u64> {
    let last = size_bytes.saturating_sub(SAMPLE_BYTES);
    let mut offsets: Vec<u64> =
        (0..SAMPLES_PER_TENSOR).map(|i| last / (SAMPLES_PER_TENSOR - 1) * i).chain([last]).collect();
    offsets.dedup();
    offsets
}
