//! A model at any address: kept under its name, and downloaded again when the host has a newer version.
//!
//! Hosts other than the hub give no checksum, so versions are distinguished only by ETag and size. A file is kept
//! together with its ETag, and so is a partial file from its first byte on. Not here: addresses on the hub, which are
//! treated as its files (`config::source`).

use std::fs;
use std::path::{Path, PathBuf};

use tracing::{info, warn};
use url::Url;

use super::cache::lock;
use super::choice::parts;
use super::client::Web;
use super::error::DownloadError;
use super::progress::DownloadProgress;
use super::transfer::{Remote, Transferred, Validators, transfer_if_changed};

/// Returns the path of a model's first file, after all of its files are present.
///
/// Downloads nothing without a client. Errors: every [`DownloadError`] but `Choice`.
pub async fn fetch(
    url: &Url,
    file: &Path,
    web: Option<&Web>,
    progress: &mut DownloadProgress,
) -> Result<PathBuf, DownloadError> {
    let (folder, name) = url.path().rsplit_once('/').unwrap_or(("", url.path()));
    let names = parts(name);
    let is_split = names.len() > 1;
    for name in &names {
        let mut part = url.clone();
        part.set_path(&format!("{folder}/{name}"));
        let path = if is_split { file.with_file_name(name) } else { file.to_owned() };
        if let Some(web) = web {
            ensure(web, part, &path, progress).await?;
        } else if !path.is_file() {
            let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
            return Err(DownloadError::NotCached { model: name.clone(), folder });
        }
    }
    Ok(if is_split { file.with_file_name(&names[0]) } else { file.to_owned() })
}

/// Downloads the host's file to `path`, unless it is up to date.
async fn ensure(web: &Web, url: Url, path: &Path, progress: &mut DownloadProgress) -> Result<(), DownloadError> {
    let beside = |ending: &str| {
        let mut path = path.as_os_str().to_owned();
        path.push(ending);
        PathBuf::from(path)
    };
    let (etag, partial, partial_etag) = (beside(".etag"), beside(".incomplete"), beside(".incomplete.etag"));
    let _lock = lock(&beside(".lock")).await?;
    let read_text = |path: &Path| fs::read_to_string(path).ok();
    let has_file = path.is_file();
    let whole_etag = read_text(&etag).filter(|_| has_file);
    if has_file && whole_etag.is_none() {
        info!(path = %path.display(), "using the downloaded model; its host sent no ETag, so newer versions cannot be detected");
        return Ok(());
    }
    let mut validators = Validators::read(whole_etag, partial_etag.clone());
    // Without an ETag, the partial file may belong to another version.
    if !validators.can_resume() && partial.exists() {
        fs::remove_file(&partial).map_err(|source| DownloadError::file("delete", &partial, source))?;
    }
    progress.begin(&path.file_name().unwrap_or_default().to_string_lossy(), 0);
    let remote = Remote { url, token: None, size: None, sha256: None };
    let transfer = transfer_if_changed(web, &remote, &partial, &mut validators, progress).await;
    let keep = |from: &Path, to: &Path| fs::rename(from, to).map_err(|source| DownloadError::file("keep", to, source));
    match transfer {
        Ok(Transferred::Whole(new)) => {
            // Removed first, so that a new file never keeps the ETag of the old one.
            let _ = fs::remove_file(&etag);
            keep(&partial, path)?;
            if let Some(new) = new {
                fs::write(&etag, new).map_err(|source| DownloadError::file("write", &etag, source))?;
            }
            let _ = fs::remove_file(&partial_etag);
            info!(path = %path.display(), "downloaded");
            Ok(())
        }
        Ok(Transferred::Unchanged) => {
            let _ = fs::remove_file(&partial);
            let _ = fs::remove_file(&partial_etag);
            Ok(())
        }
        Err(error) => {
            if has_file && error.is_transient() {
                warn!(%error, "the host does not respond; using the downloaded model");
                return Ok(());
            }
            Err(error)
        }
    }
}
