//! A router's account of how much each worker was given to compute.
//!
//! Not here: what follows from it (`choose`).
//! What a worker was given is what this router has sent and, where others may be there, what the worker has said to be filling, whoever
//! sent it. So what the router's own requests fill counts twice there: routers that have heard the same do not all take the same worker next.

use crate::WorkerIdx;

/// Is what is left of the tokens given to a worker each time that a worker is given some.
///
/// Source: own choice, as in `reuse`: the last thousand times or so count.
const FADING: f64 = 0.999;

/// Says whose requests count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkSenders {
    /// This router's.
    Own,
    /// Every router's, as far as workers say what they fill.
    All,
}

#[derive(Debug, Clone, Copy, Default)]
struct WorkerLedger {
    /// Is the prompt tokens that this router has given it.
    sent_tokens: f64,
    /// Is the prompt tokens that it has said to be filling.
    filling_tokens: f64,
}

/// Keeps the account of every worker.
#[derive(Debug, Default)]
pub struct RecentWork {
    by_worker: Vec<WorkerLedger>,
}

impl RecentWork {
    /// Takes note that this router gave a worker so many prompt tokens to compute. Cost: O(workers).
    pub fn give(&mut self, worker: WorkerIdx, tokens: u64) {
        self.by_worker.iter_mut().for_each(|account| account.sent_tokens *= FADING);
        self.of_mut(worker).sent_tokens += tokens as f64;
    }

    /// Takes note that a worker has said that it fills so many tokens. Cost: O(workers).
    pub fn fill(&mut self, worker: WorkerIdx, tokens: u64) {
        self.by_worker.iter_mut().for_each(|account| account.filling_tokens *= FADING);
        self.of_mut(worker).filling_tokens += tokens as f64;
    }

    /// Returns the prompt tokens that a worker was given, the later ones counting more; none of one that has no account.
    pub fn of(&self, worker: WorkerIdx, givers: WorkSenders) -> f64 {
        let account = self.by_worker.get(worker.0 as usize).copied().unwrap_or_default();
        let heard = if givers == WorkSenders::All { account.filling_tokens } else { 0.0 };
        account.sent_tokens + heard
    }

    /// Forgets a worker that has left.
    pub fn left(&mut self, worker: WorkerIdx) {
        if let Some(account) = self.by_worker.get_mut(worker.0 as usize) {
            *account = WorkerLedger::default();
        }
    }

    fn of_mut(&mut self, worker: WorkerIdx) -> &mut WorkerLedger {
        let idx = worker.0 as usize;
        if idx >= self.by_worker.len() {
            self.by_worker.resize(idx + 1, WorkerLedger::default());
        }
        &mut self.by_worker[idx]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerIdx = WorkerIdx(3);

    #[test]
    fn what_was_given_fades_as_others_are_given_more() {
        let mut recent_work = RecentWork::default();
        recent_work.give(WORKER, 1000);
        assert_eq!(recent_work.of(WORKER, WorkSenders::Own), 1000.0);
        assert_eq!(recent_work.of(WorkerIdx(9), WorkSenders::All), 0.0);
        (0..5000).for_each(|_| recent_work.give(WorkerIdx(0), 10));
        assert!(recent_work.of(WORKER, WorkSenders::Own) < 10.0, "{recent_work:?}");
        assert!((9_000.0..10_000.0).contains(&recent_work.of(WorkerIdx(0), WorkSenders::Own)), "{recent_work:?}");
    }

    #[test]
    fn what_a_worker_fills_counts_where_all_givers_do() {
        let mut recent_work = RecentWork::default();
        recent_work.give(WORKER, 1000);
        recent_work.fill(WORKER, 300);
        assert_eq!(recent_work.of(WORKER, WorkSenders::Own), 1000.0);
        assert_eq!(recent_work.of(WORKER, WorkSenders::All), 1300.0);
        recent_work.left(WORKER);
        assert_eq!(recent_work.of(WORKER, WorkSenders::All), 0.0);
    }
}
