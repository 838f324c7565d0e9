//! Summary of a series of responses: hit ratio, percentiles of TTFT and TPOT.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::client::Answer;

/// Summary of a series of responses.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
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

impl Report {
    /// Returns the summary of `answers`; all figures of an empty series are 0.
    pub fn of<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Self {
        // Three significant digits, from a microsecond to an hour.
        let histogram = || Histogram::<u64>::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds are valid");
        let (mut ttft, mut tpot) = (histogram(), histogram());
        let (mut n_answers, mut prompt_tokens, mut cached_tokens) = (0, 0, 0);
        for answer in answers {
            n_answers += 1;
            prompt_tokens += answer.prompt_tokens;
            cached_tokens += answer.cached_tokens;
            ttft.saturating_record((answer.ttft_ms * 1e3) as u64);
            if let Some(tpot_ms) = answer.tpot_ms {
                tpot.saturating_record((tpot_ms * 1e3) as u64);
            }
        }
        let quantile_ms = |histogram: &Histogram<u64>, q| histogram.value_at_quantile(q) as f64 / 1e3;
        Self {
            n_answers,
            prompt_tokens,
            cached_tokens,
            prefix_hit_ratio: if prompt_tokens == 0 { 0.0 } else { cached_tokens as f64 / prompt_tokens as f64 },
            ttft_ms_p50: quantile_ms(&ttft, 0.5),
            ttft_ms_p95: quantile_ms(&ttft, 0.95),
            ttft_ms_p99: quantile_ms(&ttft, 0.99),
            tpot_ms_p50: quantile_ms(&tpot, 0.5),
        }
    }
}

/// Returns the median: for an even number of values the mean of the middle two; `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(lower.midpoint(upper))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn answer(prompt_tokens: u64, cached_tokens: u64, ttft_ms: f64) -> Answer {
        Answer {
            text: String::new(),
            worker: None,
            slot: None,
            route: None,
            predicted_cached_tokens: None,
            prompt_tokens,
            cached_tokens,
            completion_tokens: 1,
            ttft_ms,
            tpot_ms: None,
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
        let report = Report::of(&[answer(900, 0, 10.0), answer(100, 100, 1.0)]);
        assert_eq!(report.prefix_hit_ratio, 0.1);
        assert_eq!(report.n_answers, 2);
        assert!((report.ttft_ms_p99 - 10.0).abs() < 0.1, "{}", report.ttft_ms_p99);
    }

    #[test]
    fn is_all_zero_for_no_answers() {
        let report = Report::of(&[]);
        assert_eq!((report.n_answers, report.prefix_hit_ratio, report.ttft_ms_p50), (0, 0.0, 0.0));
    }
}
