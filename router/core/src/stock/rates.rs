//! The speed of a stock server, learnt from its responses.
//!
//! Responses are read in `stock::Usage`. These are the same three rates that a Warmpath worker measures itself. They
//! are averages in which a long prompt weighs more than a short one, because the time of a short one is mostly
//! overhead. One sample moves an average only by so much, and an average without new samples is dropped: a server may
//! have loaded a model meanwhile, and without requests it could never show that it is fast again.

use std::time::{Duration, Instant};

use warmpath_common::summary::Rates;

/// Weight of a sample from a very long prompt; shorter prompts weigh less.
///
/// Source: own choice: roughly the last five samples count.
const WEIGHT: f64 = 0.3;

/// Length of a prompt whose sample has half of [`WEIGHT`]. Units: tokens.
///
/// Source: own choice: a quarter of a second on a small machine.
const HALF_WEIGHT_TOKENS: f64 = 256.0;

/// Largest factor by which a sample counts as different from the average.
///
/// Source: own choice: a start of 8 s before a prompt of 0.2 s takes a quarter off the average, and a server that is
/// ten times as slow as before loses half of it within three long prompts.
const SAMPLE_RATIO_MAX: f64 = 4.0;

/// Age at which a rate is dropped, and silence after which a server may have unloaded its model.
///
/// Source: own choice: by then a worker's rate has faded by half (`RATE_FRESH`, `RATE_HALF_LIFE` in `routing::cost`).
pub(super) const RATE_AGE_MAX: Duration = Duration::from_secs(60);

/// Learnt rates of a server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MeasuredRates {
    prefill_tokens_per_s: Average,
    decode_step_ms: Average,
    answer_tokens: Option<f64>,
}

/// A moving average, and the time of its last sample; `None` until there is one.
#[derive(Debug, Clone, Copy, Default)]
struct Average(Option<(f64, Instant)>);

impl Average {
    /// Returns the average, unless its last sample is too old.
    fn at(&self, now: Instant) -> Option<f64> {
        let is_fresh = |sampled_at: Instant| now.saturating_duration_since(sampled_at) < RATE_AGE_MAX;
        self.0.filter(|(_, sampled_at)| is_fresh(*sampled_at)).map(|(average, _)| average)
    }

    /// Adds a sample, if it is a positive number.
    fn add(&mut self, sample: f64, weight: f64, now: Instant) {
        if sample.is_finite() && sample > 0.0 {
            let next = self.at(now).map_or(sample, |average| {
                let sample = sample.clamp(average / SAMPLE_RATIO_MAX, average * SAMPLE_RATIO_MAX);
                average + weight * (sample - average)
            });
            self.0 = Some((next, now));
        }
    }
}

impl MeasuredRates {
    /// Adds a prompt of which `tokens` were computed in `ms`.
    pub(super) fn prefilled(&mut self, tokens: f64, ms: f64, now: Instant) {
        let weight = WEIGHT * tokens / (tokens + HALF_WEIGHT_TOKENS);
        self.prefill_tokens_per_s.add(tokens / ms * 1e3, weight, now);
    }

    /// Adds a response of `tokens`.
    pub(super) fn answered(&mut self, tokens: f64) {
        if tokens > 0.0 {
            let blend = |average: f64| average + WEIGHT * (tokens - average);
            self.answer_tokens = Some(self.answer_tokens.map_or(tokens, blend));
        }
    }

    /// Adds the time per token of a response.
    pub(super) fn decoded(&mut self, ms_per_token: f64, now: Instant) {
        self.decode_step_ms.add(ms_per_token, WEIGHT, now);
    }

    /// Returns the learnt rates.
    pub(super) fn rates(&self, now: Instant) -> Rates {
        let single = |rate: Option<f64>| rate.map(|rate| rate as f32);
        Rates {
            prefill_tokens_per_s: single(self.prefill_tokens_per_s.at(now)),
            decode_step_ms: single(self.decode_step_ms.at(now)),
            answer_tokens: single(self.answer_tokens),
            // A stock server does not say when it encodes or waits.
            encode_ms_per_token: None,
            processor_wait: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_sets_the_average_and_later_ones_count_by_their_length() {
        let (mut speed, now) = (MeasuredRates::default(), Instant::now());
        assert_eq!(speed.rates(now), Rates::default());
        speed.prefilled(100.0, 100.0, now);
        assert_eq!(speed.rates(now).prefill_tokens_per_s, Some(1000.0));
        let mut other = speed;
        speed.prefilled(10.0, 100.0, now);
        other.prefilled(1000.0, 10_000.0, now);
        let rate = |speed: &MeasuredRates| speed.rates(now).prefill_tokens_per_s.expect("it is measured");
        assert!(rate(&speed) > 980.0 && rate(&other) < 850.0, "{speed:?} {other:?}");
        (0..20).for_each(|_| speed.prefilled(1000.0, 2000.0, now));
        assert!((rate(&speed) - 500.0).abs() < 10.0, "{speed:?}");
    }

    #[test]
    fn an_outlier_moves_an_average_little_and_a_change_of_speed_soon_counts() {
        let now = Instant::now();
        let mut speed = MeasuredRates::default();
        let rate = |speed: &MeasuredRates| speed.rates(now).prefill_tokens_per_s.expect("it is measured");
        speed.prefilled(1000.0, 1000.0, now);
        for outlier_ms in [100_000.0, 1.0] {
            let mut with_outlier = speed;
            with_outlier.prefilled(1000.0, outlier_ms, now);
            assert!((750.0..1800.0).contains(&rate(&with_outlier)), "{outlier_ms}: {with_outlier:?}");
            (0..8).for_each(|_| with_outlier.prefilled(1000.0, 1000.0, now));
            assert!((rate(&with_outlier) - 1000.0).abs() < 100.0, "{outlier_ms}: {with_outlier:?}");
        }
        (0..4).for_each(|_| speed.prefilled(1000.0, 10_000.0, now));
        assert!(rate(&speed) < 500.0, "{speed:?}");
        (0..12).for_each(|_| speed.prefilled(1000.0, 100.0, now));
        assert!(rate(&speed) > 9000.0, "{speed:?}");
    }

    #[test]
    fn an_old_rate_is_dropped_and_the_next_sample_sets_it() {
        let start = Instant::now();
        let mut speed = MeasuredRates::default();
        speed.prefilled(100.0, 100.0, start);
        speed.decoded(10.0, start);
        speed.answered(8.0);
        let (almost, later) = (start + RATE_AGE_MAX - Duration::from_millis(1), start + RATE_AGE_MAX);
        assert_eq!(speed.rates(almost).prefill_tokens_per_s, Some(1000.0));
        assert_eq!(speed.rates(later), Rates { answer_tokens: Some(8.0), ..Rates::default() });
        speed.prefilled(100.0, 1000.0, later);
        assert_eq!(speed.rates(later).prefill_tokens_per_s, Some(100.0));
    }

    #[test]
    fn impossible_samples_are_not_counted() {
        let (mut speed, now) = (MeasuredRates::default(), Instant::now());
        for (tokens, ms) in [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (f64::NAN, 1.0), (1.0, -1.0)] {
            speed.prefilled(tokens, ms, now);
        }
        speed.answered(0.0);
        speed.decoded(f64::INFINITY, now);
        assert_eq!(speed.rates(now), Rates::default());
    }
}
