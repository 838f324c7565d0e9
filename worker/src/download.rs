//! Download of a model's file: from the Hugging Face hub, or from any URL.
//!
//! A file of the hub is stored in the cache of the hub's own clients, so files that these or other workers downloaded
//! are found. A download is written next to its final path, resumes after interruptions, is compared with the hub's
//! checksum, and is moved into place when complete. Only one process of a machine downloads a file; others wait for it.
//!
//! Not here: flags (`config::source`), the use of the file (`start`).

mod cache;
mod choice;
mod client;
mod error;
mod hub;
mod progress;
mod source;
mod transfer;
mod url;

use std::path::PathBuf;

use tracing::{info, warn};

use cache::{Repository, lock};
use client::Web;
use hub::{CommitFiles, HubFile};
use transfer::{Remote, transfer};

pub use cache::is_inside;
pub use error::DownloadError;
pub use progress::DownloadProgress;
pub use source::{FileSelection, HubConfig, HubModel, HubToken, ModelSource};

/// Advice if the hub refuses.
const HUB_ADVICE: &str = "a gated or private model needs the token of a user with access (HF_TOKEN or --hf-token), and for a \
                          gated one that this user has accepted its conditions on the model's page";

/// Returns the first file of a model, once all of its files are on this machine.
///
/// Errors: every [`DownloadError`].
pub async fn fetch(source: &ModelSource, progress: &mut DownloadProgress) -> Result<PathBuf, DownloadError> {
    match source {
        ModelSource::File(path) => Ok(path.clone()),
        ModelSource::Hub { model, hub } => fetch_from_hub(model, hub, progress).await,
        ModelSource::Url { url, file, offline } => {
            let web = if *offline { None } else { Some(Web::new("give an address that needs no login")?) };
            url::fetch(url, file, web.as_ref(), progress).await
        }
    }
}

async fn fetch_from_hub(
    model: &HubModel,
    hub: &HubConfig,
    progress: &mut DownloadProgress,
) -> Result<PathBuf, DownloadError> {
    let repository = Repository::new(hub.cache.clone(), &model.repo);
    let web = Web::new(HUB_ADVICE)?;
    let listed = match hub.offline {
        true => None,
        false => match hub::list(&web, hub, model).await {
            Ok(listing) => Some(listing),
            // A worker whose machine has the model must be able to start while the hub is down.
            Err(error) if error.is_transient() => {
                let Ok(path) = cached(&repository, model) else { return Err(error) };
                warn!(%error, "the hub does not respond; using the model in the cache");
                return Ok(path);
            }
            Err(error) => return Err(error),
        },
    };
    let Some(CommitFiles { commit, files }) = listed else { return cached(&repository, model) };
    let chosen = choice::choose(files.iter().map(|file| file.path.as_str()), &model.wanted);
    let chosen = chosen.map_err(|source| DownloadError::Choice { model: model.to_string(), source })?;
    let chosen: Vec<&HubFile> = chosen.iter().filter_map(|path| files.iter().find(|file| file.path == *path)).collect();
    progress.expect(chosen.iter().map(|file| file.size).sum());
    for file in &chosen {
        let url = hub::file_url(&hub.endpoint, &model.repo, &commit, &file.path);
        let remote = Remote { url, token: hub.token.as_ref(), size: Some(file.size), sha256: file.sha256 };
        ensure(&web, (&repository, &commit, file), remote, progress).await?;
    }
    // This is the last write, so that an interrupted download leaves the branch at its former commit.
    repository.write_ref(&model.revision, &commit)?;
    let first = chosen.first().expect("a choice has a file");
    Ok(repository.snapshot(&commit, &first.path))
}

/// Brings one file of the hub into its cache.
async fn ensure(
    web: &Web,
    (repository, commit, file): (&Repository, &str, &HubFile),
    remote: Remote<'_>,
    progress: &mut DownloadProgress,
) -> Result<(), DownloadError> {
    let blob = repository.blob(&file.etag);
    if !repository.has(&blob, file.size) {
        let _lock = lock(&repository.lock_path(&file.etag)).await?;
        // The process that held the lock may have downloaded it.
        if !repository.has(&blob, file.size) {
            let partial = repository.partial(&file.etag);
            progress.begin(&file.path, file.size);
            transfer(web, &remote, &partial, progress).await?;
            std::fs::rename(&partial, &blob).map_err(|source| DownloadError::file("keep", &blob, source))?;
            info!(file = file.path, bytes = file.size, checksum = remote.sha256.is_some(), "downloaded");
        }
    }
    progress.finished(file.size);
    repository.link(commit, &file.path, &file.etag)
}

/// Returns the first file of a model that is complete in the cache.
fn cached(repository: &Repository, model: &HubModel) -> Result<PathBuf, DownloadError> {
    let missing = || DownloadError::NotCached { model: model.to_string(), folder: repository.folder().to_owned() };
    let commit = repository.commit_of(&model.revision).ok_or_else(missing)?;
    let files = repository.files(&commit);
    let chosen = choice::choose(files.iter().map(String::as_str), &model.wanted).map_err(|_| missing())?;
    Ok(repository.snapshot(&commit, chosen.first().ok_or_else(missing)?))
}
