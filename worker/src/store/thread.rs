//! The thread "cache-disk": serves one request after the other and reports with events.
//!
//! After a failed write, writing pauses for some seconds, so that a failing disk is not overloaded. A warning of one
//! kind is logged at most once a minute. Not here: the order of requests (`queue`), writing a file (`folder`).

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;

use super::folder::Folder;
use super::queue::{DiskJob, Queue, Write};
use super::{ChunkId, ChunkRecord, DiskEvent, ReadFailure, WriteFailure};

/// Name of the thread in `top -H`.
const NAME: &str = "cache-disk";
/// Minimum time between two warnings of one kind. Source: a failing disk must not fill the log.
const WARNING_EVERY: Duration = Duration::from_secs(60);

/// State of the thread.
pub(super) struct DiskThread<F> {
    folder: Folder,
    queue: Arc<Queue>,
    on_event: F,
    write_pause: Duration,
    writes_resume_at: Option<Instant>,
    write_warnings: Warnings,
    read_warnings: Warnings,
    delete_warnings: Warnings,
}

/// Failures of one kind between two warnings.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    last_at: Option<Instant>,
    n_failures: u64,
}

impl Warnings {
    /// Counts a failure; if a warning is due, returns the number of failures since the last one.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.n_failures += 1;
        let is_due = self.last_at.is_none_or(|last_at| now.duration_since(last_at) >= WARNING_EVERY);
        if is_due {
            self.last_at = Some(now);
        }
        is_due.then(|| std::mem::take(&mut self.n_failures))
    }
}

/// Guard that records the end of the thread, even after a panic.
struct EndGuard(Arc<Queue>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl<F: FnMut(DiskEvent) + Send + 'static> DiskThread<F> {
    /// Starts the thread; it ends when the queue is closed, and then unlocks the folder.
    pub fn spawn(folder: Folder, queue: Arc<Queue>, write_pause: Duration, on_event: F) -> io::Result<()> {
        let end = EndGuard(Arc::clone(&queue));
        let disk = Self {
            folder,
            queue,
            on_event,
            write_pause,
            writes_resume_at: None,
            write_warnings: Warnings::default(),
            read_warnings: Warnings::default(),
            delete_warnings: Warnings::default(),
        };
        thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            // This is dropped last, so a caller that waits for the end can then open the folder again.
            let _end = end;
            disk.run();
        })?;
        Ok(())
    }

    fn run(mut self) {
        while let Some(job) = self.queue.next() {
            match job {
                DiskJob::Tell(event) => (self.on_event)(event),
                DiskJob::Read { id, record } => self.read(id, &record),
                DiskJob::Delete { record } => self.delete(&record),
                DiskJob::Write(write) => {
                    self.write(&write);
                    drop(write);
                    self.queue.finish_write();
                }
            }
        }
    }

    fn write(&mut self, write: &Write) {
        let id = write.id;
        if self.writes_resume_at.is_some_and(|resume_at| Instant::now() < resume_at) {
            (self.on_event)(DiskEvent::WriteFailed { id, reason: WriteFailure::Paused });
            return;
        }
        match self.folder.write(&write.record, &write.payload) {
            Ok(n_bytes) => (self.on_event)(DiskEvent::Written { id, n_bytes }),
            Err(source) => {
                let now = Instant::now();
                self.writes_resume_at = Some(now + self.write_pause);
                if let Some(n_failures) = self.write_warnings.count(now) {
                    let folder = self.folder.path().display();
                    warn!(%folder, error = %source, n_failures, "cannot write to the disk cache; will retry in some seconds");
                }
                (self.on_event)(DiskEvent::WriteFailed { id, reason: WriteFailure::Io { source } });
            }
        }
    }

    fn read(&mut self, id: ChunkId, record: &ChunkRecord) {
        let began = Instant::now();
        let event = match self.folder.read(record) {
            Ok(payload) => DiskEvent::Read { id, payload, took: Some(began.elapsed()) },
            Err(reason) => {
                self.warn_of_read(&reason);
                self.delete(record);
                DiskEvent::ReadFailed { id, reason }
            }
        };
        (self.on_event)(event);
    }

    fn warn_of_read(&mut self, reason: &ReadFailure) {
        if let Some(n_failures) = self.read_warnings.count(Instant::now()) {
            let folder = self.folder.path().display();
            warn!(%folder, error = %reason, n_failures, "dropped a chunk of the disk cache that cannot be read");
        }
    }

    fn delete(&mut self, record: &ChunkRecord) {
        if let Err(error) = self.folder.delete(record)
            && let Some(n_failures) = self.delete_warnings.count(Instant::now())
        {
            let folder = self.folder.path().display();
            warn!(%folder, %error, n_failures, "a file of the disk cache cannot be deleted");
        }
    }
}
