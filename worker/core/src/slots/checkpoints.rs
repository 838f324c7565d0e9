//! Positions of a prompt at which checkpoints are made, for memory that cannot be rewound.
//!
//! Their later use is in `slot_plan`; `chunk_index` decides how long they stay.
//!
//! A later request can resume only at a checkpoint. So checkpoints are where prompts diverge. A conversation goes on
//! at its prompt's end, or a little before it, because clients add text to their last message that they do not send
//! again. Several conversations go on at the end of their instructions, at the places that clients mark, and where
//! prompts have diverged before. All positions are at the ends of whole blocks, which have a hash.

use std::ops::Range;

use crate::store::chunk_index::CheckpointPlace;

/// Number of a prompt's last tokens of which a next prompt may have others: the opening of the answer.
///
/// Source: Qwen 3's opening without reasoning, the longest one of the templates in `common/prompt`, has 7 tokens.
const OPENING_TOKENS_MAX: u32 = 8;

/// Distance of the second checkpoint from a prompt's end. Units: tokens.
///
/// Source: of 7,280 requests that follow another one in coding agents' sessions, 6,879 go on behind its prompt, 277
/// leave it in its last 256 tokens, and 124 earlier (docs/decisions/0010-prompt-state-cache.md).
const CHANGED_TOKENS_MAX: u32 = 256;

/// Minimum number of tokens that a checkpoint at a shared place saves.
///
/// Source: fewer are computed in less time than a checkpoint takes: a copy of some tens of MiB.
const SHARED_TOKENS_MIN: u32 = 64;

/// Rule for the positions of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// Number of tokens of a block.
    pub block_size_tokens: u32,
    /// Whether checkpoints are made.
    pub need: CheckpointNeed,
}

/// Whether checkpoints are useful.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointNeed {
    /// Checkpoints are useful: exported state cannot be cut back.
    Needed,
    /// Checkpoints are useless, or cannot be stored.
    None,
}

/// A checkpoint to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointStop {
    /// Number of tokens before it.
    pub n_tokens: u32,
    /// Its place.
    pub place: CheckpointPlace,
}

impl CheckpointPolicy {
    /// Returns the checkpoints of a prompt, by ascending position. `tokens` is the range of tokens that are computed;
    /// at the positions of `shared`, other prompts diverge.
    pub fn stops(&self, tokens: Range<u32>, shared: impl IntoIterator<Item = u32>) -> Vec<CheckpointStop> {
        if self.need == CheckpointNeed::None {
            return Vec::new();
        }
        // At least one token is computed after a checkpoint.
        let last = self.align(tokens.end.saturating_sub(1));
        let stop = |place| move |n_tokens| CheckpointStop { n_tokens, place };
        let shared = shared.into_iter().map(|n_tokens| self.align(n_tokens));
        let shared = shared.filter(|n_tokens| *n_tokens >= tokens.start + SHARED_TOKENS_MIN && *n_tokens <= last);
        let ends = [OPENING_TOKENS_MAX, CHANGED_TOKENS_MAX].map(|n| self.align(tokens.end.saturating_sub(n)));
        let ends = ends.into_iter().filter(|n_tokens| *n_tokens > tokens.start);
        let shared = shared.map(stop(CheckpointPlace::Shared));
        let mut stops: Vec<CheckpointStop> = shared.chain(ends.map(stop(CheckpointPlace::End))).collect();
        // Of two at the same position, the shared one comes first and stays.
        stops.sort_by_key(|stop| stop.n_tokens);
        stops.dedup_by_key(|stop| stop.n_tokens);
        stops
    }

    fn align(&self, token: u32) -> u32 {
        token / self.block_size_tokens * self.block_size_tokens
    }
}

/// Returns at most `n_max` of the checkpoints, given in the order of their positions: the last ones, where
/// conversations continue, and some evenly spaced ones before them.
pub fn spread<T>(checkpoints: Vec<T>, n_max: usize) -> Vec<T> {
    let n_last = n_max.div_ceil(2).min(checkpoints.len());
    let (n_before, n_spread) = (checkpoints.len() - n_last, n_max - n_max.div_ceil(2));
    let is_kept = |idx: usize| match idx < n_before {
        // The last checkpoint of each of `n_spread` equal parts.
        true => (idx + 1) * n_spread / n_before > idx * n_spread / n_before,
        false => true,
    };
    checkpoints.into_iter().enumerate().filter(|(idx, _)| is_kept(*idx)).map(|(_, checkpoint)| checkpoint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_checkpoints_and_some_evenly_spaced_earlier_ones() {
        for n in 0..=8 {
            assert_eq!(spread((0..n).collect(), 8), (0..n).collect::<Vec<u32>>());
        }
        assert_eq!(spread((0..9).collect(), 8), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(spread((0..104).collect(), 8), [24, 49, 74, 99, 100, 101, 102, 103]);
        assert_eq!(spread((0..5).collect(), 1), [4]);
        assert_eq!(spread((0..5).collect(), 0), [0_u32; 0]);
    }

    const RULE: CheckpointPolicy = CheckpointPolicy { block_size_tokens: 32, need: CheckpointNeed::Needed };

    const NONE: Vec<u32> = Vec::new();

    /// Returns the positions of a rule's checkpoints, first those of shared places.
    fn stops(rule: CheckpointPolicy, tokens: Range<u32>, shared: &[u32]) -> [Vec<u32>; 2] {
        let stops = rule.stops(tokens, shared.iter().copied());
        assert!(stops.is_sorted_by(|a, b| a.n_tokens < b.n_tokens), "{stops:?}");
        [CheckpointPlace::Shared, CheckpointPlace::End]
            .map(|place| stops.iter().filter(|stop| stop.place == place).map(|stop| stop.n_tokens).collect())
    }

    #[test]
    fn stops_at_the_end_and_before_its_last_text_and_where_prompts_diverge_all_at_whole_blocks() {
        assert_eq!(stops(RULE, 0..1000, &[]), [vec![], vec![736, 992]]);
        assert_eq!(stops(RULE, 0..999, &[]), [vec![], vec![736, 960]]);
        assert_eq!(stops(RULE, 0..1000, &[500, 70, 300]), [vec![64, 288, 480], vec![736, 992]]);
        assert_eq!(stops(RULE, 0..1000, &[740, 999]), [vec![736, 992], vec![]]);
        assert_eq!(stops(RULE, 0..200, &[]), [vec![], vec![192]]);
    }

    #[test]
    fn a_shared_place_that_saves_few_tokens_is_not_worth_a_checkpoint() {
        assert_eq!(stops(RULE, 32..300, &[95]), [vec![], vec![288]]);
        assert_eq!(stops(RULE, 32..300, &[96]), [vec![96], vec![288]]);
    }

    #[test]
    fn never_stops_within_cached_tokens_or_behind_the_prompt() {
        assert_eq!(stops(RULE, 192..350, &[100, 400]), [vec![], vec![320]]);
        assert_eq!(stops(RULE, 320..350, &[]), [NONE, NONE]);
        assert_eq!(stops(RULE, 0..20, &[3, 20]), [NONE, NONE]);
    }

    #[test]
    fn never_stops_where_a_checkpoint_is_useless() {
        let useless = CheckpointPolicy { need: CheckpointNeed::None, ..RULE };
        assert_eq!(stops(useless, 0..1000, &[500]), [NONE, NONE]);
    }
}
