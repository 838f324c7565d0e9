//! What a router remembers of each worker: how many prompts it had at a time, and how much it was given to compute.
//!
//! Not here: what is so now (`fleet`, `dispatch`), what follows from it (`cost`, `choose`).
//! The idea: the number of prompts at a worker jumps with every request; averaged over time it says how busy the worker
//! usually is. Time without a request counts as well as time with many, so the average follows the clock that is passed in.
//! What a worker was given is what this router has sent and, where others may be there, what the worker has said to be filling, whoever
//! sent it. So what the router's own requests fill counts twice there: routers that have heard the same do not all take the same worker next.

use std::time::{Duration, Instant};

use crate::WorkerIdx;

/// Is the time after which a number of prompts counts half.
///
/// Source: docs/decisions/0014-placement-charge.md: with 20 s and with 60 s hit ratios in simulation are alike; the shorter
/// follows a change of traffic sooner.
const HALF_LIFE: Duration = Duration::from_secs(20);

/// Is what is left of the tokens given to a worker each time that a worker is given some.
///
/// Source: own choice, as in `reuse`: the last thousand times or so count.
const FADING: f64 = 0.999;

/// Is what is remembered of one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Past {
    /// Is the requests whose prompts were computed or waited there at a time, on average.
    pub crowd: f64,
    /// Is the prompt tokens that it was given to compute, the later ones counting more.
    pub given_tokens: f64,
}

/// Says whose requests count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Givers {
    /// This router's.
    Own,
    /// Every router's, as far as workers say what they fill.
    All,
}

#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    crowd: f64,
    /// Is the prompt tokens that this router has given it.
    sent_tokens: f64,
    /// Is the prompt tokens that it has said to be filling.
    filling_tokens: f64,
}

/// Remembers every worker.
#[derive(Debug, Default)]
pub struct Pasts {
    by_worker: Vec<Memory>,
    seen: Option<Instant>,
}

impl Pasts {
    /// Takes note of how many prompts workers have now.
    pub fn see(&mut self, now: Instant, n_prefilling: impl Iterator<Item = (WorkerIdx, f64)>) {
        let passed = self.seen.map_or(Duration::ZERO, |seen| now.saturating_duration_since(seen));
        self.seen = self.seen.max(Some(now));
        let kept = 0.5_f64.powf(passed.as_secs_f64() / HALF_LIFE.as_secs_f64());
        for (worker, n) in n_prefilling {
            let crowd = &mut self.of_mut(worker).crowd;
            *crowd = n + kept * (*crowd - n);
        }
    }

    /// Takes note that this router gave a worker so many prompt tokens to compute. Cost: O(workers).
    pub fn give(&mut self, worker: WorkerIdx, tokens: u64) {
        self.by_worker.iter_mut().for_each(|memory| memory.sent_tokens *= FADING);
        self.of_mut(worker).sent_tokens += tokens as f64;
    }

    /// Takes note that a worker has said that it fills so many tokens. Cost: O(workers).
    pub fn fill(&mut self, worker: WorkerIdx, tokens: u64) {
        self.by_worker.iter_mut().for_each(|memory| memory.filling_tokens *= FADING);
        self.of_mut(worker).filling_tokens += tokens as f64;
    }

    /// Returns what is remembered of a worker; nothing of one that was never seen.
    pub fn of(&self, worker: WorkerIdx, givers: Givers) -> Past {
        let memory = self.by_worker.get(worker.0 as usize).copied().unwrap_or_default();
        let heard = if givers == Givers::All { memory.filling_tokens } else { 0.0 };
        Past { crowd: memory.crowd, given_tokens: memory.sent_tokens + heard }
    }

    /// Forgets a worker that has left.
    pub fn left(&mut self, worker: WorkerIdx) {
        if let Some(memory) = self.by_worker.get_mut(worker.0 as usize) {
            *memory = Memory::default();
        }
    }

    fn of_mut(&mut self, worker: WorkerIdx) -> &mut Memory {
        let idx = worker.0 as usize;
        if idx >= self.by_worker.len() {
            self.by_worker.resize(idx + 1, Memory::default());
        }
        &mut self.by_worker[idx]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerIdx = WorkerIdx(3);

    #[test]
    fn the_crowd_is_averaged_over_time_whatever_the_number_of_looks() {
        let start = Instant::now();
        for n_looks in [1, 10, 1000] {
            let mut pasts = Pasts::default();
            pasts.see(start, [(WORKER, 8.0)].into_iter());
            assert_eq!(pasts.of(WORKER, Givers::Own).crowd, 0.0, "no time has passed");
            (1..=n_looks).for_each(|n| pasts.see(start + HALF_LIFE * n / n_looks, [(WORKER, 8.0)].into_iter()));
            assert!((pasts.of(WORKER, Givers::Own).crowd - 4.0).abs() < 1e-6, "{pasts:?}");
        }
    }

    #[test]
    fn a_time_that_goes_back_changes_nothing() {
        let start = Instant::now() + HALF_LIFE;
        let mut pasts = Pasts::default();
        pasts.see(start, [(WORKER, 8.0)].into_iter());
        pasts.see(start - HALF_LIFE, [(WORKER, 8.0)].into_iter());
        assert_eq!(pasts.of(WORKER, Givers::Own).crowd, 0.0);
        pasts.see(start, [(WORKER, 8.0)].into_iter());
        assert_eq!(pasts.of(WORKER, Givers::Own).crowd, 0.0);
    }

    #[test]
    fn what_was_given_fades_as_others_are_given_more() {
        let mut pasts = Pasts::default();
        pasts.give(WORKER, 1000);
        assert_eq!(pasts.of(WORKER, Givers::Own).given_tokens, 1000.0);
        assert_eq!(pasts.of(WorkerIdx(9), Givers::All), Past::default());
        (0..5000).for_each(|_| pasts.give(WorkerIdx(0), 10));
        assert!(pasts.of(WORKER, Givers::Own).given_tokens < 10.0, "{pasts:?}");
        assert!((9_000.0..10_000.0).contains(&pasts.of(WorkerIdx(0), Givers::Own).given_tokens), "{pasts:?}");
    }

    #[test]
    fn what_a_worker_fills_counts_where_all_givers_do() {
        let mut pasts = Pasts::default();
        pasts.give(WORKER, 1000);
        pasts.fill(WORKER, 300);
        assert_eq!(pasts.of(WORKER, Givers::Own).given_tokens, 1000.0);
        assert_eq!(pasts.of(WORKER, Givers::All).given_tokens, 1300.0);
        pasts.left(WORKER);
        assert_eq!(pasts.of(WORKER, Givers::All), Past::default());
    }
}
