//! The queue of submissions without a slot.
//!
//! It is scanned in order whenever a slot is idle. A request that waits for another request's prefix, for the disk or
//! for another worker keeps its place, and later requests may start before it. No request waits for the disk while a
//! read is late.
//!
//! Not here: the decision (`warmpath_worker_core::slots::slot_plan`), the start in a slot (`kv::restoring`).

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use warmpath_common::ids::SlotId;
use warmpath_worker_core::slots::slot_plan::{self, Reuse, SlotDecision, SlotPlan};
use warmpath_worker_core::store::chunk_index::ChunkId;

use super::Scheduler;
use crate::engine::api::FetchedState;
use crate::engine::kv::KvState;
use crate::engine::kv::receiving::{EndedTransfer, IncomingTransfers, TransferId};
use crate::engine::kv::store::Cache;
use crate::engine::sequence::admission::Admission;

/// Longest wait of a submission for another request that will compute the blocks that the router expects to be cached.
/// Two requests that a router sends one after the other may arrive in reverse order.
///
/// Source: such requests arrive within milliseconds of each other, or tens of milliseconds on a busy machine. Computing
/// the missing blocks twice takes longer.
const SIBLING_WAIT_MAX: Duration = Duration::from_millis(25);

/// A submission that waits for a slot.
pub(crate) struct QueuedSubmission {
    pub(crate) admission: Admission,
    /// Prompt tokens to compute, as estimated at its arrival.
    pub(crate) n_uncached: u32,
    /// Chunks that were requested from disk for it; they are not evicted before it has started.
    pub(crate) fetching: Vec<ChunkId>,
    /// Time until which it waits for another request to compute the blocks that the router expects; `None` if none are
    /// missing.
    pub(crate) held_until: Option<Instant>,
    /// Start of its wait for another's prefix; `None` if it never waited.
    pub(crate) shares_since: Option<Instant>,
    /// Start of its wait for the disk; `None` if it never waited.
    pub(crate) reads_since: Option<Instant>,
    /// Transfer from another worker that it waits for.
    pub(crate) transfer: Option<TransferId>,
    /// Chunks of a finished transfer and those before them; they are not evicted before it has started.
    pub(crate) received: Vec<ChunkId>,
    /// Report of a finished transfer.
    pub(crate) fetched: Option<FetchedState>,
}

impl QueuedSubmission {
    /// Releases its chunks, which may then be evicted.
    pub(crate) fn release_chunks(&self, cache: &mut Cache) {
        cache.release(&self.fetching);
        cache.release(&self.received);
    }

    /// Returns whether it waits for another submission that has yet to arrive.
    fn is_held(&mut self, kv: &KvState<'_>) -> bool {
        let Some(until) = self.held_until else { return false };
        let n_usable = slot_plan::best_usable(&kv.outlook(), &kv.slot_request(&self.admission));
        let is_held = n_usable < self.admission.submission.expected_tokens && Instant::now() < until;
        if !is_held {
            self.held_until = None;
        }
        is_held
    }
}

impl Scheduler {
    /// Puts a submission at the end of the queue.
    pub(crate) fn enqueue(
        &mut self,
        mut admission: Admission,
        kv: &mut KvState<'_>,
        transfers: &mut IncomingTransfers,
    ) {
        let n_prompt = u32::try_from(admission.submission.prompt.len()).unwrap_or(u32::MAX);
        let n_usable = slot_plan::best_usable(&kv.outlook(), &kv.slot_request(&admission));
        let n_expected = match kv.reusable(&admission) {
            Reuse::Allowed => admission.submission.expected_tokens,
            Reuse::Forbidden => 0,
        };
        // While the disk is late, blocks that the router expects may be missing because they are only on disk.
        let lacks_blocks = n_usable < n_expected && !kv.cache.is_disk_late();
        let held_until = lacks_blocks.then(|| Instant::now() + SIBLING_WAIT_MAX);
        let (transfer, n_reached) = transfers.await_transfer(&mut admission, n_usable, kv).unzip();
        self.queue.push_back(QueuedSubmission {
            admission,
            n_uncached: n_prompt - n_reached.unwrap_or(n_usable),
            fetching: Vec::new(),
            held_until,
            shares_since: None,
            reads_since: None,
            transfer,
            received: Vec::new(),
            fetched: None,
        });
    }

    /// Stores state that has arrived from other workers, and ends the wait of the requests whose transfer has ended.
    pub(crate) fn take_received(&mut self, transfers: &mut IncomingTransfers, cache: &mut Cache) {
        let queue = &self.queue;
        let is_awaited = |id| queue.iter().any(|waiting| waiting.transfer == Some(id));
        for EndedTransfer { id, chunks, report } in transfers.take_received(cache, is_awaited) {
            let mut report = Some(report);
            for waiting in self.queue.iter_mut().filter(|waiting| waiting.transfer == Some(id)) {
                waiting.transfer = None;
                // Only the first request in the queue reports the transfer.
                waiting.fetched = report.take();
                // The cache may have been cleared in the meantime.
                let stored_chunks = chunks.iter().copied().filter(|chunk| cache.index().record(*chunk).is_some());
                waiting.received = stored_chunks.collect();
                waiting.received.iter().for_each(|chunk| cache.index_mut().hold(*chunk));
            }
            cache.release(&chunks);
        }
    }

    /// Removes the next submission that can start now from the queue, and returns it with its plan. The search starts
    /// at `idx`, which is advanced.
    pub(crate) fn next_start(&mut self, idx: &mut usize, kv: &mut KvState<'_>) -> Option<(QueuedSubmission, SlotPlan)> {
        while let Some(waiting) = self.queue.get_mut(*idx) {
            if waiting.transfer.is_some() || kv.cache.is_reading(&waiting.fetching) {
                *idx += 1;
                continue;
            }
            kv.record_windows();
            kv.end_shares();
            if waiting.is_held(kv) {
                *idx += 1;
                continue;
            }
            match slot_plan::plan(&kv.outlook(), &kv.slot_request(&waiting.admission)) {
                SlotDecision::NoSlot => return None,
                SlotDecision::WaitFor { slot, n_tokens } => self.wait_for(*idx, slot, n_tokens, kv),
                SlotDecision::Fetch(chunks) => {
                    self.has_fetched = true;
                    kv.cache.fetch(&chunks);
                    waiting.fetching.extend(chunks);
                    waiting.reads_since.get_or_insert_with(Instant::now);
                }
                SlotDecision::Start(plan) => return Some((self.queue.remove(*idx)?, plan)),
            }
            *idx += 1;
        }
        None
    }

    /// Returns whether reads from disk were requested since the last call. A read may have ended at once, because its
    /// chunk was in memory.
    pub(crate) fn take_fetched(&mut self) -> bool {
        std::mem::take(&mut self.has_fetched)
    }

    /// Makes a submission wait for a running sequence's prefix. The running sequence stops at the prefix's end, so that
    /// its priority is that of the prefix. If the model's state cannot be rewound, it keeps a checkpoint there.
    fn wait_for(&mut self, idx: usize, slot: SlotId, n_tokens: u32, kv: &KvState<'_>) {
        let waiting = &mut self.queue[idx];
        if waiting.shares_since.is_none() {
            waiting.shares_since = Some(Instant::now());
            self.counters.prefix_waits.fetch_add(1, Relaxed);
        }
        let Some(leader) = self.running.get_mut(slot) else { return };
        match kv.table.memory().rewinds_anywhere() {
            true => leader.want_stop(n_tokens),
            false => leader.want_checkpoint(n_tokens),
        }
    }
}
