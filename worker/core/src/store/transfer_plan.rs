//! Decision whether a request waits for KV state from another worker, for which blocks, and for how long.
//!
//! The missing blocks are fetched if that takes less time than computing them, by the measured rates of both workers.
//! Blocks in the store are not fetched. Blocks that are only in a slot are fetched as well, because stored state can
//! only be restored from the first token on.
//! Not here: the start of the request with the received state (`slot_plan`).

use std::ops::Range;

use crate::store::restore_costs::Costs;

/// State that another worker offers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateOffer {
    /// Number of the prompt's first blocks that the other worker has.
    pub n_blocks: usize,
    /// Time to receive a byte. Units: milliseconds.
    pub ms_per_byte: f64,
    /// Time until the first byte. Units: milliseconds.
    pub latency_ms: f64,
}

/// State of the prompt at this worker, and sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptState {
    /// Tokens of the prompt.
    pub n_prompt: u32,
    /// Whole blocks of the prompt.
    pub n_prompt_blocks: usize,
    /// Prompt tokens that are cached without a transfer.
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
pub struct TransferDecision {
    /// Blocks to fetch.
    pub blocks: Range<usize>,
    /// Maximum time for which waiting pays. Units: milliseconds.
    pub time_max_ms: f64,
    /// Time to compute a block. Units: milliseconds.
    pub prefill_ms_per_block: f64,
}

/// Returns the transfer that makes the request faster; `None` if there is none.
///
/// It has at least one block. Cost: O(1).
pub fn plan(offer: &StateOffer, local: &PromptState, costs: &Costs) -> Option<TransferDecision> {
    let n_blocks = offer.n_blocks.min(local.n_prompt_blocks);
    let n_reached = u64::try_from(n_blocks).ok()? * u64::from(local.block_size_tokens);
    // One token is always computed, for its logits.
    let n_reached = n_reached.min(u64::from(local.n_prompt.saturating_sub(1)));
    let n_gained = n_reached.checked_sub(u64::from(local.n_usable))?;
    if n_gained < u64::from(local.block_size_tokens) || n_blocks <= local.n_stored_blocks {
        return None;
    }
    let n_bytes = local.block_bytes.checked_mul((n_blocks - local.n_stored_blocks) as u64)?;
    let saved_ms = costs.prefill_ms(n_gained as usize);
    let time_max_ms = saved_ms - costs.import_ms(local.block_bytes.saturating_mul(n_blocks as u64));
    let needed_ms = offer.latency_ms + offer.ms_per_byte * n_bytes as f64;
    (n_bytes <= local.room_bytes && needed_ms < time_max_ms).then(|| TransferDecision {
        blocks: local.n_stored_blocks..n_blocks,
        time_max_ms,
        prefill_ms_per_block: costs.prefill_ms(local.block_size_tokens as usize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: StateOffer = StateOffer { n_blocks: 10, ms_per_byte: 0.001, latency_ms: 5.0 };
    const LOCAL: PromptState = PromptState {
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

    fn check(offer: StateOffer, local: PromptState, expected: Option<(Range<usize>, f64)>) {
        let found = plan(&offer, &local, &COSTS).map(|transfer| (transfer.blocks, transfer.time_max_ms));
        assert_eq!(found, expected, "{offer:?} {local:?}");
    }

    #[test]
    fn blocks_are_fetched_if_that_is_faster_than_computing_them() {
        check(OFFER, LOCAL, Some((0..10, 159.0)));
        check(StateOffer { ms_per_byte: 0.0154, ..OFFER }, LOCAL, None);
        check(StateOffer { ms_per_byte: 0.0153, ..OFFER }, LOCAL, Some((0..10, 159.0)));
        check(StateOffer { latency_ms: 150.0, ..OFFER }, LOCAL, None);
    }

    #[test]
    fn stored_blocks_are_not_fetched_and_usable_ones_save_nothing() {
        check(OFFER, PromptState { n_usable: 64, n_stored_blocks: 4, ..LOCAL }, Some((4..10, 95.0)));
        check(OFFER, PromptState { n_usable: 64, ..LOCAL }, Some((0..10, 95.0)));
        check(OFFER, PromptState { n_usable: 160, n_stored_blocks: 10, ..LOCAL }, None);
        check(OFFER, PromptState { n_usable: 145, ..LOCAL }, None);
        check(OFFER, PromptState { n_usable: 164, n_stored_blocks: 3, ..LOCAL }, None);
    }

    #[test]
    fn an_offer_beyond_the_prompt_is_shortened_and_one_beyond_the_room_refused() {
        check(StateOffer { n_blocks: usize::MAX, ..OFFER }, LOCAL, Some((0..10, 159.0)));
        check(OFFER, PromptState { n_prompt: 160, ..LOCAL }, Some((0..10, 158.0)));
        check(OFFER, PromptState { room_bytes: 9999, ..LOCAL }, None);
        check(OFFER, PromptState { block_bytes: u64::MAX, ..LOCAL }, None);
        check(StateOffer { n_blocks: 0, ..OFFER }, LOCAL, None);
        check(OFFER, PromptState { n_prompt: 0, n_prompt_blocks: 0, ..LOCAL }, None);
    }
}
