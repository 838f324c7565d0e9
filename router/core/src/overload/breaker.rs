//! The circuit breaker of one worker: after repeated failures the worker gets no requests for a while, then one as a
//! probe.
//!
//! What counts as a failure is decided in `retry`; `ledger` consults the breaker.

use std::time::{Duration, Instant};

/// Number of consecutive failures that open the breaker.
///
/// Source: own choice; the summary stream of a returned worker resets the breaker anyway.
const FAILURES_MAX: u32 = 3;

/// First time for which the breaker stays open; doubled with each failed probe.
///
/// Source: own choice: a failed worker is tried again within seconds.
pub const OPEN_MIN: Duration = Duration::from_secs(1);

/// Longest time for which the breaker stays open.
///
/// Source: as above.
pub const OPEN_MAX: Duration = Duration::from_secs(8);

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
    pub fn sent(&mut self, now: Instant) {
        if self.state(now) == BreakerState::HalfOpen {
            self.open_until = Some(now + OPEN_MIN);
        }
    }

    /// Records that the worker failed.
    pub fn failed(&mut self, now: Instant) {
        self.n_failures = self.n_failures.saturating_add(1);
        if self.n_failures >= FAILURES_MAX {
            let pause = OPEN_MIN.saturating_mul(1 << self.n_openings.min(16));
            self.open_until = Some(now + pause.min(OPEN_MAX));
            self.n_openings = self.n_openings.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &mut Breaker, n: u32, now: Instant) {
        (0..n).for_each(|_| breaker.failed(now));
    }

    #[test]
    fn opens_after_failures_in_a_row_and_closes_after_a_probe() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut breaker = Breaker::default();
        fail(&mut breaker, FAILURES_MAX - 1, start);
        assert_eq!(breaker.state(start), BreakerState::Closed);
        breaker.failed(start);
        assert_eq!(breaker.state(at(999)), BreakerState::Open);
        assert_eq!(breaker.remaining(at(999)), Duration::from_millis(1));
        assert_eq!(breaker.state(at(1000)), BreakerState::HalfOpen);
        breaker.sent(at(1000));
        assert_eq!(breaker.state(at(1001)), BreakerState::Open, "one probe at a time");
        breaker = Breaker::default();
        assert_eq!(breaker.state(at(1001)), BreakerState::Closed);
    }

    #[test]
    fn stays_open_longer_with_each_failed_probe_up_to_a_limit() {
        let mut now = Instant::now();
        let mut breaker = Breaker::default();
        fail(&mut breaker, FAILURES_MAX - 1, now);
        for seconds in [1, 2, 4, 8, 8] {
            breaker.failed(now);
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
        fail(&mut breaker, FAILURES_MAX, now);
        let later = now + Duration::from_secs(1);
        breaker.sent(later);
        assert_eq!(breaker.state(later + Duration::from_secs(1)), BreakerState::HalfOpen);
    }
}
