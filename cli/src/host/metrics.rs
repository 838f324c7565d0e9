//! Every metric of a host: its name, its kind, and its help text, which is the field's doc comment.
//!
//! The owner of the models counts events as they happen, and copies what has a value at any time at each scrape.

use prometheus::{Counter, Histogram, IntCounterVec, IntGaugeVec};
use warmpath_common::host::{HostSummary, ModelState};
use warmpath_host_core::swaps::{Cause, Ended, LoadTimes, WorkerMemory};
use warmpath_shell::metrics;

/// Buckets for loads and waits for them: 50 ms to an hour. Units: seconds. Source: own choice: from a made model in the
/// page cache to a download.
const LOAD_BUCKETS: &[f64] = &[0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

/// Every state of a model, so that each has its series.
const STATES: [&str; 6] = ["loaded", "loading", "unloading", "downloading", "loadable", "impossible"];

metrics! {
    struct Metrics("warmpath_host") {}

    /// Loads that have ended, by model and outcome: loaded or failed.
    loads: IntCounterVec = counters("loads_total", &["model", "outcome"]);
    /// Time of a load, from the start of its worker until it serves.
    load: Histogram = histogram("load_seconds", LOAD_BUCKETS);
    /// Times that the same loads were expected to take.
    predicted_load: Counter = total_seconds("predicted_load_seconds_total");
    /// Time from the first demand for a model, or the order to load it, until it is loaded.
    swap_wait: Histogram = histogram("swap_wait_seconds", LOAD_BUCKETS);
    /// Models that have left, by model and cause: swap (for another), idle, order, catalogue (it has changed) or crash.
    unloads: IntCounterVec = counters("unloads_total", &["model", "cause"]);
    /// Models by state: loaded, loading, unloading, downloading, loadable or impossible.
    models: IntGaugeVec = gauges("models", &["state"]);
    /// Memory that models may take, by device.
    budget: IntGaugeVec = gauges("memory_budget_bytes", &["device"]);
    /// Memory of the budget that no model with a worker is expected to take, by device.
    free: IntGaugeVec = gauges("memory_free_bytes", &["device"]);
    /// Memory that a model with a worker was projected to take, on all devices.
    projected: IntGaugeVec = gauges("memory_projected_bytes", &["model"]);
    /// The most memory of the machine that the process of a model with a worker took.
    measured: IntGaugeVec = gauges("memory_measured_bytes", &["model"]);
    /// Tokens whose KV state a model found on disk when it was loaded.
    kv_kept: IntCounterVec = counters("kv_kept_tokens_total", &["model"]);
    /// Prompt tokens that models reused from KV state on disk; without those of a worker's last moments.
    kv_reused: IntCounterVec = counters("kv_reused_tokens_total", &["model"]);
    /// The version, as a label.
    info: IntGaugeVec = gauges("info", &["version"]);
}

impl Metrics {
    fn begin(&self) {
        self.info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    }

    /// Counts a load that has succeeded.
    pub fn count_load(&self, model: &str, times: Option<LoadTimes>) {
        let Some(LoadTimes { load_ms, expected_ms, waited_ms }) = times else { return };
        let seconds = |ms: u64| ms as f64 / 1000.0;
        self.loads.with_label_values(&[model, "loaded"]).inc();
        self.load.observe(seconds(load_ms));
        self.predicted_load.inc_by(seconds(expected_ms));
        self.swap_wait.observe(seconds(waited_ms));
    }

    /// Counts a model that leaves.
    pub fn count_unload(&self, model: &str, cause: Cause) {
        let cause = match cause {
            Cause::Swap => "swap",
            Cause::Idle => "idle",
            Cause::Order => "order",
            Cause::Catalogue => "catalogue",
        };
        self.unloads.with_label_values(&[model, cause]).inc();
    }

    /// Counts a worker that has ended, unless it was asked to.
    pub fn count_end(&self, model: &str, ended: Ended) {
        match ended {
            Ended::Left => {}
            Ended::LoadFailed => self.loads.with_label_values(&[model, "failed"]).inc(),
            Ended::Crashed => self.unloads.with_label_values(&[model, "crash"]).inc(),
        }
    }

    /// Copies the state of the host.
    pub fn copy(&self, summary: &HostSummary, workers: Vec<WorkerMemory>) {
        let gauge = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        for name in STATES {
            let n = summary.models.iter().filter(|model| state_name(&model.state) == name).count();
            self.models.with_label_values(&[name]).set(n as i64);
        }
        for memory in &summary.memory {
            self.budget.with_label_values(&[&memory.device]).set(gauge(memory.budget_bytes));
            self.free.with_label_values(&[&memory.device]).set(gauge(memory.free_bytes));
        }
        // A model may have left since the last scrape.
        self.projected.reset();
        self.measured.reset();
        for WorkerMemory { model, projected, measured } in workers {
            self.projected.with_label_values(&[&model]).set(gauge(projected));
            self.measured.with_label_values(&[&model]).set(gauge(measured));
        }
    }
}

fn state_name(state: &ModelState) -> &'static str {
    match state {
        ModelState::Loaded { .. } => "loaded",
        ModelState::Loading { .. } => "loading",
        ModelState::Unloading { .. } => "unloading",
        ModelState::Downloading(_) => "downloading",
        ModelState::Loadable { .. } => "loadable",
        ModelState::Impossible { .. } => "impossible",
    }
}

#[cfg(test)]
mod tests {
    use warmpath_common::host::{HostMemory, HostModel, RAM};

    use super::*;

    #[test]
    fn a_scrape_has_what_has_happened_and_no_series_of_models_that_have_left() {
        let metrics = Metrics::new();
        metrics.count_load("a", Some(LoadTimes { load_ms: 2_000, expected_ms: 1_500, waited_ms: 2_500 }));
        metrics.count_load("a", None);
        metrics.count_end("a", Ended::Crashed);
        metrics.count_end("b", Ended::LoadFailed);
        metrics.count_end("b", Ended::Left);
        metrics.count_unload("a", Cause::Swap);
        let state = ModelState::Unloading { worker_url: String::new() };
        let memory = vec![HostMemory { device: RAM.to_owned(), budget_bytes: 9, free_bytes: 4 }];
        let summary = HostSummary { memory, models: vec![HostModel::new("a", state)], ..HostSummary::default() };
        metrics.copy(&summary, vec![WorkerMemory { model: "a".to_owned(), projected: 5, measured: 6 }]);
        let has = |line: &str| metrics.encode().lines().any(|found| found == format!("warmpath_host_{line}"));
        for line in [
            "loads_total{model=\"a\",outcome=\"loaded\"} 1",
            "loads_total{model=\"b\",outcome=\"failed\"} 1",
            "load_seconds_sum 2",
            "predicted_load_seconds_total 1.5",
            "swap_wait_seconds_sum 2.5",
            "unloads_total{cause=\"swap\",model=\"a\"} 1",
            "unloads_total{cause=\"crash\",model=\"a\"} 1",
            "models{state=\"unloading\"} 1",
            "models{state=\"loaded\"} 0",
            "memory_free_bytes{device=\"ram\"} 4",
            "memory_projected_bytes{model=\"a\"} 5",
            "memory_measured_bytes{model=\"a\"} 6",
        ] {
            assert!(has(line), "{line}: {}", metrics.encode());
        }
        metrics.copy(&summary, Vec::new());
        assert!(!metrics.encode().contains("memory_measured_bytes{"), "it has left");
    }
}
