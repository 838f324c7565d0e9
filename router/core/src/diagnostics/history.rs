//! Recent counts of a router: totals that are recorded from time to time, and their differences.
//!
//! The shell counts, and decides when to record. Totals only grow, so the counts of any period are the difference of
//! two records. Records are made outside the requests' path, and a ring of them takes a fixed amount of memory.

use std::collections::VecDeque;
use std::time::Duration;

/// Totals since the router started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryTotals {
    /// Time of the record, from the router's start.
    pub at: Duration,
    /// Requests that got a response of any status.
    pub requests: u64,
    /// Requests of clients within their limits that failed: status 429, or 500 and above.
    pub failures: u64,
    /// Prompt tokens of requests whose worker reported what it reused.
    pub prompt_tokens: u64,
    /// Upper bound of the prompt tokens that could have been reused. Units: tokens.
    pub held_tokens: u64,
    /// Prompt tokens that were predicted to be reused. Units: tokens.
    pub predicted_cached_tokens: u64,
    /// Prompt tokens that were reused. Units: tokens.
    pub cached_tokens: u64,
    /// Of these, tokens whose state a worker fetched from another one. Units: tokens.
    pub fetched_tokens: u64,
    /// Responses whose time to the first byte was at most each bound; the element after the last bound counts all of
    /// them.
    pub ttft: Vec<u64>,
}

impl HistoryTotals {
    /// Returns the difference to `earlier`, which has the same bounds.
    fn since(&self, earlier: &Self) -> Self {
        let first = earlier.ttft.iter().copied().chain(std::iter::repeat(0));
        Self {
            at: self.at.saturating_sub(earlier.at),
            requests: self.requests.saturating_sub(earlier.requests),
            failures: self.failures.saturating_sub(earlier.failures),
            prompt_tokens: self.prompt_tokens.saturating_sub(earlier.prompt_tokens),
            held_tokens: self.held_tokens.saturating_sub(earlier.held_tokens),
            predicted_cached_tokens: self.predicted_cached_tokens.saturating_sub(earlier.predicted_cached_tokens),
            cached_tokens: self.cached_tokens.saturating_sub(earlier.cached_tokens),
            fetched_tokens: self.fetched_tokens.saturating_sub(earlier.fetched_tokens),
            ttft: self.ttft.iter().zip(first).map(|(now, then)| now.saturating_sub(then)).collect(),
        }
    }

    /// Returns the `q` quantile of the times, `None` without any: interpolated linearly between bounds, and the last
    /// bound for times beyond it. Units: those of `bounds`.
    ///
    /// Source: Prometheus' `histogram_quantile`, so that the page and the dashboards agree.
    pub fn ttft_quantile(&self, q: f64, bounds: &[f64]) -> Option<f64> {
        let all = *self.ttft.last()?;
        if all == 0 {
            return None;
        }
        let rank = q * all as f64;
        let bucket = self.ttft.iter().position(|count| *count as f64 >= rank)?;
        let Some(upper) = bounds.get(bucket) else { return bounds.last().copied() };
        let (lower, below) = match bucket.checked_sub(1) {
            Some(last) => (bounds[last], self.ttft[last]),
            None => (0.0, 0),
        };
        let here = (self.ttft[bucket] - below).max(1);
        Some(lower + (upper - lower) * (rank - below as f64) / here as f64)
    }
}

/// Counts of one period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeriodCounts {
    /// End of the period, from the router's start.
    pub end: Duration,
    /// Counts of the period; their `at` is its duration.
    pub counted: HistoryTotals,
}

/// Ring of the last records.
#[derive(Debug)]
pub struct History {
    notes: VecDeque<HistoryTotals>,
    notes_max: usize,
}

impl History {
    /// Returns a history that keeps the last `notes_max` records, at least one, and begins with a record of zeros.
    pub fn new(notes_max: usize) -> Self {
        let mut notes = VecDeque::with_capacity(notes_max.max(1));
        notes.push_back(HistoryTotals::default());
        Self { notes, notes_max: notes_max.max(1) }
    }

    /// Records totals, and drops the oldest record when the history is full.
    pub fn note(&mut self, totals: HistoryTotals) {
        if self.notes.len() == self.notes_max {
            self.notes.pop_front();
        }
        self.notes.push_back(totals);
    }

    /// Returns the counts between consecutive records within `window` before `now`, and from the last record until now,
    /// in order; then their sum. The first period begins at or before the start of the window, if the history is long
    /// enough.
    pub fn within(&self, window: Duration, now: &HistoryTotals) -> (Vec<PeriodCounts>, HistoryTotals) {
        let start = now.at.saturating_sub(window);
        let first = self.notes.iter().rposition(|note| note.at <= start).unwrap_or(0);
        let ends = self.notes.iter().skip(first + 1).chain([now]);
        let stretch =
            |(from, to): (&HistoryTotals, &HistoryTotals)| PeriodCounts { end: to.at, counted: to.since(from) };
        let stretches = self.notes.iter().skip(first).zip(ends).map(stretch).collect();
        (stretches, now.since(&self.notes[first]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: [f64; 3] = [1.0, 2.0, 4.0];

    fn totals(at_s: u64, times: &[f64]) -> HistoryTotals {
        let n = |bound: f64| times.iter().filter(|time| **time <= bound).count() as u64;
        let mut ttft: Vec<u64> = BOUNDS.iter().map(|bound| n(*bound)).collect();
        ttft.push(times.len() as u64);
        HistoryTotals { at: Duration::from_secs(at_s), requests: times.len() as u64, ttft, ..HistoryTotals::default() }
    }

    #[test]
    fn a_quantile_is_the_one_that_prometheus_computes_from_the_buckets() {
        let check = |times: &[f64], q, expected| {
            assert_eq!(totals(0, times).ttft_quantile(q, &BOUNDS), expected, "{times:?} {q}");
        };
        check(&[], 0.5, None);
        check(&[0.3, 0.3], 0.5, Some(0.5));
        check(&[0.5, 1.5, 1.5, 3.0], 0.5, Some(1.5));
        check(&[0.5, 1.5, 1.5, 3.0], 1.0, Some(4.0));
        check(&[100.0], 0.5, Some(4.0));
        check(&[3.0], 0.0, Some(0.0));
        assert_eq!(HistoryTotals::default().ttft_quantile(0.5, &BOUNDS), None);
    }

    proptest! {
        #[test]
        fn a_quantile_lies_in_the_bucket_of_the_value_that_it_stands_for(
            mut times in prop::collection::vec(0.01..8.0_f64, 1..50),
            q in 0.01..1.0_f64,
        ) {
            let found = totals(0, &times).ttft_quantile(q, &BOUNDS).expect("there are times");
            times.sort_by(f64::total_cmp);
            let rank = (q * times.len() as f64).ceil() as usize;
            let exact = times[rank.clamp(1, times.len()) - 1];
            let upper = BOUNDS.iter().copied().find(|bound| exact <= *bound).unwrap_or(4.0);
            let lower = BOUNDS.iter().copied().rev().find(|bound| *bound < exact).unwrap_or(0.0);
            prop_assert!((lower..=upper).contains(&found), "{found} for {exact}");
        }

        #[test]
        fn intervals_are_between_the_last_samples_and_add_up(
            notes_max in 1..6_usize,
            pauses in prop::collection::vec((1..9_u64, 0..5_u64), 0..12),
            (window, last, more) in (0..60_u64, 0..9_u64, 0..5_u64),
        ) {
            let mut history = History::new(notes_max);
            let mut naive = vec![(0, 0)];
            for (pause, requests) in pauses {
                let (at, sum) = naive[naive.len() - 1];
                naive.push((at + pause, sum + requests));
                let (at, sum) = naive[naive.len() - 1];
                history.note(HistoryTotals { at: Duration::from_secs(at), requests: sum, ..HistoryTotals::default() });
            }
            let (at, sum) = naive[naive.len() - 1];
            let (at, sum) = (at + last, sum + more);
            let now = HistoryTotals { at: Duration::from_secs(at), requests: sum, ..HistoryTotals::default() };
            let (stretches, all) = history.within(Duration::from_secs(window), &now);

            let kept = &naive[naive.len().saturating_sub(notes_max)..];
            let start = at.saturating_sub(window);
            let first = kept.iter().rposition(|note| note.0 <= start).unwrap_or(0);
            let ends: Vec<(u64, u64)> = kept[first..].iter().copied().chain([(at, sum)]).collect();
            let expected: Vec<(u64, u64, u64)> =
                ends.windows(2).map(|pair| (pair[1].0, pair[1].0 - pair[0].0, pair[1].1 - pair[0].1)).collect();
            let found: Vec<(u64, u64, u64)> = stretches
                .iter()
                .map(|stretch| (stretch.end.as_secs(), stretch.counted.at.as_secs(), stretch.counted.requests))
                .collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(all.requests, sum - kept[first].1);
            prop_assert_eq!(all.at.as_secs(), at - kept[first].0);
        }
    }
}
