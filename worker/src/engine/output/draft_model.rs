//! The draft model: a second, smaller model, or the model's own draft heads, whose most likely tokens are the drafts of
//! sequences.
//!
//! Its context has a sequence for each slot. One call first computes the tokens that some of these sequences lack, up
//! to a micro-batch, and then makes drafts for all sequences that are complete. Its state is never stored, shared or
//! announced, so an error in it makes drafts worse but changes no response. State that is not finite would also spoil
//! the drafts of later sequences in its cells, so it is removed.
//!
//! Not here: whether a draft pays (`warmpath_worker_core::drafting`), its verification (`speculation`).

use std::borrow::Cow;
use std::cell::OnceCell;

use llama_cpp_2::DecodeError;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use tracing::{info, warn};
use warmpath_common::ids::{SlotId, Token};
use warmpath_llama_chat::HiddenStates;
use warmpath_worker_core::drafting::draft_heads::{HeadSequence, HeadStart};
use warmpath_worker_core::drafting::draft_model::{
    Distance, DraftModelCosts, DraftStateOwner, DraftStateTokens, DraftTarget,
};
use warmpath_worker_core::drafting::lengths::MakingTimes;
use warmpath_worker_core::drafting::step_costs::StepCosts;
use warmpath_worker_core::slots::slot_table::{Slot, SlotTable};

use crate::engine::api::facts::EngineFacts;
use crate::engine::config::speculation::{DraftCosts, HeadUse};
use crate::engine::config::{EngineConfig, SelfTest, StartError};
use crate::engine::llama::{self, Llama, Logits, heads};
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
    followed: Followed,
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

/// What a draft model has of each slot's sequence.
enum Followed {
    /// A second model computes tokens alone.
    Model(Vec<DraftStateTokens>),
    /// Draft heads compute them with hidden states of the served model.
    Heads(Vec<HeadSequence>),
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

/// Tokens of a slot that the served model has just computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ComputedTokens<'a> {
    pub(crate) slot: SlotId,
    /// Order of the sequence.
    pub(crate) order: u64,
    pub(crate) tokens: &'a [Token],
    /// Row of the first token in the batch.
    pub(crate) first_row: i32,
    /// Whether every token has logits.
    pub(crate) has_all_logits: bool,
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
    /// Position of its last token.
    position: u32,
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
        served_model: &'m LlamaModel,
        llama: &mut Llama<'_>,
        config: &EngineConfig,
        facts: &EngineFacts,
    ) -> Result<Option<Self>, StartError> {
        if facts.drafted_max == 0 {
            return Ok(None);
        }
        let Some(draft) = config.draft_model.as_ref() else {
            return Self::open_heads(served_model, llama, config, facts);
        };
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
        let p_min = config.speculation.map_or(0.0, |speculation| speculation.p_min);
        let costs = share(|| draft_llama.one_token_ms(), llama, config);
        // Reading the weights takes most of a pass.
        let share = costs.unwrap_or(model.size() as f64 / served_model.size().max(1) as f64);
        let context_tokens = draft_llama.slot_tokens(model, &own_config);
        let path = own_config.model.display();
        info!(model = %path, share, context_tokens, "draft model: time of a pass as a share of the model's");
        Ok(Some(Self {
            pass_tokens: draft_llama.batch_limits().1,
            llama: draft_llama.with_fewer_threads_where_busy(&own_config),
            followed: Followed::Model(vec![DraftStateTokens::default(); usize::from(config.n_slots)]),
            failed: vec![None; usize::from(config.n_slots)],
            context_tokens,
            n_vocab: model.n_vocab().min(served_model.n_vocab()).unsigned_abs() as usize,
            p_min,
            costs: DraftModelCosts { share },
        }))
    }

    /// Creates the context of the served model's draft heads; `None` if it has none or they are not wanted.
    ///
    /// Errors: `Unsupported` if they are required.
    fn open_heads(
        model: &'m LlamaModel,
        llama: &mut Llama<'_>,
        config: &EngineConfig,
        facts: &EngineFacts,
    ) -> Result<Option<Self>, StartError> {
        let is_required = config.speculation.is_some_and(|speculation| speculation.heads == HeadUse::Required);
        let refuse = |reason: String| match is_required {
            true => Err(StartError::Unsupported { path: config.model.clone(), reason }),
            false => Ok(None),
        };
        if !heads::are_wanted(config) {
            return refuse("draft heads are not used with --mmproj".to_owned());
        }
        if !heads::has_heads(config, &|key| model.meta_val_str(key).ok()) {
            return refuse("it has no draft heads (--spec-type draft-mtp)".to_owned());
        }
        let mut head_llama = match Llama::open_heads(model, config, facts.context_tokens) {
            Ok(head_llama) => head_llama,
            Err(error) => {
                warn!(%error, "the model's draft heads cannot be used");
                return refuse(format!("its draft heads cannot be used: {error}"));
            }
        };
        let p_min = config.speculation.map_or(0.0, |speculation| speculation.p_min);
        let costs = share(|| head_llama.one_head_token_ms(), llama, config);
        let share = costs.unwrap_or(1.0 / f64::from(model.n_layer().max(1)));
        let width = head_llama.hidden_width();
        info!(share, "draft heads: time of a pass as a share of the model's");
        Ok(Some(Self {
            pass_tokens: head_llama.batch_limits().1,
            llama: head_llama.with_fewer_threads_where_busy(config),
            followed: Followed::Heads(vec![HeadSequence::new(width); usize::from(config.n_slots)]),
            failed: vec![None; usize::from(config.n_slots)],
            context_tokens: facts.context_tokens,
            n_vocab: model.n_vocab().unsigned_abs() as usize,
            p_min,
            costs: DraftModelCosts { share },
        }))
    }
}

/// Returns the measured time of a draft model's pass as a share of the served model's; `None` without a measurement.
fn share(draft_ms: impl FnOnce() -> Option<f64>, target: &mut Llama<'_>, config: &EngineConfig) -> Option<f64> {
    let costs = config.speculation.map(|speculation| speculation.costs).unwrap_or_default();
    match (costs, &config.self_test) {
        (DraftCosts::LikeGpu, _) => Some(SHARE_LIKE_GPU),
        (DraftCosts::Measured, SelfTest::Skip) => None,
        (DraftCosts::Measured, SelfTest::Run { .. }) => {
            draft_ms().zip(target.one_token_ms()).map(|(draft, target)| draft / target)
        }
    }
}

/// Returns the owner of the draft model's state of a sequence in a slot.
fn owner(order: u64, contents: &Slot) -> DraftStateOwner {
    let lent = contents.root().filter(|_| contents.lends());
    lent.map_or(DraftStateOwner::Sequence(order), |root| DraftStateOwner::Root(*root))
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
        let owner = owner(sequence.order, contents);
        let n_tokens = u32::try_from(contents.tokens().len() + 1).ok()?;
        // The draft model does not compute the last token of a draft.
        let n_max = (self.context_tokens + 1).checked_sub(n_tokens).filter(|n_max| *n_max > 0)? as usize;
        let following = Following { owner, order: sequence.order, next, n_tokens, n_missing: 0, n_max };
        let target = following.target(contents);
        let n_common = match &self.followed {
            Followed::Model(sequences) => u32::try_from(sequences[usize::from(slot.0)].n_common(&target)).ok()?,
            Followed::Heads(sequences) => sequences[usize::from(slot.0)].start(&target)?.from,
        };
        Some(Following { n_missing: n_tokens - n_common, ..following })
    }

    /// Returns whether hidden states of the served model are read.
    pub(crate) fn reads_hidden(&self) -> bool {
        matches!(self.followed, Followed::Heads(_))
    }

    /// Records the hidden states of a slot's tokens that the served model, `llama`, has just computed; `contents` is
    /// the slot before them.
    pub(crate) fn record(
        &mut self,
        computed: &ComputedTokens<'_>,
        contents: &Slot,
        llama: &Llama<'_>,
        hidden_states: HiddenStates,
    ) {
        let Followed::Heads(sequences) = &mut self.followed else { return };
        let ComputedTokens { slot, order, tokens, first_row, has_all_logits } = *computed;
        // Only the last token of a prompt's part has logits.
        let n_skipped = match hidden_states {
            HiddenStates::WithLogits if !has_all_logits => tokens.len().saturating_sub(1),
            _ => 0,
        };
        let rows = first_row + n_skipped as i32..first_row + tokens.len() as i32;
        let Some(hidden) = llama.hidden_rows(rows) else { return };
        let before = match n_skipped {
            0 => Cow::Borrowed(contents.tokens()),
            _ => Cow::Owned([contents.tokens(), &tokens[..n_skipped]].concat()),
        };
        sequences[usize::from(slot.0)].record(owner(order, contents), &before, &tokens[n_skipped..], &hidden.concat());
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
            self.remove_drafts(&making);
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
                let last_row = making.row.take();
                let Some(token) = token else { continue };
                making.tokens.push(token);
                if making.tokens.len() < making.n_tokens {
                    making.row = self.push_drafted(making, token, last_row);
                }
            }
        }
        Ok(())
    }

    /// Removes the state of all sequences.
    pub(crate) fn clear(&mut self) {
        self.llama.clear_all();
        match &mut self.followed {
            Followed::Model(sequences) => sequences.fill(DraftStateTokens::default()),
            Followed::Heads(sequences) => sequences.iter_mut().for_each(HeadSequence::forget),
        }
    }

    /// Puts the sequence's tokens that the draft model lacks into the batch, at most `tokens_left`.
    fn follow(&mut self, draft: &WantedDraft, table: &SlotTable, tokens_left: &mut usize) -> Making {
        let WantedDraft { slot, following, n_tokens } = *draft;
        let target = following.target(table.slot(slot));
        let mut making = Making { slot, n_kept: 0, n_tokens, position: 0, row: None, tokens: Vec::new() };
        let Some(start) = self.start(slot, &target) else { return making };
        making.n_kept = start.from as usize;
        let n_missing = target.n_tokens() - making.n_kept;
        let n_computed = n_missing.min(*tokens_left);
        *tokens_left -= n_computed;
        let is_drafted = n_computed == n_missing && n_tokens > 0;
        for (position, token) in (start.from..).zip(target.tokens_from(making.n_kept).take(n_computed)) {
            let is_last = is_drafted && position as usize + 1 == target.n_tokens();
            let logits = if is_last { Logits::Wanted } else { Logits::Unwanted };
            let row = match &mut self.followed {
                Followed::Model(sequences) => {
                    sequences[usize::from(slot.0)].push(token);
                    self.llama.push(slot, position, token, logits)
                }
                Followed::Heads(sequences) => {
                    let hidden = sequences[usize::from(slot.0)].hidden_before(position);
                    self.llama.push_with_hidden(slot, position, token, hidden, logits)
                }
            };
            (making.position, making.row) = (position, is_last.then_some(row));
        }
        if let Followed::Heads(sequences) = &mut self.followed {
            // The next token belongs to the draft.
            let end = (start.from + n_computed as u32).min(target.tokens.len() as u32);
            sequences[usize::from(slot.0)].follow(start, end);
        }
        making
    }

    /// Removes a slot's state that differs from the target's; returns where the draft model starts to compute, `None`
    /// if it cannot.
    fn start(&mut self, slot: SlotId, target: &DraftTarget<'_>) -> Option<HeadStart> {
        match &mut self.followed {
            Followed::Model(sequences) => {
                let n_common = sequences[usize::from(slot.0)].n_common(target);
                let n_kept = self.cut_back(slot, target.owner, n_common);
                Some(HeadStart { from: u32::try_from(n_kept).ok()?, is_anew: n_kept == 0 })
            }
            Followed::Heads(sequences) => {
                let start = sequences[usize::from(slot.0)].start(target)?;
                if start.is_anew || !self.llama.remove_after(slot, start.from) {
                    self.llama.clear(slot);
                }
                Some(start)
            }
        }
    }

    /// Puts a drafted token into the batch, after the one in row `last_row` of the last pass; returns its row, `None`
    /// if the draft ends.
    fn push_drafted(&mut self, making: &mut Making, token: Token, last_row: Option<i32>) -> Option<i32> {
        making.position += 1;
        let Making { slot, position, .. } = *making;
        match &mut self.followed {
            Followed::Model(sequences) => {
                sequences[usize::from(slot.0)].push(token);
                Some(self.llama.push(slot, position, token, Logits::Wanted))
            }
            Followed::Heads(_) => {
                let hidden = self.llama.hidden(last_row?)?.to_vec();
                Some(self.llama.push_with_hidden(slot, position, token, &hidden, Logits::Wanted))
            }
        }
    }

    /// Removes drafted tokens whose state depends on the draft: that of heads, computed with their own hidden states.
    fn remove_drafts(&mut self, making: &[Making]) {
        let Followed::Heads(sequences) = &mut self.followed else { return };
        for making in making {
            let sequence = &mut sequences[usize::from(making.slot.0)];
            if !self.llama.remove_after(making.slot, sequence.followed_end()) {
                self.llama.clear(making.slot);
                sequence.forget();
            }
        }
    }

    /// Keeps the first `n_kept` tokens of a sequence, or none if that is not possible; returns the number of them.
    fn cut_back(&mut self, slot: SlotId, owner: DraftStateOwner, mut n_kept: usize) -> usize {
        let sequence = match &mut self.followed {
            Followed::Model(sequences) => &mut sequences[usize::from(slot.0)],
            Followed::Heads(sequences) => {
                sequences[usize::from(slot.0)].forget();
                self.llama.clear(slot);
                return 0;
            }
        };
        let is_whole = sequence.len() == n_kept;
        if !is_whole && !self.llama.rewind(slot, u32::try_from(n_kept).unwrap_or(0)) {
            self.llama.clear(slot);
            n_kept = 0;
        }
        sequence.keep(owner, n_kept);
        n_kept
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
