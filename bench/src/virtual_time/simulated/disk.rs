//! The disk of a simulated engine: when the reads and writes of stored blocks end.
//!
//! Reads follow one another, and so do writes; they do not slow each other down. What is read and written, and which
//! files are deleted, is decided by the production index (`kv`).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use warmpath_worker_core::store::chunk_index::ChunkId;

/// Size and speed of a disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskShape {
    /// Maximum number of blocks.
    pub n_blocks_max: u64,
    /// Time to read or write a block. Units: milliseconds.
    pub ms_per_block: f64,
}

/// Reads and writes of one disk.
#[derive(Debug, Default)]
pub struct Disk {
    block: Duration,
    reads: Transfers,
    writes: Transfers,
    /// End of each read that has not ended.
    pending_reads: HashMap<ChunkId, Duration>,
}

/// Transfers in one direction, one after the other.
#[derive(Debug, Default)]
struct Transfers {
    ends: VecDeque<(Duration, ChunkId)>,
    free_at: Duration,
    n_blocks: u64,
}

impl Transfers {
    fn add(&mut self, chunk: ChunkId, n_blocks: usize, block: Duration, now: Duration) -> Duration {
        self.free_at = self.free_at.max(now) + block.mul_f64(n_blocks as f64);
        self.n_blocks += n_blocks as u64;
        self.ends.push_back((self.free_at, chunk));
        self.free_at
    }

    fn next_ended(&mut self, now: Duration) -> Option<ChunkId> {
        self.ends.front().filter(|(end, _)| *end <= now)?;
        self.ends.pop_front().map(|(_, chunk)| chunk)
    }
}

impl Disk {
    /// Returns a disk of this shape.
    pub fn new(shape: DiskShape) -> Self {
        Self { block: Duration::from_secs_f64(shape.ms_per_block / 1e3), ..Self::default() }
    }

    /// Begins to read a chunk unless it is being read; returns when the read ends.
    pub fn read(&mut self, chunk: ChunkId, n_blocks: usize, now: Duration) -> Duration {
        let Self { block, reads, pending_reads, .. } = self;
        *pending_reads.entry(chunk).or_insert_with(|| reads.add(chunk, n_blocks, *block, now))
    }

    /// Begins to write a chunk.
    pub fn write(&mut self, chunk: ChunkId, n_blocks: usize, now: Duration) {
        self.writes.add(chunk, n_blocks, self.block, now);
    }

    /// Returns the next chunk whose read has ended; each is returned once.
    pub fn next_read(&mut self, now: Duration) -> Option<ChunkId> {
        let chunk = self.reads.next_ended(now)?;
        self.pending_reads.remove(&chunk);
        Some(chunk)
    }

    /// Returns the next chunk whose write has ended; each is returned once.
    pub fn next_written(&mut self, now: Duration) -> Option<ChunkId> {
        self.writes.next_ended(now)
    }

    /// Returns the numbers of blocks that were read and written so far, pending ones included.
    pub fn n_moved(&self) -> [u64; 2] {
        [self.reads.n_blocks, self.writes.n_blocks]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_of_one_direction_follow_one_another() {
        let mut disk = Disk::new(DiskShape { n_blocks_max: 10, ms_per_block: 2.0 });
        let (ms, [a, b]) = (Duration::from_millis, [1, 2].map(ChunkId));
        disk.write(a, 3, ms(0));
        assert_eq!([disk.read(a, 3, ms(1)), disk.read(b, 1, ms(1)), disk.read(a, 3, ms(5))], [ms(7), ms(9), ms(7)]);
        assert_eq!([5, 6, 6].map(|at| disk.next_written(ms(at))), [None, Some(a), None]);
        assert_eq!([6, 9, 9].map(|at| disk.next_read(ms(at))), [None, Some(a), Some(b)]);
        assert_eq!(disk.read(a, 3, ms(20)), ms(26), "a read that has ended is a new one");
        assert_eq!(disk.n_moved(), [7, 3]);
    }
}
