//! Every metric of the worker: its name, its kind, and its help text, which is the field's doc comment.
//!
//! Not here: where they are counted; what the engine counts itself is copied when somebody asks.

use std::sync::{Mutex, PoisonError};

use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::engine::CounterValues;

/// Is the histograms' buckets for a whole request and for its first token: 5 ms to 3 minutes. Units: seconds.
const REQUEST_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 90.0, 180.0];

/// Is the histogram's buckets for one token: 1 ms to 1 s. Units: seconds.
const TOKEN_BUCKETS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0];

/// Declares the metrics: each line's doc comment is its help text.
macro_rules! metrics {
    ($(#[doc = $help:literal] $field:ident: $kind:ident = $make:ident($name:literal $(, $extra:expr)?);)*) => {
        /// Is every metric of one worker.
        #[derive(Debug)]
        pub struct Metrics {
            registry: Registry,
            /// Lets one caller at a time copy the engine's counters, or both would add the same difference; held for
            /// microseconds, never across `.await`.
            copying: Mutex<()>,
            $(#[doc = $help] pub $field: $kind,)*
        }

        impl Metrics {
            /// Returns metrics that stand at zero.
            ///
            /// Panics: never; the names are distinct and valid, which a test shows.
            pub fn new() -> Self {
                let registry = Registry::new();
                $(
                    let $field = $make(concat!("warmpath_worker_", $name), $help.trim() $(, $extra)?);
                    registry.register(Box::new($field.clone())).expect("metric names are distinct");
                )*
                Self { registry, copying: Mutex::new(()), $($field,)* }
            }
        }
    };
}

metrics! {
    /// Requests by endpoint and status.
    requests: IntCounterVec = counters("requests_total", &["endpoint", "status"]);
    /// Time from a request's arrival to its first token.
    ttft: Histogram = histogram("ttft_seconds", REQUEST_BUCKETS);
    /// Time of one answer after its first token, by the number of further tokens.
    tpot: Histogram = histogram("tpot_seconds", TOKEN_BUCKETS);
    /// Time from a request's arrival to the end of its answer.
    request: Histogram = histogram("request_seconds", REQUEST_BUCKETS);
    /// Time to render and tokenize a request's prompts.
    prompt: Histogram = histogram("prompt_seconds", TOKEN_BUCKETS);
    /// Prompt tokens of requests that got a slot.
    prompt_tokens: IntCounter = counter("prompt_tokens_total");
    /// Prompt tokens that were reused.
    cached_tokens: IntCounter = counter("cached_tokens_total");
    /// Prompt tokens that were computed.
    prefill_tokens: IntCounter = counter("prefill_tokens_total");
    /// Answer tokens that were computed.
    decode_tokens: IntCounter = counter("decode_tokens_total");
    /// Batches that llama.cpp has computed.
    steps: IntCounter = counter("steps_total");
    /// Batches that llama.cpp failed to compute.
    decode_failures: IntCounter = counter("decode_failures_total");
    /// Sequences that were answered.
    finished: IntCounter = counter("sequences_finished_total");
    /// Sequences whose client left.
    cancelled: IntCounter = counter("sequences_cancelled_total");
    /// Sequences that failed.
    failed: IntCounter = counter("sequences_failed_total");
    /// Slots there are.
    slots: IntGauge = gauge("slots");
    /// Slots that run a sequence.
    busy_slots: IntGauge = gauge("slots_busy");
    /// Sequences that wait for a slot.
    queued: IntGauge = gauge("queue_length");
    /// Tokens whose KV state is held.
    held_tokens: IntGauge = gauge("kv_held_tokens");
    /// Time that loading the model took.
    load: Gauge = seconds("model_load_seconds");
    /// Subscribers of the summary.
    summary_subscribers: IntGauge = gauge("summary_subscribers");
    /// Updates of the summary.
    summary_updates: IntCounter = counter("summary_updates_total");
    /// Frames of the summary that were handed to subscribers.
    summary_frames: IntCounter = counter("summary_frames_total");
    /// Subscribers of the summary that were cut off because they did not keep up.
    summary_cut_off: IntCounter = counter("summary_cut_off_total");
    /// The model and the version, as labels.
    info: IntGaugeVec = gauges("info", &["model", "fingerprint", "version"]);
}

const VALID: &str = "metric names and labels are valid";

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect(VALID)
}

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect(VALID)
}

fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::new(name, help).expect(VALID)
}

fn gauges(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    IntGaugeVec::new(Opts::new(name, help), labels).expect(VALID)
}

fn seconds(name: &str, help: &str) -> Gauge {
    Gauge::new(name, help).expect(VALID)
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> Histogram {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())).expect(VALID)
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Takes over what the engine has counted.
    pub fn copy_engine(&self, values: &CounterValues) {
        let _copying = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = [
            (&self.prompt_tokens, values.prompt_tokens),
            (&self.cached_tokens, values.cached_tokens),
            (&self.prefill_tokens, values.prefill_tokens),
            (&self.decode_tokens, values.decode_tokens),
            (&self.steps, values.steps),
            (&self.decode_failures, values.decode_failures),
            (&self.finished, values.finished),
            (&self.cancelled, values.cancelled),
            (&self.failed, values.failed),
        ];
        for (counter, value) in counted {
            counter.inc_by(value.saturating_sub(counter.get()));
        }
        let measured = [
            (&self.busy_slots, values.busy_slots),
            (&self.queued, values.queued),
            (&self.held_tokens, values.held_tokens),
        ];
        for (gauge, value) in measured {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    /// Returns every metric in Prometheus' text format.
    pub fn encode(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_the_engine_has_counted_and_never_counts_it_twice() {
        let metrics = Metrics::new();
        let values = CounterValues { prompt_tokens: 7, busy_slots: 2, ..CounterValues::default() };
        metrics.copy_engine(&values);
        metrics.copy_engine(&values);
        let text = metrics.encode();
        assert!(text.contains("# HELP warmpath_worker_prompt_tokens_total Prompt tokens of requests that got a slot."));
        assert!(text.contains("warmpath_worker_prompt_tokens_total 7\n"), "{text}");
        assert!(text.contains("warmpath_worker_slots_busy 2\n"), "{text}");
    }
}
