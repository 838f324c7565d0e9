//! Whether other programs take the processors while a setting is measured.

use std::time::{Duration, Instant};

use crate::engine::processors::{ProcessorWaits, since};

/// Share of its time in which a thread waits for a processor on a machine without other work, at most. Source: on a
/// quiet machine it is below 0.1; above this, other programs have slowed the steps.
const WAITING_MAX: f64 = 0.25;
/// Shortest time after which waits are judged. Source: some time slices of a scheduler.
const MONITORED_MIN: Duration = Duration::from_millis(100);

/// Monitor of the time in which the process's threads wait for a processor, if the system reports it.
pub(super) struct OtherWork {
    n_threads: f64,
    waits: ProcessorWaits,
    began: Instant,
    /// Waits when it began; `None` if nothing is monitored.
    waited_before: Option<Duration>,
}

impl OtherWork {
    /// Returns the monitor of this many threads, which should never wait.
    pub(super) fn new(n_threads: u16) -> Self {
        Self {
            n_threads: f64::from(n_threads),
            waits: ProcessorWaits::default(),
            began: Instant::now(),
            waited_before: None,
        }
    }

    /// Returns a monitor of threads that may not wait at all, which began at a time.
    #[cfg(test)]
    pub(super) fn seen_since(began: Instant) -> Self {
        Self { n_threads: -1.0, began, waited_before: Some(Duration::ZERO), ..Self::new(1) }
    }

    pub(super) fn start(&mut self) {
        (self.began, self.waited_before) = (Instant::now(), self.waits.total());
    }

    /// Returns whether other programs have taken processors from the threads since the start.
    pub(super) fn is_seen(&mut self) -> bool {
        let took = self.began.elapsed();
        if took < MONITORED_MIN {
            return false;
        }
        let time_waited = since(self.waits.total(), self.waited_before);
        time_waited
            .is_some_and(|time_waited| time_waited.as_secs_f64() > WAITING_MAX * took.as_secs_f64() * self.n_threads)
    }
}
