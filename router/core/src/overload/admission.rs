//! Whether a worker can take one more request, and when a full fleet can.
//!
//! The order of waiting requests is decided in `admission_queue`, the cost of a request in `cost`. A request in a
//! worker's own queue can neither move to another worker nor let another tenant pass. So a worker gets only what it can
//! start soon, and other requests wait in the router. As long as any worker has capacity, all workers are candidates,
//! because the cost decides better than a limit when it pays to wait for a prefix.

use std::time::Duration;

use crate::routing::cost::WorkerLoad;

/// Shortest time after which a client is asked to try again.
///
/// Source: `Retry-After` counts whole seconds.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// Longest time after which a client is asked to try again; longer predictions are too inaccurate.
///
/// Source: own choice: with a longer one, clients would miss capacity that is free again.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);

/// Time after which an unreachable worker is assumed to be back.
///
/// Source: the router notices a returned worker within a second, and uses it within another.
pub const RETURN: Duration = Duration::from_secs(2);

/// Capacity of a worker for one more request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capacity {
    /// The worker can start a request soon.
    Yes,
    /// The worker cannot start a request soon; if another one can, waiting here may still be the best choice.
    No,
    /// All slots are taken and the worker has not measured its speed, so the wait of a further request is unknown.
    Unmeasured,
}

/// Returns the capacity of a worker with this load; a predicted wait of up to `wait_max` counts as capacity.
pub(crate) fn capacity(worker_load: &WorkerLoad<'_>, wait_max: Duration) -> Capacity {
    if worker_load.n_requests() < u64::from(worker_load.n_slots) {
        Capacity::Yes
    } else if worker_load.load.rates.prefill_tokens_per_s.is_none() {
        Capacity::Unmeasured
    } else if worker_load.queue_delay_ms() <= wait_max.as_secs_f64() * 1e3 {
        Capacity::Yes
    } else {
        Capacity::No
    }
}

/// Time until a fleet can start one more request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CapacityForecast {
    /// Shortest predicted wait at any worker. Units: milliseconds.
    pub wait_ms: f64,
    /// Time between two starts, the whole fleet together. Units: milliseconds.
    pub interval_ms: f64,
}

impl CapacityForecast {
    /// Returns when a client should try again if `n_waiting` requests are ahead of it.
    pub fn retry_after(self, n_waiting: usize) -> Duration {
        let ms = self.wait_ms + self.interval_ms * n_waiting as f64;
        let seconds = (ms / 1e3).clamp(RETRY_AFTER_MIN.as_secs_f64(), RETRY_AFTER_MAX.as_secs_f64());
        Duration::from_secs_f64(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::choose::worker_load;
    use crate::routing::cost::{SPEEDS_DEFAULT, Unreported};
    use crate::testing::worker;
    use warmpath_common::ids::SlotId;
    use warmpath_common::summary::{Load, Rates};

    const WAIT_MAX: Duration = Duration::from_secs(2);

    fn check(load: Load, expected: Capacity) {
        let worker = crate::fleet::WorkerView { load, ..worker(0) };
        let worker_load = worker_load(&worker, Unreported::default(), SPEEDS_DEFAULT, worker.measured_at);
        assert_eq!(capacity(&worker_load, WAIT_MAX), expected, "{:?}", worker.load);
    }

    #[test]
    fn room_is_a_free_slot_or_a_short_wait_at_a_measured_worker() {
        let busy = |n, queued_prefill_tokens| Load {
            queued_prefill_tokens,
            busy_slots: (0..n).map(SlotId).collect(),
            ..worker(0).load
        };
        check(busy(3, 1_000_000), Capacity::Yes);
        // A slot is free in 250 ms; 1,000 tokens are computed in a second.
        check(busy(4, 1750), Capacity::Yes);
        check(busy(4, 1751), Capacity::No);
        check(Load { rates: Rates::default(), ..busy(4, 0) }, Capacity::Unmeasured);
        check(Load { rates: Rates::default(), ..busy(3, 0) }, Capacity::Yes);
    }

    #[test]
    fn the_time_to_try_again_grows_with_the_wait_and_the_queue_between_its_limits() {
        let after =
            |wait_ms, n_waiting| CapacityForecast { wait_ms, interval_ms: 500.0 }.retry_after(n_waiting).as_secs_f64();
        assert_eq!(after(0.0, 0), 1.0);
        assert_eq!(after(3000.0, 0), 3.0);
        assert_eq!(after(3000.0, 10), 8.0);
        assert_eq!(after(f64::INFINITY, 10), 120.0);
    }
}
