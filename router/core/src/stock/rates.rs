//! The speed of a stock server, learnt from its responses.
//!
//! Responses are read in `stock::Usage`. These are the same three rates that a Warmpath worker measures itself. They
//! are averages in which a long prompt weighs more than a short one, because the time of a short one is mostly
//! overhead.

use warmpath_common::summary::Rates;

/// Weight of a sample from a very long prompt; shorter prompts weigh less.
///
/// Source: own choice: roughly the last five samples count.
const WEIGHT: f64 = 0.3;

/// Length of a prompt whose sample has half of [`WEIGHT`]. Units: tokens.
///
/// Source: own choice: a quarter of a second on a small machine.
const HALF_WEIGHT_TOKENS: f64 = 256.0;

/// Learnt rates of a server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MeasuredRates {
    prefill_tokens_per_s: Option<f64>,
    decode_step_ms: Option<f64>,
    answer_tokens: Option<f64>,
}

impl MeasuredRates {
    /// Adds a prompt of which `tokens` were computed in `ms`.
    pub(super) fn prefilled(&mut self, tokens: f64, ms: f64) {
        let weight = WEIGHT * tokens / (tokens + HALF_WEIGHT_TOKENS);
        blend(&mut self.prefill_tokens_per_s, tokens / ms * 1e3, weight);
    }

    /// Adds a response of `tokens`.
    pub(super) fn answered(&mut self, tokens: f64) {
        blend(&mut self.answer_tokens, tokens, WEIGHT);
    }

    /// Adds the time per token of a response.
    pub(super) fn decoded(&mut self, ms_per_token: f64) {
        blend(&mut self.decode_step_ms, ms_per_token, WEIGHT);
    }

    /// Returns the learnt rates.
    pub(super) fn rates(&self) -> Rates {
        let single = |rate: Option<f64>| rate.map(|rate| rate as f32);
        Rates {
            prefill_tokens_per_s: single(self.prefill_tokens_per_s),
            decode_step_ms: single(self.decode_step_ms),
            answer_tokens: single(self.answer_tokens),
            // A stock server does not say when it encodes.
            encode_ms_per_token: None,
        }
    }
}

/// Adds a sample, if it is a positive number.
fn blend(average: &mut Option<f64>, sample: f64, weight: f64) {
    if sample.is_finite() && sample > 0.0 {
        *average = Some(average.map_or(sample, |average| average + weight * (sample - average)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_sets_the_average_and_later_ones_count_by_their_length() {
        let mut speed = MeasuredRates::default();
        assert_eq!(speed.rates(), Rates::default());
        speed.prefilled(100.0, 100.0);
        assert_eq!(speed.rates().prefill_tokens_per_s, Some(1000.0));
        let mut other = speed;
        speed.prefilled(10.0, 100.0);
        other.prefilled(1000.0, 10_000.0);
        let rate = |speed: &MeasuredRates| speed.rates().prefill_tokens_per_s.expect("it is measured");
        assert!(rate(&speed) > 980.0 && rate(&other) < 800.0, "{speed:?} {other:?}");
        (0..20).for_each(|_| speed.prefilled(1000.0, 2000.0));
        assert!((rate(&speed) - 500.0).abs() < 10.0, "{speed:?}");
    }

    #[test]
    fn impossible_samples_are_not_counted() {
        let mut speed = MeasuredRates::default();
        for (tokens, ms) in [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (f64::NAN, 1.0), (1.0, -1.0)] {
            speed.prefilled(tokens, ms);
        }
        speed.answered(0.0);
        speed.decoded(f64::INFINITY);
        assert_eq!(speed.rates(), Rates::default());
    }
}
