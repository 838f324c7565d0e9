//! Fingerprint of a model by the content of its files, without reading all of them.
//!
//! Two files with different metadata, tensor infos or sizes always have different fingerprints. Two files that differ
//! only in weights have different fingerprints if a sample covers the difference; every tensor is sampled. A split
//! model's fingerprint is derived from the fingerprints of all its files.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use warmpath_common::model::Fingerprint;

use crate::check::Header;
use crate::error::GgufError;
use crate::shards::Model;

/// Context string of the fingerprint; a change of the method needs a new string.
const CONTEXT: &str = "warmpath 2026 model fingerprint v1";
/// Context string of a split model's fingerprint, which is derived from those of its files.
const SPLIT_CONTEXT: &str = "warmpath 2026 split model fingerprint v1";
/// Number of evenly spread samples of each tensor; if none of them covers the tensor's end, another one does.
///
/// Source: 4 x 4 KiB of the 1,000 tensors of a large model are 16 MB: read in well under a second from a disk.
const SAMPLES_PER_TENSOR: u64 = 4;
/// Size of one sample. Units: bytes. Source: as [`SAMPLES_PER_TENSOR`]: one page of memory.
const SAMPLE_BYTES: u64 = 4096;

/// Returns the fingerprint of the model at `path`.
///
/// Errors: those of [`Model::open`] and [`Model::fingerprint`]. Cost: the headers and at most 20 KiB for each tensor.
pub fn fingerprint(path: &Path) -> Result<Fingerprint, GgufError> {
    Model::open(path)?.fingerprint()
}

impl Model {
    /// Returns the model's fingerprint. It covers the header, the size and samples of every tensor of each file.
    ///
    /// Errors: `Read`. Cost: at most 20 KiB for each tensor.
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

/// Returns the starts of a tensor's samples: evenly spread, the last sample at its end.
fn sample_offsets(size_bytes: u64) -> Vec<u64> {
    let last = size_bytes.saturating_sub(SAMPLE_BYTES);
    let mut offsets: Vec<u64> =
        (0..SAMPLES_PER_TENSOR).map(|i| last / (SAMPLES_PER_TENSOR - 1) * i).chain([last]).collect();
    offsets.dedup();
    offsets
}
