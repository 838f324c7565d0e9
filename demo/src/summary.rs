//! Summary of a series of responses: hit ratio, percentiles of TTFT and TPOT; and the distribution of any durations.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::client::Answer;

/// Distribution of durations, to three significant digits, from a microsecond to an hour.
#[derive(Debug, Clone)]
pub struct Distribution {
    /// Durations. Units: microseconds.
    histogram: Histogram<u64>,
}

/// Figures of a distribution. Units: milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// Number of durations.
    pub n: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Longest.
    pub max: f64,
}

impl Default for Distribution {
    fn default() -> Self {
        Self { histogram: Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds are valid") }
    }
}

impl Distribution {
    /// Adds a duration; one out of bounds counts as the bound.
    pub fn add_ms(&mut self, duration_ms: f64) {
        self.histogram.saturating_record((duration_ms * 1e3) as u64);
    }

    /// Returns the duration that a share of all durations does not exceed; 0 if there are none. Units: milliseconds.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        self.histogram.value_at_quantile(share) as f64 / 1e3
    }

    /// Returns the figures; `None` if there are no durations.
    pub fn percentiles(&self) -> Option<Percentiles> {
        let n = self.histogram.len();
        (n > 0).then(|| Percentiles {
            n,
            mean: self.histogram.mean() / 1e3,
            p50: self.quantile_ms(0.5),
            p90: self.quantile_ms(0.9),
            p95: self.quantile_ms(0.95),
            p99: self.quantile_ms(0.99),
            max: self.histogram.max() as f64 / 1e3,
        })
    }
}

/// Summary of a series of responses.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Number of responses.
    pub n_answers: usize,
    /// Prompt tokens of all responses.
    pub prompt_tokens: u64,
    /// Prompt tokens that were reused.
    pub cached_tokens: u64,
    /// Prefix hit ratio: cached prompt tokens / prompt tokens.
    pub prefix_hit_ratio: f64,
    /// Median TTFT. Units: milliseconds.
    pub ttft_ms_p50: f64,
    /// 95th percentile of the TTFT. Units: milliseconds.
    pub ttft_ms_p95: f64,
    /// 99th percentile of the TTFT. Units: milliseconds.
    pub ttft_ms_p99: f64,
    /// Median TPOT. Units: milliseconds.
    pub tpot_ms_p50: f64,
}

impl Summary {
    /// Returns the summary of `answers`; all figures of an empty series are 0.
    pub fn of<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Self {
        let (mut ttft, mut tpot) = (Distribution::default(), Distribution::default());
        let (mut n_answers, mut prompt_tokens, mut cached_tokens) = (0, 0, 0);
        for answer in answers {
            n_answers += 1;
            prompt_tokens += answer.prompt_tokens;
            cached_tokens += answer.cached_tokens;
            ttft.add_ms(answer.ttft_ms);
            answer.tpot_ms.into_iter().for_each(|tpot_ms| tpot.add_ms(tpot_ms));
        }
        Self {
            n_answers,
            prompt_tokens,
            cached_tokens,
            prefix_hit_ratio: hit_ratio(prompt_tokens, cached_tokens),
            ttft_ms_p50: ttft.quantile_ms(0.5),
            ttft_ms_p95: ttft.quantile_ms(0.95),
            ttft_ms_p99: ttft.quantile_ms(0.99),
            tpot_ms_p50: tpot.quantile_ms(0.5),
        }
    }
}

/// Returns cached prompt tokens / prompt tokens; 0 if there are none.
pub fn hit_ratio(prompt_tokens: u64, cached_tokens: u64) -> f64 {
    if prompt_tokens == 0 { 0.0 } else { cached_tokens as f64 / prompt_tokens as f64 }
}

/// Returns the median: for an even number of values the mean of the middle two; `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut in_order = values.to_vec();
    in_order.sort_by(f64::total_cmp);
    let upper = *in_order.get(in_order.len() / 2)?;
    let lower = in_order[(in_order.len() - 1) / 2];
    Some(lower.midpoint(upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(prompt_tokens: u64, cached_tokens: u64, ttft_ms: f64) -> Answer {
        Answer { prompt_tokens, cached_tokens, completion_tokens: 1, ttft_ms, e2e_ms: ttft_ms, ..Answer::default() }
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_durations() {
        let mut distribution = Distribution::default();
        assert_eq!(distribution.percentiles(), None);
        (1..=1000).rev().for_each(|duration_ms| distribution.add_ms(f64::from(duration_ms)));
        let percentiles = distribution.percentiles().expect("there are durations");
        assert_eq!(percentiles.n, 1000);
        let Percentiles { mean, p50, p90, p95, p99, max, .. } = percentiles;
        let found = [mean, p50, p90, p95, p99, max];
        for (found, expected) in found.into_iter().zip([500.5, 500.0, 900.0, 950.0, 990.0, 1000.0]) {
            assert!((found / expected - 1.0).abs() < 2e-3, "{found} instead of {expected}");
        }
    }

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn weighs_the_hit_ratio_by_tokens() {
        let summary = Summary::of(&[answer(900, 0, 10.0), answer(100, 100, 1.0)]);
        assert_eq!(summary.prefix_hit_ratio, 0.1);
        assert_eq!(summary.n_answers, 2);
        assert!((summary.ttft_ms_p99 - 10.0).abs() < 0.1, "{}", summary.ttft_ms_p99);
    }

    #[test]
    fn is_all_zero_for_no_answers() {
        let summary = Summary::of(&[]);
        assert_eq!((summary.n_answers, summary.prefix_hit_ratio, summary.ttft_ms_p50), (0, 0.0, 0.0));
    }
}
