//! What can go wrong between a model's name and its file.

use std::io;
use std::path::{Path, PathBuf};

use super::choice::NoChoice;
use crate::engine::Bytes;

/// Reason why a model's file is not there.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// TLS cannot be spoken.
    #[error("cannot prepare TLS")]
    Tls(#[source] warmpath_shell::tls::TlsError),
    /// The hub does not let this user have the model.
    #[error("{host} refuses {what} ({status}){}: {advice}", colon(says))]
    Denied {
        /// Host that was asked.
        host: String,
        /// What was asked for.
        what: String,
        /// Status of the answer.
        status: u16,
        /// What the host says about it.
        says: String,
        /// What to do.
        advice: &'static str,
    },
    /// The host does not have it.
    #[error("{host} has no {what} (404){}", colon(says))]
    NotFound {
        /// Host that was asked.
        host: String,
        /// What was asked for.
        what: String,
        /// What the host says about it.
        says: String,
    },
    /// None of the repository's files is meant.
    #[error("{model}")]
    Choice {
        /// Model that was asked for.
        model: String,
        /// Reason.
        #[source]
        source: NoChoice,
    },
    /// The host does not answer, or its answers break off.
    #[error("{what} cannot be fetched from {host}: {reason} ({n_attempts} attempts)")]
    Broken {
        /// Host that was asked.
        host: String,
        /// What was asked for.
        what: String,
        /// Last failure.
        reason: String,
        /// Attempts that brought nothing.
        n_attempts: u32,
    },
    /// An answer is none that the protocol knows.
    #[error("{host} gives an answer about {what} that cannot be used: {reason}")]
    Answer {
        /// Host that was asked.
        host: String,
        /// What was asked for.
        what: String,
        /// Reason.
        reason: String,
    },
    /// What arrived is not what the host announced.
    #[error("{what} arrived damaged: its SHA-256 is {got}, not {expected}; it was deleted")]
    Checksum {
        /// File.
        what: String,
        /// Checksum that the host announces.
        expected: String,
        /// Checksum of what arrived.
        got: String,
    },
    /// The disk has too little room.
    #[error("{} has {free} left, and {what} needs {needed} more", folder.display())]
    Room {
        /// File.
        what: String,
        /// Folder in which it would be kept.
        folder: PathBuf,
        /// Room that is left.
        free: Bytes,
        /// Room that is needed.
        needed: Bytes,
    },
    /// A file cannot be written or read.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was attempted.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The network may not be used, and the model is not on this machine.
    #[error("{model} is not on this machine, and --offline forbids to download it ({})", folder.display())]
    NotCached {
        /// Model that was asked for.
        model: String,
        /// Folder in which it was looked for.
        folder: PathBuf,
    },
}

fn colon(says: &str) -> String {
    if says.is_empty() { String::new() } else { format!(": {says}") }
}

impl DownloadError {
    pub(super) fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }

    /// Returns whether another moment may bring another result.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::Broken { .. })
    }
}
