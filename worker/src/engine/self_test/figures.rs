//! What is measured of a setting, and the one cost that settings are compared by.
//!
//! Not here: the measuring (`measure`).
//! The idea: the cost is that of one request as this project expects them: most of the prompt is cached, a short suffix is
//! new, an answer is decoded, and other conversations stay in the buffer meanwhile.

use std::collections::BTreeMap;

/// Is the tokens of an answer. Source: the mean answer of public chat logs is one to two hundred tokens.
const ANSWER_TOKENS: f64 = 128.0;
/// Is the share of decode steps in which no other slot runs; in the others all do.
const ALONE: f64 = 0.5;
/// Is the share of prompts that are not cached at all.
const MISSES: f64 = 0.1;
/// Is the length of such a prompt.
pub(super) const PROMPT_TOKENS: f64 = 2048.0;

/// Is the tokens behind a cached prompt.
pub(super) const SUFFIX_TOKENS: u32 = 48;
/// Is the size from which flash attention on a CPU computes in tiles. Source: llama.cpp's `ggml_compute_forward_flash_attn_ext_tiled`.
pub(super) const TILE_TOKENS: u32 = 64;
/// Is a suffix that is shorter than a tile.
pub(super) const SHORT_TOKENS: u32 = 32;
/// Is how much cheaper rounding up must be before it is done.
const ROUNDING_GAIN_MIN: f64 = 0.1;

/// Is what was measured of a setting; absent where measuring stopped before. Units: milliseconds.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Figures {
    /// Is a step in which one slot decodes and the others hold their cached tokens.
    pub decode_one_ms: Option<f64>,
    /// Is a step in which every slot decodes.
    pub decode_all_ms: Option<f64>,
    /// Is a step in which so many slots with consecutive numbers decode, for some numbers between one and all.
    #[serde(default)]
    pub decode_some_ms: BTreeMap<u16, f64>,
    /// Is the prefill of 48 tokens behind cached ones.
    pub suffix_ms: Option<f64>,
    /// Is the prefill of [`Self::cold_tokens`] in the middle of a new prompt.
    pub cold_ms: Option<f64>,
    /// Is the length of that stretch. Units: tokens.
    pub cold_tokens: u32,
    /// Is the tokens that each slot had cached. Units: tokens.
    pub cached_tokens: u32,
    /// Is the number of slots.
    pub n_slots: u16,
}

impl Figures {
    /// Lists how long so many slots take to decode together.
    pub fn decode_ms(&self) -> Vec<(u16, f64)> {
        let one = self.decode_one_ms.map(|ms| (1, ms));
        let all = self.decode_all_ms.map(|ms| (self.n_slots, ms));
        let some = self.decode_some_ms.iter().map(|(&n, &ms)| (n, ms));
        one.into_iter().chain(some).chain(all).collect()
    }

    /// Returns the expected cost of a request; what was not measured counts nothing.
    pub(super) fn cost_ms(&self) -> f64 {
        let of = |figure: Option<f64>| figure.unwrap_or(0.0);
        let all = of(self.decode_all_ms) / f64::from(self.n_slots.max(1));
        let decode = ANSWER_TOKENS * (ALONE * of(self.decode_one_ms) + (1.0 - ALONE) * all);
        let cold = of(self.cold_ms) * PROMPT_TOKENS / f64::from(self.cold_tokens.max(1));
        decode + of(self.suffix_ms) + MISSES * cold
    }
}

/// Is what moving state costs and what cached state costs others.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Costs {
    /// Is taking a token's state out of a slot and cutting it into blocks. Units: milliseconds.
    pub export_ms_per_token: f64,
    /// Is putting a token's state together and into a slot. Units: milliseconds.
    pub import_ms_per_token: f64,
    /// Is copying a token's state from slot to slot. Units: milliseconds.
    pub copy_ms_per_token: f64,
    /// Is what each cached cell of an idle slot adds to a step of one decoding slot. Units: milliseconds.
    pub idle_cell_ms: f64,
    /// Says which suffixes are faster when cached tokens are recomputed with them.
    pub suffix_rounding: Option<SuffixRounding>,
}

/// Says that a suffix of `from_tokens` or more is faster as one of `to_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SuffixRounding {
    /// Is the shortest suffix that is rounded up.
    pub from_tokens: u32,
    /// Is the suffix that it becomes.
    pub to_tokens: u32,
}

/// Returns the rounding that a short suffix and one of a whole tile suggest.
pub(super) fn rounding(short_ms: f64, tile_ms: f64) -> Option<SuffixRounding> {
    if !(short_ms > 0.0 && tile_ms > 0.0) {
        return None;
    }
    // Below a tile the time grows with the tokens.
    let break_even = f64::from(SHORT_TOKENS) * tile_ms / short_ms * (1.0 + ROUNDING_GAIN_MIN);
    let pays = break_even < f64::from(TILE_TOKENS) * (1.0 - ROUNDING_GAIN_MIN);
    pays.then(|| SuffixRounding { from_tokens: (break_even.ceil() as u32).max(2), to_tokens: TILE_TOKENS })
}
