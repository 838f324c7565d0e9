//! Errors of finding and downloading a model's file.

use std::io;
use std::path::{Path, PathBuf};

use super::choice::NoChoice;
use crate::engine::Bytes;

/// Reason why a model's file is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// TLS cannot be set up.
    #[error("cannot prepare TLS")]
    Tls(#[source] warmpath_shell::tls::TlsError),
    /// The hub denies this user access to the model.
    #[error("{host} refuses {what} ({status}){}: {advice}", colon(says))]
    Denied {
        /// Host of the request.
        host: String,
        /// Requested file or listing.
        what: String,
        /// Status of the answer.
        status: u16,
        /// The host's explanation.
        says: String,
        /// Advice for the user.
        advice: &'static str,
    },
    /// The host does not have the file or the repository.
    #[error("{host} has no {what} (404){}", colon(says))]
    NotFound {
        /// Host of the request.
        host: String,
        /// Requested file or listing.
        what: String,
        /// The host's explanation.
        says: String,
    },
    /// The repository has no file that matches.
    #[error("{model}")]
    Choice {
        /// Requested model.
        model: String,
        /// Reason.
        #[source]
        source: NoChoice,
    },
    /// The host does not respond, or its responses break off.
    #[error("{what} cannot be fetched from {host}: {reason} ({n_attempts} attempts)")]
    Broken {
        /// Host of the request.
        host: String,
        /// Requested file or listing.
        what: String,
        /// Last failure.
        reason: String,
        /// Number of attempts without progress.
        n_attempts: u32,
    },
    /// The response does not follow the protocol.
    #[error("{host} answered the request for {what} in an unusable way: {reason}")]
    Answer {
        /// Host of the request.
        host: String,
        /// Requested file or listing.
        what: String,
        /// Reason.
        reason: String,
    },
    /// The received bytes do not match the host's checksum.
    #[error("{what} arrived damaged: its SHA-256 is {got}, not {expected}; it was deleted")]
    Checksum {
        /// File.
        what: String,
        /// Checksum that the host announces.
        expected: String,
        /// Checksum of the received bytes.
        got: String,
    },
    /// The disk has too little free space.
    #[error("{} has {free} left, and {what} needs {needed} more", folder.display())]
    Room {
        /// File.
        what: String,
        /// Folder for the file.
        folder: PathBuf,
        /// Free space.
        free: Bytes,
        /// Space needed.
        needed: Bytes,
    },
    /// A file cannot be written or read.
    #[error("cannot {action} {}", path.display())]
    File {
        /// Attempted action.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The worker is offline, and the model is not on this machine.
    #[error("{model} is not on this machine, and --offline forbids downloading it ({})", folder.display())]
    NotCached {
        /// Requested model.
        model: String,
        /// Folder that was searched.
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

    /// Returns whether a later attempt may succeed.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::Broken { .. })
    }
}
