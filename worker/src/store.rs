//! The disk tier: chunks and checkpoints as files that survive a restart, behind one thread that owns all file IO.
//!
//! Not here: which chunks are worth keeping (`chunk_index` in the core), what a payload means (`engine::kv_codec`).
//! The idea: the engine thread puts requests into a queue and never waits; the thread "cache-disk" answers with events.
//! A file is written under a temporary name, flushed and renamed, and proves itself by checksums when it is read, so a
//! crash at any point leaves a usable store.

mod folder;
mod format;
mod queue;
pub mod slot_file;
mod thread;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use warmpath_common::model::Fingerprint;
use warmpath_worker_core::chunk_index::{ChunkId, Record};

pub use folder::Reservation;
pub use format::Damage;
pub use slot_file::SlotIdentity;

use folder::Folder;
use queue::Queue;
use thread::DiskThread;

/// Makes the folder for stored state where there is none, tries to write into it, and takes a worker's place in it, so that a wrong
/// one and one in use are reported before a model is loaded.
///
/// `settings` names the model and what its state depends on, as far as it is known by then. Returns nothing where only the folders
/// in it can be written to: another worker is then found once the model is loaded.
/// Errors: `Make`, `Unwritable`, `InUse`, `Lock`.
pub fn reserve(dir: &Path, settings: Fingerprint) -> Result<Option<Reservation>, StoreError> {
    folder::reserve(dir, settings)
}

/// Is how long no write is tried after one has failed, as on a full disk.
///
/// Source: long enough that a full disk costs nothing, short enough that one made free is used again at once.
const WRITE_PAUSE: Duration = Duration::from_secs(5);
/// Is how long a dropped store waits for its thread, which may hang in a request to a dead disk.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Is what a stored payload can be used with; every combination has a folder of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Names the model's weights and metadata.
    pub model: Fingerprint,
    /// Names the layout of the KV state.
    pub kv: Fingerprint,
    /// Is the number of tokens in a block.
    pub block_size_tokens: u32,
}

/// Is a file that was found when the store was opened.
#[derive(Debug, Clone)]
pub struct StoredFile {
    /// Says what it holds.
    pub record: Record,
    /// Is the size of the file, header included. Units: bytes.
    pub file_bytes: u64,
    /// Is when it was last written or read.
    pub used_at: SystemTime,
}

/// Is what the store answers; it comes on the thread "cache-disk".
#[derive(Debug)]
pub enum DiskEvent {
    /// The chunk lies on disk.
    Written {
        /// Is the chunk of the request.
        id: ChunkId,
        /// Is the size of the file. Units: bytes.
        n_bytes: u64,
    },
    /// The chunk does not lie on disk, and nothing of it does.
    WriteFailed {
        /// Is the chunk of the request.
        id: ChunkId,
        /// Says why.
        reason: WriteFailure,
    },
    /// The payload was read and is what was written.
    Read {
        /// Is the chunk of the request.
        id: ChunkId,
        /// Is the payload.
        payload: Arc<[u8]>,
    },
    /// The payload cannot be had, and its file has been deleted.
    ReadFailed {
        /// Is the chunk of the request.
        id: ChunkId,
        /// Says why.
        reason: ReadFailure,
    },
}

/// Says why a chunk was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteFailure {
    /// Too much waits to be written already.
    #[error("queue full")]
    QueueFull,
    /// A write has just failed, so none is tried for some seconds.
    #[error("writing pauses after a failure")]
    Paused,
    /// The disk is full, or the file cannot be written for another reason.
    #[error("the file cannot be written")]
    Io {
        /// Is what the system says.
        #[source]
        source: io::Error,
    },
}

/// Says why a chunk could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadFailure {
    /// There is no such file.
    #[error("there is no file")]
    Missing,
    /// The file is not what was written.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The file holds another chunk than the one that was asked for.
    #[error("the file holds another chunk")]
    Other,
    /// The file cannot be read.
    #[error("the file cannot be read")]
    Io {
        /// Is what the system says.
        #[source]
        source: io::Error,
    },
}

/// Says why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder cannot be made.
    #[error("the cache folder {} cannot be made", folder.display())]
    Make {
        /// Is the folder.
        folder: PathBuf,
        /// Is what the system says.
        #[source]
        source: io::Error,
    },
    /// Nothing can be written into the folder.
    #[error("nothing can be written into the cache folder {}", folder.display())]
    Unwritable {
        /// The folder.
        folder: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Another worker uses the folder.
    #[error("the cache folder {} is in use by another worker; give each worker a --cache-disk of its own", folder.display())]
    InUse {
        /// Is the folder.
        folder: PathBuf,
    },
    /// The folder cannot be locked.
    #[error("the cache folder {} cannot be locked", folder.display())]
    Lock {
        /// Is the folder.
        folder: PathBuf,
        /// Is what the system says.
        #[source]
        source: io::Error,
    },
    /// The folder cannot be listed.
    #[error("the cache folder {} cannot be listed", folder.display())]
    List {
        /// Is the folder.
        folder: PathBuf,
        /// Is what the system says.
        #[source]
        source: io::Error,
    },
    /// The thread cannot be started.
    #[error("the thread for the cache folder cannot be started")]
    Thread {
        /// Is what the system says.
        #[source]
        source: io::Error,
    },
}

/// Is what bounds the store's requests.
#[derive(Debug, Clone, Copy)]
struct Limits {
    queued_bytes_max: u64,
    write_pause: Duration,
    end_patience: Duration,
}

/// Is the engine thread's end of the disk tier.
///
/// No request waits for the disk. Every write and every read is answered by one event, except a write whose chunk is
/// deleted before it has begun. A second write of a chunk takes the place of the first where that still waits.
#[derive(Debug)]
pub struct DiskStore {
    queue: Arc<Queue>,
    folder: PathBuf,
    end_patience: Duration,
}

impl DiskStore {
    /// Opens the part of `dir` that belongs to `identity`, and lists what it holds, parents before their children.
    ///
    /// A write is refused where more than `queued_bytes_max` would wait; what the RAM tier holds as well costs no memory
    /// of its own here, so that tier's limit is a good one.
    /// `on_event` is called on the store's thread; while it does not return, nothing is written or read.
    /// Cost: reads the header of each file. Files that cannot be used are deleted, with one warning.
    /// Errors: `Make`, `Lock`, `List` where the folder cannot be used; `InUse` where another worker uses it; `Thread`.
    pub fn open(
        dir: &Path,
        identity: Identity,
        queued_bytes_max: u64,
        on_event: impl FnMut(DiskEvent) + Send + 'static,
    ) -> Result<(Self, Vec<StoredFile>), StoreError> {
        let limits = Limits { queued_bytes_max, write_pause: WRITE_PAUSE, end_patience: END_PATIENCE };
        Self::open_limited(dir, identity, limits, on_event)
    }

    fn open_limited(
        dir: &Path,
        identity: Identity,
        limits: Limits,
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

    /// Asks for `payload` to be written; the answer is `Written` or `WriteFailed`.
    pub fn write(&self, id: ChunkId, record: Arc<Record>, payload: Arc<[u8]>) {
        self.queue.write(queue::Write { id, record, payload });
    }

    /// Asks for the payload of `record`, ahead of everything that waits to be written; the answer is `Read` or
    /// `ReadFailed`. A chunk that still waits to be written is answered from the queue.
    pub fn read(&self, id: ChunkId, record: Arc<Record>) {
        self.queue.read(id, record);
    }

    /// Asks for the file of `record` to be deleted; there is no answer.
    ///
    /// A write that has not begun is taken back without an answer; one under way is answered and its file deleted.
    pub fn delete(&self, id: ChunkId, record: Arc<Record>) {
        self.queue.delete(id, record);
    }

    /// Waits until all writes asked for have been answered, and returns how many have not been at the deadline.
    pub fn flush(&self, deadline: Instant) -> usize {
        self.queue.flush(deadline)
    }
}

impl Drop for DiskStore {
    /// Ends the thread after the request under way; what waits is given up without an answer.
    fn drop(&mut self) {
        self.queue.close();
        if !self.queue.wait_for_end(Instant::now() + self.end_patience) {
            tracing::warn!(folder = %self.folder.display(), "the disk does not answer; leaving its thread behind");
        }
    }
}

#[cfg(test)]
mod tests;
