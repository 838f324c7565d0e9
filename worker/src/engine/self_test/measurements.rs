//! The measurements of a setting, and the one cost by which settings are compared.
//!
//! The cost is that of one typical request: most of the prompt is cached, a question or a long turn is computed, a
//! response is decoded, and other conversations are in the buffer. Not here: measuring (`measure`).

use std::collections::BTreeMap;

use warmpath_worker_core::curve::Curve;
use warmpath_worker_core::drafting::step_costs::DepthCost;

/// Tokens of a response. Source: the mean response in public chat logs has one to two hundred tokens.
const ANSWER_TOKENS: f64 = 128.0;
/// Share of decode steps in which no other slot runs; in the remaining steps all slots run. Source: the middle between
/// a worker with one user and a busy one.
const ALONE: f64 = 0.5;
/// Share of prompts without cached tokens. Source: a fleet with a hit ratio of nine tenths.
const MISSES: f64 = 0.1;
/// Length of such a prompt. Source: a usual system prompt with tools.
pub(super) const PROMPT_TOKENS: f64 = 2048.0;
/// Share of turns that are long.
const LONG_TURNS: f64 = 0.5;
/// Tokens of a long turn, as an agent's tool results or a document. Source: the smallest usual batch; real turns are
/// longer: the median turn of 149 sessions of coding agents adds 714 tokens, that of Mooncake's chat trace 829.
const LONG_TURN_TOKENS: f64 = 512.0;

/// Tokens after a cached prompt.
///
/// Source: a question, shorter than a tile.
pub(super) const SUFFIX_TOKENS: u32 = 48;
/// Size from which flash attention on a CPU computes in tiles. Source: llama.cpp's
/// `ggml_compute_forward_flash_attn_ext_tiled`.
pub(super) const TILE_TOKENS: u32 = 64;
/// Length of a suffix that is shorter than a tile. Source: half of a tile.
pub(super) const SHORT_TOKENS: u32 = 32;
/// Share by which rounding up must make a suffix cheaper. Source: measurements vary by as much.
const ROUNDING_GAIN_MIN: f64 = 0.1;

/// Measurements of a setting; `None` if measuring stopped before. Units: milliseconds.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Figures {
    /// A step in which one slot decodes and the others keep their cached tokens.
    pub decode_one_ms: Option<f64>,
    /// A step in which every slot decodes.
    pub decode_all_ms: Option<f64>,
    /// A step in which the first slots decode, by their number, for some numbers between one and all.
    #[serde(default)]
    pub decode_some_ms: BTreeMap<u16, f64>,
    /// A step of one slot in a long context, by its number of tokens, all with logits; empty without drafts.
    #[serde(default)]
    pub draft_ms: BTreeMap<u32, f64>,
    /// A step of a slot with 64 cached tokens, by its number of tokens; empty without drafts.
    #[serde(default)]
    pub shallow_ms: BTreeMap<u32, f64>,
    /// Prefill of 48 tokens after cached ones.
    pub suffix_ms: Option<f64>,
    /// Prefill of [`Self::cold_tokens`] in the middle of a new prompt.
    pub cold_ms: Option<f64>,
    /// Number of tokens of that prefill.
    pub cold_tokens: u32,
    /// Cached tokens of each slot. Units: tokens.
    pub cached_tokens: u32,
    /// Number of slots.
    pub n_slots: u16,
}

impl Figures {
    /// Returns the time in which this many slots decode together.
    pub fn decode_ms(&self) -> Curve {
        let one = self.decode_one_ms.map(|ms| (1, ms));
        let all = self.decode_all_ms.map(|ms| (self.n_slots, ms));
        let some = self.decode_some_ms.iter().map(|(&n, &ms)| (n, ms));
        Curve::new(one.into_iter().chain(some).chain(all).map(|(n, ms)| (u32::from(n), ms)))
    }

    /// Returns the time of a step by the number of one slot's tokens.
    pub fn tokens_ms(&self) -> Curve {
        let one = self.decode_one_ms.map(|ms| (1, ms)).filter(|_| !self.draft_ms.is_empty());
        Curve::new(one.into_iter().chain(self.draft_ms.iter().map(|(&n, &ms)| (n, ms))))
    }

    /// Returns the change of these times with the cached tokens of a slot.
    pub fn depth(&self) -> DepthCost {
        let shallow = Curve::new(self.shallow_ms.iter().map(|(&n, &ms)| (n, ms)));
        DepthCost::between(self.cached_tokens, &self.tokens_ms(), &shallow)
    }

    /// Returns the expected cost of a request; missing measurements count as zero.
    pub(super) fn cost_ms(&self) -> f64 {
        let of = |figure: Option<f64>| figure.unwrap_or(0.0);
        let all = of(self.decode_all_ms) / f64::from(self.n_slots.max(1));
        let decode = ANSWER_TOKENS * (ALONE * of(self.decode_one_ms) + (1.0 - ALONE) * all);
        let new_tokens = MISSES * PROMPT_TOKENS + LONG_TURNS * LONG_TURN_TOKENS;
        let new = new_tokens * of(self.cold_ms) / f64::from(self.cold_tokens.max(1));
        decode + (1.0 - LONG_TURNS) * of(self.suffix_ms) + new
    }
}

/// Cost of moving state, and cost of cached state for other sequences.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct StateCosts {
    /// Exporting a token's state from a slot and cutting it into blocks. Units: milliseconds.
    pub export_ms_per_token: f64,
    /// Assembling a token's state and importing it into a slot. Units: milliseconds.
    pub import_ms_per_token: f64,
    /// Copying a token's state from slot to slot. Units: milliseconds.
    pub copy_ms_per_token: f64,
    /// Time that each cached cell of an idle slot adds to a step of one decoding slot. Units: milliseconds.
    pub idle_cell_ms: f64,
    /// Suffixes that are computed faster together with some cached tokens.
    pub suffix_rounding: Option<SuffixRounding>,
}

/// Rounding of suffixes: from `from_tokens` on, a suffix is computed faster as one of `to_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SuffixRounding {
    /// Shortest suffix that is rounded up.
    pub from_tokens: u32,
    /// Length to which it is rounded.
    pub to_tokens: u32,
}

/// Returns the rounding that follows from the times of a short suffix and of a whole tile.
pub(super) fn rounding(short_ms: f64, tile_ms: f64) -> Option<SuffixRounding> {
    if !(short_ms > 0.0 && tile_ms > 0.0) {
        return None;
    }
    // Below a tile the time grows with the tokens.
    let break_even = f64::from(SHORT_TOKENS) * tile_ms / short_ms * (1.0 + ROUNDING_GAIN_MIN);
    let pays = break_even < f64::from(TILE_TOKENS) * (1.0 - ROUNDING_GAIN_MIN);
    pays.then(|| SuffixRounding { from_tokens: (break_even.ceil() as u32).max(2), to_tokens: TILE_TOKENS })
}
