//! The folder of one model's chunks: its lock, its scan, and reading, writing and deleting of a file.
//!
//! A file appears under its name only when it is complete and flushed. The lock is a lock of the system and ends with
//! the process, so nothing has to be cleaned up after a killed worker. Not here: the bytes of a file (`format`), the
//! order of work (`thread`).

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use tracing::{info, warn};
use warmpath_common::model::Fingerprint;

use super::format::{self, CHUNK_FILE};
use super::preamble::Damage;
use super::{ChunkRecord, Identity, ReadFailure, StoreError, StoredFile};
use crate::pages::Pages;

/// Context string of the hash in the folder's name.
const NAME_CONTEXT: &str = "warmpath 2026 disk cache folder v1";
/// Number of the hash's bytes in the folder's name. Source: 2⁶⁴ names make collisions improbable.
const NAME_BYTES: usize = 8;
/// File that is locked; its text describes the model and settings of the folder.
const LOCK_FILE: &str = "identity";
/// Prefix of the names of the files that workers lock next to their folders.
const RESERVATION_PREFIX: &str = ".worker-";
/// Prefix of the names of files that are being written.
const TEMPORARY_PREFIX: &str = ".writing-";
/// Number of files between two progress reports of the scan. Source: with 30,000 headers a second from the page cache
/// (docs/cache.md), there are seven reports a second.
const FILES_PER_REPORT: usize = 4096;

/// Locked folder of one identity.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    identity: Identity,
    /// Locked file; closing it releases the lock.
    _lock: File,
}

/// Reservation of `dir` by a worker, until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    /// Locked file; closing it releases the lock.
    _lock: File,
}

/// Creates `dir` if it does not exist, tries to write into it, and reserves it for a worker with these `settings`. A
/// second worker with the same settings would use the same folder, and could detect that only after loading its model.
///
/// Returns `None` if only the folders in it are writable. Errors: `Make`, `Unwritable`, `InUse`, `Lock`.
pub(super) fn reserve(dir: &Path, settings: Fingerprint) -> Result<Option<Reservation>, StoreError> {
    make(dir)?;
    let attempt = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempfile_in(dir);
    let has_folders = || {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_type().ok()).any(|kind| kind.is_dir())
    };
    match attempt {
        // The folder of this model may exist, and be writable.
        Err(_) if has_folders() => Ok(None),
        Err(source) => Err(StoreError::Unwritable { folder: dir.to_owned(), source }),
        Ok(_) => {
            let hash = settings.to_string();
            let lock = lock(dir, &format!("{RESERVATION_PREFIX}{}", &hash[..2 * NAME_BYTES]))?;
            Ok(Some(Reservation { _lock: lock }))
        }
    }
}

/// Opens and locks a file in a folder. Errors: `InUse` if another process has locked it; `Lock`.
fn lock(folder: &Path, name: &str) -> Result<File, StoreError> {
    let lock_error = |source| StoreError::Lock { folder: folder.to_owned(), source };
    let lock_file = File::options().create(true).read(true).write(true).truncate(false).open(folder.join(name));
    let lock = lock_file.map_err(lock_error)?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => StoreError::InUse { folder: folder.to_owned() },
        TryLockError::Error(source) => lock_error(source),
    })?;
    Ok(lock)
}

/// Creates a folder. Its files will contain prompts, so no other user may read it.
fn make(path: &Path) -> Result<(), StoreError> {
    let result = DirBuilder::new().recursive(true).mode(0o700).create(path);
    result.map_err(|source| StoreError::Make { folder: path.to_owned(), source })
}

impl Folder {
    /// Creates the folder of `identity` in `dir` if it does not exist, and locks it.
    ///
    /// Errors: `Make`; `InUse` if another process has locked it; `Lock`.
    pub fn open(dir: &Path, identity: Identity) -> Result<Self, StoreError> {
        let path = dir.join(folder_name(&identity));
        make(&path)?;
        let lock = lock(&path, LOCK_FILE)?;
        // The text is only for operators; the lock also works without it, as on a full disk.
        let _ = describe(&lock, &identity);
        Ok(Self { path, identity, _lock: lock })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the valid files, parents before their children, and deletes all others.
    ///
    /// Cost: one small read per file. Errors: `List`.
    pub fn scan(&self) -> Result<Vec<StoredFile>, StoreError> {
        let list_error = |source| StoreError::List { folder: self.path.clone(), source };
        let started_at = Instant::now();
        let mut files = Vec::new();
        let mut n_dropped: BTreeMap<String, usize> = BTreeMap::new();
        let mut n_seen = 0_usize;
        for entry in std::fs::read_dir(&self.path).map_err(list_error)? {
            let entry = entry.map_err(list_error)?;
            let name = entry.file_name();
            if name == LOCK_FILE || entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            let stored_file = if name.as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes()) {
                Err("incomplete after a crash".to_owned())
            } else {
                self.inspect(&path).map_err(|failure| failure.to_string())
            };
            match stored_file {
                Ok(file) => files.push(file),
                Err(why) => *n_dropped.entry(drop_file(&path, why)).or_default() += 1,
            }
            n_seen += 1;
            if n_seen.is_multiple_of(FILES_PER_REPORT) {
                info!(folder = %self.path.display(), n_files = n_seen, "reading the disk cache");
            }
        }
        files.sort_by_key(|file| (file.record.first_block, file.used_at));
        self.report(&files, &n_dropped, started_at);
        Ok(files)
    }

    /// Returns the record in the header of the file at `path`.
    fn inspect(&self, path: &Path) -> Result<StoredFile, ReadFailure> {
        let io = |source| ReadFailure::Io { source };
        let mut file = File::open(path).map_err(io)?;
        let about = file.metadata().map_err(io)?;
        let (header, _) = format::read_header(&mut file, about.len())?;
        if header.identity != self.identity {
            return Err(Damage::Identity.into());
        }
        if path.file_name().and_then(|name| name.to_str()) != Some(&format::file_name(&header.record)) {
            return Err(Damage::Name.into());
        }
        Ok(StoredFile { record: header.record, file_bytes: about.len(), used_at: about.modified().map_err(io)? })
    }

    fn report(&self, files: &[StoredFile], n_dropped_by_reason: &BTreeMap<String, usize>, started_at: Instant) {
        let folder = self.path.display();
        let n_dropped: usize = n_dropped_by_reason.values().sum();
        if n_dropped > 0 {
            let reasons: Vec<String> = n_dropped_by_reason.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
            warn!(%folder, n_dropped, reasons = reasons.join(", "), "deleted files of the disk cache that cannot be used");
        }
        let n_bytes: u64 = files.iter().map(|file| file.file_bytes).sum();
        let ms = started_at.elapsed().as_millis();
        info!(%folder, n_files = files.len(), n_bytes, ms, "opened the disk cache");
    }

    /// Writes a chunk and returns the size of its file; if that fails, no part of it remains.
    pub fn write(&self, record: &ChunkRecord, payload: &[u8]) -> io::Result<u64> {
        let head = format::encode(self.identity, record, payload)?;
        let mut file = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempfile_in(&self.path)?;
        file.write_all(&head)?;
        file.write_all(payload)?;
        // This precedes the rename, because after a power failure the name must not exist without its bytes.
        file.as_file().sync_data()?;
        file.persist(self.path.join(format::file_name(record))).map_err(|error| error.error)?;
        Ok((head.len() + payload.len()) as u64)
    }

    /// Returns the payload of `record`, checked.
    ///
    /// Errors: `Missing`, `Damaged`, `Other` if the header is not that of `record`, `Io`.
    pub fn read(&self, record: &ChunkRecord) -> Result<Bytes, ReadFailure> {
        let io = |source| ReadFailure::Io { source };
        let mut file = File::open(self.path.join(format::file_name(record))).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ReadFailure::Missing,
            _ => ReadFailure::Io { source },
        })?;
        let file_bytes = file.metadata().map_err(io)?.len();
        let (header, payload_at) = format::read_header(&mut file, file_bytes)?;
        if header.identity != self.identity {
            return Err(Damage::Identity.into());
        }
        if header.record != *record {
            return Err(ReadFailure::Other);
        }
        file.seek(SeekFrom::Start(payload_at)).map_err(io)?;
        let n_bytes = usize::try_from(header.record.n_bytes).map_err(|_| Damage::Length)?;
        let mut payload = Pages::zeroed(n_bytes);
        file.read_exact(&mut payload).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => Damage::Length.into(),
            _ => ReadFailure::Io { source },
        })?;
        if header.payload_checksum != *blake3::hash(&payload).as_bytes() {
            return Err(Damage::Payload.into());
        }
        // A restarted worker evicts by this time. After an error the order is only less accurate.
        let _ = file.set_modified(SystemTime::now());
        Ok(Bytes::from_owner(payload))
    }

    /// Deletes the file of `record`, if it exists.
    pub fn delete(&self, record: &ChunkRecord) -> io::Result<()> {
        match std::fs::remove_file(self.path.join(format::file_name(record))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns the name of the folder: a short hash of the identity that all its files share.
fn folder_name(identity: &Identity) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(NAME_CONTEXT);
    identity.hash_into(&mut hasher);
    let hex = hasher.finalize().to_hex();
    hex[..2 * NAME_BYTES].to_owned()
}

/// Writes a description of the identity into the locked file.
fn describe(mut lock: &File, identity: &Identity) -> io::Result<()> {
    let Identity { model, kv, block_size_tokens } = identity;
    lock.set_len(0)?;
    let version = CHUNK_FILE.version;
    write!(lock, "model {model}\nkv layout {kv}\nblock size {block_size_tokens} tokens\nformat {version}\n")
}

/// Deletes the file at `path` and returns the reason for the report.
fn drop_file(path: &Path, why: String) -> String {
    match std::fs::remove_file(path) {
        Ok(()) => why,
        Err(error) => format!("{why} but not deleted ({error})"),
    }
}
