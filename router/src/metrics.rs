//! Every metric of the router: its name, its kind, and its help text, which is the field's doc comment.
//!
//! Values that can be read from the fleet at any time are copied at each scrape. Not here: where events are counted.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::proto::{Metric, MetricFamily};
use prometheus::{GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use warmpath_common::cached_share;
use warmpath_router_core::diagnostics::history::HistoryTotals;
use warmpath_shell::metrics;
use warmpath_shell::metrics::{REQUEST_BUCKETS, TOKEN_BUCKETS};

/// Label of continuations that another worker took.
pub const CONTINUED: &str = "continued";
/// Label of continuations that no worker took.
pub const FAILED: &str = "failed";
/// Label of prefixes that a worker fetches because it joins.
pub const JOIN: &str = "join";
/// Label of prefixes that a worker fetches because another one drains.
pub const DRAIN: &str = "drain";

/// Buckets for a phase of a decision: 2 us to 1 s. Units: seconds. Source: own choice: from a look-up in a small index
/// to the tokenizing of a long prompt.
const DECISION_BUCKETS: &[f64] =
    &[2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.25, 1.0];

/// Buckets for actual minus predicted reuse. Units: blocks. Source: own choice: powers of four up to a prompt of 4,096
/// tokens.
const ERROR_BUCKETS: &[f64] = &[-256.0, -64.0, -16.0, -4.0, -1.0, 0.0, 1.0, 4.0, 16.0, 64.0, 256.0];

metrics! {
    // Serializes scrapes. The lock is held while one is written, never across an `.await`.
    struct Metrics("warmpath_router") { scraping: Mutex<()> }

    /// Requests by endpoint and status; health checks are not counted.
    requests: IntCounterVec = counters("requests_total", &["endpoint", "status"]);
    /// Requests that are being served.
    in_flight: IntGauge = gauge("requests_in_flight");
    /// Time from a request's arrival to the first byte of its response, by the share of its prompt that was reused:
    /// none, some, half (or more), most (nine tenths), or unknown.
    ttfb: HistogramVec = histograms("ttfb_seconds", &["cached"], REQUEST_BUCKETS);
    /// Time per output token of a streamed response after its first piece, with each further event counted as a token;
    /// by the share of its prompt that was reused.
    tpot: HistogramVec = histograms("tpot_seconds", &["cached"], TOKEN_BUCKETS);
    /// Time from a request's arrival to the end of its response.
    request: Histogram = histogram("request_seconds", REQUEST_BUCKETS);
    /// Time of a routing decision, by phase: parse, prompt (render and tokenize), hash, match, choose.
    decision: HistogramVec = histograms("decision_seconds", &["phase"], DECISION_BUCKETS);
    /// Routing decisions by reason.
    routes: IntCounterVec = counters("routes_total", &["reason"]);
    /// Requests with a hint to fetch KV state from another worker.
    kv_transfer_hints: IntCounter = counter("kv_transfer_hints_total");
    /// Prompt tokens whose KV state workers fetched from others instead of computing it, after such hints.
    kv_transfer_tokens: IntCounter = counter("kv_transfer_tokens_total");
    /// Prefixes that were sent to workers to be fetched before requests need them, by cause: join of an empty worker,
    /// drain.
    kv_prefetches: IntCounterVec = counters("kv_prefetches_total", &["cause"]);
    /// Prompts that the router could not tokenize and routed by load, by cause.
    untokenized_prompts: IntCounterVec = counters("untokenized_prompts_total", &["cause"]);
    /// Requests that only filled the cache (`max_tokens` 0), at any server; the totals of tokens and the times to the
    /// first byte leave them out.
    prewarms: IntCounter = counter("prewarms_total");
    /// Prompt tokens of requests whose worker reported its reuse.
    prompt_tokens: IntCounter = counter("prompt_tokens_total");
    /// Upper bound of reuse: prompt tokens in whole blocks in the longest match of any worker, or the actual reuse if
    /// it was more.
    cacheable_tokens: IntCounter = counter("cacheable_tokens_total");
    /// Prompt tokens whose reuse was predicted, in whole blocks.
    predicted_cached_tokens: IntCounter = counter("predicted_cached_tokens_total");
    /// Prompt tokens that were reused.
    cached_tokens: IntCounter = counter("cached_tokens_total");
    /// Actual minus predicted reuse of a request, in whole blocks.
    prediction_error: Histogram = histogram("prediction_error_blocks", ERROR_BUCKETS);
    /// Predictions of reuse by result, in whole blocks: exact, more, unfetched (state was not fetched from another
    /// worker) or less (the worker did not reuse its own).
    predictions: IntCounterVec = counters("predictions_total", &["outcome"]);
    /// Blocks that a worker announced and twice did not reuse; they are ignored until it announces them again.
    stale_blocks: IntGauge = gauge("stale_blocks");
    /// Chats by their relation to earlier chats: new, intact (continues a conversation) or broken.
    conversations: IntCounterVec = counters("conversations_total", &["continuity"]);
    /// Conversations that broke their own prefix, by the role of the changed message: system, user, assistant, tool,
    /// other; tools or template if no message changed; answer if the model's last answer came back changed.
    prefix_breaks: IntCounterVec = counters("prefix_breaks_total", &["role"]);
    /// Chats whose tools, known from an earlier chat, were computed again behind a different system text; workers with
    /// --tools-first render tools before it.
    repeated_tools: IntCounter = counter("repeated_tools_total");
    /// Requests without a valid API key.
    auth_failures: IntCounter = counter("auth_failures_total");
    /// Failed reads of the file of API keys; the last keys stay in force.
    key_file_failures: IntCounter = counter("key_file_failures_total");
    /// Failed reads of the file of the fleet's tokens; the last tokens stay in force.
    token_file_failures: IntCounter = counter("token_file_failures_total");
    /// Failed reads of the files of stock servers' keys; the last keys stay in force.
    worker_key_failures: IntCounter = counter("worker_key_file_failures_total");
    /// Failed reads of changed TLS files, for clients or workers; the last certificates stay in force.
    tls_failures: IntCounter = counter("tls_failures_total");
    /// Attempts that failed before the client saw anything, by failure.
    failed_attempts: IntCounterVec = counters("failed_attempts_total", &["failure"]);
    /// Attempts at another worker after a failed one.
    retries: IntCounter = counter("retries_total");
    /// Responses whose worker failed in the middle, by result: continued at another worker, or failed.
    failovers: IntCounterVec = counters("failovers_total", &["result"]);
    /// Attempts at another worker that the retry budget did not allow.
    retry_budget_exhausted: IntCounter = counter("retry_budget_exhausted_total");
    /// Requests waiting in the router because no worker can start them soon.
    queue_requests: IntGauge = gauge("queue_requests");
    /// Time that requests waited in the router; requests that did not wait are not observed.
    queue_wait: Histogram = histogram("queue_seconds", REQUEST_BUCKETS);
    /// Backoff before routing; requests without a backoff are not observed.
    backoff: Histogram = histogram("backoff_seconds", REQUEST_BUCKETS);
    /// Requests that waited in the router, by outcome: admitted, timed_out, evicted, rejected (the queue was full),
    /// no_worker, client_gone.
    queue_outcomes: IntCounterVec = counters("queue_outcomes_total", &["outcome"]);
    /// Responses that broke off after the client had received a part.
    broken_responses: IntCounter = counter("broken_responses_total");
    /// Responses whose client disconnected before their end.
    abandoned_responses: IntCounter = counter("abandoned_responses_total");
    /// Summary streams that ended, by reason.
    summary_stream_ends: IntCounterVec = counters("summary_stream_ends_total", &["reason"]);
    /// Summary streams that were opened, by their start: with a snapshot, or resumed where they were lost.
    summary_streams: IntCounterVec = counters("summary_streams_total", &["start"]);
    /// Frames of summary streams.
    summary_frames: IntCounter = counter("summary_frames_total");
    /// Predictions of reuse at stock servers by result: exact, less, more, or unchecked (the response did not report
    /// it).
    stock_predictions: IntCounterVec = counters("stock_predictions_total", &["outcome"]);
    /// Requests that were held because a host could load their model.
    model_waits: IntCounter = counter("model_waits_total");
    /// Time for which requests were held for a model that a host loads.
    model_wait: Histogram = histogram("model_wait_seconds", REQUEST_BUCKETS);
    /// Requests that are held and counted in a demand for their model.
    model_waiting: IntGauge = gauge("model_waiting_requests");
    /// Demands for models posted to hosts, by outcome: taken or failed.
    model_demands: IntCounterVec = counters("model_demands_total", &["outcome"]);
    /// Loads of models that hosts have completed.
    model_loads: IntCounter = counter("model_loads_total");
    /// Hosts by state: connecting, live or lost.
    hosts: IntGaugeVec = gauges("hosts", &["state"]);
    /// Models that no request loads at a host, because its file is not that of the fleet.
    host_models_excluded: IntGauge = gauge("host_models_excluded");
    /// Streams of hosts that ended, by reason.
    host_stream_ends: IntCounterVec = counters("host_stream_ends_total", &["reason"]);
    /// Failed discoveries of workers, by source: file, dns or kubernetes; the last list stays in force.
    discovery_failures: IntCounterVec = counters("discovery_failures_total", &["source"]);
    /// Stock servers that were lost or not found, by reason; counted at every try.
    stock_losses: IntCounterVec = counters("stock_losses_total", &["reason"]);
    /// Stock servers that counted a prompt's tokens differently from the vocabulary assumed for them.
    stock_mismatches: IntCounter = counter("stock_vocabulary_mismatches_total");
    /// Models that a stock server lists beyond the limit; requests for them are refused.
    left_out_models: IntGaugeVec = gauges("stock_models_left_out", &["worker"]);
    /// Downloads of vocabularies, by result.
    vocabularies: IntCounterVec = counters("vocabulary_downloads_total", &["outcome"]);
    /// Workers by state.
    workers: IntGaugeVec = gauges("workers", &["state"]);
    /// Workers excluded from the fleet, by the property that does not match.
    excluded: IntGaugeVec = gauges("workers_excluded", &["disagreement"]);
    /// Workers with the uid of another worker that are a different process.
    forks: IntGauge = gauge("workers_sharing_uid");
    /// Time since the last message of a worker.
    summary_age: GaugeVec = float_gauges("summary_age_seconds", &["worker"]);
    /// Requests of this router at a worker.
    worker_in_flight: IntGaugeVec = gauges("worker_requests_in_flight", &["worker"]);
    /// State of a worker's circuit breaker: 0 closed, 1 half open, 2 open.
    breaker: IntGaugeVec = gauges("worker_breaker_state", &["worker"]);
    /// Name that a worker gives itself, as in x-warmpath-worker, and its URL; always 1.
    worker_info: IntGaugeVec = gauges("worker_info", &["worker", "name"]);
    /// Blocks in a worker's cache.
    worker_blocks: IntGaugeVec = gauges("worker_blocks", &["worker"]);
    /// Distinct blocks in the prefix index.
    index_blocks: IntGauge = gauge("index_blocks");
    /// Memory of the prefix index.
    index_bytes: IntGauge = gauge("index_bytes");
    /// Entries that the prefix index has dropped for its memory limit.
    index_evicted: IntCounter = counter("index_evicted_entries_total");
    /// The version, as a label.
    info: IntGaugeVec = gauges("info", &["version"]);
}

impl Metrics {
    /// Creates series with the value zero: series that are compared with each other, and counters of rare events, whose
    /// first event would otherwise not show as an increase.
    fn begin(&self) {
        for label in cached_share::LABELS.iter().chain([&cached_share::UNKNOWN]) {
            self.ttfb.with_label_values(&[label]);
            self.tpot.with_label_values(&[label]);
        }
        for result in [CONTINUED, FAILED] {
            self.failovers.with_label_values(&[result]);
        }
        for cause in [JOIN, DRAIN] {
            self.kv_prefetches.with_label_values(&[cause]);
        }
    }

    /// Locks the series that a scrape sets, because each scrape removes those of the one before.
    pub fn begin_scrape(&self) -> MutexGuard<'_, ()> {
        self.scraping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the series of all workers that a scrape sets. Since the last one, a worker may have left.
    pub fn forget_workers(&self) {
        self.worker_info.reset();
        self.summary_age.reset();
        for gauges in [&self.worker_in_flight, &self.breaker, &self.worker_blocks] {
            gauges.reset();
        }
    }

    /// Removes the series of a worker that has left.
    pub fn forget_worker(&self, name: &str) {
        // An error means that there was no series.
        let _ = self.left_out_models.remove_label_values(&[name]);
    }

    /// Returns the totals at the time `at` after the router's start; times are in [`REQUEST_BUCKETS`].
    pub fn totals(&self, at: Duration) -> HistoryTotals {
        let mut totals = HistoryTotals {
            at,
            prompt_tokens: self.prompt_tokens.get(),
            held_tokens: self.cacheable_tokens.get(),
            predicted_cached_tokens: self.predicted_cached_tokens.get(),
            cached_tokens: self.cached_tokens.get(),
            fetched_tokens: self.kv_transfer_tokens.get(),
            ttft: vec![0; REQUEST_BUCKETS.len() + 1],
            ..HistoryTotals::default()
        };
        for series in self.requests.collect().iter().flat_map(MetricFamily::get_metric) {
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
}

/// Returns the value of a label, empty if there is none.
fn label<'a>(series: &'a Metric, name: &str) -> &'a str {
    series.get_label().iter().find(|label| label.name() == name).map_or("", |label| label.value())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_count_what_clients_asked_and_how_long_they_waited() {
        let metrics = Metrics::new();
        for (endpoint, status) in [("/v1/chat/completions", "200"), ("/v1/models", "429"), ("none", "502")] {
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
    fn a_scrape_shows_no_worker_of_the_one_before() {
        let metrics = Metrics::new();
        let label = &["http://gone"];
        metrics.worker_info.with_label_values(&["http://gone", "gone"]).set(1);
        metrics.summary_age.with_label_values(label).set(30.0);
        for gauges in [&metrics.worker_in_flight, &metrics.breaker, &metrics.worker_blocks] {
            gauges.with_label_values(label).set(1);
        }
        assert_eq!(metrics.encode().matches("http://gone").count(), 5);
        metrics.forget_workers();
        assert!(!metrics.encode().contains("http://gone"));
    }

    #[test]
    fn a_field_comment_is_the_help_text() {
        let metrics = Metrics::new();
        metrics.requests.with_label_values(&["/v1/models", "200"]).inc();
        let text = metrics.encode();
        let help = "# HELP warmpath_router_requests_total Requests by endpoint and status; health checks";
        assert!(text.contains(help), "{text}");
        assert!(text.contains("warmpath_router_requests_total{endpoint=\"/v1/models\",status=\"200\"} 1\n"), "{text}");
    }
}
