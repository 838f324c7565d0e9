//! The start-up self-test: measures on the loaded model which attention and which KV buffer are fastest, and the cost
//! of moving state.
//!
//! llama.cpp's fastest settings differ between machines and models by factors, and a second of measuring tells. The
//! setting that is expected to win goes first, and the others stop as soon as they are slower. The result is kept in a
//! file, because a machine does not change between starts.
//! Source: docs/decisions/0011-buffer-self-test.md.
//!
//! Not here: measuring one setting (`measure`), the cost by which settings are compared (`figures`).

mod figures;
mod measure;
mod remembered;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use llama_cpp_2::model::LlamaModel;
use tracing::{info, warn};
use warmpath_common::model::Fingerprint;

use super::config::{EngineConfig, SelfTest, Switch};
pub use figures::{Costs, Figures, SuffixRounding};
use remembered::{Key, Remembered};

/// Time for repeated measurements of the expected setting.
const EXPECTED_TIME: Duration = Duration::from_millis(400);

/// The same for each other one.
const OTHER_TIME: Duration = Duration::from_millis(200);

/// Longest wait of a worker for others on its machine that measure.
const TURN_WAIT_MAX: Duration = Duration::from_secs(60);

/// Share by which another setting must be cheaper than the expected one. Source: the noise of a machine with other
/// work.
const GAIN_MIN: f64 = 0.1;

/// Result of the self-test.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SelfTestReport {
    /// Whether flash attention is used.
    pub flash_attn: bool,
    /// Whether the slots share one KV buffer.
    pub kv_unified: bool,
    /// Origin of the figures.
    pub origin: Origin,
    /// Time of the measurement. Units: seconds.
    pub took_s: f64,
    /// Every setting that was tried.
    pub candidates: Vec<Candidate>,
    /// Cost of moving state in the chosen setting; `None` if nothing could be measured.
    pub costs: Option<Costs>,
}

/// Origin of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// This start measured them.
    Measured,
    /// An earlier start on this machine measured them.
    Remembered,
}

/// A setting that was tried.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Candidate {
    /// Whether flash attention was used.
    pub flash_attn: bool,
    /// Whether the slots shared one KV buffer.
    pub kv_unified: bool,
    /// Measurements.
    pub figures: Figures,
    /// Expected cost of a request, or a lower bound if measuring stopped early. Units: milliseconds.
    pub cost_ms: f64,
    /// How far the measurement came.
    pub outcome: Outcome,
    /// Cost of moving state; `None` if it was not measured.
    pub costs: Option<Costs>,
}

/// How far a measurement came.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything was measured.
    Whole,
    /// It was already more expensive than another.
    Behind,
    /// The machine did other work meanwhile.
    Disturbed,
    /// llama.cpp could not run it.
    Failed(String),
}

/// Returns the configuration with flash attention and buffer decided, and the result of the self-test if there was one.
pub(super) fn settle(
    model: &LlamaModel,
    config: &EngineConfig,
    model_fingerprint: Fingerprint,
) -> (EngineConfig, Option<SelfTestReport>) {
    let SelfTest::Run { cache } = &config.self_test else {
        return (with(config, (config.flash_attn_settled(), config.kv_unified_settled())), None);
    };
    let key = Key::of(model_fingerprint, config);
    let remembered = Remembered::new(cache.as_deref());
    let report = remembered.load(&key).unwrap_or_else(|| {
        // Another worker of this kind may have measured meanwhile.
        let turn = remembered.turn(TURN_WAIT_MAX);
        let found = turn.as_ref().and_then(|_| remembered.load(&key));
        found.unwrap_or_else(|| measure_and_keep((model, config), &remembered, &key))
    });
    tell(&report);
    (with(config, (report.flash_attn, report.kv_unified)), Some(report))
}

fn measure_and_keep(
    (model, config): (&LlamaModel, &EngineConfig),
    remembered: &Remembered,
    key: &Key,
) -> SelfTestReport {
    let report = run(model, config);
    if !report.is_calm() {
        warn!("the machine is busy: nothing is concluded from the self-test, and the next start measures again");
    } else if report.costs.is_none() {
        warn!("the self-test could not measure the chosen setting; the next start measures again");
    } else if let Err(error) = remembered.store(key, &report) {
        warn!(%error, "the self-test's result is not kept; the next start measures again");
    }
    report
}

/// Measures every setting that the configuration leaves open.
fn run(model: &LlamaModel, config: &EngineConfig) -> SelfTestReport {
    let began = Instant::now();
    let settings = settings(config);
    let mut candidates: Vec<Candidate> = Vec::new();
    for &setting in &settings {
        let best = candidates.iter().filter(|tried| tried.outcome == Outcome::Whole).map(|tried| tried.cost_ms);
        let limit_ms = best.fold(f64::MAX, f64::min);
        let time = if candidates.is_empty() { EXPECTED_TIME } else { OTHER_TIME };
        candidates.push(measure::measure(model, &with(config, setting), limit(limit_ms, time)));
        if !are_calm(&candidates) {
            break;
        }
    }
    let mut best = choose(&candidates);
    if best != 0 {
        // The first was measured cold: it gets a second chance.
        let again = measure::measure(model, &with(config, settings[0]), limit(f64::MAX, EXPECTED_TIME));
        candidates[0].keep_better(again);
        best = choose(&candidates);
    }
    SelfTestReport {
        flash_attn: candidates[best].flash_attn,
        kv_unified: candidates[best].kv_unified,
        origin: Origin::Measured,
        took_s: began.elapsed().as_secs_f64(),
        costs: candidates[best].costs,
        candidates,
    }
}

fn limit(cost_ms: f64, time: Duration) -> measure::Limit {
    measure::Limit { cost_ms, until: Instant::now() + time }
}

/// Returns the settings that are left open, as flash attention and buffer; the one expected to be best comes first.
fn settings(config: &EngineConfig) -> Vec<(bool, bool)> {
    let expected = (config.flash_attn_settled(), config.kv_unified_settled());
    let open = |switch: Switch, expected: bool| match switch {
        Switch::Auto => vec![expected, !expected],
        Switch::On | Switch::Off => vec![expected],
    };
    let flash_attn = match config.cache_type_v.is_quantized() {
        true => vec![expected.0],
        false => open(config.flash_attn, expected.0),
    };
    // A single slot has the buffer to itself in any case.
    let kv_unified = if config.n_slots == 1 { vec![expected.1] } else { open(config.kv_unified, expected.1) };
    flash_attn.iter().flat_map(|&flash_attn| kv_unified.iter().map(move |&unified| (flash_attn, unified))).collect()
}

/// Returns the index of the cheapest setting; the first, unless another is clearly cheaper on a quiet machine.
fn choose(candidates: &[Candidate]) -> usize {
    let whole = |&idx: &usize| candidates[idx].outcome == Outcome::Whole;
    let cost = |idx: usize| candidates[idx].cost_ms;
    let best = (0..candidates.len()).filter(whole).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
    let is_better = |&best: &usize| !whole(&0) || cost(best) < (1.0 - GAIN_MIN) * cost(0);
    best.filter(|_| are_calm(candidates)).filter(is_better).unwrap_or(0)
}

fn with(config: &EngineConfig, (flash_attn, kv_unified): (bool, bool)) -> EngineConfig {
    let switch = |on: bool| if on { Switch::On } else { Switch::Off };
    EngineConfig { flash_attn: switch(flash_attn), kv_unified: switch(kv_unified), ..config.clone() }
}

fn are_calm(candidates: &[Candidate]) -> bool {
    candidates.iter().all(|tried| tried.outcome != Outcome::Disturbed)
}

impl SelfTestReport {
    /// Returns whether the machine did no other work during the self-test.
    pub fn is_calm(&self) -> bool {
        are_calm(&self.candidates)
    }

    /// Returns the measurements of the chosen setting.
    pub fn chosen(&self) -> Option<&Candidate> {
        let setting = (self.flash_attn, self.kv_unified);
        self.candidates.iter().find(|tried| (tried.flash_attn, tried.kv_unified) == setting)
    }
}

impl Candidate {
    /// Replaces the measurement by another one of the same setting if that is cheaper.
    fn keep_better(&mut self, again: Self) {
        let was_whole = self.outcome == Outcome::Whole;
        if again.outcome == Outcome::Whole && (!was_whole || again.cost_ms < self.cost_ms) {
            *self = again;
        }
    }
}

fn tell(report: &SelfTestReport) {
    for candidate in &report.candidates {
        let Figures { decode_one_ms, decode_all_ms, ref decode_some_ms, suffix_ms, cold_ms, .. } = candidate.figures;
        info!(
            flash_attn = candidate.flash_attn,
            kv_unified = candidate.kv_unified,
            decode_one_ms,
            decode_all_ms,
            ?decode_some_ms,
            suffix_ms,
            cold_ms,
            cost_ms = candidate.cost_ms,
            outcome = ?candidate.outcome,
            "self-test: tried"
        );
    }
    info!(
        flash_attn = report.flash_attn,
        kv_unified = report.kv_unified,
        origin = ?report.origin,
        took_s = report.took_s,
        costs = ?report.costs,
        "self-test: chosen"
    );
}
