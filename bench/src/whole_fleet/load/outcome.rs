//! The outcome of a load's requests: counts, latencies, goodput, errors by kind.
//!
//! Not here: measuring one request (`client`), percentiles (`summary`). Requests are counted when they end and not
//! kept, so a long load needs no more memory than a short one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::client::{Answer, AskError};
use crate::output::table::{Table, percent};
use crate::summary::{Distribution, Percentiles, hit_ratio};

/// Longest error message that is kept. Units: characters.
const MESSAGE_CHARS_MAX: usize = 200;

/// Limits on an answer's latencies (service-level objectives).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Slo {
    /// Longest TTFT. Units: milliseconds.
    pub ttft_ms: Option<f64>,
    /// Longest TPOT. Units: milliseconds.
    pub tpot_ms: Option<f64>,
}

impl Slo {
    /// Returns whether an answer is within all of them; an answer of a single token has no TPOT.
    fn is_met(self, answer: &Answer) -> bool {
        let is_within = |value: Option<f64>, limit: Option<f64>| match (value, limit) {
            (Some(value), Some(limit)) => value <= limit,
            _ => true,
        };
        is_within(Some(answer.ttft_ms), self.ttft_ms) && is_within(answer.tpot_ms, self.tpot_ms)
    }

    fn is_given(self) -> bool {
        self.ttft_ms.is_some() || self.tpot_ms.is_some()
    }
}

/// Requests that have ended so far.
#[derive(Debug, Default)]
pub struct Tally {
    slo: Slo,
    n_answers: u64,
    n_good: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    completion_tokens: u64,
    ttft: Distribution,
    itl: Distribution,
    tpot: Distribution,
    e2e: Distribution,
    start_delay: Distribution,
    failures: BTreeMap<String, Failures>,
}

/// Failed requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failures {
    /// Number of them.
    pub n: u64,
    /// Error of the first.
    pub first: String,
}

/// Result of a load.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Requests with a whole answer.
    pub n_answers: u64,
    /// Other requests.
    pub n_failed: u64,
    /// Failed requests by the kind of their error.
    pub failures: BTreeMap<String, Failures>,
    /// Time from the start of the load to the end of its last request. Units: seconds.
    pub took_s: f64,
    /// Whole answers per second.
    pub answers_per_s: f64,
    /// Answers within their objectives; `None` if none is given.
    pub goodput: Option<Goodput>,
    /// Prompt tokens of all answers.
    pub prompt_tokens: u64,
    /// Prompt tokens that were reused.
    pub cached_tokens: u64,
    /// Prefix hit ratio: cached prompt tokens / prompt tokens.
    pub prefix_hit_ratio: f64,
    /// Generated tokens of all answers.
    pub completion_tokens: u64,
    /// Generated tokens per second.
    pub completion_tokens_per_s: f64,
    /// Time to the first piece of an answer.
    pub ttft_ms: Option<Percentiles>,
    /// Time between two pieces of an answer.
    pub itl_ms: Option<Percentiles>,
    /// Time per token after the first, one value for each answer.
    pub tpot_ms: Option<Percentiles>,
    /// Time to the end of an answer.
    pub e2e_ms: Option<Percentiles>,
    /// Time from the intended start of a request to its start.
    pub start_delay_ms: Option<Percentiles>,
}

/// Answers within their objectives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goodput {
    /// Objectives.
    pub slo: Slo,
    /// Share of all requests, failed ones included.
    pub share: f64,
    /// Number per second.
    pub per_s: f64,
}

impl Tally {
    /// Returns the tally of no requests.
    pub fn new(slo: Slo) -> Self {
        Self { slo, ..Self::default() }
    }

    /// Adds a request that started `start_delay` after its intended start.
    pub fn add(&mut self, start_delay: Duration, outcome: Result<Answer, AskError>) {
        self.start_delay.add_ms(start_delay.as_secs_f64() * 1e3);
        match outcome {
            Ok(answer) => self.add_answer(&answer),
            Err(error) => {
                let (kind, message) = (error.kind(), format!("{:#}", anyhow::Error::new(error)));
                let first = message.chars().take(MESSAGE_CHARS_MAX).collect();
                self.failures.entry(kind).or_insert(Failures { n: 0, first }).n += 1;
            }
        }
    }

    fn add_answer(&mut self, answer: &Answer) {
        self.n_answers += 1;
        self.n_good += u64::from(self.slo.is_met(answer));
        self.prompt_tokens += answer.prompt_tokens;
        self.cached_tokens += answer.cached_tokens;
        self.completion_tokens += answer.completion_tokens;
        self.ttft.add_ms(answer.ttft_ms);
        self.e2e.add_ms(answer.e2e_ms);
        answer.tpot_ms.into_iter().for_each(|tpot_ms| self.tpot.add_ms(tpot_ms));
        answer.itl_ms.iter().for_each(|itl_ms| self.itl.add_ms(*itl_ms));
    }

    /// Returns the number of failed requests.
    pub fn n_failed(&self) -> u64 {
        self.failures.values().map(|failures| failures.n).sum()
    }

    /// Returns the result of a load that took `took`.
    pub fn outcome(&self, took: Duration) -> Outcome {
        let (n_failed, took_s) = (self.n_failed(), took.as_secs_f64());
        let per_s = |n: u64| if took_s > 0.0 { n as f64 / took_s } else { 0.0 };
        let share = self.n_good as f64 / (self.n_answers + n_failed).max(1) as f64;
        let goodput = Goodput { slo: self.slo, share, per_s: per_s(self.n_good) };
        Outcome {
            n_answers: self.n_answers,
            n_failed,
            failures: self.failures.clone(),
            took_s,
            answers_per_s: per_s(self.n_answers),
            goodput: self.slo.is_given().then_some(goodput),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            prefix_hit_ratio: hit_ratio(self.prompt_tokens, self.cached_tokens),
            completion_tokens: self.completion_tokens,
            completion_tokens_per_s: per_s(self.completion_tokens),
            ttft_ms: self.ttft.percentiles(),
            itl_ms: self.itl.percentiles(),
            tpot_ms: self.tpot.percentiles(),
            e2e_ms: self.e2e.percentiles(),
            start_delay_ms: self.start_delay.percentiles(),
        }
    }
}

impl Outcome {
    /// Returns the tables: counts, latencies and, where there are any, errors.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.counts(), self.latencies()];
        if !self.failures.is_empty() {
            let mut table = Table::new(&["error", "requests", "first of them"]);
            let row = |(kind, failures): (&String, &Failures)| {
                // A line break would end the row.
                vec![kind.clone(), failures.n.to_string(), failures.first.replace(['\n', '\r'], " ")]
            };
            table.rows.extend(self.failures.iter().map(row));
            tables.push(table);
        }
        tables
    }

    fn counts(&self) -> Table {
        let mut table = Table::new(&[
            "answers",
            "failed",
            "answers/s",
            "within SLO",
            "goodput/s",
            "prompt tokens",
            "prefix hit ratio",
            "output tokens/s",
        ]);
        table.rows.push(vec![
            self.n_answers.to_string(),
            self.n_failed.to_string(),
            format!("{:.2}", self.answers_per_s),
            self.goodput.map(|goodput| percent(goodput.share)).unwrap_or_default(),
            self.goodput.map(|goodput| format!("{:.2}", goodput.per_s)).unwrap_or_default(),
            self.prompt_tokens.to_string(),
            percent(self.prefix_hit_ratio),
            format!("{:.1}", self.completion_tokens_per_s),
        ]);
        table
    }

    fn latencies(&self) -> Table {
        let mut table = Table::new(&["ms", "mean", "p50", "p90", "p95", "p99", "max"]);
        for (name, percentiles) in [
            ("TTFT", self.ttft_ms),
            ("ITL", self.itl_ms),
            ("TPOT", self.tpot_ms),
            ("end-to-end latency", self.e2e_ms),
            ("start delay", self.start_delay_ms),
        ] {
            let Some(Percentiles { mean, p50, p90, p95, p99, max, .. }) = percentiles else { continue };
            let figures = [mean, p50, p90, p95, p99, max].map(|ms| format!("{ms:.1}"));
            table.rows.push(std::iter::once(name.to_owned()).chain(figures).collect());
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;

    use super::*;
    use crate::inputs::testing::answer;

    const NO_DELAY: Duration = Duration::ZERO;

    #[test]
    fn goodput_is_the_share_of_all_requests_that_meet_every_objective() {
        let slo = Slo { ttft_ms: Some(50.0), tpot_ms: Some(10.0) };
        let mut tally = Tally::new(slo);
        for (ttft_ms, tpot_ms) in [(50.0, Some(10.0)), (51.0, Some(9.0)), (40.0, Some(11.0)), (40.0, None)] {
            tally.add(NO_DELAY, Ok(Answer { tpot_ms, ..answer(100, 50, ttft_ms) }));
        }
        tally.add(NO_DELAY, Err(AskError::Incomplete));
        let outcome = tally.outcome(Duration::from_secs(2));
        assert_eq!((outcome.n_answers, outcome.n_failed), (4, 1));
        assert_eq!(outcome.goodput, Some(Goodput { slo, share: 0.4, per_s: 1.0 }));
        assert_eq!((outcome.answers_per_s, outcome.prefix_hit_ratio), (2.0, 0.5));
        let without = Tally::new(Slo::default()).outcome(NO_DELAY);
        assert_eq!((without.goodput, without.ttft_ms, without.answers_per_s), (None, None, 0.0));
    }

    #[test]
    fn each_kind_of_error_is_counted_with_its_first_message() {
        let mut tally = Tally::new(Slo::default());
        let status = |status, body: &str| AskError::Status { status, body: body.to_owned() };
        for error in [
            status(StatusCode::TOO_MANY_REQUESTS, "a\nb"),
            status(StatusCode::TOO_MANY_REQUESTS, "c"),
            status(StatusCode::SERVICE_UNAVAILABLE, "d"),
            AskError::Event(serde_json::json!({"message": "lost"})),
            AskError::NoUsage("counts"),
        ] {
            tally.add(NO_DELAY, Err(error));
        }
        let outcome = tally.outcome(Duration::from_secs(1));
        let counts: Vec<_> = outcome.failures.iter().map(|(kind, failures)| (kind.as_str(), failures.n)).collect();
        assert_eq!(counts, [("error event", 1), ("no usage", 1), ("status 429", 2), ("status 503", 1)]);
        let tables = outcome.tables();
        assert!(
            tables[2].to_string().contains("| status 429  | 2        | the server answered 429 Too Many Requests: a b")
        );
        assert!(tables[1].rows.iter().all(|row| row[0] == "start delay"), "{tables:?}");
    }

    #[test]
    fn latencies_of_answers_have_a_row_each() {
        let mut tally = Tally::new(Slo::default());
        let answer = Answer { itl_ms: vec![5.0, 7.0], tpot_ms: Some(6.0), e2e_ms: 22.0, ..answer(10, 0, 10.0) };
        tally.add(Duration::from_millis(3), Ok(answer));
        let outcome = tally.outcome(Duration::from_secs(1));
        let means: Vec<_> = outcome.latencies().rows.iter().map(|row| [&row[0], &row[1]].map(String::clone)).collect();
        let expected =
            [["TTFT", "10.0"], ["ITL", "6.0"], ["TPOT", "6.0"], ["end-to-end latency", "22.0"], ["start delay", "3.0"]];
        assert_eq!(means, expected);
    }
}
