//! The queue of submissions without a slot.
//!
//! It is scanned in order whenever a slot is idle. A request that waits for another's prefix, for the disk or for
//! another worker keeps its place but blocks no other.
//!
//! Not here: the decision (`warmpath_worker_core::slot_plan`), the start in a slot (`kv::restoring`).

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use warmpath_common::ids::SlotId;
use warmpath_worker_core::chunk_index::ChunkId;
use warmpath_worker_core::slot_plan::{self, Decision, Reuse, SlotPlan};

use super::Scheduler;
use crate::engine::handle::Admission;
use crate::engine::kv::KvState;
use crate::engine::kv::receiving::{Fetched, TransferId};
use crate::engine::kv::store::Cache;

/// Longest wait of a submission for the request that computes the blocks which its sender counts on. Two requests that
/// a router sends one after the other may arrive in the other order.
///
/// Source: own choice: requests are sent milliseconds apart, tens on a busy machine; computing the missing blocks costs
/// more.
const SIBLING_WAIT_MAX: Duration = Duration::from_millis(25);

/// A submission that waits for a slot.
pub(crate) struct Waiting {
    pub(crate) admission: Admission,
    /// Prompt tokens to compute, as estimated at its arrival.
    pub(crate) n_uncached: u32,
    /// Chunks that are being read from disk for it; they stay in place until it has started.
    pub(crate) fetching: Vec<ChunkId>,
    /// Time until which it waits for the request that computes the blocks its sender counts on; `None` if none are
    /// missing.
    pub(crate) held_until: Option<Instant>,
    /// Start of its wait for another's prefix; `None` if it never waited.
    pub(crate) shares_since: Option<Instant>,
    /// Start of its wait for the disk; `None` if it never waited.
    pub(crate) reads_since: Option<Instant>,
    /// Transfer from another worker that it waits for.
    pub(crate) transfer: Option<TransferId>,
    /// Chunks that a transfer has brought, and those before them; they stay in place until it has started.
    pub(crate) received: Vec<ChunkId>,
    /// Report of a transfer that has ended.
    pub(crate) fetched: Option<Fetched>,
}

impl Waiting {
    /// Lets the chunks go that stay in place for it.
    pub(crate) fn let_go(&self, cache: &mut Cache) {
        cache.let_go(&self.fetching);
        cache.let_go(&self.received);
    }

    /// Returns whether it waits for another submission that has yet to arrive.
    fn is_held(&mut self, kv: &KvState<'_>) -> bool {
        let Some(until) = self.held_until else { return false };
        let n_usable = slot_plan::best_usable(&kv.outlook(), &kv.wish(&self.admission));
        let is_held = n_usable < self.admission.submission.expected_tokens && Instant::now() < until;
        if !is_held {
            self.held_until = None;
        }
        is_held
    }
}

impl Scheduler {
    /// Puts a submission at the end of the queue.
    pub(crate) fn enqueue(&mut self, mut admission: Admission, kv: &mut KvState<'_>) {
        let n_prompt = u32::try_from(admission.submission.prompt.len()).unwrap_or(u32::MAX);
        let n_usable = slot_plan::best_usable(&kv.outlook(), &kv.wish(&admission));
        let n_expected = match kv.reusable(&admission) {
            Reuse::Allowed => admission.submission.expected_tokens,
            Reuse::Forbidden => 0,
        };
        let held_until = (n_usable < n_expected).then(|| Instant::now() + SIBLING_WAIT_MAX);
        let (transfer, n_reached) = kv.await_transfer(&mut admission, n_usable).unzip();
        self.queue.push_back(Waiting {
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

    /// Takes the next submission that can start now out of the queue, with its plan; the search begins at `idx`, which
    /// is advanced.
    pub(crate) fn next_start(&mut self, idx: &mut usize, kv: &mut KvState<'_>) -> Option<(Waiting, SlotPlan)> {
        while let Some(waiting) = self.queue.get_mut(*idx) {
            if waiting.transfer.is_some() || kv.cache.is_reading(&waiting.fetching) {
                *idx += 1;
                continue;
            }
            kv.look_at_windows();
            kv.end_shares();
            if waiting.is_held(kv) {
                *idx += 1;
                continue;
            }
            match slot_plan::plan(&kv.outlook(), &kv.wish(&waiting.admission)) {
                Decision::NoSlot => return None,
                Decision::WaitFor { slot, n_tokens } => self.wait_for(*idx, (slot, n_tokens), kv),
                Decision::Fetch(chunks) => {
                    kv.cache.fetch(&chunks);
                    waiting.fetching.extend(chunks);
                    waiting.reads_since.get_or_insert_with(Instant::now);
                }
                Decision::Start(plan) => return Some((self.queue.remove(*idx)?, plan)),
            }
            *idx += 1;
        }
        None
    }

    /// Makes a submission wait for a running one's prefix. If a sequence cannot be rewound, the running one makes a
    /// checkpoint.
    fn wait_for(&mut self, idx: usize, (slot, n_tokens): (SlotId, u32), kv: &KvState<'_>) {
        let waiting = &mut self.queue[idx];
        if waiting.shares_since.is_none() {
            waiting.shares_since = Some(Instant::now());
            self.counters.prefix_waits.fetch_add(1, Relaxed);
        }
        if !kv.table.memory().rewinds_anywhere()
            && let Some(leader) = self.running.get_mut(slot)
        {
            leader.want_checkpoint(n_tokens);
        }
    }
}
