//! Downloads the bytes of one file, resumes interrupted transfers, and compares the checksum.
//!
//! The part that is already on disk is read once for the checksum and then only appended to. After an interrupted
//! response the rest is requested, as long as each attempt makes progress. Not here: moving the finished file to its
//! final path.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use axum::http::{StatusCode, header};
use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tracing::{info, warn};
use url::Url;

use super::client::{AttemptFailure, Attempts, HostRequest, HostResponse, Web, host, unusable};
use super::error::DownloadError;
use super::progress::DownloadProgress;
use super::source::HubToken;
use crate::engine::Bytes;

/// Bytes read at a time from the part that is already on disk. Source: little memory, and few reads of a file of
/// gigabytes.
const READ_BYTES: usize = 1 << 20;

/// A file on another host.
#[derive(Debug)]
pub struct Remote<'a> {
    /// Address.
    pub url: Url,
    /// Token for that host.
    pub token: Option<&'a HubToken>,
    /// Size; `None` if it is not known beforehand. Units: bytes.
    pub size: Option<u64>,
    /// Checksum; `None` if unknown.
    pub sha256: Option<[u8; 32]>,
}

/// ETags of local files, by which a newer version on the host is recognized.
#[derive(Debug)]
pub struct Validators {
    /// ETag of the complete local file; if the host still has this version, nothing is transferred.
    whole_etag: Option<String>,
    /// Strong ETag of the partial local file; without one it cannot be resumed.
    partial: Option<String>,
    /// File with the partial file's ETag, so that another process can resume the transfer.
    partial_etag: PathBuf,
}

impl Validators {
    /// Returns the ETag of the complete file, and that of the partial one from its file.
    pub fn read(whole_etag: Option<String>, partial_etag: PathBuf) -> Self {
        let partial = std::fs::read_to_string(&partial_etag).ok().filter(|etag| is_strong(etag));
        Self { whole_etag, partial, partial_etag }
    }

    /// Returns whether the partial file can be resumed.
    pub fn can_resume(&self) -> bool {
        self.partial.is_some()
    }

    /// Records the ETag of a partial file that begins now. It is written before the first byte, because the process may
    /// be killed at any time.
    ///
    /// Errors: `File`.
    fn begin(&mut self, etag: Option<&str>) -> Result<(), DownloadError> {
        self.partial = etag.filter(|etag| is_strong(etag)).map(str::to_owned);
        let path = &self.partial_etag;
        match &self.partial {
            Some(etag) => std::fs::write(path, etag).map_err(|source| DownloadError::file("write", path, source)),
            None => match std::fs::remove_file(path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    Err(DownloadError::file("delete", path, source))
                }
                _ => Ok(()),
            },
        }
    }
}

/// Returns whether an ETag guarantees equal bytes, and is complete. Source: RFC 9110, section 8.8.3.
fn is_strong(etag: &str) -> bool {
    etag.len() >= 2 && etag.starts_with('"') && etag.ends_with('"')
}

/// Outcome of a transfer.
#[derive(Debug, PartialEq, Eq)]
pub enum Transferred {
    /// The file is complete, with the ETag given by the host.
    Whole(Option<String>),
    /// The host still has the version of the complete local file.
    Unchanged,
}

/// Downloads a file whose content never changes to `partial`.
///
/// Errors: `Broken`, `Answer`, `Denied`, `NotFound`, `Checksum`, `Room`, `File`.
pub async fn transfer(
    web: &Web,
    remote: &Remote<'_>,
    partial: &Path,
    progress: &mut DownloadProgress,
) -> Result<(), DownloadError> {
    transfer_version(web, remote, partial, None, progress).await.map(drop)
}

/// Downloads a file that may change to `partial`, unless the complete local file is up to date.
///
/// Errors: like [`transfer`].
pub async fn transfer_if_changed(
    web: &Web,
    remote: &Remote<'_>,
    partial: &Path,
    validators: &mut Validators,
    progress: &mut DownloadProgress,
) -> Result<Transferred, DownloadError> {
    transfer_version(web, remote, partial, Some(validators), progress).await
}

/// Downloads a file to `path`; it may change if there are `validators`.
async fn transfer_version(
    web: &Web,
    remote: &Remote<'_>,
    path: &Path,
    mut validators: Option<&mut Validators>,
    progress: &mut DownloadProgress,
) -> Result<Transferred, DownloadError> {
    let host = host(&remote.url);
    let what = path_name(&remote.url);
    let mut partial = PartialFile::open(path, remote.sha256.as_ref().map(|_| Sha256::new())).await?;
    if partial.len > 0 {
        info!(file = what, bytes = partial.len, "resuming a download");
    }
    let mut is_resumed = partial.len > 0;
    let mut attempts = Attempts::default();
    loop {
        let before = partial.len;
        let validators = validators.as_deref_mut();
        let mut attempt = Attempt { web, remote, what: &what, partial: &mut partial, validators, progress };
        let attempt_result = attempt.run().await;
        match attempt_result {
            Ok(Transferred::Unchanged) => return Ok(Transferred::Unchanged),
            Ok(hasher) => match partial.finish(&what, remote.sha256).await {
                // The part left by an earlier process may be damaged: download the whole file once more.
                Err(error @ DownloadError::Checksum { .. }) if std::mem::take(&mut is_resumed) => {
                    warn!(%error, "downloading the whole file again");
                    partial = PartialFile::open(path, Some(Sha256::new())).await?;
                }
                finished => return finished.map(|()| hasher),
            },
            Err(failure) => {
                if partial.len > before {
                    attempts.progressed();
                }
                attempts.again(failure, &host, &what).await?;
            }
        }
    }
}

/// Returns the last segment of an address' path, for messages.
fn path_name(url: &Url) -> String {
    url.path_segments().and_then(|mut segments| segments.next_back()).unwrap_or_default().to_owned()
}

/// The partial file on the disk.
struct PartialFile {
    path: PathBuf,
    file: File,
    /// Checksum of the bytes so far; `None` if there is no checksum to compare it with.
    hasher: Option<Sha256>,
    len: u64,
}

impl PartialFile {
    /// Opens the partial file, or creates an empty one; the hasher, if any, reads the existing bytes.
    ///
    /// Errors: `File`.
    async fn open(path: &Path, hasher: Option<Sha256>) -> Result<Self, DownloadError> {
        let refuse = |source| DownloadError::file("write", path, source);
        let folder = path.parent().expect("a file is in a folder");
        std::fs::create_dir_all(folder).map_err(|source| DownloadError::file("make", folder, source))?;
        let file = File::options().append(true).create(true).open(path).await.map_err(refuse)?;
        let owned_path = path.to_owned();
        let read_result = tokio::task::spawn_blocking(move || read_whole(&owned_path, hasher)).await;
        let (hasher, len) =
            read_result.map_err(io::Error::other).and_then(|read_result| read_result).map_err(refuse)?;
        Ok(Self { path: path.to_owned(), file, hasher, len })
    }

    /// Empties the file.
    async fn clear(&mut self) -> Result<(), DownloadError> {
        self.file.set_len(0).await.map_err(|source| DownloadError::file("write", &self.path, source))?;
        self.hasher = self.hasher.as_ref().map(|_| Sha256::new());
        self.len = 0;
        Ok(())
    }

    async fn append(&mut self, bytes: &[u8]) -> Result<(), DownloadError> {
        self.file.write_all(bytes).await.map_err(|source| DownloadError::file("write", &self.path, source))?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Flushes the file to the disk and compares its checksum; deletes a damaged file.
    ///
    /// Errors: `File`, `Checksum`.
    async fn finish(&mut self, what: &str, expected: Option<[u8; 32]>) -> Result<(), DownloadError> {
        let refuse = |source| DownloadError::file("write", &self.path, source);
        self.file.flush().await.map_err(refuse)?;
        self.file.sync_all().await.map_err(refuse)?;
        let (Some(expected), Some(hasher)) = (expected, self.hasher.take()) else { return Ok(()) };
        let got: [u8; 32] = hasher.finalize().into();
        if got == expected {
            return Ok(());
        }
        std::fs::remove_file(&self.path).map_err(|source| DownloadError::file("delete", &self.path, source))?;
        let (expected, got) = (hex::encode(expected), hex::encode(got));
        Err(DownloadError::Checksum { what: what.to_owned(), expected, got })
    }

    /// Checks that the disk has room for the rest.
    ///
    /// Errors: `Room`.
    fn check_room(&self, what: &str, size: u64) -> Result<(), DownloadError> {
        let folder = self.path.parent().expect("a file is in a folder");
        let bytes_needed = size.saturating_sub(self.len);
        match free_bytes(folder) {
            Some(bytes_free) if bytes_free < bytes_needed => Err(DownloadError::Room {
                what: what.to_owned(),
                folder: folder.to_owned(),
                free: Bytes(bytes_free),
                needed: Bytes(bytes_needed),
            }),
            _ => Ok(()),
        }
    }
}

fn read_whole(path: &Path, mut hasher: Option<Sha256>) -> io::Result<(Option<Sha256>, u64)> {
    let mut file = std::fs::File::open(path)?;
    if let Some(hasher) = &mut hasher {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            match file.read(&mut bytes)? {
                0 => break,
                n => hasher.update(&bytes[..n]),
            }
        }
    }
    Ok((hasher, file.metadata()?.len()))
}

/// Returns the free space of a folder's disk for this user; `None` if the system does not report it. Units: bytes.
fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// One request for the missing bytes.
struct Attempt<'a> {
    web: &'a Web,
    remote: &'a Remote<'a>,
    what: &'a str,
    partial: &'a mut PartialFile,
    /// Validators; `None` if the content never changes.
    validators: Option<&'a mut Validators>,
    progress: &'a mut DownloadProgress,
}

impl Attempt<'_> {
    /// Appends the bytes that the host sends.
    async fn run(&mut self) -> Result<Transferred, AttemptFailure> {
        match self.remote.size {
            Some(size) if self.partial.len > size => self.partial.clear().await?,
            Some(size) if self.partial.len == size => return Ok(Transferred::Whole(None)),
            _ => {}
        }
        // The host may send the rest of the file, all of it, or nothing if the file is unchanged.
        let mut answer = self.ask().await?;
        let etag = answer.header(header::ETAG);
        match answer.status {
            StatusCode::NOT_MODIFIED => return Ok(Transferred::Unchanged),
            StatusCode::RANGE_NOT_SATISFIABLE => {
                self.partial.clear().await?;
                return Err(AttemptFailure::transient("it does not have this part of the file"));
            }
            StatusCode::PARTIAL_CONTENT if self.is_other_version(etag.as_deref()) => {
                self.partial.clear().await?;
                return Err(AttemptFailure::transient("it sends a part of another version of the file"));
            }
            StatusCode::PARTIAL_CONTENT => self.check_part(&answer)?,
            _ => {
                // In this order, the bytes on the disk never have the ETag of another version.
                self.partial.clear().await?;
                if let Some(validators) = &mut self.validators {
                    validators.begin(etag.as_deref())?;
                }
            }
        }
        // A part may come without an ETag, as the request names the expected one.
        let etag = etag.or_else(|| self.partial_etag().cloned());
        // The disk must have room for the whole file before the first byte is written.
        let announced_len = answer.content_length().map(|len_left| self.partial.len + len_left);
        let size = self.remote.size.or(announced_len);
        if let Some(size) = size {
            self.partial.check_room(self.what, size)?;
            self.progress.size(size);
        }
        while let Some(bytes) = answer.chunk().await? {
            if size.is_some_and(|size| self.partial.len + bytes.len() as u64 > size) {
                return Err(unusable(&answer.url, self.what, "it is longer than was announced"));
            }
            self.partial.append(&bytes).await?;
            self.progress.at(self.partial.len);
        }
        match size {
            Some(size) if self.partial.len < size => Err(AttemptFailure::transient("the response ended early")),
            _ => Ok(Transferred::Whole(etag)),
        }
    }

    async fn ask(&mut self) -> Result<HostResponse, AttemptFailure> {
        let mut headers = Vec::new();
        let etag = self.partial_etag();
        // Without a strong ETag, the rest may be that of another version.
        if self.partial.len > 0 && (self.validators.is_none() || etag.is_some()) {
            headers.push((header::RANGE, format!("bytes={}-", self.partial.len)));
            headers.extend(etag.map(|etag| (header::IF_RANGE, etag.clone())));
        } else if let Some(etag) = self.validators.as_ref().and_then(|validators| validators.whole_etag.as_ref()) {
            headers.push((header::IF_NONE_MATCH, etag.clone()));
        }
        let Remote { url, token, .. } = self.remote;
        self.web.get(&HostRequest { url: url.clone(), token: *token, headers, what: self.what }).await
    }

    /// Returns the strong ETag of the partial file.
    fn partial_etag(&self) -> Option<&String> {
        self.validators.as_ref()?.partial.as_ref()
    }

    /// Returns whether an ETag is not that of the partial file.
    fn is_other_version(&self, etag: Option<&str>) -> bool {
        self.partial_etag().zip(etag).is_some_and(|(own, sent)| own != sent)
    }

    /// Checks that the sent range begins at the end of the file.
    fn check_part(&self, answer: &HostResponse) -> Result<(), AttemptFailure> {
        let range = answer.header(header::CONTENT_RANGE).unwrap_or_default();
        let begin = range.strip_prefix("bytes ").and_then(|range| range.split_once('-')?.0.parse().ok());
        match begin == Some(self.partial.len) {
            true => Ok(()),
            false => Err(unusable(&answer.url, self.what, "it sends another part than the requested one")),
        }
    }
}
