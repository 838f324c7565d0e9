//! The assumed state of one model of a stock server: its blocks, the source of its token counts, and whether the counts
//! agree.
//!
//! Requests and load, which all models of a server share, are in `stock`. Models of one server share no state, so each
//! has assumed blocks of its own; they are dropped when the server no longer lists the model.

use std::cmp::Ordering;
use std::time::Instant;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::model::Fingerprint;
use warmpath_common::summary::Change;

use super::assumed_cache::{AssumedCache, AssumedCacheLimits, UseNumber};
use super::rates::RATE_AGE_MAX;
use super::server_info::Residence;
use super::tokenizer_source::TokenizerSource;
use super::usage::Usage;

/// Number of consecutive responses with another token count than this router's after which the vocabulary counts as
/// wrong.
///
/// Source: own choice: a single difference may come from a template that renders the date, at midnight.
const DIFFERING_MAX: u32 = 3;

/// One model of a stock server, as the fleet treats it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Root of its blocks.
    pub fingerprint: Fingerprint,
    /// Source of the token counts of its prompts.
    pub tokenizer_source: TokenizerSource,
    /// Number of tokens in a block.
    pub block_size_tokens: u32,
    /// Limits of its assumed blocks.
    pub limits: AssumedCacheLimits,
    /// Properties that distinguish it from another model with the same name.
    pub identity: String,
    /// Whether the server has loaded it.
    pub residence: Residence,
}

/// A request that is sent to a stock server.
#[derive(Debug, Clone)]
pub struct SentRequest {
    /// Model of the prompt.
    pub model: Fingerprint,
    /// Block keys of the prompt; empty if they are unknown or must not be reused.
    pub keys: Vec<BlockKey>,
    /// Length of the prompt. Units: tokens.
    pub n_tokens: u32,
    /// Number of tokens in a block.
    pub block_size_tokens: u32,
    /// Prompt tokens that the router expects to be reused, whole blocks. Units: tokens.
    pub cached_tokens: u32,
    /// Whether the response's token counts are those of one prompt whose tokens are known here.
    pub is_countable: bool,
}

/// Outcome of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReuseReport {
    /// Length of the prompt, counted by the server. Units: tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens that were reused, counted by the server. Units: tokens.
    pub cached_tokens: u32,
    /// Prompt tokens that were expected to be reused, in the server's tokens.
    pub predicted_tokens: u32,
    /// Whether the reuse was less than expected, about as much, or more.
    pub outcome: Ordering,
}

/// Evidence of a response about the assumed blocks.
pub(super) struct BlockEvidence<'a> {
    /// Previous use of each leading block that could be reused.
    pub(super) known: &'a [UseNumber],
    /// Uses of the requests that were running when this one arrived.
    pub(super) busy: &'a [UseNumber],
    /// Block keys of the prompt.
    pub(super) keys: &'a [BlockKey],
    /// Number of blocks that were reused.
    pub(super) actual: usize,
}

/// Assumed state of one model.
#[derive(Debug)]
pub(super) struct ModelState {
    placement: Placed,
    pub(super) memory: AssumedCache,
    n_differing: u32,
    /// Time at which the model last generated something, as far as this router knows; `None` after the server was lost
    /// or the model was unloaded.
    generated_at: Option<Instant>,
}

impl ModelState {
    pub(super) fn new(placement: Placed) -> Self {
        let memory = AssumedCache::new(placement.limits);
        Self { placement, memory, n_differing: 0, generated_at: None }
    }

    /// Takes the model's new description; if more than its residence changed, or if it is unloaded, the assumed blocks
    /// are dropped.
    pub(super) fn place(&mut self, placement: Placed, changes: &mut Vec<Change>) {
        let is_unloaded = placement.residence == Residence::Unloaded;
        let same = Placed { residence: placement.residence, ..self.placement.clone() } == placement;
        if !same || is_unloaded {
            self.forget(changes);
            self.generated_at = None;
        }
        if !same {
            self.memory = AssumedCache::new(placement.limits);
            self.n_differing = 0;
        }
        self.placement = placement;
    }

    /// Drops every block and reports their removal.
    pub(super) fn forget(&mut self, changes: &mut Vec<Change>) {
        let keys = self.memory.keys();
        if !keys.is_empty() {
            changes.push(Change::Removed(keys));
        }
        self.memory.clear();
    }

    /// Drops every block after the server was lost.
    pub(super) fn lost(&mut self) {
        self.memory.clear();
        self.n_differing = 0;
        self.generated_at = None;
    }

    /// Records that the model generates something.
    pub(super) fn generates(&mut self, now: Instant) {
        self.generated_at = Some(now);
    }

    /// Returns whether the server need not load the model for the next request.
    pub(super) fn is_warm(&self, now: Instant) -> bool {
        self.generated_at.is_some_and(|at| now.saturating_duration_since(at) < RATE_AGE_MAX)
    }

    /// Returns whether prompts of a request can be recorded here.
    pub(super) fn is_cut_like(&self, sending: &SentRequest) -> bool {
        self.placement.tokenizer_source != TokenizerSource::Load
            && sending.block_size_tokens == self.placement.block_size_tokens
    }

    /// Returns the assumed free capacity. Units: tokens.
    pub(super) fn free_tokens(&self) -> u64 {
        self.memory.n_free() as u64 * u64::from(self.placement.block_size_tokens)
    }

    /// Compares the server's count of a prompt's tokens; returns true when it has differed [`DIFFERING_MAX`] times in a
    /// row.
    pub(super) fn compare_counts(&mut self, sending: &SentRequest, usage: &Usage) -> bool {
        let is_comparable = sending.is_countable && self.placement.tokenizer_source == TokenizerSource::Vocabulary;
        let Some(n_counted) = usage.prompt_tokens.filter(|_| is_comparable) else { return false };
        self.n_differing = if n_counted == sending.n_tokens { 0 } else { self.n_differing + 1 };
        self.n_differing == DIFFERING_MAX
    }

    /// Compares the reuse with the prediction; returns the outcome and the number of reused blocks.
    pub(super) fn compare_reuse(&self, sending: &SentRequest, usage: &Usage) -> Option<(ReuseReport, usize)> {
        let (prompt_tokens, cached_tokens) = usage.reuse()?;
        let n_tokens = u64::from(sending.n_tokens.max(1));
        // In text blocks, the reused share of the tokens is roughly the reused share of the text.
        let reused_tokens = match self.placement.tokenizer_source {
            TokenizerSource::Text => u64::from(cached_tokens) * n_tokens / u64::from(prompt_tokens),
            TokenizerSource::Vocabulary | TokenizerSource::Load => u64::from(cached_tokens),
        };
        let block_size = u64::from(self.placement.block_size_tokens.max(1));
        let actual = (reused_tokens / block_size) as usize;
        let expected = (u64::from(sending.cached_tokens) / block_size) as usize;
        let slack = self.slack(expected);
        let outcome = if actual.abs_diff(expected) <= slack { Ordering::Equal } else { actual.cmp(&expected) };
        let predicted_tokens = u64::from(sending.cached_tokens);
        let predicted_tokens = match self.placement.tokenizer_source {
            TokenizerSource::Text => predicted_tokens * u64::from(prompt_tokens) / n_tokens,
            TokenizerSource::Vocabulary | TokenizerSource::Load => predicted_tokens,
        };
        let predicted_tokens = u32::try_from(predicted_tokens).unwrap_or(u32::MAX);
        Some((ReuseReport { prompt_tokens, cached_tokens, predicted_tokens, outcome }, actual))
    }

    /// Corrects the assumed blocks by how many blocks of a prompt were reused.
    pub(super) fn correct(&mut self, evidence: BlockEvidence<'_>, changes: &mut Vec<Change>) {
        let BlockEvidence { known, busy, keys, actual } = evidence;
        if actual > known.len() {
            self.memory.surpassed(actual - known.len());
        } else if actual < known.len() / 2 {
            // Blocks missing at a prompt's end may have been overwritten by another branch, which shows nothing about
            // the capacity.
            let last_use = known[actual];
            // Blocks of a running request are present but cannot be used by others.
            if !busy.contains(&last_use) {
                self.memory.missed(last_use, keys, changes);
            }
        }
    }

    /// Returns by how many blocks a count may be off: none for tokens; for text some, since markup and rare words are
    /// spread unevenly.
    fn slack(&self, n_blocks: usize) -> usize {
        match self.placement.tokenizer_source {
            TokenizerSource::Text => 1 + n_blocks / 8,
            TokenizerSource::Vocabulary | TokenizerSource::Load => 0,
        }
    }
}
