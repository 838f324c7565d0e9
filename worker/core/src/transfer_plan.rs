//! Whether a request waits for KV state from another worker, for which blocks, and how long at most.
//!
//! The missing blocks are fetched if that takes less time than computing them, by the measured rates of both. Blocks in
//! the store are not fetched. Blocks that only a slot holds are fetched as well, because stored state can only be
//! restored from its first token on.
//! Not here: the start of the request with what has arrived (`slot_plan`).

use std::ops::Range;

use crate::restore_costs::Costs;

/// State at another worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offer {
    /// Number of the prompt's first blocks that the other worker holds.
    pub n_blocks: usize,
    /// Time to receive a byte. Units: milliseconds.
    pub ms_per_byte: f64,
    /// Time until the first byte. Units: milliseconds.
    pub latency_ms: f64,
}

/// This worker's part of the prompt, and sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// Tokens of the prompt.
    pub n_prompt: u32,
    /// Whole blocks of the prompt.
    pub n_prompt_blocks: usize,
    /// Prompt tokens that need not be computed even without a transfer.
    pub n_usable: u32,
    /// Blocks of the prompt in the store.
    pub n_stored_blocks: usize,
    /// Tokens of a block.
    pub block_size_tokens: u32,
    /// Size of a block's state.
    pub block_bytes: u64,
    /// Maximum number of bytes that the store can take.
    pub room_bytes: u64,
}

/// Decision to wait for another worker's state.
#[derive(Debug, Clone, PartialEq)]
pub struct Transfer {
    /// Blocks to fetch.
    pub blocks: Range<usize>,
    /// Longest time for which it is worth waiting. Units: milliseconds.
    pub time_max_ms: f64,
    /// Time to compute a block. Units: milliseconds.
    pub prefill_ms_per_block: f64,
}

/// Returns the transfer that makes the request start sooner, if there is one.
///
/// It has at least one block. Cost: O(1).
pub fn plan(offer: &Offer, own: &Own, costs: &Costs) -> Option<Transfer> {
    let n_blocks = offer.n_blocks.min(own.n_prompt_blocks);
    let n_reached = u64::try_from(n_blocks).ok()? * u64::from(own.block_size_tokens);
    // One token is always computed, for its logits.
    let n_reached = n_reached.min(u64::from(own.n_prompt.saturating_sub(1)));
    let n_gained = n_reached.checked_sub(u64::from(own.n_usable))?;
    if n_gained < u64::from(own.block_size_tokens) || n_blocks <= own.n_stored_blocks {
        return None;
    }
    let n_bytes = own.block_bytes.checked_mul((n_blocks - own.n_stored_blocks) as u64)?;
    let saved_ms = costs.prefill_ms(n_gained as usize);
    let time_max_ms = saved_ms - costs.import_ms(own.block_bytes.saturating_mul(n_blocks as u64));
    let needed_ms = offer.latency_ms + offer.ms_per_byte * n_bytes as f64;
    (n_bytes <= own.room_bytes && needed_ms < time_max_ms).then(|| Transfer {
        blocks: own.n_stored_blocks..n_blocks,
        time_max_ms,
        prefill_ms_per_block: costs.prefill_ms(own.block_size_tokens as usize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer = Offer { n_blocks: 10, ms_per_byte: 0.001, latency_ms: 5.0 };
    const OWN: Own = Own {
        n_prompt: 165,
        n_prompt_blocks: 10,
        n_usable: 0,
        n_stored_blocks: 0,
        block_size_tokens: 16,
        block_bytes: 1000,
        room_bytes: 20_000,
    };
    const COSTS: Costs = Costs {
        prefill_ms_per_token: 1.0,
        copy_ms_per_token: None,
        export_ms_per_token: Some(0.0),
        import_ms_per_byte: 0.0001,
        read_ms_per_byte: 0.0,
        suffix_rounding: None,
    };

    fn check(offer: Offer, own: Own, expected: Option<(Range<usize>, f64)>) {
        let found = plan(&offer, &own, &COSTS).map(|transfer| (transfer.blocks, transfer.time_max_ms));
        assert_eq!(found, expected, "{offer:?} {own:?}");
    }

    #[test]
    fn blocks_are_fetched_where_that_is_faster_than_computing_them() {
        check(OFFER, OWN, Some((0..10, 159.0)));
        check(Offer { ms_per_byte: 0.0154, ..OFFER }, OWN, None);
        check(Offer { ms_per_byte: 0.0153, ..OFFER }, OWN, Some((0..10, 159.0)));
        check(Offer { latency_ms: 150.0, ..OFFER }, OWN, None);
    }

    #[test]
    fn stored_blocks_are_not_fetched_and_usable_ones_save_nothing() {
        check(OFFER, Own { n_usable: 64, n_stored_blocks: 4, ..OWN }, Some((4..10, 95.0)));
        check(OFFER, Own { n_usable: 64, ..OWN }, Some((0..10, 95.0)));
        check(OFFER, Own { n_usable: 160, n_stored_blocks: 10, ..OWN }, None);
        check(OFFER, Own { n_usable: 145, ..OWN }, None);
        check(OFFER, Own { n_usable: 164, n_stored_blocks: 3, ..OWN }, None);
    }

    #[test]
    fn an_offer_beyond_the_prompt_or_the_room_is_cut_or_refused() {
        check(Offer { n_blocks: usize::MAX, ..OFFER }, OWN, Some((0..10, 159.0)));
        check(OFFER, Own { n_prompt: 160, ..OWN }, Some((0..10, 158.0)));
        check(OFFER, Own { room_bytes: 9999, ..OWN }, None);
        check(OFFER, Own { block_bytes: u64::MAX, ..OWN }, None);
        check(Offer { n_blocks: 0, ..OFFER }, OWN, None);
        check(OFFER, Own { n_prompt: 0, n_prompt_blocks: 0, ..OWN }, None);
    }
}
