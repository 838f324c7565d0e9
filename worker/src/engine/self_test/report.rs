//! The result of a self-test: every setting that was tried, and the chosen one.
//!
//! Not here: the measurements of a setting (`measurements`), the file that keeps results (`result_file`).

use super::measurements::{Figures, StateCosts};
use crate::engine::config::CacheType;

/// Settings that the self-test compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ContextSetting {
    /// Whether flash attention is used.
    pub flash_attn: bool,
    /// Whether the slots share one KV buffer.
    pub kv_unified: bool,
    /// Type of the keys.
    pub cache_type_k: CacheType,
    /// Type of the values.
    pub cache_type_v: CacheType,
}

/// Result of the self-test.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SelfTestReport {
    /// Chosen setting.
    #[serde(flatten)]
    pub setting: ContextSetting,
    /// Origin of the figures.
    pub origin: FiguresOrigin,
    /// Time of the measurement. Units: seconds.
    pub took_s: f64,
    /// Every setting that was tried.
    pub candidates: Vec<TriedSetting>,
    /// Cost of moving state in the chosen setting; `None` if nothing could be measured.
    pub costs: Option<StateCosts>,
}

/// Origin of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FiguresOrigin {
    /// This start measured them.
    Measured,
    /// An earlier start on this machine measured them.
    Remembered,
}

/// A setting that was tried.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TriedSetting {
    /// The setting.
    #[serde(flatten)]
    pub setting: ContextSetting,
    /// Measurements.
    pub figures: Figures,
    /// Expected cost of a request, or a lower bound if measuring stopped early. Units: milliseconds.
    pub cost_ms: f64,
    /// Outcome of the measurement.
    pub outcome: MeasureOutcome,
    /// Cost of moving state; `None` if it was not measured.
    pub costs: Option<StateCosts>,
}

/// Outcome of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasureOutcome {
    /// Everything was measured.
    Whole,
    /// Measuring stopped because the setting was already more expensive than another one.
    Behind,
    /// The machine did other work at the same time, or got some.
    Disturbed,
    /// llama.cpp could not run it.
    Failed(String),
}

/// Returns whether the machine did no other work during these measurements.
pub(super) fn are_calm(candidates: &[TriedSetting]) -> bool {
    candidates.iter().all(|candidate| candidate.outcome != MeasureOutcome::Disturbed)
}

impl SelfTestReport {
    /// Returns whether the machine did no other work during the self-test.
    pub fn is_calm(&self) -> bool {
        are_calm(&self.candidates)
    }

    /// Returns the report with another setting as the chosen one; `None` if that was not measured completely.
    pub(super) fn of_setting(self, setting: ContextSetting) -> Option<Self> {
        let is_it =
            |candidate: &&TriedSetting| candidate.setting == setting && candidate.outcome == MeasureOutcome::Whole;
        let costs = self.candidates.iter().find(is_it)?.costs;
        Some(Self { setting, costs, ..self })
    }

    /// Returns the measurements of the chosen setting.
    pub fn chosen(&self) -> Option<&TriedSetting> {
        self.candidates.iter().find(|candidate| candidate.setting == self.setting)
    }
}

impl TriedSetting {
    /// Replaces the measurement by another one of the same setting if that is cheaper.
    pub(super) fn keep_better(&mut self, again: Self) {
        let was_whole = self.outcome == MeasureOutcome::Whole;
        if again.outcome == MeasureOutcome::Whole && (!was_whole || again.cost_ms < self.cost_ms) {
            *self = again;
        }
    }
}
