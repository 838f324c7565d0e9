//! The requests of a load: the prompts of a trace as texts, and when each of them starts.
//!
//! Not here: sending them (`drive`). Equal blocks of a trace become equal texts, so prompts share the prefixes of the
//! trace. A prompt is made when it is needed: all texts of a long trace together may be larger than the memory.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

use super::drive::Planned;
use crate::inputs::corpora::Corpus;
use crate::virtual_time::sim::trace::shapes::exponential;
use crate::virtual_time::sim::trace::{self, Trace, mix};

/// Longest time from the first request of a trace to the last. Units: seconds.
///
/// Source: four months, more than any run lasts; far below what a clock can add.
const TRACE_S_MAX: f64 = 1e7;
/// Shortest time from the last request of a trace to its first one in the next pass. Units: seconds.
const PASS_GAP_S_MIN: f64 = 0.001;

/// When requests start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// At random times of a Poisson process with this rate (open loop). Units: requests per second.
    Poisson(f64),
    /// At the times of the trace, divided by this factor (open loop).
    Trace(f64),
    /// As soon as another one has ended (closed loop).
    Closed,
}

/// Content of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Text of the prompt.
    pub text: String,
    /// Length of the response, at least 1. Units: tokens.
    pub answer_tokens: u32,
}

/// The requests of a trace, repeated with other texts without an end.
#[derive(Debug, Clone)]
pub struct Requests {
    trace: Trace,
    corpus: Arc<Corpus>,
    scale: f64,
    seed: u64,
}

impl Requests {
    /// Returns the requests of a trace whose lengths are multiplied by `scale`; the seed chooses their texts in
    /// `corpus`.
    ///
    /// Errors: a trace that lasts for months.
    pub fn new(trace: Trace, corpus: Corpus, scale: f64, seed: u64) -> anyhow::Result<Self> {
        let duration_s = trace.duration_s();
        ensure!(duration_s <= TRACE_S_MAX, "the trace lasts {duration_s} s, more than {TRACE_S_MAX} s");
        Ok(Self { trace, corpus: Arc::new(corpus), scale, seed })
    }

    /// Returns the number of requests of the trace.
    pub fn n_of_trace(&self) -> usize {
        self.trace.requests.len()
    }

    /// Returns the requests in their order, without an end.
    pub fn planned(self, pace: Pace) -> impl Iterator<Item = Planned<Prompt>> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut poisson_s = 0.0;
        (0..).map(move |nth| {
            let at_s = match pace {
                Pace::Poisson(rate) => {
                    poisson_s += exponential(&mut rng, 1.0 / rate);
                    Some(poisson_s)
                }
                Pace::Trace(speedup) => Some(self.at_s(nth) / speedup),
                Pace::Closed => None,
            };
            Planned { at: at_s.map(Duration::from_secs_f64), prompt: self.prompt(nth) }
        })
    }

    /// Returns the pass over the trace, and the request of the trace.
    fn nth(&self, nth: usize) -> (u64, &trace::Request) {
        let requests = &self.trace.requests;
        ((nth / requests.len()) as u64, &requests[nth % requests.len()])
    }

    /// Returns the trace's time of a request. Units: seconds.
    fn at_s(&self, nth: usize) -> f64 {
        let (pass, request) = self.nth(nth);
        let duration_s = self.trace.duration_s();
        let gap_s = (duration_s / self.n_of_trace() as f64).max(PASS_GAP_S_MIN);
        pass as f64 * (duration_s + gap_s) + request.at_s
    }

    fn prompt(&self, nth: usize) -> Prompt {
        let (pass, request) = self.nth(nth);
        let pass_seed = mix(self.seed ^ mix(pass));
        let scaled_tokens = |n_tokens: u32| (f64::from(n_tokens) * self.scale) as usize;
        let mut texts = Vec::with_capacity(request.ids().len());
        let mut begin = 0_u32;
        for id in request.ids() {
            let end = begin.saturating_add(self.trace.block_tokens).min(request.prompt_tokens);
            let n_tokens = scaled_tokens(end) - scaled_tokens(begin);
            if n_tokens > 0 {
                texts.push(self.corpus.tokens(mix(pass_seed ^ u64::from(*id)), n_tokens));
            }
            begin = end;
        }
        let text = if texts.is_empty() { self.corpus.tokens(pass_seed, 1) } else { texts.join(" ") };
        Prompt { text, answer_tokens: scaled_tokens(request.answer_tokens).max(1) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::corpora::TextKind;
    use crate::virtual_time::sim::trace::Line;

    /// Returns two requests, 2 s apart, of blocks of 8 tokens; the first block is the same.
    fn requests(scale: f64) -> Requests {
        let line = |timestamp, input_length, hash_ids: &[u32]| Line {
            previous_blocks: None,
            timestamp,
            input_length,
            output_length: 10,
            hash_ids: hash_ids.to_vec(),
        };
        let lines = vec![line(500.0, 20, &[0, 1, 2]), line(2500.0, 12, &[0, 3])];
        let corpus = TextKind::Made.corpus().expect("nothing is fetched");
        Requests::new(Trace::new(lines, 8).expect("the trace is valid"), corpus, scale, 1).expect("it is short")
    }

    fn texts(requests: Requests, n: usize) -> Vec<Vec<String>> {
        let split = |planned: Planned<Prompt>| planned.prompt.text.split(' ').map(str::to_owned).collect();
        requests.planned(Pace::Closed).take(n).map(split).collect()
    }

    #[test]
    fn prompts_have_the_lengths_and_share_the_prefixes_of_their_trace() {
        for (scale, lengths, n_shared) in [(1.0, [20, 12], 8), (0.5, [10, 6], 4)] {
            let texts = texts(requests(scale), 2);
            assert_eq!(texts.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
            let n_common = texts[0].iter().zip(&texts[1]).take_while(|(a, b)| a == b).count();
            assert_eq!(n_common, n_shared, "{texts:?}");
        }
        let shortest = requests(0.001).planned(Pace::Closed).next().expect("there is no end").prompt;
        assert_eq!((shortest.text.split(' ').count(), shortest.answer_tokens), (1, 1));
    }

    #[test]
    fn a_second_pass_has_other_texts_and_later_times() {
        let texts = texts(requests(1.0), 4);
        assert_eq!(texts[2].len(), texts[0].len());
        assert_ne!(texts[2][..8], texts[0][..8]);
        assert_eq!(texts[2][..8], texts[3][..8]);
        let at_s = |speedup| -> Vec<f64> {
            let planned = requests(1.0).planned(Pace::Trace(speedup)).take(4);
            planned.map(|planned| planned.at.expect("the loop is open").as_secs_f64()).collect()
        };
        assert_eq!(at_s(1.0), [0.0, 2.0, 3.0, 5.0]);
        assert_eq!(at_s(2.0), [0.0, 1.0, 1.5, 2.5]);
    }

    #[test]
    fn gaps_of_a_poisson_process_have_the_mean_and_the_spread_of_their_distribution() {
        let planned = requests(1.0).planned(Pace::Poisson(50.0)).take(20_000);
        let at_s: Vec<f64> = planned.map(|planned| planned.at.expect("the loop is open").as_secs_f64()).collect();
        let gaps: Vec<f64> = at_s.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean * 50.0 - 1.0).abs() < 0.03, "mean {mean}");
        // The standard deviation of an exponential distribution is its mean.
        assert!((deviation / mean - 1.0).abs() < 0.05, "deviation {deviation}, mean {mean}");
    }
}
