//! The circuit breaker of one worker: after repeated failures the worker gets no requests for a while, then one as a
//! probe.
//!
//! What counts as a failure is decided in `retry`; `ledger` consults the breaker.

use std::time::{Duration, Instant};

/// Limits of a breaker.
#[derive(Debug, Clone, Copy)]
pub struct BreakerOptions {
    /// Number of consecutive failures that open the breaker.
    pub failures_max: u32,
    /// First time for which the breaker stays open; doubled with each failed probe.
    pub open_min: Duration,
    /// Longest time for which the breaker stays open.
    pub open_max: Duration,
}

impl Default for BreakerOptions {
    /// Returns limits under which a failed worker is tried again within seconds.
    ///
    /// Source: own choice; the summary stream of a returned worker resets the breaker anyway.
    fn default() -> Self {
        Self { failures_max: 3, open_min: Duration::from_secs(1), open_max: Duration::from_secs(8) }
    }
}

/// Whether requests pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// All requests pass.
    Closed,
    /// One request passes, as a probe: the time for which the breaker was open is over.
    HalfOpen,
    /// No request passes.
    Open,
}

/// The breaker of one worker; it is replaced by a new one when the worker has answered.
#[derive(Debug, Clone, Default)]
pub struct Breaker {
    n_failures: u32,
    n_openings: u32,
    open_until: Option<Instant>,
}

impl Breaker {
    /// Returns whether a request would pass.
    pub fn state(&self, now: Instant) -> BreakerState {
        match self.open_until {
            None => BreakerState::Closed,
            Some(until) if now < until => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        }
    }

    /// Returns how long the breaker stays open; zero if it is not open.
    pub fn remaining(&self, now: Instant) -> Duration {
        self.open_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Records that a request is sent; the first request through a half-open breaker closes it to the others.
    pub fn sent(&mut self, options: BreakerOptions, now: Instant) {
        if self.state(now) == BreakerState::HalfOpen {
            self.open_until = Some(now + options.open_min);
        }
    }

    /// Records that the worker failed.
    pub fn failed(&mut self, options: BreakerOptions, now: Instant) {
        self.n_failures = self.n_failures.saturating_add(1);
        if self.n_failures >= options.failures_max {
            let doubled = options.open_min.saturating_mul(1 << self.n_openings.min(16));
            self.open_until = Some(now + doubled.min(options.open_max));
            self.n_openings = self.n_openings.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: BreakerOptions =
        BreakerOptions { failures_max: 2, open_min: Duration::from_secs(1), open_max: Duration::from_secs(3) };

    #[test]
    fn opens_after_failures_in_a_row_and_closes_after_a_probe() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut breaker = Breaker::default();
        breaker.failed(OPTIONS, start);
        breaker = Breaker::default();
        breaker.failed(OPTIONS, start);
        assert_eq!(breaker.state(start), BreakerState::Closed, "a success between failures starts the count again");
        breaker.failed(OPTIONS, start);
        assert_eq!(breaker.state(at(999)), BreakerState::Open);
        assert_eq!(breaker.remaining(at(999)), Duration::from_millis(1));
        assert_eq!(breaker.state(at(1000)), BreakerState::HalfOpen);
        breaker.sent(OPTIONS, at(1000));
        assert_eq!(breaker.state(at(1001)), BreakerState::Open, "one probe at a time");
        breaker = Breaker::default();
        assert_eq!(breaker.state(at(1001)), BreakerState::Closed);
    }

    #[test]
    fn stays_open_longer_with_each_failed_probe_up_to_a_limit() {
        let mut now = Instant::now();
        let mut breaker = Breaker::default();
        breaker.failed(OPTIONS, now);
        for seconds in [1, 2, 3, 3] {
            breaker.failed(OPTIONS, now);
            now += Duration::from_secs(seconds) - Duration::from_millis(1);
            assert_eq!(breaker.state(now), BreakerState::Open);
            now += Duration::from_millis(1);
            assert_eq!(breaker.state(now), BreakerState::HalfOpen);
        }
    }

    #[test]
    fn a_lost_probe_does_not_exclude_the_worker_forever() {
        let mut breaker = Breaker::default();
        let now = Instant::now();
        (0..2).for_each(|_| breaker.failed(OPTIONS, now));
        let later = now + Duration::from_secs(1);
        breaker.sent(OPTIONS, later);
        assert_eq!(breaker.state(later + Duration::from_secs(1)), BreakerState::HalfOpen);
    }
}
