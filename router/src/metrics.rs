//! Every metric of the router: its name, its kind, and its help text, which is the field's doc comment.
//!
//! Not here: where they are counted. What can be read off the fleet at any time is copied when somebody asks.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::proto::{Metric, MetricFamily};
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use warmpath_common::cached_share;
use warmpath_router_core::diagnostics::history::Totals;
use warmpath_shell::listen::Connections;

/// Is the buckets for a whole request and for its first token: 5 ms to 3 minutes. Units: seconds.
pub const REQUEST_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 90.0, 180.0];

/// Is the buckets for one token: 1 ms to 1 s. Units: seconds.
const TOKEN_BUCKETS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0];

/// Is the buckets for a phase of a decision: 2 us to 1 s. Units: seconds.
const DECISION_BUCKETS: &[f64] =
    &[2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.25, 1.0];

/// Is the buckets for actual minus predicted reuse. Units: blocks.
const ERROR_BUCKETS: &[f64] = &[-256.0, -64.0, -16.0, -4.0, -1.0, 0.0, 1.0, 4.0, 16.0, 64.0, 256.0];

/// Lists the endpoints whose requests are no client's work.
const PROBES: &[&str] = &["/health", "/livez", "/readyz", "/openapi.json"];

/// Declares the metrics: each line's doc comment is its help text.
macro_rules! metrics {
    ($(#[doc = $help:literal] $field:ident: $kind:ident = $make:ident($name:literal $(, $extra:expr)*);)*) => {
        /// Is every metric of one router.
        #[derive(Debug)]
        pub struct Metrics {
            registry: Registry,
            /// Lets one caller at a time copy counts, or both would add the same difference; held for microseconds,
            /// never across `.await`.
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
                    let $field = $make(concat!("warmpath_router_", $name), $help.trim() $(, $extra)*);
                    registry.register(Box::new($field.clone())).expect("metric names are distinct");
                )*
                let metrics = Self { registry, copying: Mutex::new(()), $($field,)* };
                metrics.begin();
                metrics
            }
        }
    };
}

metrics! {
    /// Requests by endpoint and status.
    requests: IntCounterVec = counters("requests_total", &["endpoint", "status"]);
    /// Requests that are being answered.
    in_flight: IntGauge = gauge("requests_in_flight");
    /// Time from a request's arrival to the first byte of its answer, by how much of its prompt was reused: none, some, half (or more), most (nine tenths), or unknown.
    ttfb: HistogramVec = histograms("ttfb_seconds", &["cached"], REQUEST_BUCKETS);
    /// Time of one streamed answer after its first piece, by the number of further events, which are about a token each; by how much of its prompt was reused.
    tpot: HistogramVec = histograms("tpot_seconds", &["cached"], TOKEN_BUCKETS);
    /// Time from a request's arrival to the end of its answer.
    request: Histogram = histogram("request_seconds", REQUEST_BUCKETS);
    /// Time that a decision takes, by phase: parse, prompt (render and tokenize), hash, match, choose.
    decision: HistogramVec = histograms("decision_seconds", &["phase"], DECISION_BUCKETS);
    /// Decisions by reason.
    routes: IntCounterVec = counters("routes_total", &["reason"]);
    /// Prompts that could not be tokenized here and were routed by load, by cause.
    untokenized_prompts: IntCounterVec = counters("untokenized_prompts_total", &["cause"]);
    /// Prompt tokens of requests whose worker said what it reused.
    prompt_tokens: IntCounter = counter("prompt_tokens_total");
    /// Prompt tokens that could have been reused at best: those that the worker held that held most of the prompt, whole blocks, or what was reused, where that is more.
    cacheable_tokens: IntCounter = counter("cacheable_tokens_total");
    /// Prompt tokens that were predicted to be reused, whole blocks.
    predicted_cached_tokens: IntCounter = counter("predicted_cached_tokens_total");
    /// Prompt tokens that were reused.
    cached_tokens: IntCounter = counter("cached_tokens_total");
    /// Reuse minus predicted reuse of one request, in whole blocks.
    prediction_error: Histogram = histogram("prediction_error_blocks", ERROR_BUCKETS);
    /// Predictions of reuse by what came of them, in whole blocks: exact, less (the worker reused less) or more.
    predictions: IntCounterVec = counters("predictions_total", &["outcome"]);
    /// Blocks that workers say they hold and did not reuse; not counted on until they are announced again.
    stale_blocks: IntGauge = gauge("stale_blocks");
    /// Chats by how they stand to what was said before: new, intact (continues a conversation) or broken.
    conversations: IntCounterVec = counters("conversations_total", &["continuity"]);
    /// Conversations that broke their own prefix, by whose message changed: system, user, assistant, tool, other, or template.
    prefix_breaks: IntCounterVec = counters("prefix_breaks_total", &["role"]);
    /// Requests without an API key that is known.
    auth_failures: IntCounter = counter("auth_failures_total");
    /// Looks at the file of API keys that failed; the last keys stand.
    key_file_failures: IntCounter = counter("key_file_failures_total");
    /// Looks at the file of the fleet's tokens that failed; the last tokens stand.
    token_file_failures: IntCounter = counter("token_file_failures_total");
    /// Looks at the files of stock servers' keys that failed; the last keys stand.
    worker_key_failures: IntCounter = counter("worker_key_file_failures_total");
    /// Looks at changed files for TLS, with clients or with workers, that failed; the last certificates stand.
    tls_failures: IntCounter = counter("tls_failures_total");
    /// Attempts that failed before the client saw anything, by failure.
    failed_attempts: IntCounterVec = counters("failed_attempts_total", &["failure"]);
    /// Attempts at another worker after a failed one.
    retries: IntCounter = counter("retries_total");
    /// Attempts at another worker that the budget did not allow.
    retry_budget_exhausted: IntCounter = counter("retry_budget_exhausted_total");
    /// Requests that wait in the router because no worker can start them soon.
    queue_requests: IntGauge = gauge("queue_requests");
    /// Time that requests waited in the router, those that need not left out.
    queue_wait: Histogram = histogram("queue_seconds", REQUEST_BUCKETS);
    /// Time that requests were held back to hear of other routers' requests, those that were not left out.
    backoff: Histogram = histogram("backoff_seconds", REQUEST_BUCKETS);
    /// Requests that had to wait in the router, by what became of them: admitted, timed_out, evicted, rejected (the queue was full), no_worker, client_gone.
    queue_outcomes: IntCounterVec = counters("queue_outcomes_total", &["outcome"]);
    /// Answers that broke off after the client had seen a part.
    broken_responses: IntCounter = counter("broken_responses_total");
    /// Answers whose client left before their end.
    abandoned_responses: IntCounter = counter("abandoned_responses_total");
    /// Summary streams that ended, by reason.
    summary_stream_ends: IntCounterVec = counters("summary_stream_ends_total", &["reason"]);
    /// Summary streams that were opened, by how they started: with a snapshot, or resumed where they were lost.
    summary_streams: IntCounterVec = counters("summary_streams_total", &["start"]);
    /// Frames of summary streams.
    summary_frames: IntCounter = counter("summary_frames_total");
    /// Predictions of reuse at stock servers by what came of them: exact, less, more, or unchecked (the answer did not say).
    stock_predictions: IntCounterVec = counters("stock_predictions_total", &["outcome"]);
    /// Looks for workers that failed, by way: file, dns or kubernetes; what was found last stands.
    discovery_failures: IntCounterVec = counters("discovery_failures_total", &["source"]);
    /// Stock servers that were lost or not found, by reason; counted at every try.
    stock_losses: IntCounterVec = counters("stock_losses_total", &["reason"]);
    /// Stock servers that counted a prompt's tokens otherwise than the vocabulary that they were taken to have.
    stock_mismatches: IntCounter = counter("stock_vocabulary_mismatches_total");
    /// Models that a stock server lists beyond the most that are taken; requests for them are refused.
    left_out_models: IntGaugeVec = gauges("stock_models_left_out", &["worker"]);
    /// Downloads of vocabularies, by outcome.
    vocabularies: IntCounterVec = counters("vocabulary_downloads_total", &["outcome"]);
    /// Workers by state.
    workers: IntGaugeVec = gauges("workers", &["state"]);
    /// Workers that are kept out of the fleet, by what they disagree in.
    excluded: IntGaugeVec = gauges("workers_excluded", &["disagreement"]);
    /// Workers that have another worker's uid but are another process.
    forks: IntGauge = gauge("workers_sharing_uid");
    /// Time since the last word of a worker.
    summary_age: GaugeVec = float_gauges("summary_age_seconds", &["worker"]);
    /// Requests of this router at a worker.
    worker_in_flight: IntGaugeVec = gauges("worker_requests_in_flight", &["worker"]);
    /// State of a worker's breaker: 0 closed, 1 half open, 2 open.
    breaker: IntGaugeVec = gauges("worker_breaker_state", &["worker"]);
    /// Name that a worker gives itself, as in x-warmpath-worker, beside its URL; 1.
    worker_info: IntGaugeVec = gauges("worker_info", &["worker", "name"]);
    /// Blocks that a worker holds.
    worker_blocks: IntGaugeVec = gauges("worker_blocks", &["worker"]);
    /// Different blocks in the prefix index.
    index_blocks: IntGauge = gauge("index_blocks");
    /// Memory of the prefix index.
    index_bytes: IntGauge = gauge("index_bytes");
    /// Claims that the prefix index has dropped for its memory limit.
    index_evicted: IntCounter = counter("index_evicted_entries_total");
    /// Spans of traces that were dropped because the collector was away or slow.
    dropped_spans: IntCounter = counter("trace_spans_dropped_total");
    /// Connections of clients that are open.
    connections: IntGauge = gauge("connections");
    /// Connections of clients that were refused because there were too many, and none of them was silent.
    refused_connections: IntCounter = counter("refused_connections_total");
    /// Connections of silent clients that were closed to make room for others.
    displaced_connections: IntCounter = counter("displaced_connections_total");
    /// Memory of request bodies that are still arriving.
    body_bytes: IntGauge = gauge("arriving_body_bytes");
    /// Lines of the log that could not be written, or were too many to wait.
    lost_log_lines: IntCounter = counter("log_lines_lost_total");
    /// The version, as a label.
    info: IntGaugeVec = gauges("info", &["version"]);
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

fn float_gauges(name: &str, help: &str, labels: &[&str]) -> GaugeVec {
    GaugeVec::new(Opts::new(name, help), labels).expect(VALID)
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> Histogram {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())).expect(VALID)
}

fn histograms(name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
    HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels).expect(VALID)
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Begins the series that are compared with each other at zero.
    fn begin(&self) {
        for label in cached_share::LABELS.iter().chain([&cached_share::UNKNOWN]) {
            self.ttfb.with_label_values(&[label]);
            self.tpot.with_label_values(&[label]);
        }
    }

    /// Copies what is counted elsewhere.
    pub fn copy_counts(&self, connections: &Connections, n_lost_log_lines: u64, others: [(&IntCounter, u64); 2]) {
        let _copying = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        let own = [
            (&self.refused_connections, connections.n_refused()),
            (&self.displaced_connections, connections.n_displaced()),
            (&self.lost_log_lines, n_lost_log_lines),
        ];
        for (counter, n) in own.into_iter().chain(others) {
            counter.inc_by(n.saturating_sub(counter.get()));
        }
    }

    /// Drops what is said of a worker that has left.
    pub fn forget_worker(&self, name: &str) {
        let label = &[name];
        // An error means that nothing was said of it.
        let _ = self.summary_age.remove_label_values(label);
        for gauges in [&self.worker_in_flight, &self.breaker, &self.worker_blocks, &self.left_out_models] {
            let _ = gauges.remove_label_values(label);
        }
    }

    /// Returns what has been counted until `at` after the router's start; times are in [`REQUEST_BUCKETS`].
    pub fn totals(&self, at: Duration) -> Totals {
        let mut totals = Totals {
            at,
            prompt_tokens: self.prompt_tokens.get(),
            held_tokens: self.cacheable_tokens.get(),
            predicted_cached_tokens: self.predicted_cached_tokens.get(),
            cached_tokens: self.cached_tokens.get(),
            ttft: vec![0; REQUEST_BUCKETS.len() + 1],
            ..Totals::default()
        };
        for series in self.requests.collect().iter().flat_map(MetricFamily::get_metric) {
            if PROBES.contains(&label(series, "endpoint")) {
                continue;
            }
            let n = series.get_counter().get_value() as u64;
            totals.requests += n;
            let status = label(series, "status");
            totals.failures += if status == "429" || status.starts_with('5') { n } else { 0 };
        }
        for series in self.ttfb.collect().iter().flat_map(MetricFamily::get_metric) {
            let times = series.get_histogram();
            let counts = times.get_bucket().iter().map(|bucket| bucket.cumulative_count());
            let counts = counts.chain([times.get_sample_count()]);
            totals.ttft.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
        }
        totals
    }

    /// Returns every metric in Prometheus' text format.
    pub fn encode(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

/// Returns the value of a label, empty where there is none.
fn label<'a>(series: &'a Metric, name: &str) -> &'a str {
    series.get_label().iter().find(|label| label.name() == name).map_or("", |label| label.value())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_count_what_clients_asked_and_how_long_they_waited() {
        let metrics = Metrics::new();
        for (endpoint, status) in
            [("/v1/chat/completions", "200"), ("/v1/models", "429"), ("none", "502"), ("/readyz", "503")]
        {
            metrics.requests.with_label_values(&[endpoint, status]).inc();
        }
        metrics.cached_tokens.inc_by(32);
        metrics.ttfb.with_label_values(&["none"]).observe(0.02);
        metrics.ttfb.with_label_values(&["most"]).observe(1000.0);
        let totals = metrics.totals(Duration::from_secs(1));
        assert_eq!((totals.requests, totals.failures, totals.cached_tokens), (3, 2, 32), "{totals:?}");
        assert_eq!(totals.ttft_quantile(0.5, REQUEST_BUCKETS), Some(0.025));
        assert_eq!(totals.ttft_quantile(1.0, REQUEST_BUCKETS), Some(180.0));
    }

    #[test]
    fn a_field_comment_is_the_help_text() {
        let metrics = Metrics::new();
        metrics.requests.with_label_values(&["/v1/models", "200"]).inc();
        let text = metrics.encode();
        assert!(text.contains("# HELP warmpath_router_requests_total Requests by endpoint and status."), "{text}");
        assert!(text.contains("warmpath_router_requests_total{endpoint=\"/v1/models\",status=\"200\"} 1\n"), "{text}");
    }
}
