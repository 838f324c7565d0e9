//! Why a router does not start.

use std::path::PathBuf;

use warmpath_shell::server::ServerError;
use warmpath_shell::tls::TlsError;

use crate::discovery::DiscoveryError;
use crate::fleet::vocabulary_files::VocabularyFileError;
use crate::fleet::worker_keys::WorkerKeyError;
use crate::keys::KeysError;

/// Reason why a router does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound, or a file that a worker has, too, cannot be used.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A vocabulary cannot be used.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyFileError),
    /// The file of API keys cannot be used.
    #[error("--api-keys-file {path}", path = .path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: KeysError,
    },
    /// TLS for workers cannot be set up.
    #[error("--worker-ca, --worker-cert, --worker-key")]
    WorkerTls(#[source] TlsError),
    /// The file of a stock server's key cannot be used.
    #[error("--worker-key-file {path}", path = .path.display())]
    WorkerKey {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: WorkerKeyError,
    },
    /// Discovery cannot start.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
}
