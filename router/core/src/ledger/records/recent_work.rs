//! Recent work: the prompt tokens sent to each worker for computing, and the tokens reused for each computed one.
//!
//! A worker's work is the tokens that this router sent and, if there may be other routers, the tokens that the worker
//! announced as prefilling, for any router. So this router's own requests count twice, and routers with the same
//! reports do not all choose the same worker next. The sums decay with each request, not with time, so that an idle
//! night changes nothing. Not here: their use (`choose`, `cost`).

use crate::WorkerIdx;

/// Factor by which the sums decay with each request.
///
/// Source: own choice: about the last thousand requests count, which covers a fleet's mix and is a small part of an
/// hour's traffic.
const DECAY: f64 = 0.999;

/// Routers whose requests count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkSenders {
    /// This router only.
    Own,
    /// Every router, as far as workers announce their prefills.
    All,
}

#[derive(Debug, Clone, Copy, Default)]
struct WorkerTokens {
    /// Prompt tokens that this router has sent it.
    sent_tokens: f64,
    /// Prompt tokens that it has announced as prefilling.
    filling_tokens: f64,
}

/// Recent work of every worker.
#[derive(Debug, Default)]
pub struct RecentWork {
    by_worker: Vec<WorkerTokens>,
}

impl RecentWork {
    /// Records that this router sent a worker this many prompt tokens to compute. Cost: O(workers).
    pub fn give(&mut self, worker: WorkerIdx, tokens: u64) {
        self.by_worker.iter_mut().for_each(|recent| recent.sent_tokens *= DECAY);
        self.of_mut(worker).sent_tokens += tokens as f64;
    }

    /// Records that a worker has announced the prefill of this many tokens. Cost: O(workers).
    pub fn fill(&mut self, worker: WorkerIdx, tokens: u64) {
        self.by_worker.iter_mut().for_each(|recent| recent.filling_tokens *= DECAY);
        self.of_mut(worker).filling_tokens += tokens as f64;
    }

    /// Returns a worker's recent work in prompt tokens, decayed; zero for a worker without any.
    pub fn of(&self, worker: WorkerIdx, senders: WorkSenders) -> f64 {
        let recent = self.by_worker.get(worker.0 as usize).copied().unwrap_or_default();
        let announced_tokens = if senders == WorkSenders::All { recent.filling_tokens } else { 0.0 };
        recent.sent_tokens + announced_tokens
    }

    /// Removes a worker that has left.
    pub fn left(&mut self, worker: WorkerIdx) {
        if let Some(recent) = self.by_worker.get_mut(worker.0 as usize) {
            *recent = WorkerTokens::default();
        }
    }

    fn of_mut(&mut self, worker: WorkerIdx) -> &mut WorkerTokens {
        let idx = worker.0 as usize;
        if idx >= self.by_worker.len() {
            self.by_worker.resize(idx + 1, WorkerTokens::default());
        }
        &mut self.by_worker[idx]
    }
}

/// Reused and computed tokens of this fleet.
///
/// Every computed token is stored and displaces another, so over time their ratio is the reuse of a stored token before
/// its eviction.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ReuseRatio {
    reused: f64,
    computed: f64,
}

impl ReuseRatio {
    /// Adds one request: the prompt tokens that it reuses and those that it computes.
    pub fn count(&mut self, reused_tokens: u64, computed_tokens: u64) {
        self.reused = self.reused * DECAY + reused_tokens as f64;
        self.computed = self.computed * DECAY + computed_tokens as f64;
    }

    /// Returns the reused tokens per computed token; 0 before any was computed.
    pub fn ratio(&self) -> f64 {
        if self.computed > 0.0 { self.reused / self.computed } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerIdx = WorkerIdx(3);

    #[test]
    fn a_worker_s_recent_work_fades_as_others_get_more() {
        let mut recent_work = RecentWork::default();
        recent_work.give(WORKER, 1000);
        assert_eq!(recent_work.of(WORKER, WorkSenders::Own), 1000.0);
        assert_eq!(recent_work.of(WorkerIdx(9), WorkSenders::All), 0.0);
        (0..5000).for_each(|_| recent_work.give(WorkerIdx(0), 10));
        assert!(recent_work.of(WORKER, WorkSenders::Own) < 10.0, "{recent_work:?}");
        assert!((9_000.0..10_000.0).contains(&recent_work.of(WorkerIdx(0), WorkSenders::Own)), "{recent_work:?}");
    }

    #[test]
    fn a_worker_s_prefills_count_as_work_of_all_routers() {
        let mut recent_work = RecentWork::default();
        recent_work.give(WORKER, 1000);
        recent_work.fill(WORKER, 300);
        assert_eq!(recent_work.of(WORKER, WorkSenders::Own), 1000.0);
        assert_eq!(recent_work.of(WORKER, WorkSenders::All), 1300.0);
        recent_work.left(WORKER);
        assert_eq!(recent_work.of(WORKER, WorkSenders::All), 0.0);
    }

    #[test]
    fn a_worker_s_prefills_fade_as_others_compute_more() {
        let mut recent_work = RecentWork::default();
        recent_work.fill(WORKER, 1000);
        recent_work.fill(WorkerIdx(0), 0);
        assert_eq!(recent_work.of(WORKER, WorkSenders::All), 999.0);
    }

    #[test]
    fn a_stored_token_s_value_is_its_reuse_and_follows_the_traffic() {
        let mut reuse = ReuseRatio::default();
        assert_eq!(reuse.ratio(), 0.0);
        reuse.count(300, 100);
        assert_eq!(reuse.ratio(), 3.0);
        (0..10_000).for_each(|_| reuse.count(0, 100));
        assert!(reuse.ratio() < 0.001, "{reuse:?}");
    }
}
