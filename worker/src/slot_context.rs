//! The context of a slot for a prompt and its response, and the settings that enlarge it.
//!
//! Not here: the division of the context (`engine::llama`).

use warmpath_common::model::ModelInfo;
use warmpath_prompt::TokenCount;

use crate::engine::SLOT_CELLS_STEP;

/// Context of one slot and its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotContext {
    /// Tokens of one slot.
    pub context_tokens: u32,
    /// Slots that share the whole context.
    pub n_slots: u16,
    /// Whether `--kv-unified-per-slot` makes it so short.
    pub is_limited: bool,
    /// Context size in training; `None` if the model's file does not have it. Units: tokens.
    pub n_ctx_train: Option<u32>,
}

impl SlotContext {
    /// Returns the context of a slot of a worker with this model and without a limit of its own.
    pub fn of(model: &ModelInfo) -> Self {
        let ModelInfo { context_tokens, n_slots, n_ctx_train, .. } = *model;
        Self { context_tokens, n_slots, is_limited: false, n_ctx_train }
    }

    /// Returns the largest useful `--ctx-size`, by the context size in training; `None` if `ctx_size` is not larger.
    pub(crate) fn useful_ctx_size(&self, ctx_size: u32) -> Option<u64> {
        let useful = u64::from(self.n_ctx_train?) * u64::from(self.n_slots.max(1));
        (u64::from(ctx_size) > useful).then_some(useful)
    }

    /// Returns the end of an error message: the setting with which a prompt of this length and one token of a response
    /// fit.
    pub(crate) fn remedy(&self, n_tokens: TokenCount) -> String {
        let n_needed = (n_tokens.number() as u64 + 1).next_multiple_of(u64::from(SLOT_CELLS_STEP));
        let n_slots = u64::from(self.n_slots.max(1));
        let is_beyond = |n_ctx_train: &u32| n_tokens.number() as u64 >= u64::from(*n_ctx_train);
        if let Some(n_ctx_train) = self.n_ctx_train.filter(is_beyond) {
            return format!("; the model was trained for {n_ctx_train} tokens");
        }
        let (name, n_needed) =
            if self.is_limited { ("--kv-unified-per-slot", n_needed) } else { ("--ctx-size", n_needed * n_slots) };
        let flag = match n_tokens {
            TokenCount::Exactly(_) => format!("start the worker with {name} {n_needed} or more"),
            TokenCount::AtLeast(_) => format!("start the worker with a larger {name}"),
        };
        match n_slots {
            _ if self.is_limited => format!("; {flag}"),
            1 => format!("; {flag}"),
            _ => format!("; --ctx-size is divided among {n_slots} slots: {flag}, or with fewer --slots"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_useful_up_to_the_trained_size() {
        let check = |n_slots, n_ctx_train, given, expected| {
            let slot = SlotContext { context_tokens: 2048, n_slots, is_limited: false, n_ctx_train };
            assert_eq!(slot.useful_ctx_size(given), expected, "{given} for {n_slots} slots");
        };
        check(2, Some(8192), 65536, Some(16384));
        check(2, Some(8192), 16385, Some(16384));
        check(2, Some(8192), 16384, None);
        check(1, Some(8192), 0, None);
        check(2, None, 65536, None);
        check(u16::MAX, Some(u32::MAX), u32::MAX, None);
    }

    #[test]
    fn the_message_names_the_setting_for_a_longer_prompt() {
        let check = |(n_slots, n_ctx_train), n_tokens, expected: &str| {
            let slot = SlotContext { context_tokens: 2048, n_slots, is_limited: false, n_ctx_train };
            assert_eq!(slot.remedy(n_tokens), expected);
        };
        let divided = "; --ctx-size is divided among 4 slots: start the worker with";
        let exactly = TokenCount::Exactly;
        check((4, None), exactly(3578), &format!("{divided} --ctx-size 14336 or more, or with fewer --slots"));
        check((4, Some(4096)), exactly(3583), &format!("{divided} --ctx-size 14336 or more, or with fewer --slots"));
        check((4, Some(4096)), exactly(3584), &format!("{divided} --ctx-size 15360 or more, or with fewer --slots"));
        check((1, Some(4096)), exactly(4095), "; start the worker with --ctx-size 4096 or more");
        let limited = SlotContext { context_tokens: 2048, n_slots: 4, is_limited: true, n_ctx_train: None };
        assert_eq!(limited.remedy(exactly(3578)), "; start the worker with --kv-unified-per-slot 3584 or more");
        check((4, Some(4096)), exactly(4096), "; the model was trained for 4096 tokens");
        let far = format!("{divided} a larger --ctx-size, or with fewer --slots");
        check((4, None), TokenCount::AtLeast(2049), &far);
    }
}
