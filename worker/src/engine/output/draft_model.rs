//! The draft model: a second, smaller model whose most likely tokens are the drafts of sequences.
//!
//! Its context has a sequence for each slot. One call first computes the tokens that some of these sequences lack, up
//! to a micro-batch, and then makes drafts for all sequences that are complete. Its state is never stored, shared or
//! announced, so an error in it makes drafts worse but changes no response. State that is not finite would also spoil
//! the drafts of later sequences in its cells, so it is removed.
//!
//! Not here: whether a draft pays (`warmpath_worker_core::drafting`), its verification (`speculation`).

use std::cell::OnceCell;

use llama_cpp_2::DecodeError;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use tracing::{info, warn};
use warmpath_common::ids::{SlotId, Token};
use warmpath_worker_core::drafting::draft_model::{
    Distance, DraftModelCosts, DraftStateOwner, DraftStateTokens, DraftTarget,
};
use warmpath_worker_core::drafting::lengths::MakingTimes;
use warmpath_worker_core::drafting::step_costs::StepCosts;
use warmpath_worker_core::slots::slot_table::{Slot, SlotTable};

use crate::engine::api::facts::EngineFacts;
use crate::engine::config::speculation::DraftCosts;
use crate::engine::config::{EngineConfig, SelfTest, StartError};
use crate::engine::llama::{self, Llama, Logits};
use crate::engine::sequence::Sequence;

/// Largest difference between the sizes of the two vocabularies, for padding. Source: llama.cpp's
/// `SPEC_VOCAB_MAX_SIZE_DIFFERENCE`.
const PADDING_TOKENS_MAX: u32 = 128;

/// First token whose text is compared; the tokens before it are control tokens. Source: llama.cpp's
/// `SPEC_VOCAB_CHECK_START_TOKEN_ID`.
const FIRST_COMPARED_TOKEN: i32 = 5;

/// Assumed time of a draft model's pass on a GPU, as a share of the served model's. Source: typical draft models have a
/// twentieth of the weights, and reading the weights takes most of a pass.
const SHARE_LIKE_GPU: f64 = 0.05;

/// A draft model and the tokens in its sequences.
pub(crate) struct DraftModel<'m> {
    llama: Llama<'m>,
    followed_tokens: Vec<DraftStateTokens>,
    /// For each slot the last sequence, by its order, for which the model failed; it gets no more drafts of it.
    failed: Vec<Option<u64>>,
    /// Longest sequence.
    context_tokens: u32,
    /// Number of tokens that both vocabularies have.
    n_vocab: usize,
    /// Maximum number of tokens per pass.
    pass_tokens: u32,
    p_min: f32,
    costs: DraftModelCosts,
}

/// A sequence that the draft model can draft for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Following {
    owner: DraftStateOwner,
    /// Order of the sequence.
    order: u64,
    next: Token,
    n_tokens: u32,
    n_missing: u32,
    /// Maximum length of a draft.
    pub(crate) n_max: usize,
}

/// A draft to make, or only the preparation for one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedDraft {
    slot: SlotId,
    following: Following,
    n_tokens: usize,
}

/// A draft in progress.
struct Making {
    slot: SlotId,
    /// Number of tokens in the draft model before this draft.
    n_kept: usize,
    n_tokens: usize,
    /// Row of the logits for its next token; `None` if it gets no more tokens.
    row: Option<i32>,
    tokens: Vec<Token>,
}

/// Reason why a pass gives no tokens.
#[derive(Debug, thiserror::Error)]
enum PassError {
    /// llama.cpp failed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Logits come from state that is not finite.
    #[error("its logits are not finite")]
    NotFinite,
}

/// Checks that the vocabularies of a draft model and the served model are compatible.
///
/// Errors: the difference. Source: llama.cpp's `common_speculative_are_compatible`.
fn check_vocabulary(served_model: &LlamaModel, draft: &LlamaModel) -> Result<(), String> {
    let (served_model, draft) = (served_model.vocab(), draft.vocab());
    if served_model.vocab_type() != draft.vocab_type() {
        return Err(format!(
            "its vocabulary type is {:?}, and that of the model {:?}",
            draft.vocab_type(),
            served_model.vocab_type()
        ));
    }
    for (name, of_served, of_draft) in [
        (
            "begin",
            served_model.should_add_bos().then(|| served_model.bos()),
            draft.should_add_bos().then(|| draft.bos()),
        ),
        ("end", served_model.should_add_eos().then(|| served_model.eos()), draft.should_add_eos().then(|| draft.eos())),
    ] {
        if of_served != of_draft {
            return Err(format!("the token with which its texts {name} differs from the model's"));
        }
    }
    let (n_served, n_draft) = (served_model.n_tokens().unsigned_abs(), draft.n_tokens().unsigned_abs());
    if n_served.abs_diff(n_draft) > PADDING_TOKENS_MAX {
        return Err(format!("its vocabulary has {n_draft} tokens, and that of the model {n_served}"));
    }
    let differs = |token: &i32| served_model.text(LlamaToken(*token)) != draft.text(LlamaToken(*token));
    let n_both = i32::try_from(n_served.min(n_draft)).unwrap_or(i32::MAX);
    match (FIRST_COMPARED_TOKEN..n_both).find(differs) {
        Some(token) => Err(format!("its token {token} differs from the model's")),
        None => Ok(()),
    }
}

impl<'m> DraftModel<'m> {
    /// Loads the draft model of a configuration into `place` and creates its context; `None` if none is configured or
    /// drafting is off.
    ///
    /// The context of the served model, `llama`, exists already and is empty, so the draft model's layers are placed in
    /// the remaining memory of the devices.
    /// Errors: `DraftModel` if the vocabularies are incompatible or its memory cannot be rewound, and the errors of
    /// loading a model and creating a context.
    pub(crate) fn open(
        place: &'m OnceCell<LlamaModel>,
        served_model: &LlamaModel,
        llama: &mut Llama<'_>,
        config: &EngineConfig,
        facts: &EngineFacts,
    ) -> Result<Option<Self>, StartError> {
        let Some(draft) = config.draft_model.as_ref().filter(|_| facts.drafted_max > 0) else { return Ok(None) };
        let own_config = llama::offload::with_devices(config.with_draft_model(draft, facts.context_tokens))?;
        let refuse = |reason: String| StartError::DraftModel { path: own_config.model.clone(), reason };
        let loaded_model = llama::load(&own_config, Box::new(|_| true))?;
        check_vocabulary(served_model, &loaded_model).map_err(refuse)?;
        let model = place.get_or_init(|| loaded_model);
        let mut draft_llama = Llama::open(model, &own_config)?;
        let memory = draft_llama.probe_memory(model).map_err(refuse)?;
        if !memory.rewinds_anywhere() {
            return Err(refuse("its memory cannot be rewound, and rejected tokens must be removed from it".to_owned()));
        }
        let costs = share(&mut draft_llama, llama, config);
        // Reading the weights takes most of a pass.
        let share = costs.unwrap_or(model.size() as f64 / served_model.size().max(1) as f64);
        let context_tokens = draft_llama.slot_tokens(model, &own_config);
        let path = own_config.model.display();
        info!(model = %path, share, context_tokens, "draft model: time of a pass as a share of the model's");
        Ok(Some(Self {
            pass_tokens: draft_llama.batch_limits().1,
            llama: draft_llama.with_fewer_threads_where_busy(&own_config),
            followed_tokens: vec![DraftStateTokens::default(); usize::from(config.n_slots)],
            failed: vec![None; usize::from(config.n_slots)],
            context_tokens,
            n_vocab: model.n_vocab().min(served_model.n_vocab()).unsigned_abs() as usize,
            p_min: draft.p_min,
            costs: DraftModelCosts { share },
        }))
    }
}

/// Returns the measured time of a draft model's pass as a share of the served model's; `None` without a measurement.
fn share(draft: &mut Llama<'_>, target: &mut Llama<'_>, config: &EngineConfig) -> Option<f64> {
    let costs = config.speculation.map(|speculation| speculation.costs).unwrap_or_default();
    match (costs, &config.self_test) {
        (DraftCosts::LikeGpu, _) => Some(SHARE_LIKE_GPU),
        (DraftCosts::Measured, SelfTest::Skip) => None,
        (DraftCosts::Measured, SelfTest::Run { .. }) => {
            draft.one_token_ms().zip(target.one_token_ms()).map(|(draft, target)| draft / target)
        }
    }
}

impl WantedDraft {
    /// Returns whether the draft gets tokens in this call.
    pub(crate) fn is_made(self) -> bool {
        self.n_tokens > 0
    }
}

impl Following {
    fn target<'a>(&self, contents: &'a Slot) -> DraftTarget<'a> {
        DraftTarget { owner: self.owner, tokens: contents.tokens(), next: self.next }
    }
}

impl DraftModel<'_> {
    /// Returns the sequence in a slot if the draft model can draft for it; `None` if the sequence has no next token,
    /// does not fit into the draft model's context, or is one for which the draft model has failed.
    pub(crate) fn following(&self, sequence: &Sequence, slot: SlotId, contents: &Slot) -> Option<Following> {
        let next = sequence.next_token()?;
        if self.failed[usize::from(slot.0)] == Some(sequence.order) {
            return None;
        }
        let lent = contents.root().filter(|_| contents.lends());
        let owner = lent.map_or(DraftStateOwner::Sequence(sequence.order), |root| DraftStateOwner::Root(*root));
        let n_tokens = u32::try_from(contents.tokens().len() + 1).ok()?;
        // The draft model does not compute the last token of a draft.
        let n_max = (self.context_tokens + 1).checked_sub(n_tokens).filter(|n_max| *n_max > 0)? as usize;
        let following = Following { owner, order: sequence.order, next, n_tokens, n_missing: 0, n_max };
        let n_common = self.followed_tokens[usize::from(slot.0)].n_common(&following.target(contents));
        Some(Following { n_missing: n_tokens - u32::try_from(n_common).unwrap_or(n_tokens), ..following })
    }

    /// Returns the time of making a draft for a sequence.
    pub(crate) fn times(&self, following: &Following, costs: &StepCosts) -> MakingTimes {
        self.costs.times(costs, following.n_tokens, following.n_missing)
    }

    /// Returns a draft of `n_tokens`, or only its preparation if the draft model lacks too many of the sequence's
    /// tokens; `None` if the preparation is not worth its time.
    pub(crate) fn wanted(
        &self,
        slot: SlotId,
        following: Following,
        n_tokens: usize,
        rest_tokens: usize,
        costs: &StepCosts,
    ) -> Option<WantedDraft> {
        match self.costs.distance(costs, following.n_tokens, following.n_missing, rest_tokens) {
            Distance::Near => Some(WantedDraft { slot, following, n_tokens }),
            Distance::Far => Some(WantedDraft { slot, following, n_tokens: 0 }),
            Distance::TooFar => None,
        }
    }

    /// Makes drafts, in the order of `wanted_drafts`; returns the tokens of each, `None` if the draft model failed for
    /// it.
    ///
    /// The missing tokens of a sequence are computed up to the room of the first pass; if some are still missing, there
    /// is no draft. llama.cpp fails for a whole batch, for example because the draft model lacks a token of one
    /// sequence. So each draft is then made alone, and only the sequence that fails alone gets no more drafts.
    pub(crate) fn make(&mut self, wanted_drafts: &[WantedDraft], table: &SlotTable) -> Vec<Option<Vec<Token>>> {
        self.llama.reset_batch();
        let mut tokens_left = self.pass_tokens as usize;
        let mut making: Vec<Making> =
            wanted_drafts.iter().map(|draft| self.follow(draft, table, &mut tokens_left)).collect();
        let Err(cause) = self.run_passes(&mut making) else {
            return making.into_iter().map(|making| Some(making.tokens)).collect();
        };
        match &cause {
            PassError::NotFinite => self.clear(),
            PassError::Decode(_) => {
                for (draft, making) in wanted_drafts.iter().zip(&making) {
                    self.cut_back(draft.slot, draft.following.owner, making.n_kept);
                }
            }
        }
        let [failed] = wanted_drafts else {
            return wanted_drafts.iter().flat_map(|draft| self.make(std::slice::from_ref(draft), table)).collect();
        };
        warn!(slot = %failed.slot, %cause, "the draft model failed for a sequence, which continues without it");
        self.failed[usize::from(failed.slot.0)] = Some(failed.following.order);
        vec![None]
    }

    /// Computes the batch, and then one pass for each further token of the drafts.
    ///
    /// Errors: every [`PassError`].
    fn run_passes(&mut self, making: &mut [Making]) -> Result<(), PassError> {
        // Each pass extends every draft in progress by one token.
        while self.llama.n_pushed() > 0 {
            self.llama.decode()?;
            if !making.iter().filter_map(|making| making.row).all(|row| self.llama.is_state_finite(row)) {
                return Err(PassError::NotFinite);
            }
            let tokens: Vec<_> = making.iter().map(|making| self.likeliest(making.row?)).collect();
            self.llama.reset_batch();
            for (making, token) in making.iter_mut().zip(tokens) {
                making.row = None;
                let Some(token) = token else { continue };
                making.tokens.push(token);
                if making.tokens.len() < making.n_tokens {
                    making.row = Some(self.push(making.slot, token, Logits::Wanted));
                }
            }
        }
        Ok(())
    }

    /// Removes the state of all sequences.
    pub(crate) fn clear(&mut self) {
        self.llama.clear_all();
        self.followed_tokens.fill(DraftStateTokens::default());
    }

    /// Puts the sequence's tokens that the draft model lacks into the batch, at most `tokens_left`.
    fn follow(&mut self, draft: &WantedDraft, table: &SlotTable, tokens_left: &mut usize) -> Making {
        let WantedDraft { slot, following, n_tokens } = *draft;
        let target = following.target(table.slot(slot));
        let n_kept = self.cut(slot, &target);
        let n_missing = target.n_tokens() - n_kept;
        let n_computed = n_missing.min(*tokens_left);
        *tokens_left -= n_computed;
        let is_drafted = n_computed == n_missing && n_tokens > 0;
        let mut row = None;
        for (n, token) in (1..=n_computed).zip(target.tokens_from(n_kept)) {
            let is_last = is_drafted && n == n_computed;
            let push_result = self.push(slot, token, if is_last { Logits::Wanted } else { Logits::Unwanted });
            row = is_last.then_some(push_result);
        }
        Making { slot, n_kept, n_tokens, row, tokens: Vec::new() }
    }

    /// Removes a sequence's tokens that differ from the target's; returns the number of remaining tokens.
    fn cut(&mut self, slot: SlotId, target: &DraftTarget<'_>) -> usize {
        let n_common = self.followed_tokens[usize::from(slot.0)].n_common(target);
        self.cut_back(slot, target.owner, n_common)
    }

    /// Keeps the first `n_kept` tokens of a sequence, or none if that is not possible; returns the number of them.
    fn cut_back(&mut self, slot: SlotId, owner: DraftStateOwner, mut n_kept: usize) -> usize {
        let followed_tokens = &mut self.followed_tokens[usize::from(slot.0)];
        let is_whole = followed_tokens.len() == n_kept;
        if !is_whole && !self.llama.rewind(slot, u32::try_from(n_kept).unwrap_or(0)) {
            self.llama.clear(slot);
            n_kept = 0;
        }
        followed_tokens.keep(owner, n_kept);
        n_kept
    }

    fn push(&mut self, slot: SlotId, token: Token, logits: Logits) -> i32 {
        let followed_tokens = &mut self.followed_tokens[usize::from(slot.0)];
        let position = u32::try_from(followed_tokens.len()).expect("a sequence is no longer than a context, a u32");
        followed_tokens.push(token);
        self.llama.push(slot, position, token, logits)
    }

    /// Returns the most likely token of a row; `None` if its probability is below the minimum.
    fn likeliest(&self, row: i32) -> Option<Token> {
        let logits = self.llama.logits(row).get(..self.n_vocab)?;
        let (token, best) = (0..).zip(logits).max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        // NaN counts as the largest logit; a draft ends there.
        let is_sure = || self.p_min * logits.iter().map(|logit| (logit - best).exp()).sum::<f32>() <= 1.0;
        (best.is_finite() && (self.p_min <= 0.0 || is_sure())).then_some(token)
    }
}
