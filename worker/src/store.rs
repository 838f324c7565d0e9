//! The disk tier: chunks and checkpoints as files that survive a restart. One thread owns all file IO.
//!
//! The engine thread puts requests into a queue and never waits; the thread "cache-disk" responds with events. A file
//! is written under a temporary name, flushed and renamed, and its checksums are verified when it is read. So the store
//! is usable after a crash at any time.
//!
//! Not here: the choice of chunks (`chunk_index` in the core), the content of a payload (`engine::codec`).

pub mod exchange;
mod folder;
pub mod format;
pub mod preamble;
mod queue;
pub mod slot_file;
mod thread;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use warmpath_common::model::Fingerprint;
use warmpath_worker_core::store::chunk_index::{ChunkId, ChunkRecord};

pub use folder::Reservation;
pub use preamble::Damage;
pub use slot_file::SlotIdentity;

use folder::Folder;
use queue::Queue;
use thread::DiskThread;

/// Creates the folder for stored state if it does not exist, tries to write into it, and reserves it, so that an
/// unusable folder is reported before the model is loaded.
///
/// `settings` is the fingerprint of the model and of the settings that are known before loading. Returns `None` if
/// `dir` itself is not writable but folders in it may be; another worker is then detected only after loading.
/// Errors: `Make`, `Unwritable`, `InUse`, `Lock`.
pub fn reserve(dir: &Path, settings: Fingerprint) -> Result<Option<Reservation>, StoreError> {
    folder::reserve(dir, settings)
}

/// Pause in writing after a failed write.
///
/// Source: long enough that a full disk costs little time, and short enough that freed space is soon used again.
const WRITE_PAUSE: Duration = Duration::from_secs(5);
/// Longest wait of a dropped store for its thread, which may hang in a request to a dead disk. Source: a working disk
/// has finished a write by then.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Identity of stored state; every combination has its own folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Fingerprint of the model's weights and metadata.
    pub model: Fingerprint,
    /// Fingerprint of the layout of the KV state.
    pub kv: Fingerprint,
    /// Tokens per block.
    pub block_size_tokens: u32,
}

/// Release of llama-cpp-sys-2 whose llama.cpp computes, exports and imports the state. Another llama.cpp may compute or
/// lay out state differently, so the release is part of the state's identity. A test compares it with `Cargo.lock`.
pub const STATE_VERSION: &str = "0.1.161";

impl Identity {
    /// Returns the identity of the state of a model with this KV layout. The layout covers everything that decides the
    /// bytes, except the release.
    pub fn new(model: Fingerprint, kv_layout: &str, block_size_tokens: u32) -> Self {
        let kv = format!("{kv_layout} {STATE_VERSION}");
        let kv = Fingerprint(blake3::derive_key("warmpath 2026 stored state v3", kv.as_bytes()));
        Self { model, kv, block_size_tokens }
    }

    /// Returns one fingerprint of the identity and the format of records: workers with equal fingerprints can exchange
    /// state.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new_derive_key("warmpath 2026 exchanged state v1");
        self.hash_into(&mut hasher);
        Fingerprint(*hasher.finalize().as_bytes())
    }

    fn hash_into(&self, hasher: &mut blake3::Hasher) {
        hasher.update(&self.model.0);
        hasher.update(&self.kv.0);
        hasher.update(&self.block_size_tokens.to_le_bytes());
        hasher.update(&format::CHUNK_FILE.version.to_le_bytes());
    }
}

/// A file that was found when the store was opened.
#[derive(Debug, Clone)]
pub struct StoredFile {
    /// Content of its header.
    pub record: ChunkRecord,
    /// Size of the file, header included. Units: bytes.
    pub file_bytes: u64,
    /// Time when it was last written or read.
    pub used_at: SystemTime,
}

/// Event of the store, sent by the thread "cache-disk".
#[derive(Debug)]
pub enum DiskEvent {
    /// The chunk is on disk.
    Written {
        /// The chunk.
        id: ChunkId,
        /// Size of the file. Units: bytes.
        n_bytes: u64,
    },
    /// The chunk is not on disk, not even partially.
    WriteFailed {
        /// The chunk.
        id: ChunkId,
        /// Reason.
        reason: WriteFailure,
    },
    /// The payload was read and matches its checksum.
    Read {
        /// The chunk.
        id: ChunkId,
        /// The payload.
        payload: Bytes,
        /// Time of the read; `None` if the payload still waited to be written, so that nothing was read.
        took: Option<Duration>,
    },
    /// The payload cannot be read, and its file has been deleted.
    ReadFailed {
        /// The chunk.
        id: ChunkId,
        /// Reason.
        reason: ReadFailure,
    },
}

/// Reason why a chunk was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteFailure {
    /// The queue of writes is full.
    #[error("queue full")]
    QueueFull,
    /// A write has just failed, so writing pauses.
    #[error("writing pauses after a failure")]
    Paused,
    /// The disk is full, or the file cannot be written for another reason.
    #[error("the file cannot be written")]
    Io {
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Reason why a chunk could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadFailure {
    /// There is no such file.
    #[error("there is no file")]
    Missing,
    /// The file is damaged.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The file contains another chunk than the requested one.
    #[error("the file holds another chunk")]
    Other,
    /// The file cannot be read.
    #[error("the file cannot be read")]
    Io {
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Reason why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder cannot be created.
    #[error("the cache folder {} cannot be made", folder.display())]
    Make {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The folder is not writable.
    #[error("nothing can be written into the cache folder {}", folder.display())]
    Unwritable {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another worker uses the folder.
    #[error("the cache folder {} is in use by another worker; give each worker a --cache-disk of its own", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder cannot be locked.
    #[error("the cache folder {} cannot be locked", folder.display())]
    Lock {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The folder cannot be listed.
    #[error("the cache folder {} cannot be listed", folder.display())]
    List {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The thread cannot be started.
    #[error("the thread for the cache folder cannot be started")]
    Thread {
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Limits on the store's requests.
#[derive(Debug, Clone, Copy)]
struct StoreRequestLimits {
    queued_bytes_max: u64,
    write_pause: Duration,
    end_patience: Duration,
}

/// The engine thread's interface to the disk tier.
///
/// No call waits for the disk. Every write and every read gets one event, except a write whose chunk is deleted before
/// the write begins. A second write of a chunk replaces the first one if that still waits.
#[derive(Debug)]
pub struct DiskStore {
    queue: Arc<Queue>,
    folder: PathBuf,
    end_patience: Duration,
}

impl DiskStore {
    /// Opens the folder of `identity` in `dir`, and returns its files, parents before their children.
    ///
    /// A write is refused if more than `queued_bytes_max` would wait. Payloads that are also in the RAM tier take no
    /// further memory here, so that tier's limit is a good value. `on_event` is called on the store's thread, which
    /// waits until it returns.
    /// Cost: reads the header of each file. Unusable files are deleted, with one warning.
    /// Errors: `Make`, `Lock`, `List` if the folder cannot be used; `InUse` if another worker uses it; `Thread`.
    pub fn open(
        dir: &Path,
        identity: Identity,
        queued_bytes_max: u64,
        on_event: impl FnMut(DiskEvent) + Send + 'static,
    ) -> Result<(Self, Vec<StoredFile>), StoreError> {
        let limits = StoreRequestLimits { queued_bytes_max, write_pause: WRITE_PAUSE, end_patience: END_PATIENCE };
        Self::open_limited(dir, identity, limits, on_event)
    }

    fn open_limited(
        dir: &Path,
        identity: Identity,
        limits: StoreRequestLimits,
        on_event: impl FnMut(DiskEvent) + Send + 'static,
    ) -> Result<(Self, Vec<StoredFile>), StoreError> {
        let folder = Folder::open(dir, identity)?;
        let files = folder.scan()?;
        let path = folder.path().to_owned();
        let queue = Arc::new(Queue::new(limits.queued_bytes_max));
        DiskThread::spawn(folder, Arc::clone(&queue), limits.write_pause, on_event)
            .map_err(|source| StoreError::Thread { source })?;
        Ok((Self { queue, folder: path, end_patience: limits.end_patience }, files))
    }

    /// Returns the folder of this identity's files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Requests the write of `payload`; the event is `Written` or `WriteFailed`.
    pub fn write(&self, id: ChunkId, record: Arc<ChunkRecord>, payload: Bytes) {
        self.queue.write(queue::Write { id, record, payload });
    }

    /// Requests the payload of `record`, ahead of all waiting writes; the event is `Read` or `ReadFailed`. A chunk that
    /// still waits to be written is returned from the queue.
    pub fn read(&self, id: ChunkId, record: Arc<ChunkRecord>) {
        self.queue.read(id, record);
    }

    /// Requests the deletion of the file of `record`; there is no event.
    ///
    /// A write that has not begun is cancelled without an event; one in progress gets its event and then its file is
    /// deleted.
    pub fn delete(&self, id: ChunkId, record: Arc<ChunkRecord>) {
        self.queue.delete(id, record);
    }

    /// Waits until all writes have had their events, at most until the deadline; returns the number of remaining
    /// writes.
    pub fn flush(&self, deadline: Instant) -> usize {
        self.queue.flush(deadline)
    }
}

impl Drop for DiskStore {
    /// Ends the thread after the request in progress; waiting requests are dropped without an event.
    fn drop(&mut self) {
        self.queue.close();
        if !self.queue.wait_for_end(Instant::now() + self.end_patience) {
            tracing::warn!(folder = %self.folder.display(), "the disk does not respond; no longer waiting for its thread");
        }
    }
}

#[cfg(test)]
mod tests;
