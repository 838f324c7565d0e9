//! Reads from the disk tier, and how long requests wait for them.
//!
//! The disk serves one read after the other. A read is *late* once the disk should have served it with all reads before
//! it. All other reads wait behind a late one, so no request waits for the disk until that read has ended.
//!
//! Not here: the choice between reading and computing, also while a read is late (`slot_plan`), the measured time of a
//! read (`restore_costs`).

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::store::chunk_index::{ChunkId, ChunkRecord, StateKind};
use crate::store::restore_costs::Costs;

/// Maximum ratio of a read's time to the expected one, unless computing the tokens takes even longer.
///
/// Source: the expected time is an average, and a disk that other programs use as well is a few times slower for a
/// while.
const SLOWDOWN_MAX: f64 = 4.0;

/// Shortest time for which a request waits for a read.
///
/// Source: the first read waits for the write in progress, whose flush may take most of a second on a busy disk. When a
/// disk stalls, only the first request waits for this long.
const WAIT_MIN: Duration = Duration::from_secs(1);

/// Longest time for which a request waits for a read.
///
/// Source: 60 GB at 100 MB/s, more than the state of a prompt; a longer read hangs.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// Reads that the disk has not finished.
#[derive(Debug, Clone, Default)]
pub struct DiskReads {
    pending: HashMap<ChunkId, PendingRead>,
    /// Sum of the pending reads.
    n_bytes: u64,
    /// Sum of the pending reads.
    n_tokens: usize,
}

/// A read that the disk has not finished.
#[derive(Debug, Clone, Copy)]
struct PendingRead {
    n_bytes: u64,
    /// Number of tokens to compute if the state is not read, besides those of the reads before it.
    n_tokens: usize,
    /// Time from which on the read is late.
    deadline: Instant,
}

impl DiskReads {
    /// Records a read of a chunk or checkpoint; returns whether it must be requested, because the chunk is not being
    /// read already.
    ///
    /// The read may take as long as computing the tokens of all pending reads, or a few times as long as expected for
    /// all of them, whichever is longer. Cost: O(1).
    pub fn request(&mut self, id: ChunkId, record: &ChunkRecord, costs: &Costs, now: Instant) -> bool {
        if self.has(id) {
            return false;
        }
        let n_bytes = record.n_bytes;
        let n_tokens = match record.kind {
            StateKind::Chunk => record.tokens.len(),
            // Its tokens are the whole prefix, and chunks of that prefix are requested before it.
            StateKind::Checkpoint => record.tokens.len().saturating_sub(self.n_tokens),
        };
        self.n_bytes += n_bytes;
        self.n_tokens += n_tokens;
        let ms = (SLOWDOWN_MAX * costs.read_ms(self.n_bytes)).max(costs.prefill_ms(self.n_tokens));
        let wait = Duration::try_from_secs_f64(ms / 1e3).unwrap_or(WAIT_MAX).clamp(WAIT_MIN, WAIT_MAX);
        self.pending.insert(id, PendingRead { n_bytes, n_tokens, deadline: now + wait });
        true
    }

    /// Records the end of a read, whether it succeeded or failed.
    pub fn end(&mut self, id: ChunkId) {
        if let Some(disk_read) = self.pending.remove(&id) {
            self.n_bytes -= disk_read.n_bytes;
            self.n_tokens -= disk_read.n_tokens;
        }
    }

    /// Returns whether the disk is reading a chunk, or is about to.
    pub fn has(&self, id: ChunkId) -> bool {
        self.pending.contains_key(&id)
    }

    /// Returns the earliest time after `now` from which on a read is late; `None` if there is none. Cost: O(pending
    /// reads).
    pub fn next_late(&self, now: Instant) -> Option<Instant> {
        self.pending.values().map(|disk_read| disk_read.deadline).filter(|deadline| *deadline > now).min()
    }

    /// Returns whether a read is late. Cost: O(pending reads).
    pub fn is_late(&self, now: Instant) -> bool {
        self.pending.values().any(|disk_read| disk_read.deadline <= now)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use warmpath_common::block_hash::BlockHash;
    use warmpath_common::ids::Token;

    use super::*;

    /// Costs with which stored state is always cheaper than computing.
    pub(crate) const COSTS: Costs = Costs {
        prefill_ms_per_token: 100.0,
        copy_ms_per_token: None,
        export_ms_per_token: Some(0.0),
        import_ms_per_byte: 0.0,
        read_ms_per_byte: 0.0,
        suffix_rounding: None,
    };

    fn record(kind: StateKind, n_bytes: u64, n_tokens: usize) -> ChunkRecord {
        let tokens: Arc<[Token]> = vec![0; n_tokens].into();
        let (root, blocks) = (BlockHash([7; 32]), vec![BlockHash([8; 32])].into());
        ChunkRecord { kind, root, first_block: 0, parent: None, blocks, tokens, n_bytes, priority: 0, tenant: None }
    }

    /// Returns how long a request waits for a read of so many bytes and tokens, to the millisecond.
    fn wait_ms(reads: &DiskReads, now: Instant) -> Option<u64> {
        (0..=WAIT_MAX.as_millis() as u64).find(|ms| reads.is_late(now + Duration::from_millis(*ms)))
    }

    #[test]
    fn a_read_is_late_when_computing_its_tokens_would_have_been_faster() {
        let now = Instant::now();
        for (n_bytes, n_tokens, costs, expected_ms) in [
            (1, 1, COSTS, 1000),
            (1, 30, COSTS, 3000),
            (100, 1, Costs { read_ms_per_byte: 5.0, ..COSTS }, 2000),
            (100, 30, Costs { read_ms_per_byte: 5.0, ..COSTS }, 3000),
            (1, 1, Costs { prefill_ms_per_token: f64::INFINITY, ..COSTS }, 600_000),
            (1, 1, Costs { prefill_ms_per_token: 1e9, ..COSTS }, 600_000),
        ] {
            let record = record(StateKind::Chunk, n_bytes, n_tokens);
            let mut reads = DiskReads::default();
            assert_eq!(wait_ms(&reads, now), None);
            assert!(reads.request(ChunkId(1), &record, &costs, now));
            assert_eq!(wait_ms(&reads, now), Some(expected_ms), "{n_bytes} bytes, {n_tokens} tokens, {costs:?}");
        }
    }

    #[test]
    fn a_read_may_take_as_long_as_the_reads_before_it_and_its_own() {
        let now = Instant::now();
        let costs = Costs { read_ms_per_byte: 50.0, prefill_ms_per_token: 0.0, ..COSTS };
        let record = record(StateKind::Chunk, 8, 2);
        let mut reads = DiskReads::default();
        assert!(reads.request(ChunkId(1), &record, &costs, now));
        assert!(reads.request(ChunkId(2), &record, &costs, now));
        assert!(!reads.request(ChunkId(2), &record, &costs, now), "it is being read already");
        assert_eq!(wait_ms(&reads, now), Some(1600));
        reads.end(ChunkId(1));
        assert_eq!((reads.has(ChunkId(1)), reads.has(ChunkId(2))), (false, true));
        assert_eq!(wait_ms(&reads, now), Some(3200));
        assert!(reads.request(ChunkId(3), &record, &costs, now));
        reads.end(ChunkId(2));
        assert_eq!(wait_ms(&reads, now), Some(3200));
        reads.end(ChunkId(3));
        reads.end(ChunkId(3));
        assert_eq!(wait_ms(&reads, now), None);
    }
    #[test]
    fn tokens_before_a_checkpoint_are_computed_once_although_their_chunks_are_read_too() {
        let now = Instant::now();
        let mut reads = DiskReads::default();
        assert!(reads.request(ChunkId(1), &record(StateKind::Chunk, 1, 20), &COSTS, now));
        assert!(reads.request(ChunkId(2), &record(StateKind::Checkpoint, 1, 30), &COSTS, now));
        reads.end(ChunkId(1));
        assert_eq!(wait_ms(&reads, now), Some(3000));
    }
}
