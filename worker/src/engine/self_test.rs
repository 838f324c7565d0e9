//! The start-up self-test: measures the fastest attention, KV buffer and, with type `auto`, number type of the KV cache
//! for the loaded model, and the cost of moving state.
//!
//! The speeds of llama.cpp's settings differ by factors between machines and models, so they are measured for a second.
//! The setting that is expected to win is measured first; measuring another one stops once it is slower. The result is
//! kept in a file, because a machine rarely changes between starts.
//! Source: docs/decisions/0011-buffer-self-test.md.
//!
//! A busy machine gives no result; then the usual setting is used, and `retry` measures again once the machine is calm.
//! A worker that starts within the next minutes does not try before.
//!
//! Not here: measuring one setting (`measure`), the cost by which settings are compared (`measurements`).

mod measure;
mod measurements;
mod other_work;
pub(crate) mod report;
mod result_file;
mod retry;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use llama_cpp_2::model::LlamaModel;
use tracing::{info, warn};
use warmpath_common::model::Fingerprint;

use super::config::{CacheType, EngineConfig, SelfTest, ShiftConfig, Switch};
use crate::backends;
pub use measurements::{Figures, StateCosts, SuffixRounding};
use report::are_calm;
pub use report::{ContextSetting, FiguresOrigin, MeasureOutcome, SelfTestReport, TriedSetting};
use result_file::{Remembered, ResultKey};
pub(super) use retry::Retry;

/// Time for repeated measurements of the expected setting. Source: all settings together take a second.
const EXPECTED_TIME: Duration = Duration::from_millis(400);

/// Time for repeated measurements of each other setting. Source: as above.
const OTHER_TIME: Duration = Duration::from_millis(200);

/// Longest wait for the self-tests of other workers on the machine. Source: each takes about a second, so this is
/// enough for all workers of a large machine.
const TURN_WAIT_MAX: Duration = Duration::from_secs(60);

/// Share by which another setting must be cheaper than the expected one. Source: repeated measurements on a calm
/// machine vary by 1 or 2 %.
const GAIN_MIN: f64 = 0.03;

/// Processor feature with which bf16 is multiplied natively, as llama.cpp names it.
const BF16_FEATURE: &str = "AVX512_BF16 = 1";

/// Processor support for products of bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bf16 {
    /// Native instructions.
    Native,
    /// Conversion to another type.
    Converted,
}

impl Bf16 {
    fn of_this_machine() -> Self {
        if backends::cpu_features().contains(BF16_FEATURE) { Self::Native } else { Self::Converted }
    }
}

/// A configuration with the compared settings decided.
pub(super) struct DecidedSettings {
    pub config: EngineConfig,
    /// Result of the self-test; `None` if there was none.
    pub report: Option<SelfTestReport>,
    /// Self-test to repeat; `None` unless the machine was busy.
    pub retry: Option<Retry>,
}

/// Decides the compared settings.
pub(super) fn decide(model: &LlamaModel, config: &EngineConfig, model_fingerprint: Fingerprint) -> DecidedSettings {
    let SelfTest::Run { cache } = &config.self_test else {
        return DecidedSettings { config: with(config, expected(config)), report: None, retry: None };
    };
    let key = ResultKey::of(model_fingerprint, config);
    let result_file = Remembered::new(cache.as_deref());
    let report = result_file.load(&key).unwrap_or_else(|| {
        // Another worker with the same settings may have measured in the meantime.
        let turn = result_file.turn(TURN_WAIT_MAX);
        let report_found = turn.as_ref().and_then(|_| result_file.load(&key));
        report_found.unwrap_or_else(|| measure_and_keep(model, config, &result_file, &key, &|| false))
    });
    log_report(&report);
    let decided_config = with(config, report.setting);
    let retry = (!report.is_calm()).then(|| {
        info!("the machine is busy: the self-test has no result, and is repeated once the machine is calm");
        Retry::new(config, &decided_config, result_file, key)
    });
    DecidedSettings { config: decided_config, report: Some(report), retry }
}

fn measure_and_keep(
    model: &LlamaModel,
    config: &EngineConfig,
    result_file: &Remembered,
    key: &ResultKey,
    is_needed: &dyn Fn() -> bool,
) -> SelfTestReport {
    let report = run(model, config, is_needed);
    if report.is_calm() && report.costs.is_none() {
        warn!("the self-test could not measure the chosen setting; the next start measures again");
    } else if let Err(error) = result_file.store(key, &report) {
        warn!(%error, "the self-test's result cannot be stored; the next start measures again");
    }
    report
}

/// Measures every setting that the configuration does not fix.
fn run(model: &LlamaModel, config: &EngineConfig, is_needed: &dyn Fn() -> bool) -> SelfTestReport {
    let began = Instant::now();
    let settings = settings(config, Bf16::of_this_machine());
    let mut candidates: Vec<TriedSetting> = Vec::new();
    for &setting in &settings {
        let best = candidates
            .iter()
            .filter(|candidate| candidate.outcome == MeasureOutcome::Whole)
            .map(|candidate| candidate.cost_ms);
        let limit_ms = best.fold(f64::MAX, f64::min);
        let time = if candidates.is_empty() { EXPECTED_TIME } else { OTHER_TIME };
        candidates.push(measure::measure(model, &with(config, setting), limit(limit_ms, time, is_needed)));
        if !are_calm(&candidates) {
            break;
        }
    }
    let mut best = choose(&candidates);
    if best != 0 {
        // The first setting was measured with cold caches, so it is measured again.
        let again = measure::measure(model, &with(config, settings[0]), limit(f64::MAX, EXPECTED_TIME, is_needed));
        candidates[0].keep_better(again);
        best = choose(&candidates);
    }
    SelfTestReport {
        setting: candidates[best].setting,
        origin: FiguresOrigin::Measured,
        took_s: began.elapsed().as_secs_f64(),
        costs: candidates[best].costs,
        candidates,
    }
}

fn limit(cost_ms: f64, time: Duration, is_needed: &dyn Fn() -> bool) -> measure::Limit<'_> {
    measure::Limit { cost_ms, until: Instant::now() + time, is_needed }
}

/// Returns the setting that is used without a measurement.
fn expected(config: &EngineConfig) -> ContextSetting {
    ContextSetting {
        flash_attn: config.uses_flash_attn(),
        kv_unified: config.uses_unified_kv(),
        cache_type_k: config.cache_type_k.without_auto(),
        cache_type_v: config.cache_type_v.without_auto(),
    }
}

/// Returns the settings to compare; the one expected to be best comes first.
fn settings(config: &EngineConfig, bf16: Bf16) -> Vec<ContextSetting> {
    let first = expected(config);
    let possible_values = |switch: Switch, expected: bool| match switch {
        Switch::Auto => vec![expected, !expected],
        Switch::On | Switch::Off => vec![expected],
    };
    let flash_attn = match config.cache_type_v.is_quantized() {
        true => vec![first.flash_attn],
        false => possible_values(config.flash_attn, first.flash_attn),
    };
    // With a single slot, both kinds of buffer are the same.
    let kv_unified = match config.n_slots {
        1 => vec![first.kv_unified],
        _ => possible_values(config.kv_unified, first.kv_unified),
    };
    let mut settings = Vec::new();
    for types in cache_types(config, bf16) {
        for &flash_attn in &flash_attn {
            let of =
                |&kv_unified| ContextSetting { flash_attn, kv_unified, cache_type_k: types.0, cache_type_v: types.1 };
            settings.extend(kv_unified.iter().map(of));
        }
    }
    settings
}

/// Returns the types of keys and values to compare. Keys cannot be bf16 if they may be shifted.
fn cache_types(config: &EngineConfig, bf16: Bf16) -> Vec<(CacheType, CacheType)> {
    let (k, v) = (config.cache_type_k, config.cache_type_v);
    let is_open = [k, v].contains(&CacheType::Auto);
    let may_be_bf16 =
        bf16 == Bf16::Native && !config.placement.is_offloaded() && config.shifts == ShiftConfig::default();
    let other = |kind: CacheType| if kind == CacheType::Auto { CacheType::Bf16 } else { kind };
    let mut types = vec![(k.without_auto(), v.without_auto())];
    types.extend((is_open && may_be_bf16).then(|| (other(k), other(v))));
    types
}

/// Returns the index of the setting to use: the first one, unless another one is clearly cheaper on a quiet machine.
fn choose(candidates: &[TriedSetting]) -> usize {
    let is_whole = |&idx: &usize| candidates[idx].outcome == MeasureOutcome::Whole;
    let cost = |idx: usize| candidates[idx].cost_ms;
    let best = (0..candidates.len()).filter(is_whole).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
    let is_better = |&best: &usize| !is_whole(&0) || cost(best) < (1.0 - GAIN_MIN) * cost(0);
    best.filter(|_| are_calm(candidates)).filter(is_better).unwrap_or(0)
}

fn with(config: &EngineConfig, setting: ContextSetting) -> EngineConfig {
    let switch = |on: bool| if on { Switch::On } else { Switch::Off };
    let ContextSetting { flash_attn, kv_unified, cache_type_k, cache_type_v } = setting;
    EngineConfig {
        flash_attn: switch(flash_attn),
        kv_unified: switch(kv_unified),
        cache_type_k,
        cache_type_v,
        ..config.clone()
    }
}

fn log_report(report: &SelfTestReport) {
    for candidate in &report.candidates {
        let Figures { decode_one_ms, decode_all_ms, ref decode_some_ms, suffix_ms, cold_ms, .. } = candidate.figures;
        info!(
            setting = ?candidate.setting,
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
        setting = ?report.setting,
        origin = ?report.origin,
        took_s = report.took_s,
        costs = ?report.costs,
        "self-test: chosen"
    );
}
