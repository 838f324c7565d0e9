//! Why a GGUF file cannot be used, in words fit for the person who brought it.

use std::path::PathBuf;

/// Says which file cannot be read or written and why.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be opened or read.
    #[error("cannot read the model file {}", path.display())]
    Read {
        /// Names the file.
        path: PathBuf,
        /// Is the system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The path names something that is not a plain file.
    #[error("{} is not a file", path.display())]
    NotAFile {
        /// Names the path.
        path: PathBuf,
    },
    /// The file does not start with GGUF's magic bytes.
    #[error("{} is not a GGUF file: it starts with {magic:02x?} instead of \"GGUF\"", path.display())]
    Magic {
        /// Names the file.
        path: PathBuf,
        /// Is what it starts with; shorter than four bytes where the file is.
        magic: Vec<u8>,
    },
    /// The file has a GGUF version that llama.cpp does not read.
    #[error("{} has GGUF version {version}; versions 2 and 3 in little-endian order can be read", path.display())]
    Version {
        /// Names the file.
        path: PathBuf,
        /// Is its version.
        version: u32,
    },
    /// The header is cut off or makes no sense.
    #[error("the header of {} is damaged or cut off: {reason}", path.display())]
    Header {
        /// Names the file.
        path: PathBuf,
        /// Says what is wrong.
        reason: String,
    },
    /// The file ends before a tensor's data does.
    #[error("{} is truncated: tensor {tensor:?} ends at byte {needed_bytes} of a file of {file_bytes}", path.display())]
    Truncated {
        /// Names the file.
        path: PathBuf,
        /// Names the first tensor that is not whole.
        tensor: String,
        /// Is where its data ends.
        needed_bytes: u64,
        /// Is the file's size.
        file_bytes: u64,
    },
    /// A tensor has a type that llama.cpp cannot compute with.
    #[error("{} is not supported: tensor {tensor:?} has type {type_name}, which llama.cpp cannot compute with", path.display())]
    TensorType {
        /// Names the file.
        path: PathBuf,
        /// Names the tensor.
        tensor: String,
        /// Is its type's name.
        type_name: String,
    },
    /// The header does not say which architecture the model has.
    #[error("{} does not name its architecture (general.architecture); it is not a model", path.display())]
    Architecture {
        /// Names the file.
        path: PathBuf,
    },
    /// The file is a later one of a split model, which holds no metadata.
    #[error("{} is file {no} of {count} of a split model; the first one names the model: {first}", path.display())]
    NotFirst {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        no: u64,
        /// Files of the model.
        count: u64,
        /// The first file, or how its name ends where this file's name does not tell.
        first: String,
    },
    /// The file is the first of a split model, and its name does not tell those of the others.
    #[error("{} is file 1 of {count} of a split model; its name must end with {suffix}, by which the others are found", path.display())]
    ShardName {
        /// The file.
        path: PathBuf,
        /// Files of the model.
        count: u64,
        /// The end that the name lacks.
        suffix: String,
    },
    /// Files of a split model are missing.
    #[error("{} is file 1 of {count} of a split model, and beside it there is no {}", path.display(), missing.join(", "))]
    MissingShards {
        /// The first file.
        path: PathBuf,
        /// Files of the model.
        count: u64,
        /// Names of the missing files.
        missing: Vec<String>,
    },
    /// A file of a split model does not belong to the others.
    #[error("{} does not belong to the split model of {}: {reason}", path.display(), first.display())]
    ForeignShard {
        /// The file.
        path: PathBuf,
        /// The model's first file.
        first: PathBuf,
        /// The contradiction.
        reason: String,
    },
    /// What should be written has no GGUF form.
    #[error("cannot write {what} into a GGUF file: {reason}")]
    Unwritable {
        /// Names the key or tensor.
        what: String,
        /// Says what is wrong with it.
        reason: String,
    },
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Names the file.
        path: PathBuf,
        /// Is the system's reason.
        #[source]
        source: std::io::Error,
    },
}
