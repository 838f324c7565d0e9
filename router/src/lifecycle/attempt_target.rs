//! The target of one attempt, and the predictions for it.

use warmpath_common::model::Fingerprint;
use warmpath_router_core::ledger::Decision;
use warmpath_shell::trace::Span;

use crate::decision_history::DecisionHandle;
use crate::fleet::InFlightGuard;

/// Target of an attempt, and the predictions for it.
pub(super) struct AttemptTarget {
    pub(super) decision: Decision,
    pub(super) in_flight: InFlightGuard,
    /// Its entry in the log of decisions.
    pub(super) note: DecisionHandle,
    /// Span of the attempt, which ends with its response.
    pub(super) span: Span,
    /// Prompt tokens; `None` if the prompt is not known.
    pub(super) prompt_tokens: Option<u32>,
    /// Predicted reuse; `None` if the prompt is not known.
    pub(super) predicted_cached_tokens: Option<u32>,
    /// Hint for the worker: a peer from which it can fetch state.
    pub(super) kv_peer: Option<String>,
    /// Longest match of any worker.
    pub(super) n_matched_blocks: u32,
    /// Whether the request has one prompt and one choice, so that actual reuse can be compared with the prediction.
    pub(super) has_one_prompt: bool,
    /// Fingerprint of the model for which the worker was chosen; `None` if any worker of the name will do.
    pub(super) model: Option<Fingerprint>,
    pub(super) block_size_tokens: u32,
}
