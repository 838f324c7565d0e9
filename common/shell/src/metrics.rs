//! Makers of Prometheus metrics, and the buckets that router and worker share.
//!
//! Not here: the metrics of each program (their `metrics`).

use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts,
};

/// Buckets for a whole request and for its first token: 5 ms to 3 minutes. Units: seconds. Source: own choice: from a
/// cached prompt of a small model to a long answer of a large one.
pub const REQUEST_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 90.0, 180.0];

/// Buckets for one token: 1 ms to 1 s. Units: seconds. Source: own choice: a small model on a GPU to a large one on a
/// CPU.
pub const TOKEN_BUCKETS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0];

const VALID: &str = "metric names and labels are valid";

/// Returns a counter. Panics, like all makers here: when the name is not valid.
pub fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect(VALID)
}

/// Returns counters by labels.
pub fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect(VALID)
}

/// Returns a counter of seconds.
pub fn total_seconds(name: &str, help: &str) -> Counter {
    Counter::new(name, help).expect(VALID)
}

/// Returns a gauge of whole numbers.
pub fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::new(name, help).expect(VALID)
}

/// Returns gauges of whole numbers by labels.
pub fn gauges(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    IntGaugeVec::new(Opts::new(name, help), labels).expect(VALID)
}

/// Returns a gauge of any number.
pub fn number(name: &str, help: &str) -> Gauge {
    Gauge::new(name, help).expect(VALID)
}

/// Returns gauges of any number by labels.
pub fn float_gauges(name: &str, help: &str, labels: &[&str]) -> GaugeVec {
    GaugeVec::new(Opts::new(name, help), labels).expect(VALID)
}

/// Returns a histogram.
pub fn histogram(name: &str, help: &str, buckets: &[f64]) -> Histogram {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())).expect(VALID)
}

/// Returns histograms by labels.
pub fn histograms(name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
    HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels).expect(VALID)
}
