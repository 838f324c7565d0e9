//! The requests between the engine thread and the disk thread.
//!
//! Not here: doing them (`thread`). The idea: what a request waits for (reads) and what frees room (deletes) goes in
//! order and ahead of writes; writes are bounded in bytes, and a chunk that is deleted before its write has begun is
//! never written.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use warmpath_worker_core::chunk_index::{ChunkId, Record};

use super::{DiskEvent, WriteFailure};

/// Asks for a chunk to be written.
#[derive(Debug)]
pub(super) struct Write {
    pub id: ChunkId,
    pub record: Arc<Record>,
    pub payload: Arc<[u8]>,
}

impl Write {
    /// Returns how much memory the request keeps from being freed. Units: bytes.
    fn n_bytes(&self) -> u64 {
        let record_bytes = size_of::<Record>() + size_of_val(&*self.record.blocks) + size_of_val(&*self.record.tokens);
        (self.payload.len() + record_bytes) as u64
    }
}

/// Is what the disk thread has to do next.
#[derive(Debug)]
pub(super) enum Job {
    /// Tell the engine what needed no disk.
    Tell(DiskEvent),
    /// Read a chunk.
    Read { id: ChunkId, record: Arc<Record> },
    /// Delete a chunk's file.
    Delete { record: Arc<Record> },
    /// Write a chunk; [`Queue::finish_write`] follows.
    Write(Write),
}

/// Is the queue; it has one thread that asks and one that serves.
#[derive(Debug)]
pub(super) struct Queue {
    /// Guards the requests; held for a few instructions, never during IO or a callback.
    state: Mutex<State>,
    /// Wakes the disk thread.
    asked: Condvar,
    /// Wakes whoever waits for writes to be done or for the thread to end.
    progressed: Condvar,
    queued_bytes_max: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Holds no payloads besides those that `writes` had; the engine asks at most once for each chunk that it knows.
    urgent: VecDeque<Job>,
    writes: HashMap<ChunkId, Write>,
    /// Is the order of `writes`; ids of writes taken back stay until they are reached.
    write_order: VecDeque<ChunkId>,
    /// Counts what `writes` and the write under way keep in memory.
    queued_bytes: u64,
    /// Is the size of the write under way.
    writing_bytes: Option<u64>,
    is_closed: bool,
    has_ended: bool,
}

impl State {
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the lock panics")
    }

    /// Queues a write, or its refusal where the queue is full.
    pub fn write(&self, write: Write) {
        let mut state = self.lock();
        state.take_back_write(write.id);
        let n_bytes = write.n_bytes();
        if state.queued_bytes.saturating_add(n_bytes) > self.queued_bytes_max {
            let refusal = DiskEvent::WriteFailed { id: write.id, reason: WriteFailure::QueueFull };
            state.urgent.push_back(Job::Tell(refusal));
        } else {
            state.queued_bytes += n_bytes;
            state.write_order.push_back(write.id);
            state.writes.insert(write.id, write);
        }
        self.asked.notify_one();
    }

    /// Queues a read, or its answer where the chunk is still here.
    pub fn read(&self, id: ChunkId, record: Arc<Record>) {
        let mut state = self.lock();
        let job = match state.writes.get(&id) {
            Some(write) => Job::Tell(DiskEvent::Read { id, payload: Arc::clone(&write.payload) }),
            None => Job::Read { id, record },
        };
        state.urgent.push_back(job);
        self.asked.notify_one();
    }

    /// Takes back the write of `id` where it waits, and queues the deletion of the file.
    pub fn delete(&self, id: ChunkId, record: Arc<Record>) {
        let mut state = self.lock();
        state.take_back_write(id);
        state.urgent.push_back(Job::Delete { record });
        self.asked.notify_one();
        self.progressed.notify_all();
    }

    /// Waits for something to do; `None` when the queue has been closed.
    pub fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.urgent.pop_front() {
                return Some(job);
            }
            if let Some(write) = state.next_write() {
                return Some(Job::Write(write));
            }
            state = self.asked.wait(state).expect("no holder of the lock panics");
        }
    }

    /// Says that the write which `next` returned has been answered.
    pub fn finish_write(&self) {
        let mut state = self.lock();
        let n_bytes = state.writing_bytes.take().unwrap_or(0);
        state.queued_bytes -= n_bytes;
        self.progressed.notify_all();
    }

    /// Waits until no write waits or is under way, and returns how many do at the deadline.
    pub fn flush(&self, deadline: Instant) -> usize {
        self.wait_until(deadline, |state| state.n_unwritten() == 0 || state.has_ended).n_unwritten()
    }

    /// Gives up everything that waits and lets the thread end.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.asked.notify_one();
    }

    /// Says that the thread has ended.
    pub fn end(&self) {
        self.lock().has_ended = true;
        self.progressed.notify_all();
    }

    /// Waits until the thread has ended, and returns whether it has at the deadline.
    pub fn wait_for_end(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, |state| state.has_ended).has_ended
    }

    fn wait_until(&self, deadline: Instant, done: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while !done(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            (state, _) = self.progressed.wait_timeout(state, left).expect("no holder of the lock panics");
        }
        state
    }
}
