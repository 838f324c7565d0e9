//! Measured speeds of the worker, as moving averages.
//!
//! The caller passes durations in. Counters for metrics are in the shell.
//!
//! All sums decay with the busy time. So an average reflects the last seconds of work, weights each step by its
//! duration, and does not change while the worker is idle.

use std::time::Duration;

use warmpath_common::summary::Rates;

use crate::batches::batch_plan::BatchTiming;
use crate::batches::compute_threads::ThreadWaits;

/// Busy time after which the weight of a measurement is halved.
///
/// Source: docs/decisions/0016-overload.md: long enough for a few batches of a large model on a slow machine, short
/// enough that a worker that slows down loses traffic within seconds.
const HALF_LIFE: Duration = Duration::from_secs(3);

/// Minimum number of prompt tokens in a step for measuring the prefill rate.
///
/// Source: below about this size, reading the weights takes most of a step, not computing the tokens.
const PREFILL_TOKENS_MIN: u32 = 16;

/// Minimum variance of the batches' sizes for fitting a line, relative to the sum of their squares. Source: below it,
/// rounding errors decide the slope.
const SPREAD_MIN: f64 = 1e-6;

/// Weight of the newest prompt or answer in the average length. Source: this averages about the last ten.
const NEWEST_WEIGHT: f32 = 0.1;

/// Mean length of answers, in which answers that have not ended count as well.
///
/// It is the number of generated tokens for each answer that ended. So long answers raise it while they run, and
/// cancelled ones do too: a mean of ended answers would promise a free slot soon at a worker whose slots are all taken
/// by long answers. If an answer's length is exponentially distributed, this is the maximum-likelihood estimate of its
/// mean, which is also what a running answer still has to generate.
#[derive(Debug, Clone, Default)]
struct AnswerLength {
    /// Answers that ended; earlier ones weigh less.
    n_ended: f64,
    /// Tokens generated until the last of them ended; earlier ones weigh less.
    tokens: f64,
    /// Tokens generated since.
    tokens_since: f64,
}

impl AnswerLength {
    fn end(&mut self, n_tokens: u32) {
        // The first token comes with the prompt's last step, in which the sequence is no stream yet.
        self.tokens_since += f64::from(n_tokens.min(1));
        let decay = 1.0 - f64::from(NEWEST_WEIGHT);
        self.n_ended = self.n_ended * decay + 1.0;
        self.tokens = self.tokens * decay + self.tokens_since;
        self.tokens_since = 0.0;
    }

    fn mean(&self) -> Option<f32> {
        (self.n_ended > 0.0).then(|| ((self.tokens + self.tokens_since) / self.n_ended) as f32)
    }
}

/// Moving averages of one worker.
#[derive(Debug, Clone, Default)]
pub struct Averages {
    prefill_tokens: f64,
    prefill_s: f64,
    decode_steps: f64,
    decode_s: f64,
    answer_length: AnswerLength,
    prompt_tokens: Option<f32>,
    batches: Batches,
    waited_s: f64,
    threads_s: f64,
}

/// Sums from which the time of a batch is derived as a linear function of its tokens.
#[derive(Debug, Clone, Default)]
struct Batches {
    n: f64,
    tokens: f64,
    seconds: f64,
    tokens_squared: f64,
    tokens_seconds: f64,
}

impl Batches {
    /// Adds a batch; the weight of earlier batches is multiplied by `decay`.
    fn count(&mut self, n_tokens: u32, took: Duration, decay: f64) {
        let (n_tokens, seconds) = (f64::from(n_tokens), took.as_secs_f64());
        self.n = self.n * decay + 1.0;
        self.tokens = self.tokens * decay + n_tokens;
        self.seconds = self.seconds * decay + seconds;
        self.tokens_squared = self.tokens_squared * decay + n_tokens * n_tokens;
        self.tokens_seconds = self.tokens_seconds * decay + n_tokens * seconds;
    }

    /// Returns the fixed time of a batch and the time of each token, in seconds; `None` if all batches had the same
    /// size.
    fn line(&self) -> Option<(f64, f64)> {
        let spread = self.n * self.tokens_squared - self.tokens * self.tokens;
        if spread <= SPREAD_MIN * self.n * self.tokens_squared {
            return None;
        }
        let token_s = ((self.n * self.tokens_seconds - self.tokens * self.seconds) / spread).max(0.0);
        let batch_s = ((self.seconds - token_s * self.tokens) / self.n).max(0.0);
        Some((batch_s, token_s))
    }
}

/// Tokens of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepCounts {
    /// Prompt tokens that were computed.
    pub n_prefill: u32,
    /// Response tokens that were computed, including drafted ones.
    pub n_decode: u32,
    /// Number of streams with such tokens.
    pub n_streams: u32,
    /// Number of tokens that were chosen for these streams: one each, and more if drafts were accepted.
    pub n_chosen: u32,
}

impl StepCounts {
    /// Returns the counts of a step without drafts.
    pub fn undrafted(n_prefill: u32, n_decode: u32) -> Self {
        Self { n_prefill, n_decode, n_streams: n_decode, n_chosen: n_decode }
    }
}

impl Averages {
    /// Records a step and its time.
    pub fn step(&mut self, counts: StepCounts, took: Duration) {
        let StepCounts { n_prefill, n_decode, n_streams, n_chosen } = counts;
        let decay = decay(took);
        self.answer_length.tokens_since += f64::from(n_chosen);
        if n_prefill + n_decode > 0 {
            self.batches.count(n_prefill + n_decode, took, decay);
        }
        if n_prefill == 0 && n_decode > 0 {
            // A step that gives a stream several tokens counts as several steps.
            self.decode_steps = self.decode_steps * decay + f64::from(n_chosen.max(1)) / f64::from(n_streams.max(1));
            self.decode_s = self.decode_s * decay + took.as_secs_f64();
        } else if n_prefill >= PREFILL_TOKENS_MIN {
            let prefill_s = took.as_secs_f64() - if n_decode > 0 { self.decode_step_s().unwrap_or(0.0) } else { 0.0 };
            // The prefill rate cannot be derived from a step that took no longer than decoding alone.
            if prefill_s > 0.0 {
                self.prefill_tokens = self.prefill_tokens * decay + f64::from(n_prefill);
                self.prefill_s = self.prefill_s * decay + prefill_s;
            }
        }
    }

    /// Records how long threads waited for a processor.
    pub fn waited(&mut self, waits: ThreadWaits) {
        let decay = decay(waits.took);
        self.waited_s = self.waited_s * decay + waits.waited.as_secs_f64();
        self.threads_s = self.threads_s * decay + waits.took.as_secs_f64() * f64::from(waits.n_threads);
    }

    /// Records the end of an answer of this many tokens that was not cancelled.
    pub fn answer_ended(&mut self, n_tokens: u32) {
        self.answer_length.end(n_tokens);
    }

    /// Records a prompt that starts, with the number of tokens to compute.
    pub fn prompt(&mut self, n_tokens: u32) {
        self.prompt_tokens = Some(with_newest(self.prompt_tokens, n_tokens));
    }

    /// Returns the measured speeds. The time of a usual prompt assumes that the worker computes nothing else.
    pub fn pace(&self) -> BatchTiming {
        let duration = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        let usual_s = self.prompt_tokens.map_or(0.0, f64::from) * self.prefill_s / self.prefill_tokens;
        let (batch_s, token_s) = self.batches.line().unwrap_or_default();
        BatchTiming { usual_prompt: duration(usual_s), batch: duration(batch_s), token: duration(token_s) }
    }

    /// Returns the averages; each is `None` until measured.
    pub fn rates(&self) -> Rates {
        Rates {
            prefill_tokens_per_s: (self.prefill_s > 0.0).then(|| (self.prefill_tokens / self.prefill_s) as f32),
            decode_step_ms: self.decode_step_s().map(|s| (s * 1e3) as f32),
            answer_tokens: self.answer_length.mean(),
            // Another thread encodes: `EncodeAverage`.
            encode_ms_per_token: None,
            processor_wait: (self.threads_s > 0.0).then(|| (self.waited_s / self.threads_s).min(1.0) as f32),
        }
    }

    fn decode_step_s(&self) -> Option<f64> {
        (self.decode_steps > 0.0).then(|| self.decode_s / self.decode_steps)
    }
}

/// Moving average of the time to encode media.
#[derive(Debug, Clone, Default)]
pub struct EncodeAverage {
    tokens: f64,
    seconds: f64,
}

impl EncodeAverage {
    /// Records the encoding of a medium of this many tokens.
    pub fn encoded(&mut self, n_tokens: u32, took: Duration) {
        let decay = decay(took);
        self.tokens = self.tokens * decay + f64::from(n_tokens);
        self.seconds = self.seconds * decay + took.as_secs_f64();
    }

    /// Returns the time for a token, absent until measured. Units: milliseconds.
    pub fn ms_per_token(&self) -> Option<f32> {
        (self.tokens > 0.0).then(|| (self.seconds * 1e3 / self.tokens) as f32)
    }
}

/// Returns the weight of earlier measurements after one of this time.
fn decay(took: Duration) -> f64 {
    0.5_f64.powf(took.as_secs_f64() / HALF_LIFE.as_secs_f64())
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
    fn reports_no_rate_before_the_first_measurement() {
        assert_eq!(Averages::default().rates(), Rates::default());
        let mut averages = Averages::default();
        averages.step(StepCounts::undrafted(PREFILL_TOKENS_MIN - 1, 0), SECOND);
        averages.step(StepCounts::undrafted(0, 0), SECOND);
        averages.step(StepCounts::undrafted(100, 1), Duration::ZERO);
        assert_eq!(averages.rates(), Rates::default());
    }

    #[test]
    fn measures_prompts_and_decoding_apart() {
        let mut averages = Averages::default();
        averages.step(StepCounts::undrafted(0, 2), SECOND / 10);
        averages.step(StepCounts::undrafted(1000, 0), SECOND);
        averages.step(StepCounts::undrafted(1000, 2), SECOND + SECOND / 10);
        let rates = averages.rates();
        assert!((rates.prefill_tokens_per_s.unwrap() - 1000.0).abs() < 1.0, "{rates:?}");
        assert!((rates.decode_step_ms.unwrap() - 100.0).abs() < 0.1, "{rates:?}");
    }

    #[test]
    fn the_share_of_waiting_threads_follows_the_last_seconds() {
        let mut averages = Averages::default();
        let waits = |waited| ThreadWaits { waited, took: SECOND, n_threads: 2 };
        averages.waited(waits(SECOND / 2));
        assert_eq!(averages.rates().processor_wait, Some(0.25));
        (0..60).for_each(|_| averages.waited(waits(Duration::ZERO)));
        assert!(averages.rates().processor_wait.unwrap() < 0.001, "{averages:?}");
        // Threads that wait while none computes count too.
        (0..60).for_each(|_| averages.waited(waits(SECOND * 5)));
        assert_eq!(averages.rates().processor_wait, Some(1.0));
    }

    #[test]
    fn encoding_is_measured_by_its_tokens_and_the_last_images_count_most() {
        let mut average = EncodeAverage::default();
        assert_eq!(average.ms_per_token(), None);
        average.encoded(500, SECOND);
        assert_eq!(average.ms_per_token(), Some(2.0));
        average.encoded(0, Duration::ZERO);
        assert_eq!(average.ms_per_token(), Some(2.0));
        for _ in 0..60 {
            average.encoded(100, SECOND);
        }
        assert!((average.ms_per_token().unwrap() - 10.0).abs() < 0.1, "{average:?}");
    }

    #[test]
    fn follows_a_change_within_a_few_half_lives_of_work() {
        let mut averages = Averages::default();
        for speed in [100, 1000] {
            for _ in 0..120 {
                averages.step(StepCounts::undrafted(speed, 0), SECOND);
            }
        }
        let rate = averages.rates().prefill_tokens_per_s.unwrap();
        assert!((950.0..=1000.0).contains(&rate), "{rate}");
    }

    #[test]
    fn a_slowdown_is_reported_within_seconds_of_work() {
        let mut averages = Averages::default();
        (0..60).for_each(|_| averages.step(StepCounts::undrafted(1000, 0), SECOND));
        let mut rate_after = |seconds| {
            (0..seconds).for_each(|_| averages.step(StepCounts::undrafted(100, 0), SECOND));
            averages.rates().prefill_tokens_per_s.unwrap()
        };
        assert!(rate_after(3) < 600.0, "half of the difference within a half-life");
        assert!(rate_after(6) < 250.0, "a quarter of the speed within three");
    }

    #[test]
    fn the_mean_length_of_answers_converges_to_the_last_ones() {
        let mut averages = Averages::default();
        assert_eq!(averages.rates().answer_tokens, None);
        for length in [100, 200] {
            for _ in 0..100 {
                (1..length).for_each(|_| averages.step(StepCounts::undrafted(0, 1), Duration::ZERO));
                averages.answer_ended(length);
                let mean = averages.rates().answer_tokens.unwrap();
                assert!((99.9..=200.1).contains(&mean), "{mean}");
            }
            let mean = averages.rates().answer_tokens.unwrap();
            assert!((mean - length as f32).abs() < 0.1, "{mean} of {length}");
        }
    }

    #[test]
    fn answers_that_run_on_raise_the_mean_length() {
        let mut averages = Averages::default();
        (1..4).for_each(|_| averages.step(StepCounts::undrafted(0, 1), Duration::ZERO));
        averages.answer_ended(4);
        assert_eq!(averages.rates().answer_tokens, Some(4.0));
        (0..1000).for_each(|_| averages.step(StepCounts::undrafted(0, 2), Duration::ZERO));
        assert_eq!(averages.rates().answer_tokens, Some(2004.0));
    }

    #[test]
    fn the_decode_time_is_the_time_per_chosen_token_with_and_without_drafts() {
        let mut averages = Averages::default();
        averages.step(StepCounts { n_prefill: 0, n_decode: 18, n_streams: 2, n_chosen: 8 }, SECOND / 10);
        assert!((averages.rates().decode_step_ms.unwrap() - 25.0).abs() < 0.1, "{:?}", averages.rates());
    }

    #[test]
    fn an_average_prompt_takes_its_length_at_the_measured_rate() {
        let mut averages = Averages::default();
        averages.prompt(100);
        assert_eq!(averages.pace(), BatchTiming::default(), "no rate is known");
        averages.step(StepCounts::undrafted(1000, 0), SECOND);
        assert_eq!(averages.pace().usual_prompt, SECOND / 10);
        averages.prompt(200);
        assert!((averages.pace().usual_prompt.as_secs_f64() - 0.11).abs() < 1e-6, "{:?}", averages.pace());
        let mut no_prompt = Averages::default();
        no_prompt.step(StepCounts::undrafted(1000, 0), SECOND);
        assert_eq!(no_prompt.pace().usual_prompt, Duration::ZERO);
    }

    #[test]
    fn the_time_of_a_batch_has_a_fixed_part_and_a_part_per_token() {
        let mut averages = Averages::default();
        for (n_prefill, n_decode) in [(0, 4), (100, 4), (500, 0), (0, 1), (60, 2), (0, 4)] {
            averages.step(
                StepCounts::undrafted(n_prefill, n_decode),
                Duration::from_micros(10_000 + 250 * u64::from(n_prefill + n_decode)),
            );
        }
        let BatchTiming { batch, token, .. } = averages.pace();
        assert!((batch.as_secs_f64() - 0.01).abs() < 1e-6, "{batch:?}");
        assert!((token.as_secs_f64() - 0.000_25).abs() < 1e-8, "{token:?}");
    }

    #[test]
    fn batches_of_one_size_or_invalid_times_give_no_time_per_token() {
        let mut averages = Averages::default();
        (0..100).for_each(|n| averages.step(StepCounts::undrafted(0, 4), Duration::from_millis(10 + n % 3)));
        assert_eq!(averages.pace(), BatchTiming::default());
        let mut shrinking = Averages::default();
        shrinking.step(StepCounts::undrafted(0, 1), SECOND);
        shrinking.step(StepCounts::undrafted(100, 0), SECOND / 2);
        assert_eq!(shrinking.pace().token, Duration::ZERO);
    }
}
