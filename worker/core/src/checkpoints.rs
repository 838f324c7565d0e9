//! Where partial state is kept while a prompt is computed, for memory that cannot be rewound.
//!
//! Not here: what is done with it later (`slot_plan`), how long it stays (`chunk_index`).
//! The idea: a later request resumes where some sequence stood still and was looked at. The places that come again are a
//! prompt's end, from which its conversation goes on, and the start of its last message, which may be sent once more in
//! other words; a stride between them bounds what a prompt that parts elsewhere has to compute again. All are at the ends
//! of whole blocks, which have a name.

use std::ops::Range;

/// Says where checkpoints are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointRule {
    /// Is the distance of regular checkpoints; 0 for none.
    pub stride_tokens: u32,
    /// Is the number of tokens in a block.
    pub block_size_tokens: u32,
    /// Says whether there are checkpoints at all.
    pub need: CheckpointNeed,
}

/// Says whether checkpoints are of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointNeed {
    /// They are: exported state cannot be cut back.
    Needed,
    /// They are not, or cannot be stored.
    None,
}

impl CheckpointRule {
    /// Returns after how many tokens of a prompt checkpoints are made, ascending, given which of its tokens are computed
    /// and where its last message starts.
    pub fn stops(&self, computed: Range<u32>, last_message_token: Option<u32>) -> Vec<u32> {
        if self.need == CheckpointNeed::None {
            return Vec::new();
        }
        // At least one token is computed behind a checkpoint.
        let last = self.align(computed.end.saturating_sub(1));
        let stride = self.align(self.stride_tokens.max(self.block_size_tokens));
        let n_strides = if self.stride_tokens == 0 { 0 } else { last / stride };
        let regular = (1..=n_strides).map(|n| n * stride);
        let mut stops: Vec<u32> =
            regular.chain(last_message_token.map(|token| self.align(token))).chain([last]).collect();
        stops.retain(|stop| *stop > computed.start && *stop <= last);
        stops.sort_unstable();
        stops.dedup();
        stops
    }

    fn align(&self, token: u32) -> u32 {
        token / self.block_size_tokens * self.block_size_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: CheckpointRule =
        CheckpointRule { stride_tokens: 100, block_size_tokens: 32, need: CheckpointNeed::Needed };

    #[test]
    fn stops_at_strides_at_the_last_message_and_at_the_end_all_at_whole_blocks() {
        assert_eq!(RULE.stops(0..350, Some(300)), [96, 192, 288, 320]);
        assert_eq!(RULE.stops(0..320, None), [96, 192, 288]);
        assert_eq!(RULE.stops(0..321, None), [96, 192, 288, 320]);
        assert_eq!(CheckpointRule { stride_tokens: 0, ..RULE }.stops(0..350, Some(70)), [64, 320]);
    }

    #[test]
    fn stops_nowhere_that_is_computed_already() {
        assert_eq!(RULE.stops(192..350, Some(100)), [288, 320]);
        assert_eq!(RULE.stops(320..350, None), [0_u32; 0]);
        assert_eq!(RULE.stops(0..20, Some(3)), [0_u32; 0]);
    }

    #[test]
    fn stops_nowhere_where_it_is_of_no_use() {
        assert_eq!(CheckpointRule { need: CheckpointNeed::None, ..RULE }.stops(0..350, None), [0_u32; 0]);
    }
}
