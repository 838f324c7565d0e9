//! Drafting: proposals for the next tokens of a sequence, which the model verifies in one step.
//!
//! A proposal has the tokens that followed an earlier occurrence of the sequence's last tokens: in its own text (prompt
//! lookup), or in an earlier response with the same chain root (suffix memory). If there is no occurrence, a draft
//! model may make a proposal (`draft_model`). The drafted length depends on the acceptance rate (`acceptance`), the
//! measured time of a step (`lengths`), and the gain of the sequence's earlier drafts (`budget`). A wrong proposal
//! costs time but changes no response: the shell samples every token as without drafts, and keeps only the sampled
//! tokens.
//! Source: prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding) and SuffixDecoding
//! (arXiv 2411.04975).

pub mod acceptance;
pub mod budget;
pub mod draft_heads;
pub mod draft_model;
pub mod lengths;
pub mod ngram_index;
pub mod step_costs;
pub mod suffix_memory;

use warmpath_common::ids::Token;

use acceptance::{Acceptance, ModelAcceptance, ProposalOutcome};
use budget::{DraftBudget, NextTokenFrom};
use lengths::{Length, MadeDraft, MakingTimes, Possible};
use ngram_index::{MATCH_MAX, NgramIndex, Occurrence};

/// Maximum number of a sequence's tokens that are searched for matches. Source: the index takes at most some 6 MB per
/// slot.
const LOOKUP_TOKENS_MAX: usize = 1 << 17;

/// Function that makes the drafts of a test from the sequence's tokens and the maximum length.
pub type ForcedDrafts = fn(&[Token], usize) -> Vec<Token>;

/// Drafter of one sequence.
#[derive(Debug, Clone)]
pub struct Drafter {
    text: NgramIndex,
    /// Acceptance rates of found tokens, by origin.
    acceptance: [Acceptance; 2],
    /// Acceptance rate of the draft model's tokens.
    model_acceptance: ModelAcceptance,
    proposal: Option<Proposal>,
    budget: DraftBudget,
    limits: DraftLimits,
    forced_draft: Option<Forced>,
}

/// Limits of one draft. Units: tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftLimits {
    /// Maximum length.
    pub n_max: usize,
    /// Minimum length; a shorter draft is not computed.
    pub n_min: usize,
}

/// Source of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProposalSource {
    /// Found after a match of this many tokens.
    Found(ProposalText, usize),
    /// Made by the draft model.
    Model,
    /// Made by a test.
    Forced,
}

/// Text in which a proposal was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProposalText {
    /// The sequence itself.
    Text = 0,
    /// Earlier responses.
    Memory = 1,
}

#[derive(Debug, Clone)]
struct Proposal {
    tokens: Vec<Token>,
    chances: Vec<f64>,
    source: ProposalSource,
    /// Number of its tokens that the sequence has reached.
    n_taken: usize,
    /// Number of its tokens that were drafted.
    n_drafted: usize,
}

/// Drafts of a test, and the tokens of the sequence.
#[derive(Debug, Clone)]
struct Forced {
    drafts: ForcedDrafts,
    tokens: Vec<Token>,
}

impl Drafter {
    /// Returns the drafter of a sequence with this prompt. `prediction` is the response that its client expects.
    ///
    /// Cost: O(n) in the tokens.
    pub fn new(prompt: &[Token], prediction: &[Token], limits: DraftLimits) -> Self {
        let mut text = NgramIndex::new(LOOKUP_TOKENS_MAX);
        if !prediction.is_empty() {
            // The end of the prompt precedes the prediction, so that the first tokens of the response have a match.
            text.extend(&prompt[prompt.len().saturating_sub(MATCH_MAX)..]);
            text.extend(prediction);
            text.end_text();
        }
        text.extend(prompt);
        Self {
            text,
            acceptance: Default::default(),
            model_acceptance: ModelAcceptance::default(),
            proposal: None,
            budget: DraftBudget::default(),
            limits,
            forced_draft: None,
        }
    }

    /// Makes the drafter propose the drafts of a test, which are computed at any cost.
    #[must_use]
    pub fn forced(self, drafts: ForcedDrafts, prompt: &[Token]) -> Self {
        Self { forced_draft: Some(Forced { drafts, tokens: prompt.to_vec() }), ..self }
    }

    /// Proposes up to `n_max` next tokens, from the sequence and from earlier responses with its root.
    ///
    /// Cost: a microsecond for texts of any length.
    pub fn propose(&mut self, memory: Option<&NgramIndex>, n_max: usize) -> Possible<'_> {
        let n_max = n_max.min(self.limits.n_max);
        self.proposal = match &self.forced_draft {
            Some(forced_tokens) => Some(forced_tokens.proposal(n_max)),
            None => self.best(memory, n_max),
        };
        Possible {
            chances: self.proposal.as_ref().map_or(&[], |proposal| &proposal.chances),
            made: None,
            n_min: self.limits.n_min,
            cost_max: self.budget.cost_max(),
        }
    }

    /// Returns the draft of up to `n_max` tokens that a draft model can make in these times.
    pub fn made_draft(&self, n_max: usize, times: MakingTimes) -> MadeDraft {
        MadeDraft { chance: self.model_acceptance.chance(), n_max: n_max.min(self.limits.n_max), times }
    }

    /// Replaces the proposal by tokens of the draft model, up to the planned length; returns the length of the draft,
    /// which is 0 if it is too short.
    pub fn take_made(&mut self, mut tokens: Vec<Token>, planned_length: Length) -> Length {
        tokens.truncate(planned_length.n_tokens);
        // A draft model that stopped early took less time.
        let cost = planned_length.cost * tokens.len().max(1) as f64 / planned_length.n_tokens.max(1) as f64;
        if tokens.len() < self.limits.n_min {
            tokens.clear();
        }
        let n_tokens = tokens.len();
        if n_tokens > 0 {
            let source = ProposalSource::Model;
            self.proposal = Some(Proposal { tokens, chances: Vec::new(), source, n_taken: 0, n_drafted: 0 });
        }
        Length { n_tokens, cost, ..planned_length }
    }

    /// Returns whether drafts are computed at any cost.
    pub fn is_forced(&self) -> bool {
        self.forced_draft.is_some()
    }

    /// Returns the first proposed tokens as a draft, and charges its cost.
    pub fn draft(&mut self, Length { n_tokens, cost, .. }: Length) -> &[Token] {
        self.budget.spend(cost);
        let Some(proposal) = &mut self.proposal else { return &[] };
        proposal.n_drafted = n_tokens.min(proposal.tokens.len());
        &proposal.tokens[..proposal.n_drafted]
    }

    /// Returns the last `n` tokens, which are the response, and the end of the text before them.
    pub fn answer(&self, n: usize) -> (&[Token], &[Token]) {
        let text = self.text.last(n.saturating_add(MATCH_MAX));
        text.split_at(text.len().saturating_sub(n))
    }

    /// Adds the sequence's next token, drafted or not.
    pub fn push(&mut self, token: Token) {
        self.text.extend(&[token]);
        if let Some(forced_tokens) = &mut self.forced_draft {
            forced_tokens.tokens.push(token);
        }
        let is_made = |proposal: &Proposal| proposal.source == ProposalSource::Model && !proposal.is_taken();
        if !self.proposal.as_ref().is_some_and(is_made) {
            self.model_acceptance.fade();
        }
        let came = self.compare(token);
        self.budget.take(came);
    }

    /// Compares the sequence's next token with the proposed one.
    fn compare(&mut self, token: Token) -> NextTokenFrom {
        let Some(proposal) = &mut self.proposal else { return NextTokenFrom::Unproposed };
        let Some(proposed_token) = proposal.tokens.get(proposal.n_taken) else { return NextTokenFrom::Unproposed };
        let (is_right, is_drafted) = (*proposed_token == token, proposal.n_taken < proposal.n_drafted);
        let outcome = if is_right { ProposalOutcome::Right } else { ProposalOutcome::Wrong };
        match proposal.source {
            ProposalSource::Found(origin, n_matched) => {
                self.acceptance[origin as usize].record(n_matched + proposal.n_taken, outcome);
            }
            ProposalSource::Model => self.model_acceptance.record(outcome),
            ProposalSource::Forced => {}
        }
        proposal.n_taken += 1;
        match (is_right, is_drafted) {
            (true, true) => NextTokenFrom::Accepted,
            (true, false) => NextTokenFrom::Foreseen,
            (false, _) => {
                self.proposal = None;
                NextTokenFrom::Unforeseen
            }
        }
    }

    fn best(&self, memory: Option<&NgramIndex>, n_max: usize) -> Option<Proposal> {
        let from_text = self.found(&self.text, ProposalText::Text, n_max);
        let from_memory = memory.and_then(|memory| self.found(memory, ProposalText::Memory, n_max));
        let expected = |proposal: &Proposal| lengths::expected(&proposal.chances);
        match (from_text, from_memory) {
            (Some(from_text), Some(from_memory)) if expected(&from_memory) > expected(&from_text) => Some(from_memory),
            (from_text, from_memory) => from_text.or(from_memory),
        }
    }

    fn found(&self, index: &NgramIndex, origin: ProposalText, n_max: usize) -> Option<Proposal> {
        let occurrence: Occurrence = index.find(self.text.tail())?;
        let tokens = index.continuation(occurrence, n_max);
        let acceptance = &self.acceptance[origin as usize];
        let chances = (occurrence.n_matched..).take(tokens.len()).map(|n_matched| acceptance.chance(n_matched));
        let (chances, source) = (chances.collect(), ProposalSource::Found(origin, occurrence.n_matched));
        Some(Proposal { tokens, chances, source, n_taken: 0, n_drafted: 0 })
    }
}

impl Proposal {
    fn is_taken(&self) -> bool {
        self.n_taken >= self.tokens.len()
    }
}

impl Forced {
    fn proposal(&self, n_max: usize) -> Proposal {
        let mut tokens = (self.drafts)(&self.tokens, n_max);
        tokens.truncate(n_max);
        let chances = vec![1.0; tokens.len()];
        Proposal { tokens, chances, source: ProposalSource::Forced, n_taken: 0, n_drafted: 0 }
    }
}

#[cfg(test)]
mod tests;
