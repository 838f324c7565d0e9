//! The files that a router's configuration names, except the list of workers, read once before it serves.
//!
//! Not here: the tasks that follow changes of the files (`server`), the list of workers (`discovery`).

use std::sync::Arc;

use warmpath_shell::server::ServerResources;
use warmpath_shell::tls::CurrentClient;

use super::error::StartError;
use crate::config::Config;
use crate::fleet::vocabulary_files::LoadedVocabulary;
use crate::fleet::worker_keys::WorkerKeys;
use crate::keys::Keys;

/// Content of the files; `None` if the configuration names none.
pub(super) struct Files {
    /// Vocabularies of stock servers.
    pub vocabularies: Vec<LoadedVocabulary>,
    /// TLS with workers.
    pub worker_tls: CurrentClient,
    /// Keys of stock servers.
    pub worker_keys: Arc<WorkerKeys>,
    /// API keys of clients.
    pub keys: Option<Arc<Keys>>,
    /// Files that a worker has, too.
    pub server: ServerResources,
}

impl Files {
    /// Reads the files.
    ///
    /// Errors: `Vocabulary`, `WorkerTls`, `WorkerKey`, `Keys`, `Server`.
    pub fn open(config: &Config) -> Result<Self, StartError> {
        let fleet = &config.fleet;
        let worker_keys = WorkerKeys::open(&fleet.worker_keys);
        let keys = config.keys_file.as_ref().map(|path| {
            Keys::open(path).map(Arc::new).map_err(|source| StartError::Keys { path: path.clone(), source })
        });
        Ok(Self {
            vocabularies: fleet.vocabularies.iter().map(LoadedVocabulary::open).collect::<Result<_, _>>()?,
            worker_tls: fleet.tls.open().map_err(StartError::WorkerTls)?,
            worker_keys: worker_keys.map(Arc::new).map_err(|(path, source)| StartError::WorkerKey { path, source })?,
            keys: keys.transpose()?,
            server: ServerResources::open(
                config.tls.as_ref(),
                fleet.token_file.as_deref(),
                &config.requests.image_url_hosts,
            )?,
        })
    }
}
