//! Costs of moving KV state and of computing it, as measured by this worker.
//!
//! The shell measures the moves, and `rates` the prefill rate; `slot_plan` makes decisions based on the costs.
//!
//! All costs are in milliseconds, so that they can be added and compared. A move without a measurement is assumed to be
//! cheap, because measured moves were a hundred times cheaper than prefill.

/// Costs on this worker, with this model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Time to compute one prompt token.
    pub prefill_ms_per_token: f64,
    /// Time to copy one token's state from another slot; `None` if that is impossible. Close to zero if the slots share
    /// one buffer, otherwise the time of an export and an import.
    pub copy_ms_per_token: Option<f64>,
    /// Time to export a token's state to the store; `None` if there is no store.
    pub export_ms_per_token: Option<f64>,
    /// Time to import state from memory.
    pub import_ms_per_byte: f64,
    /// Time to read state from disk.
    pub read_ms_per_byte: f64,
    /// Lengths of suffixes that are computed faster together with some cached tokens; `None` if there are none.
    pub suffix_rounding: Option<SuffixRounding>,
}

/// Range of suffix lengths, from `from_tokens` to below `to_tokens`, that take longer to compute than `to_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuffixRounding {
    /// Shortest suffix that is rounded up.
    pub from_tokens: u32,
    /// Length to which it is rounded up.
    pub to_tokens: u32,
}

/// Weight of the newest measurement in an average.
///
/// Source: after five measurements the initial assumption has a weight of a sixth.
const NEWEST_WEIGHT: f64 = 0.3;

/// Half-life of the excess of a measured cost over the initial assumption. Units: seconds.
///
/// Source: with it, an expensive move is tried again every few minutes.
const HALF_LIFE_S: f64 = 60.0;

/// Longest measured time to read a byte from disk. Units: milliseconds.
///
/// Source: at 1 MB/s, computing is faster on almost every machine. With a limit, a disk that hung for an hour is tried
/// again a few minutes later, as after any expensive move.
const READ_MS_PER_BYTE_MAX: f64 = 1e-3;

impl Costs {
    /// Sets the time to compute a prompt token from the measured rate, if there is one.
    pub fn learn_prefill(&mut self, tokens_per_s: Option<f32>) {
        if let Some(rate) = tokens_per_s.filter(|rate| *rate > 0.0) {
            self.prefill_ms_per_token = 1e3 / f64::from(rate);
        }
    }

    /// Records the time of exporting `n_tokens`.
    pub fn learn_export(&mut self, n_tokens: u32, ms: f64) {
        learn(self.export_ms_per_token.as_mut(), ms / f64::from(n_tokens.max(1)));
    }

    /// Records the time of copying from a slot with `n_held_tokens`.
    pub fn learn_copy(&mut self, n_held_tokens: u32, ms: f64) {
        learn(self.copy_ms_per_token.as_mut(), ms / f64::from(n_held_tokens.max(1)));
    }

    /// Records the time of importing `n_bytes`.
    pub fn learn_import(&mut self, n_bytes: u64, ms: f64) {
        learn(Some(&mut self.import_ms_per_byte), ms / n_bytes.max(1) as f64);
    }

    /// Records the time of reading `n_bytes` from disk.
    pub fn learn_read(&mut self, n_bytes: u64, ms: f64) {
        learn(Some(&mut self.read_ms_per_byte), (ms / n_bytes.max(1) as f64).min(READ_MS_PER_BYTE_MAX));
    }

    /// Moves the costs above the initial assumption back towards it, by half in a minute. Otherwise a single bad
    /// measurement, on a busy machine, would prevent the move, and thus any better measurement, forever.
    pub fn fade(&mut self, at_first: &Self, elapsed_s: f64) {
        let share_left = 0.5_f64.powf(elapsed_s / HALF_LIFE_S);
        let fade = |now: &mut f64, first: f64| *now = now.min(first + (*now - first).max(0.0) * share_left);
        for (now, first) in [
            (self.copy_ms_per_token.as_mut(), at_first.copy_ms_per_token),
            (self.export_ms_per_token.as_mut(), at_first.export_ms_per_token),
            (Some(&mut self.import_ms_per_byte), Some(at_first.import_ms_per_byte)),
            (Some(&mut self.read_ms_per_byte), Some(at_first.read_ms_per_byte)),
        ] {
            if let (Some(now), Some(first)) = (now, first) {
                fade(now, first);
            }
        }
    }

    /// Returns how many of a prompt's cached tokens to reuse so that computing the rest takes the least time.
    pub fn best_start(&self, n_prompt: u32, n_cached: u32) -> u32 {
        let n_suffix = n_prompt.saturating_sub(n_cached);
        let rounding = self.suffix_rounding.filter(|r| n_suffix >= r.from_tokens && n_suffix < r.to_tokens);
        rounding.map_or(n_cached, |rounding| n_prompt.saturating_sub(rounding.to_tokens))
    }

    /// Returns the time to compute `n_tokens` of a prompt.
    pub fn prefill_ms(&self, n_tokens: usize) -> f64 {
        self.prefill_ms_per_token * n_tokens as f64
    }

    /// Returns the time to copy from a sequence of `n_held_tokens` to another slot.
    pub fn copy_ms(&self, n_held_tokens: usize) -> Option<f64> {
        self.copy_ms_per_token.map(|ms| ms * n_held_tokens as f64)
    }

    /// Returns whether state can be copied between slots.
    pub fn shares(&self) -> bool {
        self.copy_ms_per_token.is_some() || self.export_ms_per_token.is_some()
    }

    /// Returns the time of exporting `n_tokens` to the store; `None` if there is no store.
    pub fn export_ms(&self, n_tokens: usize) -> Option<f64> {
        self.export_ms_per_token.map(|ms| ms * n_tokens as f64)
    }

    /// Returns the number of tokens that can be exported in `ms`; [`u32::MAX`] if exports are free or there is no
    /// store.
    pub fn exported_within(&self, ms: f64) -> u32 {
        // A float cast saturates, and dividing by 0 gives infinity.
        self.export_ms_per_token.map_or(u32::MAX, |each| (ms / each) as u32)
    }

    /// Returns the time to import `n_bytes` from memory.
    pub fn import_ms(&self, n_bytes: u64) -> f64 {
        self.import_ms_per_byte * n_bytes as f64
    }

    /// Returns the time to read `n_bytes` from disk.
    pub fn read_ms(&self, n_bytes: u64) -> f64 {
        self.read_ms_per_byte * n_bytes as f64
    }
}

fn learn(average: Option<&mut f64>, newest: f64) {
    if let Some(average) = average {
        *average += NEWEST_WEIGHT * (newest - *average);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_measurements_and_ignores_impossible_ones() {
        let mut costs = Costs {
            prefill_ms_per_token: 1.0,
            copy_ms_per_token: None,
            export_ms_per_token: Some(1.0),
            import_ms_per_byte: 1.0,
            read_ms_per_byte: 1.0,
            suffix_rounding: None,
        };
        for _ in 0..20 {
            costs.learn_copy(10, 20.0);
            costs.learn_export(10, 20.0);
            costs.learn_import(10, 30.0);
        }
        costs.learn_prefill(None);
        assert_eq!(costs.copy_ms(5), None);
        assert!((costs.export_ms(5).unwrap() - 10.0).abs() < 0.1, "{costs:?}");
        assert!((costs.import_ms(5) - 15.0).abs() < 0.1, "{costs:?}");
        assert_eq!(costs.read_ms(5), 5.0);
        assert_eq!(costs.prefill_ms(3), 3.0);
        costs.learn_prefill(Some(500.0));
        assert_eq!(costs.prefill_ms(3), 6.0);
        assert!(costs.shares());
        costs.export_ms_per_token = Some(0.5);
        assert_eq!((costs.exported_within(100.0), costs.exported_within(0.4)), (200, 0));
        costs.export_ms_per_token = Some(0.0);
        assert_eq!(costs.exported_within(1.0), u32::MAX);
    }

    #[test]
    fn an_expensive_restore_is_tried_again_later_and_a_cheap_one_stays_cheap() {
        let at_first = Costs {
            prefill_ms_per_token: 1.0,
            copy_ms_per_token: None,
            export_ms_per_token: Some(4.0),
            import_ms_per_byte: 4.0,
            read_ms_per_byte: 4.0,
            suffix_rounding: None,
        };
        let mut costs =
            Costs { export_ms_per_token: Some(12.0), import_ms_per_byte: 1.0, read_ms_per_byte: 20.0, ..at_first };
        costs.fade(&at_first, 0.0);
        assert_eq!((costs.export_ms(1), costs.read_ms(1)), (Some(12.0), 20.0));
        costs.fade(&at_first, HALF_LIFE_S);
        assert_eq!((costs.export_ms(1), costs.read_ms(1)), (Some(8.0), 12.0));
        costs.fade(&at_first, 100.0 * HALF_LIFE_S);
        assert!((costs.export_ms(1).unwrap() - 4.0).abs() < 1e-9 && (costs.read_ms(1) - 4.0).abs() < 1e-9);
        assert_eq!((costs.copy_ms(1), costs.import_ms(1)), (None, 1.0));
    }

    #[test]
    fn the_speed_of_the_disk_is_measured_within_a_limit() {
        let mut costs = Costs {
            prefill_ms_per_token: 1.0,
            copy_ms_per_token: None,
            export_ms_per_token: None,
            import_ms_per_byte: 1.0,
            read_ms_per_byte: 2e-6,
            suffix_rounding: None,
        };
        for (n_bytes, ms, expected_ms) in [(1_000_000, 50.0, 50.0), (1_000_000, 1.0, 1.0), (1_000_000, 1e9, 1000.0)] {
            (0..40).for_each(|_| costs.learn_read(n_bytes, ms));
            assert!((costs.read_ms(1_000_000) / expected_ms - 1.0).abs() < 0.01, "{costs:?}");
        }
    }

    #[test]
    fn recomputes_cached_tokens_if_that_is_faster() {
        let mut costs = Costs {
            prefill_ms_per_token: 1.0,
            copy_ms_per_token: None,
            export_ms_per_token: None,
            import_ms_per_byte: 1.0,
            read_ms_per_byte: 1.0,
            suffix_rounding: None,
        };
        assert_eq!(costs.best_start(1000, 980), 980);
        costs.suffix_rounding = Some(SuffixRounding { from_tokens: 9, to_tokens: 64 });
        for (n_cached, n_used) in [(999, 999), (992, 992), (991, 936), (937, 936), (936, 936), (900, 900), (0, 0)] {
            assert_eq!(costs.best_start(1000, n_cached), n_used);
        }
        assert_eq!(costs.best_start(40, 20), 0);
    }
}
