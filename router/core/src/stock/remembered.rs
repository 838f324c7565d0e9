//! What is remembered for one model of a stock server: its blocks, by whose tokens they are cut, and whether these are right.
//!
//! Not here: requests and load, which all models of a server share (`stock`). The idea: models of one server share no state,
//! so each has a memory of its own; one that the server no longer lists takes its memory along.

use std::cmp::Ordering;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::model::Fingerprint;
use warmpath_common::summary::Change;

use super::memory::{Memory, Use};
use super::usage::Usage;
use super::{Footing, MemoryLimits, Reused, Sending};

/// Is how many answers in a row must count other tokens than this router for its vocabulary to be wrong.
///
/// Source: own choice: one may have said the date at midnight.
const DIFFERING_MAX: u32 = 3;

/// One model of a stock server, as it stands in the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Root of its blocks.
    pub fingerprint: Fingerprint,
    /// By whose tokens its prompts are cut.
    pub footing: Footing,
    /// Tokens in a block.
    pub block_size_tokens: u32,
    /// Bounds of its memory.
    pub limits: MemoryLimits,
    /// What tells it from another model under the same name.
    pub identity: String,
    /// Whether the server has it in memory.
    pub residence: Residence,
}

/// Whether a server has one of its models in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residence {
    /// It has, or does not say.
    Loaded,
    /// It loads the model when a request comes, and holds no state until then.
    Unloaded,
}

/// What an answer shows of the memory that its prompt was compared with.
pub(super) struct Evidence<'a> {
    /// Last use, before this one, of each leading block that could be reused.
    pub(super) known: &'a [Use],
    /// Uses of requests that ran when this one came.
    pub(super) busy: &'a [Use],
    /// Blocks of the prompt.
    pub(super) keys: &'a [BlockKey],
    /// Blocks that were reused.
    pub(super) actual: usize,
}

/// What is remembered for one model.
#[derive(Debug)]
pub(super) struct Remembered {
    placed: Placed,
    pub(super) memory: Memory,
    n_differing: u32,
}

impl Remembered {
    pub(super) fn new(placed: Placed) -> Self {
        let memory = Memory::new(placed.limits);
        Self { placed, memory, n_differing: 0 }
    }

    /// Takes note of how the model stands; where that is new, what was remembered is forgotten.
    pub(super) fn place(&mut self, placed: Placed, changes: &mut Vec<Change>) {
        let is_unloaded = placed.residence == Residence::Unloaded;
        let same = Placed { residence: placed.residence, ..self.placed.clone() } == placed;
        if !same || is_unloaded {
            self.forget(changes);
        }
        if !same {
            self.memory = Memory::new(placed.limits);
            self.n_differing = 0;
        }
        self.placed = placed;
    }

    /// Forgets every block, and says so.
    pub(super) fn forget(&mut self, changes: &mut Vec<Change>) {
        let keys = self.memory.keys();
        if !keys.is_empty() {
            changes.push(Change::Removed(keys));
        }
        self.memory.clear();
    }

    /// Forgets every block after the server was lost.
    pub(super) fn lost(&mut self) {
        self.memory.clear();
        self.n_differing = 0;
    }

    /// Returns whether prompts of a request can be remembered here.
    pub(super) fn is_cut_like(&self, sending: &Sending) -> bool {
        self.placed.footing != Footing::Load && sending.block_size_tokens == self.placed.block_size_tokens
    }

    /// Returns how many tokens there is room for. Units: tokens.
    pub(super) fn free_tokens(&self) -> u64 {
        self.memory.n_free() as u64 * u64::from(self.placed.block_size_tokens)
    }

    /// Compares the server's count of a prompt's tokens; returns whether it differs once too often.
    pub(super) fn compare_counts(&mut self, sending: &Sending, usage: &Usage) -> bool {
        let is_comparable = sending.is_countable && self.placed.footing == Footing::Vocabulary;
        let Some(counted) = usage.prompt_tokens.filter(|_| is_comparable) else { return false };
        self.n_differing = if counted == sending.n_tokens { 0 } else { self.n_differing + 1 };
        self.n_differing == DIFFERING_MAX
    }

    /// Compares what was reused with what was counted on; returns that, and how many blocks were reused.
    pub(super) fn compare_reuse(&self, sending: &Sending, usage: &Usage) -> Option<(Reused, usize)> {
        let (prompt_tokens, cached_tokens) = usage.reuse()?;
        let n_tokens = u64::from(sending.n_tokens.max(1));
        // In text blocks, the reused share of the tokens is the reused share of the text, nearly.
        let cached = match self.placed.footing {
            Footing::Text => u64::from(cached_tokens) * n_tokens / u64::from(prompt_tokens),
            Footing::Vocabulary | Footing::Load => u64::from(cached_tokens),
        };
        let block_size = u64::from(self.placed.block_size_tokens.max(1));
        let actual = (cached / block_size) as usize;
        let expected = (u64::from(sending.cached_tokens) / block_size) as usize;
        let slack = self.slack(expected);
        let outcome = if actual.abs_diff(expected) <= slack { Ordering::Equal } else { actual.cmp(&expected) };
        let predicted = u64::from(sending.cached_tokens);
        let predicted_tokens = match self.placed.footing {
            Footing::Text => predicted * u64::from(prompt_tokens) / n_tokens,
            Footing::Vocabulary | Footing::Load => predicted,
        };
        let predicted_tokens = u32::try_from(predicted_tokens).unwrap_or(u32::MAX);
        Some((Reused { prompt_tokens, cached_tokens, predicted_tokens, outcome }, actual))
    }

    /// Corrects what is remembered by how many blocks of a prompt were reused.
    pub(super) fn correct(&mut self, evidence: Evidence<'_>, changes: &mut Vec<Change>) {
        let Evidence { known, busy, keys, actual } = evidence;
        if actual > known.len() {
            self.memory.surpassed(actual - known.len());
        } else if actual < known.len() / 2 {
            // What is missing at a prompt's end may have been cut off by a sibling: that says nothing of the server's room.
            let last_use = known[actual];
            // What a running request holds is there, and cannot be lent.
            if !busy.contains(&last_use) {
                self.memory.missed(last_use, keys, changes);
            }
        }
    }

    /// Returns how many blocks a count may be wrong by: none in tokens; in text, markup and rare words are spread unevenly.
    fn slack(&self, n_blocks: usize) -> usize {
        match self.placed.footing {
            Footing::Text => 1 + n_blocks / 8,
            Footing::Vocabulary | Footing::Load => 0,
        }
    }
}
