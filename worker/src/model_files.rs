//! `--files`: fetches the files of a model without loading it, or removes them from the hub's cache.
//!
//! A host downloads and removes models with it. Not here: the transfer and the cache (`download`).

use std::path::PathBuf;

use clap::ValueEnum;
use tracing::info;

use crate::config::Config;
use crate::download::{self, DownloadError, DownloadProgress};

/// What is done with the files of a model that is not loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FilesAction {
    /// They are downloaded, if necessary.
    Fetch,
    /// They are removed from the cache folder of Hugging Face's clients.
    Remove,
}

/// Fetches or removes the files of the configured model. A projector that has a flag of its own is fetched, too, and
/// never removed.
///
/// Errors: every [`DownloadError`].
pub async fn run(config: Config, action: FilesAction) -> Result<(), DownloadError> {
    match action {
        FilesAction::Fetch => {
            let mut progress = DownloadProgress::in_lines();
            if let Some(named) = &config.media.named {
                download::fetch(named, &mut progress).await?;
            }
            download::fetch(&config.source, &mut progress).await.map(drop)
        }
        FilesAction::Remove => {
            let removed: Vec<PathBuf> = download::remove(&config.source)?;
            info!(source = %config.source, n_files = removed.len(), "removed");
            Ok(())
        }
    }
}
