//! Positions of a prompt at which checkpoints are made, for memory that cannot be rewound.
//!
//! Their later use is in `slot_plan`; `chunk_index` decides how long they stay.
//!
//! A later request can resume only at a checkpoint. Two positions are often resumed at: a prompt's end, where its
//! conversation continues, and the start of its last message, which the client may edit. The client may name others, up
//! to which its later requests are equal. Regular checkpoints limit the tokens that have to be computed again for a
//! prompt that diverges elsewhere. All positions are at the ends of whole blocks, which have a hash.

use std::ops::Range;

/// Rule for the positions of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// Distance of regular checkpoints; 0 for none.
    pub stride_tokens: u32,
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

impl CheckpointPolicy {
    /// Returns the numbers of prompt tokens after which checkpoints are made, ascending. `tokens` is the range of
    /// tokens that are computed; `breakpoints` are positions at which later requests may resume.
    pub fn stops(&self, tokens: Range<u32>, breakpoints: &[u32]) -> Vec<u32> {
        if self.need == CheckpointNeed::None {
            return Vec::new();
        }
        // At least one token is computed after a checkpoint.
        let last = self.align(tokens.end.saturating_sub(1));
        let stride = self.align(self.stride_tokens.max(self.block_size_tokens));
        let n_strides = if self.stride_tokens == 0 { 0 } else { last / stride };
        let regular = (1..=n_strides).map(|n| n * stride);
        let at_breakpoints = breakpoints.iter().map(|token| self.align(*token));
        let mut stops: Vec<u32> = regular.chain(at_breakpoints).chain([last]).collect();
        stops.retain(|stop| *stop > tokens.start && *stop <= last);
        stops.sort_unstable();
        stops.dedup();
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

    const RULE: CheckpointPolicy =
        CheckpointPolicy { stride_tokens: 100, block_size_tokens: 32, need: CheckpointNeed::Needed };

    #[test]
    fn stops_at_strides_at_the_last_message_and_at_the_end_all_at_whole_blocks() {
        assert_eq!(RULE.stops(0..350, &[300]), [96, 192, 288, 320]);
        assert_eq!(RULE.stops(0..320, &[]), [96, 192, 288]);
        assert_eq!(RULE.stops(0..321, &[]), [96, 192, 288, 320]);
        assert_eq!(CheckpointPolicy { stride_tokens: 0, ..RULE }.stops(0..350, &[70]), [64, 320]);
    }

    #[test]
    fn never_stops_within_cached_tokens() {
        assert_eq!(RULE.stops(192..350, &[100]), [288, 320]);
        assert_eq!(RULE.stops(320..350, &[]), [0_u32; 0]);
        assert_eq!(RULE.stops(0..20, &[3]), [0_u32; 0]);
    }

    #[test]
    fn never_stops_where_a_checkpoint_is_useless() {
        assert_eq!(CheckpointPolicy { need: CheckpointNeed::None, ..RULE }.stops(0..350, &[]), [0_u32; 0]);
    }
}
