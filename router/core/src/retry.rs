//! Whether a failed attempt is tried on another worker.
//!
//! Not here: which worker is next (`dispatch`), how a failure is noticed (the router's upstream).
//! The idea: an answer may be computed twice but never shown twice, so everything may be retried until the first byte has
//! reached the client, and nothing after that.

use std::time::Duration;

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
    /// The connection broke, or the answer made no sense, before any of it reached the client.
    Broken,
}

impl Failure {
    /// Returns whether the failure counts against the worker's health; a full queue is no illness.
    pub fn is_illness(self) -> bool {
        match self {
            Self::Connect | Self::Timeout | Self::Broken => true,
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

#[cfg(test)]
mod tests {
    use super::*;

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
