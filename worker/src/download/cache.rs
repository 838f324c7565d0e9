//! The folder in which the hub's clients keep files: `models--OWNER--NAME/{blobs,refs,snapshots}`.
//!
//! A blob is named by its ETag and is always complete; a snapshot is a folder of links to blobs, one folder for each
//! commit; a ref holds the commit of a branch. A ref is written after its files, so an interrupted download leaves the
//! previous version usable. Not here: fetching files (`transfer`), asking the hub about them (`hub`).
//! Source: the layout of `huggingface_hub`, its locks included.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tracing::info;

use super::error::DownloadError;

/// Pause between two attempts to take a lock that another process holds. Source: short, as a download takes minutes.
const LOCK_PAUSE: Duration = Duration::from_millis(250);

/// Maximum depth of folders in a snapshot. Source: repositories have one or two levels.
const DEPTH_MAX: usize = 16;

/// The folder of one repository in the cache.
#[derive(Debug)]
pub struct Repository {
    cache: PathBuf,
    name: String,
    folder: PathBuf,
}

impl Repository {
    /// Returns the part of `cache` for a repository, as `OWNER/NAME`.
    pub fn new(cache: PathBuf, repo: &str) -> Self {
        let name = format!("models--{}", repo.replace('/', "--"));
        Self { folder: cache.join(&name), cache, name }
    }

    /// Returns the repository's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the blob with this ETag.
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// Returns the path of the incomplete blob with this ETag.
    pub fn partial(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Returns the path of the lock for the blob with this ETag.
    pub fn lock_path(&self, etag: &str) -> PathBuf {
        self.cache.join(".locks").join(&self.name).join(format!("{etag}.lock"))
    }

    /// Returns the path of a file in the snapshot of a commit.
    pub fn snapshot(&self, commit: &str, path: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit).join(path)
    }

    /// Returns whether a blob exists and has this size.
    pub fn has(&self, blob: &Path, size: u64) -> bool {
        fs::metadata(blob).is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
    }

    /// Returns the last known commit of a branch or tag; for a commit, the commit itself.
    pub fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.ref_path(revision)?).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Returns the paths of a commit's cached files, sorted.
    pub fn files(&self, commit: &str) -> Vec<String> {
        let root = self.folder.join("snapshots").join(commit);
        let mut files = Vec::new();
        collect(&root, &root, DEPTH_MAX, &mut files);
        files.sort_unstable();
        files
    }

    /// Links a blob into a snapshot.
    ///
    /// Errors: `File`.
    pub fn link(&self, commit: &str, path: &str, etag: &str) -> Result<(), DownloadError> {
        let pointer = self.snapshot(commit, path);
        let blob = self.blob(etag);
        if let (Ok(there), Ok(wanted)) = (pointer.canonicalize(), blob.canonicalize())
            && there == wanted
        {
            return Ok(());
        }
        let refuse = |source| DownloadError::file("make", &pointer, source);
        fs::create_dir_all(pointer.parent().expect("a snapshot is in a folder")).map_err(refuse)?;
        // The relative path leaves the file's own folders, the commit's folder and `snapshots`.
        let n_up = Path::new(path).components().count() + 1;
        let target: PathBuf = std::iter::repeat_n("..", n_up).chain(["blobs", etag]).collect();
        match fs::remove_file(&pointer) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refuse(error)),
            _ => {}
        }
        match std::os::unix::fs::symlink(&target, &pointer) {
            // Another worker has made the link in the meantime.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(refuse(error)),
            _ => Ok(()),
        }
    }

    /// Removes a file from the snapshot of a commit, and its blob unless another file links to it; returns its path.
    ///
    /// Errors: `File`.
    pub fn remove(&self, commit: &str, path: &str) -> Result<PathBuf, DownloadError> {
        let pointer = self.snapshot(commit, path);
        let target = pointer.canonicalize();
        let delete = |path: &Path| match fs::remove_file(path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(DownloadError::file("remove", path, source)),
            _ => Ok(()),
        };
        delete(&pointer)?;
        let (Ok(blob), Ok(blobs)) = (target, self.folder.join("blobs").canonicalize()) else { return Ok(pointer) };
        let commits = fs::read_dir(self.folder.join("snapshots")).into_iter().flatten().flatten();
        let mut commits = commits.map(|folder| folder.file_name().to_string_lossy().into_owned());
        let links_to_it =
            |commit: &str, file: &String| self.snapshot(commit, file).canonicalize().is_ok_and(|target| target == blob);
        let is_linked = commits.any(|commit| self.files(&commit).iter().any(|file| links_to_it(&commit, file)));
        if !is_linked && blob.starts_with(blobs) {
            delete(&blob)?;
        }
        Ok(pointer)
    }

    /// Records the commit of a branch or tag; does nothing for a commit.
    ///
    /// Errors: `File`.
    pub fn write_ref(&self, revision: &str, commit: &str) -> Result<(), DownloadError> {
        let Some(path) = self.ref_path(revision).filter(|_| !is_commit(revision)) else { return Ok(()) };
        if fs::read_to_string(&path).is_ok_and(|known_commit| known_commit == commit) {
            return Ok(());
        }
        let refuse = |source| DownloadError::file("write", &path, source);
        fs::create_dir_all(path.parent().expect("a ref is in a folder")).map_err(refuse)?;
        fs::write(&path, commit).map_err(refuse)
    }

    fn ref_path(&self, revision: &str) -> Option<PathBuf> {
        is_inside(revision).then(|| self.folder.join("refs").join(revision))
    }
}

fn collect(root: &Path, folder: &Path, depth: usize, files: &mut Vec<String>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() && depth > 0 {
            collect(root, &path, depth - 1, files);
        } else if path.is_file()
            && let Some(inside) = path.strip_prefix(root).ok().and_then(Path::to_str)
        {
            files.push(inside.to_owned());
        }
    }
}

/// Returns whether a text is a commit's hash.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns whether an untrusted path stays within the folder to which it is joined.
pub fn is_inside(path: &str) -> bool {
    let is_normal = |component| matches!(component, Component::Normal(_));
    !path.is_empty() && !path.contains('\0') && Path::new(path).components().all(is_normal)
}

/// Takes a lock that other processes respect, waiting until it is free; closing the file releases it.
///
/// Errors: `File`.
pub async fn lock(path: &Path) -> Result<File, DownloadError> {
    let refuse = |source| DownloadError::file("lock", path, source);
    fs::create_dir_all(path.parent().expect("a lock is in a folder")).map_err(refuse)?;
    let file = File::options().write(true).create(true).truncate(false).open(path).map_err(refuse)?;
    let mut has_told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => return Err(refuse(source)),
        }
        if !std::mem::replace(&mut has_told, true) {
            info!(lock = %path.display(), "another process downloads this file; waiting for it");
        }
        // A blocking wait would keep the process from ending.
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}
