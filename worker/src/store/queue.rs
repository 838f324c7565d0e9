//! The queue of requests from the engine thread to the disk thread.
//!
//! Reads, which requests wait for, and deletions, which free space, are done in order and before writes. The size of
//! waiting writes is limited, and a chunk that is deleted before its write begins is not written. Not here: their
//! execution (`thread`).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use bytes::Bytes;
use warmpath_worker_core::store::chunk_index::{ChunkId, ChunkRecord};

use super::{DiskEvent, WriteFailure};

/// Request to write a chunk.
#[derive(Debug)]
pub(super) struct Write {
    pub id: ChunkId,
    pub record: Arc<ChunkRecord>,
    pub payload: Bytes,
}

impl Write {
    /// Returns the memory that the request takes. Units: bytes.
    fn n_bytes(&self) -> u64 {
        let record_bytes =
            size_of::<ChunkRecord>() + size_of_val(&*self.record.blocks) + size_of_val(&*self.record.tokens);
        (self.payload.len() + record_bytes) as u64
    }
}

/// Next job of the disk thread.
#[derive(Debug)]
pub(super) enum DiskJob {
    /// Report of an event that needs no disk access.
    Tell(DiskEvent),
    /// Read of a chunk.
    Read { id: ChunkId, record: Arc<ChunkRecord> },
    /// Deletion of a chunk's file.
    Delete { record: Arc<ChunkRecord> },
    /// Write of a chunk; [`Queue::finish_write`] follows.
    Write(Write),
}

/// The queue, with one thread that adds requests and one that takes them.
#[derive(Debug)]
pub(super) struct Queue {
    /// The requests. The lock is held for a few instructions, never during IO or a callback.
    state: Mutex<QueueState>,
    /// Wakes the disk thread.
    asked: Condvar,
    /// Wakes threads that wait for writes to be done or for the disk thread to end.
    progressed: Condvar,
    queued_bytes_max: u64,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Jobs that are done before writes. Their payloads were in `writes` before; the engine sends at most one job per
    /// chunk.
    urgent: VecDeque<DiskJob>,
    writes: HashMap<ChunkId, Write>,
    /// Order of `writes`; ids of cancelled writes stay until they are reached.
    write_order: VecDeque<ChunkId>,
    /// Memory of `writes` and the write in progress.
    queued_bytes: u64,
    /// Size of the write in progress.
    writing_bytes: Option<u64>,
    is_closed: bool,
    has_ended: bool,
}

impl QueueState {
    fn take_back_write(&mut self, id: ChunkId) {
        if let Some(write) = self.writes.remove(&id) {
            self.queued_bytes -= write.n_bytes();
        }
    }

    fn next_write(&mut self) -> Option<Write> {
        while let Some(id) = self.write_order.pop_front() {
            if let Some(write) = self.writes.remove(&id) {
                self.writing_bytes = Some(write.n_bytes());
                return Some(write);
            }
        }
        None
    }

    fn n_unwritten(&self) -> usize {
        self.writes.len() + usize::from(self.writing_bytes.is_some())
    }
}

impl Queue {
    /// Returns an empty queue.
    pub fn new(queued_bytes_max: u64) -> Self {
        Self { state: Mutex::default(), asked: Condvar::new(), progressed: Condvar::new(), queued_bytes_max }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().expect("no holder of the lock panics")
    }

    /// Queues a write, or its refusal if the queue is full.
    pub fn write(&self, write: Write) {
        let mut state = self.lock();
        state.take_back_write(write.id);
        let n_bytes = write.n_bytes();
        if state.queued_bytes.saturating_add(n_bytes) > self.queued_bytes_max {
            let refusal = DiskEvent::WriteFailed { id: write.id, reason: WriteFailure::QueueFull };
            state.urgent.push_back(DiskJob::Tell(refusal));
        } else {
            state.queued_bytes += n_bytes;
            state.write_order.push_back(write.id);
            state.writes.insert(write.id, write);
        }
        self.asked.notify_one();
    }

    /// Queues a read, or its result if the chunk is still in the queue.
    pub fn read(&self, id: ChunkId, record: Arc<ChunkRecord>) {
        let mut state = self.lock();
        let job = match state.writes.get(&id) {
            Some(write) => DiskJob::Tell(DiskEvent::Read { id, payload: write.payload.clone(), took: None }),
            None => DiskJob::Read { id, record },
        };
        state.urgent.push_back(job);
        self.asked.notify_one();
    }

    /// Cancels the write of `id` if it waits, and queues the deletion of the file.
    pub fn delete(&self, id: ChunkId, record: Arc<ChunkRecord>) {
        let mut state = self.lock();
        state.take_back_write(id);
        state.urgent.push_back(DiskJob::Delete { record });
        self.asked.notify_one();
        self.progressed.notify_all();
    }

    /// Waits for a job; returns `None` when the queue has been closed.
    pub fn next(&self) -> Option<DiskJob> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.urgent.pop_front() {
                return Some(job);
            }
            if let Some(write) = state.next_write() {
                return Some(DiskJob::Write(write));
            }
            state = self.asked.wait(state).expect("no holder of the lock panics");
        }
    }

    /// Records that the result of the write from `next` has been reported.
    pub fn finish_write(&self) {
        let mut state = self.lock();
        let n_bytes = state.writing_bytes.take().unwrap_or(0);
        state.queued_bytes -= n_bytes;
        self.progressed.notify_all();
    }

    /// Waits until no write waits or is in progress, at most until the deadline; returns the number of remaining
    /// writes.
    pub fn flush(&self, deadline: Instant) -> usize {
        self.wait_until(deadline, |state| state.n_unwritten() == 0 || state.has_ended).n_unwritten()
    }

    /// Drops all waiting jobs and lets the thread end.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.asked.notify_one();
    }

    /// Records that the thread has ended.
    pub fn end(&self) {
        self.lock().has_ended = true;
        self.progressed.notify_all();
    }

    /// Waits until the thread has ended, at most until the deadline; returns whether it has.
    pub fn wait_for_end(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, |state| state.has_ended).has_ended
    }

    fn wait_until(&self, deadline: Instant, done: impl Fn(&QueueState) -> bool) -> MutexGuard<'_, QueueState> {
        let mut state = self.lock();
        while !done(&state) {
            let time_left = deadline.saturating_duration_since(Instant::now());
            if time_left.is_zero() {
                break;
            }
            (state, _) = self.progressed.wait_timeout(state, time_left).expect("no holder of the lock panics");
        }
        state
    }
}
