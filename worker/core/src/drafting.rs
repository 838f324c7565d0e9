//! Drafting: proposals for the next tokens of a sequence, which the model verifies in one step.
//!
//! A proposal is what followed the sequence's last tokens elsewhere: in its own text (prompt lookup), or in an earlier
//! answer with the same chain root (suffix memory). Where none is found, a draft model may make one (`draft_model`).
//! How much of it is computed depends on its chances, on the measured time of a step (`lengths`), and on the gain of
//! earlier drafts of the sequence (`budget`). A wrong proposal costs time and changes no answer: the shell samples
//! every token as without drafts and keeps only the tokens that it has chosen.
//! Source: prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding) and SuffixDecoding
//! (arXiv 2411.04975).

pub mod acceptance;
pub mod budget;
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

/// Most tokens of a sequence in which matches are looked for. Source: own choice: some 6 MB for each slot at most.
const LOOKUP_TOKENS_MAX: usize = 1 << 17;

/// Drafts from elsewhere for tests: it gets the sequence's tokens and the longest length.
pub type ForcedDrafts = fn(&[Token], usize) -> Vec<Token>;

/// Drafter of one sequence.
#[derive(Debug, Clone)]
pub struct Drafter {
    text: NgramIndex,
    /// Acceptance of found tokens, by origin.
    acceptance: [Acceptance; 2],
    /// Acceptance of a draft model's tokens.
    model_acceptance: ModelAcceptance,
    proposal: Option<Proposal>,
    budget: DraftBudget,
    limits: DraftLimits,
    forced: Option<Forced>,
}

/// Limits of one draft. Units: tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftLimits {
    /// Most tokens.
    pub n_max: usize,
    /// Fewest tokens; a shorter draft is not computed.
    pub n_min: usize,
}

/// Source of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// It was found behind a match of this many tokens.
    Found(Origin, usize),
    /// A draft model made it.
    Model,
    /// A test forced it.
    Forced,
}

/// Where a proposal was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The sequence itself.
    Text = 0,
    /// Earlier answers.
    Memory = 1,
}

#[derive(Debug, Clone)]
struct Proposal {
    tokens: Vec<Token>,
    chances: Vec<f64>,
    source: Source,
    /// Number of its tokens that the sequence has taken.
    n_taken: usize,
    /// Number of its tokens that are computed in advance.
    n_drafted: usize,
}

/// Drafts of a test, and the tokens that they are made for.
#[derive(Debug, Clone)]
struct Forced {
    drafts: ForcedDrafts,
    tokens: Vec<Token>,
}

impl Drafter {
    /// Returns the drafter of a sequence with this prompt. `predicted` is the answer that its client expects.
    ///
    /// Cost: O(n) in the tokens.
    pub fn new(prompt: &[Token], predicted: &[Token], limits: DraftLimits) -> Self {
        let mut text = NgramIndex::new(LOOKUP_TOKENS_MAX);
        if !predicted.is_empty() {
            // The prompt's end stands before the prediction, so that the first tokens of the answer find a match.
            text.extend(&prompt[prompt.len().saturating_sub(MATCH_MAX)..]);
            text.extend(predicted);
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
            forced: None,
        }
    }

    /// Makes the drafter propose the drafts of a test, which are computed whatever they cost.
    #[must_use]
    pub fn forced(self, drafts: ForcedDrafts, prompt: &[Token]) -> Self {
        Self { forced: Some(Forced { drafts, tokens: prompt.to_vec() }), ..self }
    }

    /// Proposes up to `n_max` next tokens, from the sequence and from the earlier answers of its root.
    ///
    /// Cost: a microsecond, whatever the lengths of the texts.
    pub fn propose(&mut self, memory: Option<&NgramIndex>, n_max: usize) -> Possible<'_> {
        let n_max = n_max.min(self.limits.n_max);
        self.proposal = match &self.forced {
            Some(forced) => Some(forced.proposal(n_max)),
            None => self.best(memory, n_max),
        };
        Possible {
            chances: self.proposal.as_ref().map_or(&[], |proposal| &proposal.chances),
            made: None,
            n_min: self.limits.n_min,
            cost_max: self.budget.cost_max(),
        }
    }

    /// Returns the draft of up to `n_max` tokens that a draft model would make in these times.
    pub fn made_draft(&self, n_max: usize, times: MakingTimes) -> MadeDraft {
        MadeDraft { chance: self.model_acceptance.chance(), n_max: n_max.min(self.limits.n_max), times }
    }

    /// Takes the tokens that a draft model has made, up to the planned length, in place of what was found; returns the
    /// length of the draft, none if it is too short.
    pub fn take_made(&mut self, mut tokens: Vec<Token>, planned: Length) -> Length {
        tokens.truncate(planned.n_tokens);
        // The model may have stopped early, which takes less time.
        let cost = planned.cost * tokens.len().max(1) as f64 / planned.n_tokens.max(1) as f64;
        if tokens.len() < self.limits.n_min {
            tokens.clear();
        }
        let n_tokens = tokens.len();
        if n_tokens > 0 {
            let source = Source::Model;
            self.proposal = Some(Proposal { tokens, chances: Vec::new(), source, n_taken: 0, n_drafted: 0 });
        }
        Length { n_tokens, cost, ..planned }
    }

    /// Returns whether drafts are computed whatever they cost.
    pub fn is_forced(&self) -> bool {
        self.forced.is_some()
    }

    /// Returns the first proposed tokens, to be computed at this cost.
    pub fn draft(&mut self, Length { n_tokens, cost, .. }: Length) -> &[Token] {
        self.budget.spend(cost);
        let Some(proposal) = &mut self.proposal else { return &[] };
        proposal.n_drafted = n_tokens.min(proposal.tokens.len());
        &proposal.tokens[..proposal.n_drafted]
    }

    /// Returns the end of the text before the last `n` tokens, and these tokens, which are a response.
    pub fn answer(&self, n: usize) -> (&[Token], &[Token]) {
        let text = self.text.last(n.saturating_add(MATCH_MAX));
        text.split_at(text.len().saturating_sub(n))
    }

    /// Takes the sequence's next token, drafted or not.
    pub fn push(&mut self, token: Token) {
        self.text.extend(&[token]);
        if let Some(forced) = &mut self.forced {
            forced.tokens.push(token);
        }
        let is_made = |proposal: &Proposal| proposal.source == Source::Model && !proposal.is_taken();
        if !self.proposal.as_ref().is_some_and(is_made) {
            self.model_acceptance.fade();
        }
        let came = self.compare(token);
        self.budget.take(came);
    }

    /// Compares the sequence's next token with the proposed one.
    fn compare(&mut self, token: Token) -> NextTokenFrom {
        let Some(proposal) = &mut self.proposal else { return NextTokenFrom::Unproposed };
        let Some(proposed) = proposal.tokens.get(proposal.n_taken) else { return NextTokenFrom::Unproposed };
        let (is_right, is_drafted) = (*proposed == token, proposal.n_taken < proposal.n_drafted);
        let outcome = if is_right { ProposalOutcome::Right } else { ProposalOutcome::Wrong };
        match proposal.source {
            Source::Found(origin, n_matched) => {
                self.acceptance[origin as usize].record(n_matched + proposal.n_taken, outcome);
            }
            Source::Model => self.model_acceptance.record(outcome),
            Source::Forced => {}
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
        let own = self.found((&self.text, Origin::Text), n_max);
        let other = memory.and_then(|memory| self.found((memory, Origin::Memory), n_max));
        let expected = |proposal: &Proposal| lengths::expected(&proposal.chances);
        match (own, other) {
            (Some(own), Some(other)) if expected(&other) > expected(&own) => Some(other),
            (own, other) => own.or(other),
        }
    }

    fn found(&self, (index, origin): (&NgramIndex, Origin), n_max: usize) -> Option<Proposal> {
        let occurrence: Occurrence = index.find(self.text.tail())?;
        let tokens = index.continuation(occurrence, n_max);
        let acceptance = &self.acceptance[origin as usize];
        let chances = (occurrence.n_matched..).take(tokens.len()).map(|n_matched| acceptance.chance(n_matched));
        let (chances, source) = (chances.collect(), Source::Found(origin, occurrence.n_matched));
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
        Proposal { tokens, chances, source: Source::Forced, n_taken: 0, n_drafted: 0 }
    }
}

#[cfg(test)]
mod tests;
