//! Declaration of a program's Prometheus metrics, the buckets that router and worker share, and a server's metrics.
//!
//! Not here: the metrics of each program (their `metrics`).

use std::fmt::Write as _;

use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts,
};

use crate::http::body::BodyRoom;
use crate::net::listen::Connections;
use crate::telemetry::log;
use crate::telemetry::trace::Tracer;

/// Buckets for a whole request and for its first token: 5 ms to 3 minutes. Units: seconds. Source: own choice: from a
/// cached prompt of a small model to a long answer of a large one.
pub const REQUEST_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 90.0, 180.0];

/// Buckets for one token: 1 ms to 1 s. Units: seconds. Source: own choice: a small model on a GPU to a large one on a
/// CPU.
pub const TOKEN_BUCKETS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0];

/// Declares a program's metrics: each metric's doc comment is its help text, and the registry adds the prefix to its
/// name. The fields in braces are the program's own and have their default at first. `begin` is called with the value
/// zero everywhere.
#[macro_export]
macro_rules! metrics {
    (
        struct Metrics($prefix:literal) { $($field:ident: $type:ty),* }
        $($(#[doc = $help:literal])+ $metric:ident: $kind:ident = $make:ident($name:literal $(, $extra:expr)*);)*
    ) => {
        /// Every metric of the program except those of its server.
        #[derive(Debug)]
        pub struct Metrics {
            registry: prometheus::Registry,
            $($field: $type,)*
            $($(#[doc = $help])+ pub $metric: $kind,)*
        }

        impl Metrics {
            /// Returns metrics with the value zero.
            ///
            /// Panics: never; a test shows that the names are distinct and valid.
            pub fn new() -> Self {
                let registry = prometheus::Registry::new_custom(Some($prefix.to_owned()), None);
                let registry = registry.expect("the prefix is not empty");
                $(
                    let $metric = $crate::metrics::$make($name, concat!($($help),+).trim() $(, $extra)*);
                    registry.register(Box::new($metric.clone())).expect("metric names are distinct");
                )*
                let metrics = Self { registry, $($field: Default::default(),)* $($metric,)* };
                metrics.begin();
                metrics
            }

            /// Returns these metrics in Prometheus' text format.
            pub fn encode(&self) -> String {
                prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
            }
        }

        impl Default for Metrics {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}

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

/// Increases a counter to a value that another part counts. Two scrapes at once would add the same difference.
pub fn raise(counter: &IntCounter, value: u64) {
    counter.inc_by(value.saturating_sub(counter.get()));
}

/// Returns a histogram.
pub fn histogram(name: &str, help: &str, buckets: &[f64]) -> Histogram {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())).expect(VALID)
}

/// Returns histograms by labels.
pub fn histograms(name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
    HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels).expect(VALID)
}

/// Returns the metrics of a server in Prometheus' text format, under a program's prefix. Their values are kept where
/// they arise, and are read at each scrape.
pub fn server_text(prefix: &str, connections: &Connections, bodies: &BodyRoom, tracer: &Tracer) -> String {
    let mut text = String::new();
    let mut write = |kind: &str, name: &str, help: &str, value: u64| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {prefix}_{name} {help}\n# TYPE {prefix}_{name} {kind}\n{prefix}_{name} {value}");
    };
    let mut gauge = |name: &str, help: &str, value: usize| write("gauge", name, help, value as u64);
    gauge("connections", "Open connections of clients.", connections.n_open());
    gauge("body_bytes", "Memory of request bodies, from their arrival until they are dropped.", bodies.n_bytes());
    let mut counter = |name: &str, help: &str, value: u64| write("counter", name, help, value);
    counter(
        "refused_connections_total",
        "Connections of clients that were refused because there were too many, none of them silent.",
        connections.n_refused(),
    );
    counter(
        "displaced_connections_total",
        "Connections of silent clients that were closed to make room for others.",
        connections.n_displaced(),
    );
    counter(
        "log_lines_lost_total",
        "Lines of the log that could not be written or exceeded the buffer.",
        log::n_lost(),
    );
    counter(
        "trace_spans_dropped_total",
        "Spans of traces that were dropped because the collector was down or slow.",
        tracer.n_lost(),
    );
    text
}
