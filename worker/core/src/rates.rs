//! What the worker has measured of itself, as moving averages.
//!
//! Not here: the clock (durations are passed in), counters for metrics.
//! The idea: every sum decays with the busy time that passes, so an average follows the last seconds of work, weighs
//! long steps as much as they lasted, and stands still while nothing runs.

use std::time::Duration;

use warmpath_common::summary::Rates;

/// Is the busy time after which a measurement counts half.
///
/// Source: docs/decisions/0016-overload.md: long enough for a few batches of a large model on a slow machine, short enough that a worker
/// that slows down loses traffic within seconds.
const HALF_LIFE: Duration = Duration::from_secs(3);

/// Is the fewest prompt tokens of a step whose speed says something about prompts.
///
/// Source: below about this size a step's time is that of reading the weights, not of computing tokens.
const PREFILL_TOKENS_MIN: u32 = 16;

/// Is the weight of the newest prompt or answer in the average length.
const NEWEST_WEIGHT: f32 = 0.1;

/// Is the moving averages of one worker.
#[derive(Debug, Clone, Default)]
pub struct Averages {
    prefill_tokens: f64,
    prefill_s: f64,
    decode_steps: f64,
    decode_s: f64,
    answer_tokens: Option<f32>,
    prompt_tokens: Option<f32>,
}

impl Averages {
    /// Counts a step that computed so many prompt tokens and answer tokens in so much time.
    pub fn step(&mut self, n_prefill: u32, n_decode: u32, took: Duration) {
        let decay = 0.5_f64.powf(took.as_secs_f64() / HALF_LIFE.as_secs_f64());
        if n_prefill == 0 && n_decode > 0 {
            self.decode_steps = self.decode_steps * decay + 1.0;
            self.decode_s = self.decode_s * decay + took.as_secs_f64();
        } else if n_prefill >= PREFILL_TOKENS_MIN {
            let alone = took.as_secs_f64() - if n_decode > 0 { self.decode_step_s().unwrap_or(0.0) } else { 0.0 };
            // A step beside decoding that took no longer than decoding alone measures nothing.
            if alone > 0.0 {
                self.prefill_tokens = self.prefill_tokens * decay + f64::from(n_prefill);
                self.prefill_s = self.prefill_s * decay + alone;
            }
        }
    }

    /// Counts a finished answer.
    pub fn answer(&mut self, n_tokens: u32) {
        self.answer_tokens = Some(with_newest(self.answer_tokens, n_tokens));
    }

    /// Counts a prompt that starts, by the tokens that are to be computed of it.
    pub fn prompt(&mut self, n_tokens: u32) {
        self.prompt_tokens = Some(with_newest(self.prompt_tokens, n_tokens));
    }

    /// Returns the time that a usual prompt takes to compute with nothing beside it; none before anything was measured.
    pub fn usual_prefill(&self) -> Duration {
        let seconds = self.prompt_tokens.map_or(0.0, f64::from) * self.prefill_s / self.prefill_tokens;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
    }

    /// Returns the averages, absent until measured.
    pub fn rates(&self) -> Rates {
        Rates {
            prefill_tokens_per_s: (self.prefill_s > 0.0).then(|| (self.prefill_tokens / self.prefill_s) as f32),
            decode_step_ms: self.decode_step_s().map(|s| (s * 1e3) as f32),
            answer_tokens: self.answer_tokens,
        }
    }

    fn decode_step_s(&self) -> Option<f64> {
        (self.decode_steps > 0.0).then(|| self.decode_s / self.decode_steps)
    }
}

fn with_newest(average: Option<f32>, n_tokens: u32) -> f32 {
    let n = n_tokens as f32;
    average.map_or(n, |average| average + NEWEST_WEIGHT * (n - average))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn says_nothing_before_anything_was_measured() {
        assert_eq!(Averages::default().rates(), Rates::default());
        let mut averages = Averages::default();
        averages.step(PREFILL_TOKENS_MIN - 1, 0, SECOND);
        averages.step(0, 0, SECOND);
        averages.step(100, 1, Duration::ZERO);
        assert_eq!(averages.rates(), Rates::default());
    }

    #[test]
    fn measures_prompts_and_decoding_apart() {
        let mut averages = Averages::default();
        averages.step(0, 2, SECOND / 10);
        averages.step(1000, 0, SECOND);
        averages.step(1000, 2, SECOND + SECOND / 10);
        let rates = averages.rates();
        assert!((rates.prefill_tokens_per_s.unwrap() - 1000.0).abs() < 1.0, "{rates:?}");
        assert!((rates.decode_step_ms.unwrap() - 100.0).abs() < 0.1, "{rates:?}");
    }

    #[test]
    fn follows_a_change_within_a_few_half_lives_of_work() {
        let mut averages = Averages::default();
        for speed in [100, 1000] {
            for _ in 0..120 {
                averages.step(speed, 0, SECOND);
            }
        }
        let rate = averages.rates().prefill_tokens_per_s.unwrap();
        assert!((950.0..=1000.0).contains(&rate), "{rate}");
    }

    #[test]
    fn a_worker_that_slows_down_says_so_within_seconds_of_work() {
        let mut averages = Averages::default();
        (0..60).for_each(|_| averages.step(1000, 0, SECOND));
        let mut rate_after = |seconds| {
            (0..seconds).for_each(|_| averages.step(100, 0, SECOND));
            averages.rates().prefill_tokens_per_s.unwrap()
        };
        assert!(rate_after(3) < 600.0, "half of the difference within a half-life");
        assert!(rate_after(6) < 250.0, "a quarter of the speed within three");
    }

    #[test]
    fn averages_the_length_of_answers() {
        let mut averages = Averages::default();
        averages.answer(100);
        assert_eq!(averages.rates().answer_tokens, Some(100.0));
        averages.answer(200);
        assert_eq!(averages.rates().answer_tokens, Some(110.0));
    }

    #[test]
    fn a_usual_prompt_takes_what_its_average_length_takes_at_the_measured_rate() {
        let mut averages = Averages::default();
        averages.prompt(100);
        assert_eq!(averages.usual_prefill(), Duration::ZERO, "no rate is known");
        averages.step(1000, 0, SECOND);
        assert_eq!(averages.usual_prefill(), SECOND / 10);
        averages.prompt(200);
        assert!((averages.usual_prefill().as_secs_f64() - 0.11).abs() < 1e-6, "{:?}", averages.usual_prefill());
        let mut no_prompt = Averages::default();
        no_prompt.step(1000, 0, SECOND);
        assert_eq!(no_prompt.usual_prefill(), Duration::ZERO);
    }
}
