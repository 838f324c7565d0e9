//! Whether a failed attempt is repeated at another worker.
//!
//! Which worker is next is decided in `ledger`; the router's upstream module notices failures. A response may be
//! computed twice but never sent twice. So an attempt may be repeated until the first byte has reached the client, and
//! never after that. All requests pay their retries from one budget, which grows with the number of requests: when most
//! attempts fail, the fleet gets a little more work than was requested, not a multiple.

use std::time::{Duration, Instant};

use crate::overload::admission_queue::TenantKey;

/// Failure of an attempt at a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerFailure {
    /// No connection was established.
    Connect,
    /// The router's machine had no file descriptor, port or memory left for the connection.
    Shortage,
    /// The worker did not begin to respond in time.
    Timeout,
    /// The worker's queue is full (429).
    Full,
    /// The worker cannot serve now (503): it is loading or shutting down.
    Unready,
    /// The worker rejects the fleet's token (401).
    Refused,
    /// The connection broke, or the response was malformed, before any of it reached the client.
    Broken,
    /// The worker responded with an error of its own (500, 502, 504 and the like).
    Error,
    /// The worker was lost while the request waited for its response.
    Lost,
}

/// Cause of a failure, as far as the failure itself shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The worker: it failed before it saw the request.
    Worker,
    /// The worker or the request; if another worker completes the request, it was the worker.
    Unproven,
    /// Neither: the worker is busy or known to be lost, the request takes a long time, or the router's machine lacks
    /// resources.
    Nobody,
}

impl WorkerFailure {
    /// Returns the cause.
    pub fn blame(self) -> Blame {
        match self {
            Self::Connect | Self::Refused => Blame::Worker,
            Self::Broken | Self::Error => Blame::Unproven,
            Self::Shortage | Self::Timeout | Self::Full | Self::Unready | Self::Lost => Blame::Nobody,
        }
    }

    /// Returns a short name for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Shortage => "shortage",
            Self::Timeout => "timeout",
            Self::Full => "full",
            Self::Unready => "unready",
            Self::Refused => "refused",
            Self::Broken => "broken",
            Self::Error => "error",
            Self::Lost => "lost",
        }
    }
}

/// Terms of a worker for further requests, sent when it rejects one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terms<'a> {
    /// Account whose requests the worker rejects; `None` if it may reject all accounts.
    pub account: Option<TenantKey>,
    /// Name of the model whose requests the worker rejects; `None` if it may reject all requests.
    pub model_name: Option<&'a str>,
    /// Time for which the worker wants no requests; `None` if it names none.
    pub retry_after: Option<Duration>,
}

/// Limits on the attempts at one request.
#[derive(Debug, Clone, Copy)]
pub struct RetryOptions {
    /// Maximum number of workers that a request is sent to, including the first.
    pub attempts_max: u32,
    /// Time after the request's first failure in which a new attempt may still begin.
    pub elapsed_max: Duration,
}

/// Decision after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// The request goes to another worker.
    TryAnother,
    /// The client gets the error.
    GiveUp,
}

impl RetryOptions {
    /// Returns the decision after the failure of attempt `n_attempts`, `elapsed_time` after the request's first
    /// failure; the client has received nothing yet.
    ///
    /// The time before the request's first failure does not count as time of retries, and neither does the time that it
    /// took to notice the loss of a worker.
    pub fn after(&self, n_attempts: u32, failure: WorkerFailure, elapsed_time: Duration) -> RetryDecision {
        let is_in_time = failure == WorkerFailure::Lost || elapsed_time <= self.elapsed_max;
        if n_attempts < self.attempts_max && is_in_time { RetryDecision::TryAnother } else { RetryDecision::GiveUp }
    }
}

/// Limits on the retries of all requests together.
#[derive(Debug, Clone, Copy)]
pub struct BudgetOptions {
    /// Retries that each request adds to the budget.
    pub per_request: f64,
    /// Retries that each second adds, so that a router with few requests can retry them too.
    pub per_s: f64,
    /// Maximum number of saved retries.
    pub saved_max: f64,
}

impl Default for BudgetOptions {
    /// Returns a budget of a fifth of the requests and ten retries a second.
    ///
    /// Source: the defaults of Finagle's and linkerd2-proxy's retry budgets; they save up ten seconds.
    fn default() -> Self {
        Self { per_request: 0.2, per_s: 10.0, saved_max: 100.0 }
    }
}

/// Retries that all requests together may still use.
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

    /// Adds the share of a new request.
    pub fn deposit(&mut self) {
        self.add(self.options.per_request);
    }

    /// Takes one retry; returns whether there was one.
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
    fn retries_are_a_share_of_the_requests_once_the_reserve_is_spent() {
        let now = Instant::now();
        let mut budget = RetryBudget::new(BudgetOptions { per_request: 0.5, per_s: 0.0, saved_max: 3.0 }, now);
        let mut repeated = |n_requests: usize| {
            let asked = (0..n_requests).map(|_| {
                budget.deposit();
                budget.withdraw(now)
            });
            asked.filter(|granted| *granted).count()
        };
        assert_eq!(repeated(5), 5, "the reserve and half a retry for each request");
        assert_eq!(repeated(100), 50);
    }

    #[test]
    fn a_quiet_router_may_retry_at_the_minimum_rate_and_saves_no_more_than_the_limit() {
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
    fn attempts_are_limited_in_number_and_time() {
        let options = RetryOptions { attempts_max: 3, elapsed_max: Duration::from_secs(10) };
        for (n_attempts, failure, seconds, expected) in [
            (1, WorkerFailure::Broken, 0, RetryDecision::TryAnother),
            (2, WorkerFailure::Broken, 10, RetryDecision::TryAnother),
            (3, WorkerFailure::Broken, 0, RetryDecision::GiveUp),
            (1, WorkerFailure::Broken, 11, RetryDecision::GiveUp),
            (2, WorkerFailure::Lost, 3600, RetryDecision::TryAnother),
            (3, WorkerFailure::Lost, 0, RetryDecision::GiveUp),
        ] {
            let verdict = options.after(n_attempts, failure, Duration::from_secs(seconds));
            assert_eq!(verdict, expected, "{n_attempts} {failure:?} {seconds}");
        }
    }
}
