//! The store's disk tier: reads that requests wait for, events of the disk thread, and the index's orders.
//!
//! Steps never wait for the disk: reads and writes are requested, and their events are handled between two steps. While
//! a read is late, no request waits for the disk, and no further read is requested. The payload of a late read still
//! goes into memory when it arrives.
//!
//! Not here: when a read is late (the core's `disk_reads`), the queue of the disk thread and its files
//! (`crate::store`).

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tracing::{info, warn};
use warmpath_worker_core::store::chunk_index::{ChunkId, StoreOrder};

use super::Cache;
use crate::store::{DiskEvent, DiskStore};

/// The disk tier and the channel of its events.
pub(crate) struct Disk {
    pub store: DiskStore,
    pub events: Receiver<DiskEvent>,
}

impl Cache {
    /// Protects chunks from eviction until [`Self::release`], and requests those that are not in memory from the disk
    /// unless it is late.
    pub(crate) fn fetch(&mut self, chunks: &[ChunkId]) {
        for id in chunks {
            self.index.hold(*id);
            if self.is_disk_late || self.payloads.contains_key(id) {
                continue;
            }
            let (Some(disk), Some(record)) = (&self.disk, self.index.record(*id)) else { continue };
            if self.reads.request(*id, record, &self.costs, Instant::now()) {
                disk.store.read(*id, Arc::clone(record));
            }
        }
    }

    /// Returns whether any of these chunks is still being read; never while the disk is late, because no request then
    /// waits for it.
    pub(crate) fn is_reading(&self, chunks: &[ChunkId]) -> bool {
        !self.is_disk_late && chunks.iter().any(|id| self.reads.has(*id))
    }

    /// Returns whether a read was late at the start of this step.
    pub(crate) fn is_disk_late(&self) -> bool {
        self.is_disk_late
    }

    /// Returns whether there is a disk tier.
    pub(crate) fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Returns the earliest time after `now` from which on a read is late; `None` if there is none.
    pub(crate) fn next_late_read(&self, now: Instant) -> Option<Instant> {
        self.reads.next_late(now)
    }

    /// Handles the disk's events since the last call, and notes whether a read is late.
    pub(crate) fn take_disk_events(&mut self) {
        let Some(disk) = &self.disk else { return };
        let events: Vec<DiskEvent> = disk.events.try_iter().collect();
        for event in events {
            self.take_disk_event(event);
        }
        let is_late = self.reads.is_late(Instant::now());
        match (std::mem::replace(&mut self.is_disk_late, is_late), is_late) {
            (false, true) => warn!("a read from the disk cache takes too long; requests start without the disk"),
            (true, false) => info!("the disk cache has caught up; requests read from the disk again"),
            (false, false) | (true, true) => {}
        }
    }

    fn take_disk_event(&mut self, event: DiskEvent) {
        let now_ms = self.clock.now_ms();
        match event {
            DiskEvent::Written { id, .. } => self.index.written(id, now_ms),
            DiskEvent::WriteFailed { id, .. } => self.index.write_failed(id),
            DiskEvent::Read { id, payload, took } => self.take_read(id, payload, took),
            DiskEvent::ReadFailed { id, reason } => {
                warn!(%reason, "stored state cannot be read; its tokens will be computed");
                self.reads.end(id);
                self.index.lost(id);
            }
        }
        self.execute_orders();
    }

    /// Keeps a payload that was read if there is room in RAM or a request needs it, and learns from the time of the
    /// read.
    fn take_read(&mut self, id: ChunkId, payload: Bytes, took: Option<Duration>) {
        self.reads.end(id);
        if let Some(took) = took {
            let n_bytes = payload.len() as u64;
            self.learn(|costs| costs.learn_read(n_bytes, took.as_secs_f64() * 1e3));
        }
        if self.index.read_back(id, self.clock.now_ms()) {
            self.passing.remove(&id);
        } else if self.index.is_held(id) {
            self.passing.insert(id);
        } else {
            return;
        }
        self.payloads.insert(id, payload);
    }

    /// Waits until all writes are on disk, at most until `deadline`; returns the number of unwritten chunks.
    pub(crate) fn flush(&mut self, deadline: Instant) -> usize {
        let n_left = self.disk.as_ref().map_or(0, |disk| disk.store.flush(deadline));
        self.take_disk_events();
        n_left
    }

    /// Executes the orders of the index.
    pub(crate) fn execute_orders(&mut self) {
        for order in self.index.take_orders() {
            match order {
                StoreOrder::DropRam(id) => drop(self.payloads.remove(&id)),
                StoreOrder::Write(id) => self.write(id),
                StoreOrder::DropFile(id, record) => {
                    if let Some(disk) = &self.disk {
                        disk.store.delete(id, record);
                    }
                }
            }
        }
    }

    fn write(&mut self, id: ChunkId) {
        match (&self.disk, self.index.record(id), self.payloads.get(&id)) {
            (Some(disk), Some(record), Some(payload)) => {
                disk.store.write(id, Arc::clone(record), payload.clone());
            }
            _ => self.index.write_failed(id),
        }
    }
}
