//! Errors in GGUF files, with texts for the person who provided the file.

use std::path::PathBuf;

/// Error in reading or writing a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be opened or read.
    #[error("cannot read the model file {}", path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// Reason from the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The path is not a plain file.
    #[error("{} is not a file", path.display())]
    NotAFile {
        /// Path.
        path: PathBuf,
    },
    /// The file does not start with GGUF's magic bytes.
    #[error("{} is not a GGUF file: it starts with {magic:02x?} instead of \"GGUF\"", path.display())]
    Magic {
        /// File.
        path: PathBuf,
        /// First bytes of the file; fewer than four if the file is shorter.
        magic: Vec<u8>,
    },
    /// The file has a GGUF version that llama.cpp does not read.
    #[error("{} has GGUF version {version}; versions 2 and 3 in little-endian order can be read", path.display())]
    Version {
        /// File.
        path: PathBuf,
        /// GGUF version of the file.
        version: u32,
    },
    /// The header is cut off or invalid.
    #[error("the header of {} is damaged or cut off: {reason}", path.display())]
    Header {
        /// File.
        path: PathBuf,
        /// Description of the error.
        reason: String,
    },
    /// The file ends before a tensor's data.
    #[error("{} is truncated: tensor {tensor:?} ends at byte {needed_bytes} of a file of {file_bytes}", path.display())]
    Truncated {
        /// File.
        path: PathBuf,
        /// Name of the first tensor that is not complete.
        tensor: String,
        /// End of its data. Units: bytes.
        needed_bytes: u64,
        /// Size of the file. Units: bytes.
        file_bytes: u64,
    },
    /// A tensor has a type that llama.cpp cannot compute with.
    #[error("{} is not supported: tensor {tensor:?} has type {type_name}, which llama.cpp cannot compute with", path.display())]
    TensorType {
        /// File.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Name of its type.
        type_name: String,
    },
    /// The header does not name the model's architecture.
    #[error("{} does not name its architecture (general.architecture); it is not a model", path.display())]
    Architecture {
        /// File.
        path: PathBuf,
    },
    /// The file is a later one of a split model, which holds no metadata.
    #[error("{} is file {no} of {count} of a split model; the first one names the model: {first}", path.display())]
    NotFirst {
        /// File.
        path: PathBuf,
        /// Number of the file, from 1.
        no: u64,
        /// Number of files of the model.
        count: u64,
        /// First file, or the end of its name if it cannot be derived from this file's name.
        first: String,
    },
    /// The file is the first of a split model, and the names of the other files cannot be derived from its name.
    #[error("{} is file 1 of {count} of a split model; its name must end with {suffix}, from which the names of the others are derived", path.display())]
    ShardName {
        /// File.
        path: PathBuf,
        /// Number of files of the model.
        count: u64,
        /// Ending that the name lacks.
        suffix: String,
    },
    /// Files of a split model are missing.
    #[error("{} is file 1 of {count} of a split model, and these files are missing in its folder: {}", path.display(), missing.join(", "))]
    MissingShards {
        /// First file.
        path: PathBuf,
        /// Number of files of the model.
        count: u64,
        /// Names of the missing files.
        missing: Vec<String>,
    },
    /// A file of a split model does not belong to the others.
    #[error("{} does not belong to the split model of {}: {reason}", path.display(), first.display())]
    ForeignShard {
        /// File.
        path: PathBuf,
        /// First file of the model.
        first: PathBuf,
        /// The contradiction.
        reason: String,
    },
    /// The data cannot be written as GGUF.
    #[error("cannot write {what} into a GGUF file: {reason}")]
    Unwritable {
        /// Key or tensor.
        what: String,
        /// Description of the error.
        reason: String,
    },
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// File.
        path: PathBuf,
        /// Reason from the operating system.
        #[source]
        source: std::io::Error,
    },
}
