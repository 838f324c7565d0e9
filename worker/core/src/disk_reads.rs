//! Reads from the disk tier: how long requests wait for them, and how a request starts without them.
//!
//! The disk serves one read after the other. A read is *late* once the disk should have served it with all reads before
//! it. All other reads wait behind a late one, so no request waits for the disk until that read has ended. Requests
//! then start as if chunks that are only on disk were not stored.
//!
//! Not here: the choice between reading and computing (`slot_plan`), the measured time of a read (`restore_costs`).

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::chunk_index::{ChunkId, ChunkRecord};
use crate::restore_costs::Costs;
use crate::slot_plan::{self, PlanInputs, SlotDecision, Wish};

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
    /// Number of tokens to compute if the state is not read.
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
    pub fn request(&mut self, id: ChunkId, record: &ChunkRecord, (costs, now): (&Costs, Instant)) -> bool {
        if self.has(id) {
            return false;
        }
        let (n_bytes, n_tokens) = (record.n_bytes, record.tokens.len());
        self.n_bytes += n_bytes;
        self.n_tokens += n_tokens;
        let ms = (SLOWDOWN_MAX * costs.read_ms(self.n_bytes)).max(costs.prefill_ms(self.n_tokens));
        let wait = Duration::try_from_secs_f64(ms / 1e3).unwrap_or(WAIT_MAX).clamp(WAIT_MIN, WAIT_MAX);
        self.pending.insert(id, PendingRead { n_bytes, n_tokens, deadline: now + wait });
        true
    }

    /// Records the end of a read, whether it succeeded or failed.
    pub fn end(&mut self, id: ChunkId) {
        if let Some(read) = self.pending.remove(&id) {
            self.n_bytes -= read.n_bytes;
            self.n_tokens -= read.n_tokens;
        }
    }

    /// Returns whether the disk is reading a chunk, or is about to.
    pub fn has(&self, id: ChunkId) -> bool {
        self.pending.contains_key(&id)
    }

    /// Returns whether a read is late. Cost: O(pending reads).
    pub fn is_late(&self, now: Instant) -> bool {
        self.pending.values().any(|read| read.deadline <= now)
    }
}

/// Returns the decision on a request while the disk is late: as if the chunks that would have to be read, and those
/// behind them, were not stored; never [`SlotDecision::Fetch`].
///
/// Cost: that of [`slot_plan::plan`], for the request and for each chunk that it does without.
pub fn plan_without_reads(inputs: &PlanInputs<'_>, wish: &Wish<'_>) -> SlotDecision {
    let mut wish = *wish;
    loop {
        match slot_plan::plan(inputs, &wish) {
            // A shorter chain finds less in the store. It finds the same slots, whose tokens are compared.
            SlotDecision::Fetch(chunks) => wish.chain = &wish.chain[..inputs.index.n_blocks_before(&chunks)],
            decision => return decision,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use warmpath_common::block_hash::{BlockHash, block_chain, block_hash};
    use warmpath_common::ids::Token;
    use warmpath_common::model::MemoryKind;

    use super::*;
    use crate::chunk_index::{ChunkIndex, StateKind, StoreLimits};
    use crate::slot_plan::{PrefixSource, Reuse};
    use crate::slot_table::{SlotSizes, SlotTable};

    const ROOT: BlockHash = BlockHash([7; 32]);
    const BLOCK: u32 = 2;
    const PROMPT: [Token; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    const COSTS: Costs = Costs {
        prefill_ms_per_token: 100.0,
        copy_ms_per_token: None,
        export_ms_per_token: Some(0.0),
        import_ms_per_byte: 0.0,
        read_ms_per_byte: 0.0,
        suffix_rounding: None,
    };

    /// Returns the record of the prompt's blocks from `first_block` to before `end`.
    fn record(kind: StateKind, first_block: usize, end: usize) -> ChunkRecord {
        let chain = block_chain(&ROOT, &PROMPT, BLOCK);
        let n = BLOCK as usize;
        ChunkRecord {
            kind,
            root: ROOT,
            first_block,
            parent: first_block.checked_sub(1).map(|before| chain[before]),
            blocks: chain[first_block..end].into(),
            tokens: PROMPT[first_block * n..end * n].into(),
            n_bytes: 8,
            priority: 0,
            tenant: None,
        }
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
            let tokens: Arc<[Token]> = vec![0; n_tokens].into();
            let record = ChunkRecord { n_bytes, tokens, ..record(StateKind::Chunk, 0, 1) };
            let mut reads = DiskReads::default();
            assert_eq!(wait_ms(&reads, now), None);
            assert!(reads.request(ChunkId(1), &record, (&costs, now)));
            assert_eq!(wait_ms(&reads, now), Some(expected_ms), "{n_bytes} bytes, {n_tokens} tokens, {costs:?}");
        }
    }

    #[test]
    fn a_read_may_take_as_long_as_the_reads_before_it_and_its_own() {
        let now = Instant::now();
        let costs = Costs { read_ms_per_byte: 50.0, prefill_ms_per_token: 0.0, ..COSTS };
        let record = record(StateKind::Chunk, 0, 1);
        let mut reads = DiskReads::default();
        assert!(reads.request(ChunkId(1), &record, (&costs, now)));
        assert!(reads.request(ChunkId(2), &record, (&costs, now)));
        assert!(!reads.request(ChunkId(2), &record, (&costs, now)), "it is being read already");
        assert_eq!(wait_ms(&reads, now), Some(1600));
        reads.end(ChunkId(1));
        assert_eq!((reads.has(ChunkId(1)), reads.has(ChunkId(2))), (false, true));
        assert_eq!(wait_ms(&reads, now), Some(3200));
        assert!(reads.request(ChunkId(3), &record, (&costs, now)));
        reads.end(ChunkId(2));
        assert_eq!(wait_ms(&reads, now), Some(3200));
        reads.end(ChunkId(3));
        reads.end(ChunkId(3));
        assert_eq!(wait_ms(&reads, now), None);
    }

    /// Compares the decision on the prompt with and without the disk; all records are on disk, the first `n_in_ram` of
    /// them also in RAM, and those of `at_hand` only in memory.
    fn check(
        (memory, records): (MemoryKind, &[ChunkRecord]),
        (n_in_ram, at_hand): (usize, &[usize]),
        (missing, start): (&[usize], PrefixSource),
    ) {
        let limits = StoreLimits {
            ram_bytes: 1000,
            disk_bytes: 1000,
            min_hold_ms: 0,
            chunk_blocks_max: 8,
            block_size_tokens: BLOCK,
        };
        let sizes = SlotSizes { n_slots: 1, context_tokens: 100, block_size_tokens: BLOCK, memory, hasher: block_hash };
        let (table, mut index) = (SlotTable::new(sizes), ChunkIndex::new(limits));
        let files: Vec<(ChunkRecord, u64)> = records.iter().map(|record| (record.clone(), 1)).collect();
        let ids: Vec<ChunkId> = index.adopt(&files).into_iter().map(|adopted| adopted.unwrap()).collect();
        ids[..n_in_ram].iter().for_each(|id| assert!(index.read_back(*id, 2)));
        let at_hand: HashSet<ChunkId> = at_hand.iter().map(|idx| ids[*idx]).collect();
        let inputs = PlanInputs { table: &table, index: &index, at_hand: &at_hand, costs: &COSTS };
        let chain = block_chain(&ROOT, &PROMPT, BLOCK);
        let (reuse, tenant) = (Reuse::Allowed, None);
        let wish = Wish { prompt: &PROMPT, chain: &chain, root: &ROOT, tenant, reuse, wanted: None, media: &[] };
        let expected: Vec<ChunkId> = missing.iter().map(|idx| ids[*idx]).collect();
        assert_eq!(slot_plan::plan(&inputs, &wish), SlotDecision::Fetch(expected));
        let SlotDecision::Start(plan) = plan_without_reads(&inputs, &wish) else { panic!("a slot is idle") };
        assert_eq!(plan.start, start, "{memory:?} {n_in_ram} {at_hand:?}");
    }

    #[test]
    fn without_reads_a_request_starts_from_the_chunks_in_memory_before_the_first_one_on_disk() {
        let chunk = |first_block, end| record(StateKind::Chunk, first_block, end);
        let chunks = [chunk(0, 1), chunk(1, 3), chunk(3, 4)];
        let whole = (MemoryKind::Full, &chunks[..]);
        let import = |n_tokens| PrefixSource::Import { n_tokens };
        check(whole, (0, &[]), (&[0, 1, 2], PrefixSource::Cold));
        check(whole, (1, &[]), (&[1, 2], import(2)));
        check(whole, (2, &[]), (&[2], import(6)));
        check(whole, (1, &[2]), (&[1], import(2)));
        check(whole, (1, &[1]), (&[2], import(6)));
    }

    #[test]
    fn without_reads_a_request_resumes_at_a_checkpoint_in_memory() {
        let checkpoints = [1, 2, 4].map(|end| record(StateKind::Checkpoint, 0, end));
        let recurrent = (MemoryKind::Recurrent, &checkpoints[..]);
        let import = |n_tokens| PrefixSource::Import { n_tokens };
        check(recurrent, (0, &[]), (&[2], PrefixSource::Cold));
        check(recurrent, (1, &[]), (&[2], import(2)));
        check(recurrent, (2, &[]), (&[2], import(4)));
        check(recurrent, (1, &[1]), (&[2], import(4)));
    }
}
