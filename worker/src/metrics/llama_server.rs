//! Metrics under llama-server's names, so that dashboards and alerts for llama-server keep working.
//!
//! One table lists the names, each with its value in the engine's counters. Not here: our own metrics (`metrics`).
//! Source: `server_task_result_metrics::to_metrics` in llama.cpp's `tools/server/server-task.cpp`.

use std::fmt::Write;

use crate::engine::CounterValues;

/// Prefix of every name.
pub const PREFIX: &str = "llamacpp:";

/// A metric under llama-server's name.
pub struct MetricRow {
    /// Name after [`PREFIX`].
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// Help text.
    pub help: &'static str,
    value: MetricValue,
}

/// Function from the engine's counters to the value.
enum MetricValue {
    /// Current value.
    Now(fn(&CounterValues) -> f64),
    /// Tokens and their time, shown as the rate since the last scrape.
    Since(fn(&CounterValues) -> TimedTokens),
}

/// Tokens and the time that they took.
struct TimedTokens {
    n: u64,
    us: u64,
}

/// Metrics in llama-server's order.
pub const LINES: &[MetricRow] = &[
    counter("prompt_tokens_total", "Prompt tokens that were computed.", |n| n.prefill_tokens as f64),
    counter("prompt_tokens_cached_total", "Prompt tokens that were reused.", |n| n.cached_tokens as f64),
    counter("prompt_seconds_total", "Time from the slot's start to the first token, of completed requests.", |n| {
        seconds(n.prompt_us)
    }),
    counter("tokens_predicted_total", "Tokens that were generated.", |n| n.generated_tokens as f64),
    counter("tokens_predicted_seconds_total", "Time after the first token, of completed requests.", |n| {
        seconds(n.generation_us)
    }),
    counter("n_decode_total", "Batches that were computed.", |n| n.steps as f64),
    counter("n_tokens_max", "Maximum number of tokens that a slot has had.", |n| n.sequence_tokens_max as f64),
    counter("spec_decode_num_draft_tokens_total", "Drafted tokens that were computed.", |n| n.drafted_tokens as f64),
    counter("spec_decode_num_accepted_tokens_total", "Drafted tokens that became part of responses.", |n| {
        n.accepted_tokens as f64
    }),
    counter("spec_decode_num_drafts_total", "Drafts that were computed.", |n| n.drafts as f64),
    rate("prompt_tokens_seconds", "Prompt tokens per second of one request, since the last scrape.", |n| TimedTokens {
        n: n.prefill_tokens,
        us: n.prompt_us,
    }),
    rate("predicted_tokens_seconds", "Response tokens per second of one request, since the last scrape.", |n| {
        let tokens = (n.decode_tokens + n.accepted_tokens).saturating_sub(n.drafted_tokens);
        TimedTokens { n: tokens, us: n.generation_us }
    }),
    gauge("requests_processing", "Requests that run in a slot.", |n| n.busy_slots as f64),
    gauge("requests_deferred", "Requests that wait for a slot.", |n| n.queued as f64),
    gauge("n_busy_slots_per_decode", "Busy slots of a batch, on average.", |n| {
        n.busy_slot_steps as f64 / n.steps.max(1) as f64
    }),
];

const fn counter(name: &'static str, help: &'static str, value: fn(&CounterValues) -> f64) -> MetricRow {
    MetricRow { name, kind: "counter", help, value: MetricValue::Now(value) }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&CounterValues) -> f64) -> MetricRow {
    MetricRow { name, kind: "gauge", help, value: MetricValue::Now(value) }
}

const fn rate(name: &'static str, help: &'static str, value: fn(&CounterValues) -> TimedTokens) -> MetricRow {
    MetricRow { name, kind: "gauge", help, value: MetricValue::Since(value) }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// Writes the metrics in Prometheus' text format, given the counters at this scrape and at the one before.
pub(super) fn write(out: &mut String, now: &CounterValues, before: &CounterValues) {
    for MetricRow { name, kind, help, value } in LINES {
        let value = match value {
            MetricValue::Now(read) => read(now),
            MetricValue::Since(read) => {
                let (now, before) = (read(now), read(before));
                let took_us = now.us.saturating_sub(before.us);
                if took_us == 0 { 0.0 } else { now.n.saturating_sub(before.n) as f64 / seconds(took_us) }
            }
        };
        // Writing to a String never fails.
        let _ = writeln!(out, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n{PREFIX}{name} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_counts_and_the_rates_since_the_last_scrape() {
        let before = CounterValues { prefill_tokens: 100, prompt_us: 500_000, ..CounterValues::default() };
        let now = CounterValues {
            prefill_tokens: 400,
            prompt_us: 2_000_000,
            steps: 4,
            busy_slot_steps: 6,
            ..CounterValues::default()
        };
        let mut text = String::new();
        write(&mut text, &now, &before);
        for line in [
            "# TYPE llamacpp:prompt_tokens_total counter",
            "llamacpp:prompt_tokens_total 400",
            "llamacpp:prompt_seconds_total 2",
            "llamacpp:prompt_tokens_seconds 200",
            "llamacpp:predicted_tokens_seconds 0",
            "llamacpp:n_busy_slots_per_decode 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
