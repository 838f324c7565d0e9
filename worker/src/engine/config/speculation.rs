//! Settings of speculative decoding.
//!
//! Not here: flags (`crate::config::speculation`), its use (`output::speculation`).

use warmpath_prompt::MediaRun;
use warmpath_worker_core::drafting::{DraftLimits, Drafter, ForcedDrafts};

use crate::engine::api::Submission;

/// Rejected tokens by which recurrent state can be rolled back, and so the longest draft of such a model.
///
/// Source: own choice: each token takes the memory of one more state for every slot, and llama.cpp copies the states of
/// convolutions once more in every step.
const ROLLBACK_TOKENS: u32 = 7;

/// Settings of speculative decoding.
#[derive(Debug, Clone, Copy)]
pub struct SpeculationConfig {
    /// Limits of a draft.
    pub limits: DraftLimits,
    /// Origin of the costs of drafts.
    pub costs: DraftCosts,
    /// Minimum probability of a token that a draft model or draft heads draft.
    pub p_min: f32,
    /// Use of the model's draft heads.
    pub heads: HeadUse,
    /// Drafts that replace all others; `None` unless a test sets them.
    pub forced: Option<ForcedDrafts>,
}

/// Use of a model's draft heads (multi-token prediction).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeadUse {
    /// They are not loaded.
    #[default]
    Off,
    /// They draft if the model has them and there is no draft model.
    IfPresent,
    /// They draft, and a model without them is refused.
    Required,
}

/// Origin of the costs of drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DraftCosts {
    /// Measured by the self-test; without a self-test, default values.
    #[default]
    Measured,
    /// Fixed values of a GPU with a small draft model, for tests that need drafts on every machine.
    LikeGpu,
}

impl Default for SpeculationConfig {
    fn default() -> Self {
        // A longest draft and the token before it are the longest step that the self-test measures.
        Self {
            limits: DraftLimits { n_max: 31, n_min: 0 },
            costs: DraftCosts::Measured,
            p_min: 0.0,
            heads: HeadUse::default(),
            forced: None,
        }
    }
}

impl SpeculationConfig {
    /// Returns the number of rejected tokens by which recurrent state must be rolled back at most.
    pub(crate) fn rollback_tokens(&self) -> u32 {
        u32::try_from(self.limits.n_max).unwrap_or(u32::MAX).min(ROLLBACK_TOKENS)
    }

    /// Returns the drafter of a submission's response; `None` if the submission turns drafts off.
    pub(crate) fn drafter(self, submission: &Submission) -> Option<Drafter> {
        let options = &submission.generation.drafts;
        let n_max = options.n_max.map_or(self.limits.n_max, |n_max| self.limits.n_max.min(n_max as usize));
        let n_min = options.n_min.map_or(self.limits.n_min, |n_min| n_min as usize);
        // Responses have no media tokens.
        let text_start = submission.runs.last().map_or(0, MediaRun::end);
        let text = &submission.prompt[text_start as usize..];
        let drafter = Drafter::new(text, &options.predicted, DraftLimits { n_max, n_min });
        let drafter = match self.forced {
            Some(forced_draft) => drafter.forced(forced_draft, &submission.prompt),
            None => drafter,
        };
        (n_max > 0).then_some(drafter)
    }
}
