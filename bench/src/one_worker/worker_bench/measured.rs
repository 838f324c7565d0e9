//! Summary of one server's passes in one scenario: computed tokens, median TTFT cold and warm, and by round.
//!
//! The goals for these figures are in `goals`.

use std::collections::BTreeMap;

use super::contender::Contender;
use super::traffic::Pass;
use crate::client::Answer;
use crate::output::figures::{Measure, Sample, Unit};
use crate::summary::median;

/// Figures of one server in one scenario; all 0 without responses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// Tokens of the warm prompts in one pass.
    pub prompt_tokens: u64,
    /// Number of them that were computed in one pass.
    pub computed_tokens: u64,
    /// Median TTFT of cold prompts; absent if a scenario has none. Units: milliseconds.
    pub cold_ttft_ms: Option<f64>,
    /// Median TTFT of warm prompts. Units: milliseconds.
    pub warm_ttft_ms: f64,
    /// Mean TTFT of warm prompts. Units: milliseconds.
    pub warm_ttft_ms_mean: f64,
    /// Median TTFT of each round of warm prompts. Units: milliseconds.
    pub round_ttft_ms: Vec<f64>,
    /// Median time of one decode step in warm responses. Units: milliseconds.
    pub step_ms: f64,
}

impl Measured {
    /// Returns the summary of one server's passes.
    pub fn of(passes: &[Pass]) -> Self {
        let n_passes = passes.len().max(1) as u64;
        let warm: Vec<&Answer> = passes.iter().flat_map(|pass| pass.rounds.iter().flatten()).collect();
        let cold_ms: Vec<f64> = passes.iter().flat_map(|pass| &pass.cold).map(|answer| answer.ttft_ms).collect();
        let n_rounds = passes.iter().map(|pass| pass.rounds.len()).max().unwrap_or(0);
        let ttft_ms = |round: usize| {
            let answers = passes.iter().filter_map(move |pass| pass.rounds.get(round)).flatten();
            answers.map(|answer| answer.ttft_ms).collect::<Vec<_>>()
        };
        let warm_ms: Vec<f64> = warm.iter().map(|answer| answer.ttft_ms).collect();
        let steps_ms: Vec<f64> = warm.iter().filter_map(|answer| answer.tpot_ms).collect();
        Self {
            prompt_tokens: warm.iter().map(|answer| answer.prompt_tokens).sum::<u64>() / n_passes,
            computed_tokens: warm.iter().map(|answer| computed_tokens(answer)).sum::<u64>() / n_passes,
            cold_ttft_ms: median(&cold_ms),
            warm_ttft_ms: median(&warm_ms).unwrap_or(0.0),
            warm_ttft_ms_mean: warm_ms.iter().sum::<f64>() / warm_ms.len().max(1) as f64,
            round_ttft_ms: (0..n_rounds).filter_map(|round| median(&ttft_ms(round))).collect(),
            step_ms: median(&steps_ms).unwrap_or(0.0),
        }
    }

    /// Returns a sample of each figure.
    pub fn samples(&self) -> impl Iterator<Item = Sample> {
        let cold_sample = self.cold_ttft_ms.map(|ms| Measure::lower("TTFT cold", Unit::Ms).sample(ms));
        let warm = Measure::lower("TTFT warm", Unit::Ms).sample(self.warm_ttft_ms);
        let computed_sample = Measure::lower("computed", Unit::Tokens).sample(self.computed_tokens as f64);
        [computed_sample, warm].into_iter().chain(cold_sample)
    }

    /// Returns the share of the warm prompts' tokens that was reused.
    pub fn reused(&self) -> f64 {
        let reused_tokens = self.prompt_tokens.saturating_sub(self.computed_tokens);
        reused_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Returns the warm TTFT divided by the cold one.
    pub fn warm_to_cold(&self) -> Option<f64> {
        self.cold_ttft_ms.map(|cold_ms| self.warm_ttft_ms / cold_ms)
    }

    /// Returns the warm TTFT of the worst round divided by the cold one.
    pub fn worst_round_to_cold(&self) -> Option<f64> {
        let worst = self.round_ttft_ms.iter().copied().max_by(f64::total_cmp)?;
        self.cold_ttft_ms.map(|cold_ms| worst / cold_ms)
    }
}

/// Returns whether all servers got prompts of the same length, which they do if their greedy responses are equal.
pub fn same_prompts(by_contender: &BTreeMap<Contender, Measured>) -> bool {
    let mut lengths = by_contender.values().map(|measurements| measurements.prompt_tokens);
    let first = lengths.next();
    lengths.all(|length| Some(length) == first)
}

fn computed_tokens(answer: &Answer) -> u64 {
    answer.prompt_tokens.saturating_sub(answer.cached_tokens)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::one_worker::worker_bench) fn answer(prompt_tokens: u64, cached_tokens: u64, ttft_ms: f64) -> Answer {
        let answer = crate::inputs::testing::answer(prompt_tokens, cached_tokens, ttft_ms);
        Answer { completion_tokens: 8, tpot_ms: Some(5.0), ..answer }
    }

    #[test]
    fn counts_what_one_pass_computes_and_takes_medians_over_all() {
        let pass = |warm_ms| Pass {
            cold: vec![answer(100, 0, 100.0)],
            rounds: vec![vec![answer(110, 100, warm_ms)], vec![answer(120, 110, 2.0 * warm_ms)]],
        };
        let measured = Measured::of(&[pass(10.0), pass(10.0), pass(40.0)]);
        assert_eq!((measured.prompt_tokens, measured.computed_tokens), (230, 20));
        assert_eq!(measured.cold_ttft_ms, Some(100.0));
        assert_eq!(measured.round_ttft_ms, [10.0, 20.0]);
        assert_eq!(measured.warm_ttft_ms, 20.0);
        assert_eq!(measured.worst_round_to_cold(), Some(0.2));
        assert_eq!(measured.step_ms, 5.0);
        let values: Vec<_> = measured.samples().map(|sample| (sample.measure.name, sample.value)).collect();
        let expected = [("computed", 20.0), ("TTFT warm", 20.0), ("TTFT cold", 100.0)];
        assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)));
        assert!((measured.reused() - 210.0 / 230.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_measured_is_nothing_reused() {
        let measured = Measured::of(&[]);
        assert_eq!((measured.reused(), measured.warm_to_cold()), (0.0, None));
    }
}
