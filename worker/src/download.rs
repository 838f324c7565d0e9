//! Download of the files of a model and of its projector: from the Hugging Face hub, or from any URL.
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
use choice::NoChoice;
use client::Web;
use hub::{CommitFiles, HubFile};
use transfer::{Remote, transfer};

pub use cache::is_inside;
pub use error::DownloadError;
pub use progress::DownloadProgress;
pub use source::{FileSelection, HubConfig, HubModel, HubToken, ModelSource, RepositoryProjector};

/// Advice if the hub refuses.
const HUB_ADVICE: &str = "a gated or private model needs the token of a user with access (HF_TOKEN or --hf-token), and for a \
                          gated one that this user has accepted its conditions on the model's page";

/// Files of a model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFiles {
    /// First file of the model.
    pub model: PathBuf,
    /// Projector of the model's repository; `None` if it has none, or none is to be used.
    pub projector: Option<PathBuf>,
}

/// Returns the files of a model, once all of them are on this machine.
///
/// Errors: every [`DownloadError`].
pub async fn fetch(source: &ModelSource, progress: &mut DownloadProgress) -> Result<ModelFiles, DownloadError> {
    let without_projector = |model| ModelFiles { model, projector: None };
    match source {
        ModelSource::File(path) => Ok(without_projector(path.clone())),
        ModelSource::Hub { model, hub } => fetch_from_hub(model, hub, progress).await,
        ModelSource::Url { url, file, offline } => {
            let web = if *offline { None } else { Some(Web::new("give an address that needs no login")?) };
            url::fetch(url, file, web.as_ref(), progress).await.map(without_projector)
        }
    }
}

async fn fetch_from_hub(
    model: &HubModel,
    hub: &HubConfig,
    progress: &mut DownloadProgress,
) -> Result<ModelFiles, DownloadError> {
    let repository = Repository::new(hub.cache.clone(), &model.repo);
    let web = Web::new(HUB_ADVICE)?;
    let listing_result = match hub.offline {
        true => None,
        false => match hub::list(&web, hub, model).await {
            Ok(listing) => Some(listing),
            // A worker whose machine has the model must be able to start while the hub is down.
            Err(error) if error.is_transient() => {
                let Ok(files) = cached(&repository, model) else { return Err(error) };
                warn!(%error, "the hub does not respond; using the model in the cache");
                return Ok(files);
            }
            Err(error) => return Err(error),
        },
    };
    let Some(CommitFiles { commit, files }) = listing_result else { return cached(&repository, model) };
    let choice = choose(files.iter().map(|file| file.path.as_str()), model);
    let Chosen { model: parts, mut projector } =
        choice.map_err(|source| DownloadError::Choice { model: model.to_string(), source })?;
    let wanted_files = parts.iter().chain(&projector);
    let wanted_files: Vec<&HubFile> =
        wanted_files.filter_map(|path| files.iter().find(|file| file.path == *path)).collect();
    progress.expect(wanted_files.iter().map(|file| file.size).sum());
    for file in wanted_files {
        let url = hub::file_url(&hub.endpoint, &model.repo, &commit, &file.path);
        let remote = Remote { url, token: hub.token.as_ref(), size: Some(file.size), sha256: file.sha256 };
        match ensure(&web, &repository, &commit, file, remote, progress).await {
            Err(error @ DownloadError::Room { .. }) if projector.as_ref() == Some(&file.path) => {
                warn!(%error, "the repository's projector is not downloaded, so the model reads only text");
                projector = None;
            }
            ensured => ensured?,
        }
    }
    // This is the last write, so that an interrupted download leaves the branch at its former commit.
    repository.write_ref(&model.revision, &commit)?;
    let path = |path: &String| repository.snapshot(&commit, path);
    let first = parts.first().expect("a choice has a file");
    Ok(ModelFiles { model: path(first), projector: projector.as_ref().map(path) })
}

/// Files of a repository that are used, by their paths there.
struct Chosen {
    /// Files of the model, its first one first.
    model: Vec<String>,
    /// Projector.
    projector: Option<String>,
}

/// Returns the files of a repository that are used.
///
/// Errors: every [`NoChoice`].
fn choose<'a>(paths: impl Iterator<Item = &'a str> + Clone, model: &HubModel) -> Result<Chosen, NoChoice> {
    let parts = choice::choose(paths.clone(), &model.wanted)?;
    let projector = parts.first().and_then(|first| choice::choose_projector(paths, first));
    let projector = match model.projector {
        RepositoryProjector::Fetched => projector.map(str::to_owned),
        RepositoryProjector::Unused => None,
        RepositoryProjector::Excluded { by } => {
            if let Some(file) = projector {
                warn!(
                    file,
                    flag = by,
                    "the repository's projector is not used, as it cannot be combined with this flag; the model reads \
                     only text (--no-mmproj silences this)"
                );
            }
            None
        }
    };
    Ok(Chosen { model: parts, projector })
}

/// Brings one file of the hub into its cache.
async fn ensure(
    web: &Web,
    repository: &Repository,
    commit: &str,
    file: &HubFile,
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

/// Removes the files of a model from the hub's cache, and its projector if no other model of the commit is left;
/// returns their former paths. A model that is elsewhere, or not in the cache, stays as it is.
///
/// Errors: `File`.
pub fn remove(source: &ModelSource) -> Result<Vec<PathBuf>, DownloadError> {
    let ModelSource::Hub { model, hub } = source else { return Ok(Vec::new()) };
    let repository = Repository::new(hub.cache.clone(), &model.repo);
    let Some(commit) = repository.commit_of(&model.revision) else { return Ok(Vec::new()) };
    let files = repository.files(&commit);
    let of_model = HubModel { projector: RepositoryProjector::Fetched, ..model.clone() };
    let Ok(Chosen { model: parts, projector }) = choose(files.iter().map(String::as_str), &of_model) else {
        return Ok(Vec::new());
    };
    let others = files.iter().filter(|file| !parts.contains(file)).map(String::as_str);
    let is_last = choice::choose(others, &FileSelection::Any).is_err();
    let unused_files = parts.iter().chain(projector.iter().filter(|_| is_last));
    unused_files.map(|path| repository.remove(&commit, path)).collect()
}

/// Returns the files of a model that is complete in the cache. Its projector may be absent there.
fn cached(repository: &Repository, model: &HubModel) -> Result<ModelFiles, DownloadError> {
    let missing = || DownloadError::NotCached { model: model.to_string(), folder: repository.folder().to_owned() };
    let commit = repository.commit_of(&model.revision).ok_or_else(missing)?;
    let files = repository.files(&commit);
    let Chosen { model, projector } = choose(files.iter().map(String::as_str), model).map_err(|_| missing())?;
    let path = |path: &String| repository.snapshot(&commit, path);
    Ok(ModelFiles { model: path(model.first().ok_or_else(missing)?), projector: projector.as_ref().map(path) })
}
