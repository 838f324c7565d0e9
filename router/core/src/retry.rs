//! Whether a failed attempt is tried on another worker.
//!
//! Not here: which worker is next (`dispatch`), how a failure is noticed (the router's upstream).
//! The idea: an answer may be computed twice but never shown twice, so everything may be retried until the first byte has
//! reached the client, and nothing after that. All requests together pay their repetitions from one budget, which grows
//! with the requests: when most attempts fail, the fleet gets a little more work than was asked of it, not a multiple.

use std::time::{Duration, Instant};

/// Says how an attempt at a worker failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection came about.
    Connect,
    /// The worker did not begin to answer in time.
    Timeout,
    /// The worker's queue is full (429).
    Full,
    /// The worker cannot serve now (503): it loads or shuts down.
    Unready,
    /// The worker does not take the fleet's token (401).
    Refused,
    /// The connection broke, or the answer made no sense, before any of it reached the client.
    Broken,
}

impl Failure {
    /// Returns whether the failure counts against the worker's health; a full queue is no illness.
    pub fn is_illness(self) -> bool {
        match self {
            Self::Connect | Self::Timeout | Self::Refused | Self::Broken => true,
            Self::Full | Self::Unready => false,
        }
    }

    /// Returns a short name for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Full => "full",
            Self::Unready => "unready",
            Self::Refused => "refused",
            Self::Broken => "broken",
        }
    }
}

/// Bounds the attempts at one request.
#[derive(Debug, Clone, Copy)]
pub struct RetryOptions {
    /// Is how many workers a request is tried on at most, the first included.
    pub attempts_max: u32,
    /// Is how long after the request's arrival a new attempt may still begin.
    pub elapsed_max: Duration,
}

/// Says what follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another worker gets the request.
    TryAnother,
    /// The client hears of the failure.
    GiveUp,
}

impl RetryOptions {
    /// Returns what follows the failure of attempt `n_attempts`, which nobody has told the client of.
    pub fn after(&self, n_attempts: u32, elapsed: Duration) -> Verdict {
        if n_attempts < self.attempts_max && elapsed <= self.elapsed_max {
            Verdict::TryAnother
        } else {
            Verdict::GiveUp
        }
    }
}

/// Bounds the repetitions of all requests together.
#[derive(Debug, Clone, Copy)]
pub struct BudgetOptions {
    /// Is how many repetitions each request adds.
    pub per_request: f64,
    /// Is how many repetitions each second adds, so that a router with few requests can repeat them too.
    pub per_s: f64,
    /// Is the most repetitions that are saved up.
    pub saved_max: f64,
}

impl Default for BudgetOptions {
    /// Returns a fifth of the requests and ten a second.
    ///
    /// Source: the defaults of Finagle's and linkerd2-proxy's retry budgets; they save up ten seconds.
    fn default() -> Self {
        Self { per_request: 0.2, per_s: 10.0, saved_max: 100.0 }
    }
}

/// Is the repetitions that all requests together may still cost.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    options: BudgetOptions,
    saved: f64,
    at: Instant,
}

impl RetryBudget {
    /// Returns a full budget.
    pub fn new(options: BudgetOptions, now: Instant) -> Self {
        Self { options, saved: options.saved_max, at: now }
    }

    /// Adds what a new request brings.
    pub fn deposit(&mut self) {
        self.add(self.options.per_request);
    }

    /// Takes one repetition; returns whether there was one.
    pub fn withdraw(&mut self, now: Instant) -> bool {
        self.add(self.options.per_s * now.saturating_duration_since(self.at).as_secs_f64());
        self.at = self.at.max(now);
        let has_one = self.saved >= 1.0;
        if has_one {
            self.saved -= 1.0;
        }
        has_one
    }

    fn add(&mut self, n: f64) {
        self.saved = (self.saved + n).min(self.options.saved_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_a_share_of_the_requests_once_what_was_saved_is_spent() {
        let now = Instant::now();
        let mut budget = RetryBudget::new(BudgetOptions { per_request: 0.5, per_s: 0.0, saved_max: 3.0 }, now);
        let mut repeated = |n_requests: usize| {
            let asked = (0..n_requests).map(|_| {
                budget.deposit();
                budget.withdraw(now)
            });
            asked.filter(|granted| *granted).count()
        };
        assert_eq!(repeated(5), 5, "what was saved and a half each");
        assert_eq!(repeated(100), 50);
    }

    #[test]
    fn a_quiet_router_may_repeat_so_many_a_second_and_saves_no_more_than_the_limit() {
        let start = Instant::now();
        let mut budget = RetryBudget::new(BudgetOptions { per_request: 0.0, per_s: 2.0, saved_max: 3.0 }, start);
        let mut granted_at = |seconds| {
            let now = start + Duration::from_secs(seconds);
            std::iter::repeat_with(|| budget.withdraw(now)).take_while(|granted| *granted).count()
        };
        assert_eq!(granted_at(0), 3);
        assert_eq!(granted_at(1), 2);
        assert_eq!(granted_at(3600), 3);
        assert_eq!(granted_at(0), 0, "a clock that goes back adds nothing");
    }

    #[test]
    fn tries_so_often_and_so_long_and_no_more() {
        let options = RetryOptions { attempts_max: 3, elapsed_max: Duration::from_secs(10) };
        for (n_attempts, seconds, expected) in [
            (1, 0, Verdict::TryAnother),
            (2, 10, Verdict::TryAnother),
            (3, 0, Verdict::GiveUp),
            (1, 11, Verdict::GiveUp),
        ] {
            assert_eq!(options.after(n_attempts, Duration::from_secs(seconds)), expected, "{n_attempts} {seconds}");
        }
    }

    #[test]
    fn a_full_queue_is_no_illness() {
        assert!(!Failure::Full.is_illness());
        assert!(Failure::Broken.is_illness());
    }
}
