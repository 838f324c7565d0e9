//! Every metric of the worker: its name, its kind, and its help text, which is the field's doc comment.
//!
//! The engine's own counters are copied at each scrape. Not here: where other events are counted.

pub mod llama_server;

use std::sync::{Mutex, PoisonError};

use prometheus::{Counter, Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use warmpath_common::cached_share;
use warmpath_common::summary::Tier;
use warmpath_shell::metrics;
use warmpath_shell::metrics::{REQUEST_BUCKETS, TOKEN_BUCKETS, raise};

use crate::engine::{CacheTotals, CounterValues};

/// Buckets for transfers. Units: seconds. Source: from small runs on a fast network to the longest wait.
const TRANSFER_BUCKETS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Buckets for shares. Source: tenths, and finer ones near 1, where most hit ratios of agents are.
const RATIO_BUCKETS: &[f64] = &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99];

/// Tiers and their labels.
const TIERS: [(Tier, &str); 3] = [(Tier::Resident, "resident"), (Tier::Ram, "ram"), (Tier::Disk, "disk")];

metrics! {
    // Counters of the engine at the last scrape. The lock serializes their copying, because two callers would add the
    // same difference; it is held for microseconds, never across an `.await`.
    struct Metrics("warmpath_worker") { copied: Mutex<CounterValues> }

    /// Requests by endpoint and status; health checks and scrapes of metrics are not counted.
    requests: IntCounterVec = counters("requests_total", &["endpoint", "status"]);
    /// Requests with tools that this worker does not execute, by kind; they were answered without these tools.
    left_out_tools: IntCounterVec = counters("left_out_tools_total", &["kind"]);
    /// Requests with parts in their history that the model cannot read, by kind; a short text was in their place.
    left_out_parts: IntCounterVec = counters("left_out_parts_total", &["kind"]);
    /// Requests without a valid token, if tokens are required.
    auth_failures: IntCounter = counter("auth_failures_total");
    /// Failed reads of the file of tokens; the last tokens stay in force.
    token_file_failures: IntCounter = counter("token_file_failures_total");
    /// Failed reads of changed TLS files; the last certificates stay in force.
    tls_failures: IntCounter = counter("tls_failures_total");
    /// Time from a request's arrival to its first token, by the share of its prompt that was reused: none, some, half
    /// (or more), most (nine tenths).
    ttft: HistogramVec = histograms("ttft_seconds", &["cached"], REQUEST_BUCKETS);
    /// Time per output token of a response after its first token; by the share of its prompt that was reused.
    tpot: HistogramVec = histograms("tpot_seconds", &["cached"], TOKEN_BUCKETS);
    /// Time that ready prompts waited for a slot, for a prefix that another request was computing, or for the disk.
    queue: Histogram = histogram("queue_seconds", REQUEST_BUCKETS);
    /// Time from a request's arrival to the end of its response.
    request: Histogram = histogram("request_seconds", REQUEST_BUCKETS);
    /// Time to render and tokenize a request's prompts.
    prompt: Histogram = histogram("prompt_seconds", TOKEN_BUCKETS);
    /// Sequences that only filled the cache (`max_tokens` 0); the figures of reuse leave them out, and they have no
    /// first token.
    prewarms: IntCounter = counter("prewarms_total");
    /// Prompt tokens of requests that got a slot.
    prompt_tokens: IntCounter = counter("prompt_tokens_total");
    /// Prompt tokens that were reused, by the tier they came from.
    prefix_cache_tokens: IntCounterVec = counters("prefix_cache_tokens_total", &["tier"]);
    /// Share of a sequence's prompt tokens that was reused.
    prefix_cache_ratio: Histogram = histogram("prefix_cache_ratio", RATIO_BUCKETS);
    /// Sequences that waited for a prefix that another sequence was computing.
    prefix_waits: IntCounter = counter("prefix_waits_total");
    /// Time that sequences waited for a prefix that another sequence was computing, counted when they got a slot.
    prefix_wait: Counter = total_seconds("prefix_wait_seconds_total");
    /// Time that sequences waited for state to be read from disk, counted when they got a slot.
    disk_wait: Counter = total_seconds("disk_wait_seconds_total");
    /// Time that threads of the worker were ready to run and waited for a processor while it computed, in sum; zero
    /// where the system does not report it (only Linux does).
    processor_wait: Counter = total_seconds("processor_wait_seconds_total");
    /// Threads that computed a step lately: fewer than configured while other programs take the processors; zero where
    /// the system does not report waits.
    compute_threads: IntGauge = gauge("compute_threads");
    /// Whether a read from disk was late in the last step, so that requests start without the disk: 1 or 0.
    disk_late: IntGauge = gauge("disk_late");
    /// Chunks that were not read from or written to disk, by operation: read, write, or write_refused if too many
    /// were waiting.
    disk_failures: IntCounterVec = counters("disk_failures_total", &["operation"]);
    /// Sequences whose cached state could not be restored into their slot and was computed.
    restore_failures: IntCounter = counter("restore_failures_total");
    /// Starts with state restored into the slot.
    restores: IntCounter = counter("restores_total");
    /// Time of restoring state into slots.
    restore: Counter = total_seconds("restore_seconds_total");
    /// Exports of a slot's state into the store.
    saves: IntCounter = counter("saves_total");
    /// Time of exporting state into the store.
    save: Counter = total_seconds("save_seconds_total");
    /// Tokens whose state was stored.
    saved_tokens: IntCounter = counter("saved_tokens_total");
    /// Drafted tokens that were computed, by outcome: accepted or rejected.
    draft_tokens: IntCounterVec = counters("draft_tokens_total", &["outcome"]);
    /// Drafts that were computed, each of several tokens.
    drafts: IntCounter = counter("drafts_total");
    /// Tokens that the draft model made for drafts.
    draft_model_tokens: IntCounter = counter("draft_model_tokens_total");
    /// Time of the draft model.
    draft_model: Counter = total_seconds("draft_model_seconds_total");
    /// Sequences for which the draft model failed, and which went on without it.
    draft_model_failures: IntCounter = counter("draft_model_failures_total");
    /// Checkpoints of partial state that were made.
    checkpoints_made: IntCounter = counter("checkpoints_made_total");
    /// Starts from a checkpoint.
    checkpoint_uses: IntCounter = counter("checkpoint_uses_total");
    /// Idle slots whose state was moved out of the KV buffer.
    slots_offloaded: IntCounter = counter("slots_offloaded_total");
    /// Context shifts: a response filled its context and its oldest tokens were dropped.
    context_shifts: IntCounter = counter("context_shifts_total");
    /// Images and audio files that were encoded, without reused ones.
    encoded_media: IntCounterVec = counters("media_encoded_total", &["kind"]);
    /// Images and audio files that could not be encoded.
    encode_failures: IntCounter = counter("media_failures_total");
    /// Time to encode images and audio.
    encode: Counter = total_seconds("media_encode_seconds_total");
    /// Slots with state, and stored chunks and checkpoints, by tier; an entry both in memory and on disk counts in
    /// both.
    cache_entries: IntGaugeVec = gauges("cache_entries", &["tier"]);
    /// Tokens whose state is cached, by tier.
    cache_tokens: IntGaugeVec = gauges("cache_tokens", &["tier"]);
    /// Bytes of cached state, by tier.
    cache_bytes: IntGaugeVec = gauges("cache_bytes", &["tier"]);
    /// Chunks and checkpoints that left a tier, by tier and reason.
    cache_evictions: IntCounterVec = counters("cache_evictions_total", &["tier", "reason"]);
    /// Tokens of chunks and checkpoints that left a tier, by tier and reason.
    cache_evicted_tokens: IntCounterVec = counters("cache_evicted_tokens_total", &["tier", "reason"]);
    /// Tenants that have a share of a tier, by tier: ram, disk.
    cache_tenants: IntGaugeVec = gauges("cache_tenants", &["tier"]);
    /// Bytes of the largest tenant, without pinned state, by tier: ram, disk.
    cache_largest_tenant: IntGaugeVec = gauges("cache_largest_tenant_bytes", &["tier"]);
    /// Runs of KV state that were exchanged with other workers, by direction and result: sent, received for a
    /// request, or prefetched for later ones.
    kv_transfers: IntCounterVec = counters("kv_transfers_total", &["direction", "result"]);
    /// Bytes of KV state that were exchanged with other workers, by direction.
    kv_transfer_bytes: IntCounterVec = counters("kv_transfer_bytes_total", &["direction"]);
    /// Blocks whose KV state was exchanged with other workers, by direction.
    kv_transfer_blocks: IntCounterVec = counters("kv_transfer_blocks_total", &["direction"]);
    /// Time of exchanging a run of KV state with another worker, from the request on, by direction.
    kv_transfer: HistogramVec = histograms("kv_transfer_seconds", &["direction"], TRANSFER_BUCKETS);
    /// Prompt tokens that were computed.
    prefill_tokens: IntCounter = counter("prefill_tokens_total");
    /// Time from the slot's start to the first token, of completed requests.
    prefill: Counter = total_seconds("prefill_seconds_total");
    /// Time that computing the reused prompt tokens would have taken, at the prefill rate measured when they were
    /// reused.
    saved_prefill: Counter = total_seconds("saved_prefill_seconds_total");
    /// Prefill rate, recently measured; 0 before the first measurement.
    prefill_rate: Gauge = number("prefill_rate_tokens_per_second");
    /// Output tokens that were computed.
    decode_tokens: IntCounter = counter("decode_tokens_total");
    /// Batches that llama.cpp has computed.
    steps: IntCounter = counter("steps_total");
    /// Batches that failed: llama.cpp could not compute them, their logits were not finite, or their adapter could not
    /// be applied.
    decode_failures: IntCounter = counter("decode_failures_total");
    /// Sequences that were completed.
    finished: IntCounter = counter("sequences_finished_total");
    /// Sequences whose client disconnected.
    cancelled: IntCounter = counter("sequences_cancelled_total");
    /// Sequences that failed.
    failed: IntCounter = counter("sequences_failed_total");
    /// Number of slots.
    slots: IntGauge = gauge("slots");
    /// Slots that run a sequence.
    busy_slots: IntGauge = gauge("slots_busy");
    /// Sequences that wait for a slot.
    queued: IntGauge = gauge("queue_sequences");
    /// Tokens whose KV state is in the cache.
    held_tokens: IntGauge = gauge("kv_cache_tokens");
    /// Time of loading the model.
    load: Gauge = number("model_load_seconds");
    /// Subscribers of the summary.
    summary_subscribers: IntGauge = gauge("summary_subscribers");
    /// Summary streams that were opened, by their start: with a snapshot, or resumed.
    summary_streams: IntCounterVec = counters("summary_streams_total", &["start"]);
    /// Updates of the summary.
    summary_updates: IntCounter = counter("summary_updates_total");
    /// Frames of the summary that were sent to subscribers.
    summary_frames: IntCounter = counter("summary_frames_total");
    /// Subscribers of the summary that were disconnected because they were too slow.
    summary_cut_off: IntCounter = counter("summary_cut_off_total");
    /// The model and the version, as labels.
    info: IntGaugeVec = gauges("info", &["model", "fingerprint", "version"]);
    /// The set of CPU kernels that llama.cpp computes with, as a label.
    cpu_variant_info: IntGaugeVec = gauges("cpu_variant_info", &["variant"]);
}

impl Metrics {
    /// Creates the series that are compared with each other, with the value zero.
    fn begin(&self) {
        for label in cached_share::LABELS {
            self.ttft.with_label_values(&[label]);
            self.tpot.with_label_values(&[label]);
        }
        for direction in ["received", "prefetched", "sent"] {
            self.kv_transfers.with_label_values(&[direction, "ok"]);
            self.kv_transfer_bytes.with_label_values(&[direction]);
        }
    }

    /// Records the reuse of this many of a sequence's tokens. The saved time counts only once a prefill has been
    /// measured.
    pub fn reused(&self, n_tokens: u32, filled_tokens: u32) {
        self.prefix_cache_ratio.observe(f64::from(n_tokens) / f64::from(filled_tokens.max(1)));
        let rate = self.prefill_rate.get();
        if rate > 0.0 {
            self.saved_prefill.inc_by(f64::from(n_tokens) / rate);
        }
    }

    /// Copies the engine's counters, and returns them under llama-server's names, with the rates since the last call.
    pub fn copy_engine(&self, values: &CounterValues, cache: &CacheTotals) -> String {
        let mut copied_values = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = [
            (&self.prewarms, values.prewarms),
            (&self.prompt_tokens, values.prompt_tokens),
            (&self.prefill_tokens, values.prefill_tokens),
            (&self.decode_tokens, values.decode_tokens),
            (&self.drafts, values.drafts),
            (&self.draft_model_tokens, values.made_tokens),
            (&self.draft_model_failures, values.draft_model_failures),
            (&self.steps, values.steps),
            (&self.decode_failures, values.decode_failures),
            (&self.finished, values.finished),
            (&self.cancelled, values.cancelled),
            (&self.failed, values.failed),
            (&self.prefix_waits, values.prefix_waits),
            (&self.restore_failures, values.failed_starts),
            (&self.restores, values.restores),
            (&self.saves, values.saves),
            (&self.saved_tokens, values.saved_tokens),
            (&self.checkpoints_made, values.checkpoints_made),
            (&self.checkpoint_uses, values.checkpoint_uses),
            (&self.slots_offloaded, values.moved_out),
            (&self.context_shifts, values.context_shifts),
            (&self.encode_failures, values.encode_failures),
        ];
        for (counter, value) in counts {
            raise(counter, value);
        }
        for (kind, value) in [("image", values.encoded_images), ("audio", values.encoded_audio)] {
            raise(&self.encoded_media.with_label_values(&[kind]), value);
        }
        let times = [
            (&self.restore, values.restore_us),
            (&self.encode, values.encode_us),
            (&self.save, values.save_us),
            (&self.prefill, values.prompt_us),
            (&self.prefix_wait, values.prefix_wait_us),
            (&self.disk_wait, values.disk_wait_us),
            (&self.processor_wait, values.processor_wait_us),
            (&self.draft_model, values.draft_model_us),
        ];
        for (counter, value_us) in times {
            counter.inc_by((value_us as f64 / 1e6 - counter.get()).max(0.0));
        }
        self.copy_cache(values, cache);
        let gauges = [
            (&self.busy_slots, values.busy_slots),
            (&self.queued, values.queued),
            (&self.held_tokens, values.held_tokens),
            (&self.disk_late, values.disk_late),
            (&self.compute_threads, values.compute_threads),
        ];
        for (gauge, value) in gauges {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        llama_server::write(&mut text, values, &std::mem::replace(&mut *copied_values, *values));
        text
    }

    fn copy_cache(&self, values: &CounterValues, cache: &CacheTotals) {
        let n_elsewhere = values.cached_ram_tokens + values.cached_disk_tokens + values.shifted_tokens;
        let reused_tokens = [
            ("resident", values.cached_tokens.saturating_sub(n_elsewhere)),
            ("ram", values.cached_ram_tokens),
            ("disk", values.cached_disk_tokens),
            ("shifted", values.shifted_tokens),
        ];
        for (tier, n_tokens) in reused_tokens {
            raise(&self.prefix_cache_tokens.with_label_values(&[tier]), n_tokens);
        }
        let drafted_tokens = [
            ("accepted", values.accepted_tokens),
            ("rejected", values.drafted_tokens.saturating_sub(values.accepted_tokens)),
        ];
        for (outcome, n_tokens) in drafted_tokens {
            raise(&self.draft_tokens.with_label_values(&[outcome]), n_tokens);
        }
        let failures = [
            ("read", values.disk_read_failures),
            ("write", values.disk_write_failures),
            ("write_refused", values.disk_writes_refused),
        ];
        for (operation, n) in failures {
            raise(&self.disk_failures.with_label_values(&[operation]), n);
        }
        for (tier, label) in TIERS {
            let totals = cache.of(tier);
            let gauges_of_tier = [
                (&self.cache_entries, totals.n_chunks),
                (&self.cache_tokens, totals.n_tokens),
                (&self.cache_bytes, totals.n_bytes),
            ];
            for (gauge, value) in gauges_of_tier {
                gauge.with_label_values(&[label]).set(i64::try_from(value).unwrap_or(i64::MAX));
            }
        }
        for (label, shares) in [("ram", cache.ram_shares), ("disk", cache.disk_shares)] {
            let gauges_of_shares =
                [(&self.cache_tenants, shares.n_tenants), (&self.cache_largest_tenant, shares.largest_bytes)];
            for (gauge, value) in gauges_of_shares {
                gauge.with_label_values(&[label]).set(i64::try_from(value).unwrap_or(i64::MAX));
            }
        }
        for eviction in &cache.evicted {
            let label = TIERS.iter().find(|(tier, _)| *tier == eviction.tier).map_or("", |(_, label)| label);
            let labels = [label, eviction.reason.name()];
            raise(&self.cache_evictions.with_label_values(&labels), eviction.totals.n_chunks);
            raise(&self.cache_evicted_tokens.with_label_values(&labels), eviction.totals.n_tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use warmpath_worker_core::store::chunk_index::{Evicted, Reason, ShareTotals, Totals};

    use super::*;

    #[test]
    fn saved_time_is_counted_at_the_measured_rate() {
        let metrics = Metrics::new();
        metrics.reused(1000, 1000);
        assert_eq!(metrics.saved_prefill.get(), 0.0, "no prefill has been measured");
        metrics.prefill_rate.set(500.0);
        metrics.reused(1000, 1000);
        metrics.prefill_rate.set(1000.0);
        metrics.reused(1000, 1000);
        assert_eq!(metrics.saved_prefill.get(), 3.0);
    }

    #[test]
    fn shows_what_the_engine_has_counted_and_never_counts_it_twice() {
        let metrics = Metrics::new();
        let values = CounterValues {
            prompt_tokens: 7,
            busy_slots: 2,
            disk_late: 1,
            cached_tokens: 6,
            cached_ram_tokens: 2,
            cached_disk_tokens: 1,
            shifted_tokens: 1,
            restore_us: 1_500_000,
            prompt_us: 2_500_000,
            ..CounterValues::default()
        };
        let totals = Totals { n_chunks: 3, n_tokens: 96, n_bytes: 9600 };
        let evicted = vec![Evicted { tier: Tier::Ram, reason: Reason::Capacity, totals }];
        let ram_shares = ShareTotals { n_tenants: 2, largest_bytes: 640 };
        let cache = CacheTotals { ram: totals, evicted, ram_shares, ..CacheTotals::default() };
        metrics.copy_engine(&values, &cache);
        metrics.copy_engine(&values, &cache);
        let text = metrics.encode();
        assert!(text.contains("# HELP warmpath_worker_prompt_tokens_total Prompt tokens of requests that got a slot."));
        assert!(text.contains("warmpath_worker_prompt_tokens_total 7\n"), "{text}");
        for line in [
            "slots_busy 2",
            "disk_late 1",
            "prefix_cache_tokens_total{tier=\"resident\"} 2",
            "prefix_cache_tokens_total{tier=\"shifted\"} 1",
            "prefix_cache_tokens_total{tier=\"ram\"} 2",
            "prefix_cache_tokens_total{tier=\"disk\"} 1",
            "restore_seconds_total 1.5",
            "prefill_seconds_total 2.5",
            "cache_bytes{tier=\"ram\"} 9600",
            "cache_bytes{tier=\"disk\"} 0",
            "cache_evictions_total{reason=\"capacity\",tier=\"ram\"} 3",
            "cache_tenants{tier=\"ram\"} 2",
            "cache_largest_tenant_bytes{tier=\"ram\"} 640",
            "cache_evicted_tokens_total{reason=\"capacity\",tier=\"ram\"} 96",
        ] {
            assert!(text.contains(&format!("warmpath_worker_{line}\n")), "{line}: {text}");
        }
    }
}
