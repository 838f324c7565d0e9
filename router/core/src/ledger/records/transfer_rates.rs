//! The measured bandwidth of KV transfers, for each pair of workers.
//!
//! Workers report the bytes and the time of each transfer. A pair that was never measured is assumed to have the
//! bandwidth that the operator gave, so that it is tried. A pair that was slow or failed returns to that bandwidth
//! after a while. Not here: the benefit of a transfer (`routing::transfer`).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::WorkerIdx;
use crate::routing::cost::faded_share;

/// Weight of the newest transfer in the average.
///
/// Source: own choice: the last few transfers of a pair count, as a network's load changes within seconds.
const NEWEST_WEIGHT: f64 = 0.3;

/// Most pairs of workers whose bandwidth is kept.
///
/// Source: own choice: 4 MB, enough for all pairs of 256 workers.
const PAIRS_MAX: usize = 1 << 16;

/// Age at which a measurement is dropped to make room; by then it has faded.
///
/// Source: own choice, as `RATE_HALF_LIFE`: after ten minutes less than a millionth of it counts.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// The worker that fetches, and the one that sends.
type Pair = (WorkerIdx, WorkerIdx);

/// Bandwidths by the worker that fetches and the one that sends.
#[derive(Debug, Default)]
pub struct TransferRates {
    by_pair: HashMap<Pair, MeasuredRate>,
}

#[derive(Debug, Clone, Copy)]
struct MeasuredRate {
    bytes_per_ms: f64,
    at: Instant,
}

impl TransferRates {
    /// Returns the bandwidth with which `worker` fetches from `peer`: the measured one, which approaches the assumed
    /// one as it ages. Units: bytes per millisecond.
    pub fn bytes_per_ms(&self, worker: WorkerIdx, peer: WorkerIdx, assumed_bytes_per_ms: f64, now: Instant) -> f64 {
        let Some(rate) = self.by_pair.get(&(worker, peer)) else { return assumed_bytes_per_ms };
        let share = faded_share(now.saturating_duration_since(rate.at));
        rate.bytes_per_ms + share * (assumed_bytes_per_ms - rate.bytes_per_ms)
    }

    /// Records that `worker` has fetched this many bytes from `peer` in this time.
    pub fn fetched(&mut self, worker: WorkerIdx, peer: WorkerIdx, bytes: u64, ms: f64, now: Instant) {
        // Workers report whole milliseconds, so no transfer counts as shorter than one.
        let newest = bytes as f64 / ms.max(1.0);
        let average = self.by_pair.get(&(worker, peer)).filter(|rate| rate.bytes_per_ms > 0.0);
        let bytes_per_ms =
            average.map_or(newest, |rate| rate.bytes_per_ms + NEWEST_WEIGHT * (newest - rate.bytes_per_ms));
        self.record((worker, peer), MeasuredRate { bytes_per_ms, at: now });
    }

    /// Records that `worker` failed to fetch from `peer`: the bandwidth is zero, and approaches the assumed one with
    /// time.
    pub fn failed(&mut self, worker: WorkerIdx, peer: WorkerIdx, now: Instant) {
        self.record((worker, peer), MeasuredRate { bytes_per_ms: 0.0, at: now });
    }

    /// Removes a worker that has left.
    pub fn left(&mut self, worker: WorkerIdx) {
        self.by_pair.retain(|(to, from), _| *to != worker && *from != worker);
    }

    fn record(&mut self, pair: Pair, rate: MeasuredRate) {
        if self.by_pair.len() >= PAIRS_MAX && !self.by_pair.contains_key(&pair) {
            self.by_pair.retain(|_, old| rate.at.saturating_duration_since(old.at) < FORGOTTEN_AFTER);
            if self.by_pair.len() >= PAIRS_MAX {
                return;
            }
        }
        self.by_pair.insert(pair, rate);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORKER: WorkerIdx = WorkerIdx(1);
    const PEER: WorkerIdx = WorkerIdx(2);
    const ASSUMED: f64 = 1000.0;

    #[test]
    fn a_pair_has_its_measured_bandwidth_and_an_unmeasured_one_the_assumed() {
        let (mut rates, now) = (TransferRates::default(), Instant::now());
        assert_eq!(rates.bytes_per_ms(WORKER, PEER, ASSUMED, now), ASSUMED);
        rates.fetched(WORKER, PEER, 4000, 10.0, now);
        assert_eq!(rates.bytes_per_ms(WORKER, PEER, ASSUMED, now), 400.0);
        rates.fetched(WORKER, PEER, 5000, 10.0, now);
        assert_eq!(rates.bytes_per_ms(WORKER, PEER, ASSUMED, now), 430.0);
        assert_eq!(rates.bytes_per_ms(PEER, WORKER, ASSUMED, now), ASSUMED, "the way back is another");
        rates.fetched(WORKER, PEER, 0, 0.0, now);
        assert!(rates.bytes_per_ms(WORKER, PEER, ASSUMED, now).is_finite());
        rates.left(PEER);
        assert_eq!(rates.bytes_per_ms(WORKER, PEER, ASSUMED, now), ASSUMED);
    }

    #[test]
    fn a_pair_that_failed_is_tried_again_after_a_while() {
        let (mut rates, now) = (TransferRates::default(), Instant::now());
        rates.failed(WORKER, PEER, now);
        let after = |seconds| rates.bytes_per_ms(WORKER, PEER, ASSUMED, now + Duration::from_secs(seconds));
        assert_eq!([after(0), after(30), after(60)], [0.0, 0.0, ASSUMED / 2.0]);
        let mut rates = TransferRates::default();
        rates.failed(WORKER, PEER, now);
        rates.fetched(WORKER, PEER, 100, 1.0, now);
        assert_eq!(rates.bytes_per_ms(WORKER, PEER, ASSUMED, now), 100.0, "a success replaces the failure");
    }

    #[test]
    fn no_more_pairs_than_the_limit_are_kept() {
        let (mut rates, now) = (TransferRates::default(), Instant::now());
        let worker = |n: usize| WorkerIdx(n as u32 + 1);
        (0..=PAIRS_MAX).for_each(|n| rates.fetched(worker(n), WorkerIdx(0), 10, 1.0, now));
        assert_eq!(rates.by_pair.len(), PAIRS_MAX);
        rates.fetched(worker(PAIRS_MAX), WorkerIdx(0), 10, 1.0, now + FORGOTTEN_AFTER);
        assert_eq!(rates.by_pair.len(), 1);
    }

    proptest! {
        #[test]
        fn a_bandwidth_is_between_the_measured_ones_and_the_assumed_one(
            transfers in prop::collection::vec((1u64..1_000_000, 1u32..1000), 1..20),
            age_s in 0u64..1000,
        ) {
            let (mut rates, now) = (TransferRates::default(), Instant::now());
            let mut measured = vec![ASSUMED];
            for (bytes, ms) in transfers {
                rates.fetched(WORKER, PEER, bytes, f64::from(ms), now);
                measured.push(bytes as f64 / f64::from(ms));
            }
            let rate = rates.bytes_per_ms(WORKER, PEER, ASSUMED, now + Duration::from_secs(age_s));
            let least = measured.iter().copied().fold(f64::INFINITY, f64::min);
            let most = measured.iter().copied().fold(0.0, f64::max);
            prop_assert!(least - 1e-6 <= rate && rate <= most + 1e-6);
        }
    }
}
