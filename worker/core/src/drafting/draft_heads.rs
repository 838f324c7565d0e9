//! Draft heads: the hidden states that they read, and the tokens whose state they have.
//!
//! A head is one more layer of the served model. For a token it reads the token itself and the hidden state that the
//! model computed for the token before it, and it predicts the next token but one. It has a KV cache of its own. So a
//! head can only follow a sequence where the model has just computed tokens: hidden states are not stored. Here are the
//! hidden states of each slot's last tokens, from which a head computes the tokens that it lacks once a draft is worth
//! it. Nothing is computed for a head before.
//!
//! Not here: the cost of a head's passes (`draft_model`), their computation (the shell's `draft_heads`).
//! Source: DeepSeek-V3 (arXiv 2412.19437), multi-token prediction.

use std::ops::Range;

use warmpath_common::ids::Token;

use super::draft_model::{DraftStateOwner, DraftTarget};

/// Maximum number of tokens of a slot whose hidden states are kept.
///
/// Source: own choice: a head attends mostly to the last tokens, and 512 states of width 4,096 take 8 MB.
pub const HIDDEN_STATES_MAX: usize = 512;

/// Hidden states of a slot's last tokens, and the tokens whose state a head has.
#[derive(Debug, Clone)]
pub struct HeadSequence {
    /// Owner of the sequence; `None` if there is nothing.
    owner: Option<DraftStateOwner>,
    /// Tokens of the sequence.
    tokens: Vec<Token>,
    /// First token with a hidden state; those of all later tokens follow.
    hidden_start: usize,
    /// Shape: `[tokens from hidden_start x width]`.
    hidden: Vec<f32>,
    width: usize,
    /// Tokens whose state the head has.
    followed: Range<usize>,
}

/// What a head computes before it drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadStart {
    /// First position that the head computes; its state from there on is removed, and all of it if `is_anew`.
    pub from: u32,
    /// Whether the head starts without state of earlier tokens.
    pub is_anew: bool,
}

impl HeadSequence {
    /// Returns a sequence without tokens; a hidden state has `width` floats.
    pub fn new(width: usize) -> Self {
        Self { owner: None, tokens: Vec::new(), hidden_start: 0, hidden: Vec::new(), width, followed: 0..0 }
    }

    /// Records the hidden states of `tokens`, which the model has just computed after the tokens `before`.
    ///
    /// Shape: `hidden` `[tokens x width]`. Cost: O(n) in the tokens, some microseconds for a long context.
    pub fn record(&mut self, owner: DraftStateOwner, before: &[Token], tokens: &[Token], hidden: &[f32]) {
        debug_assert_eq!(hidden.len(), tokens.len() * self.width, "a hidden state for each token");
        if self.owner != Some(owner) {
            self.forget();
        }
        // Tokens of an earlier sequence in the slot, and rejected ones, are dropped.
        let n_common = self.tokens.iter().zip(before).take_while(|(own, other)| own == other).count();
        self.truncate(n_common);
        if n_common < before.len() {
            // The state of the tokens between was computed elsewhere.
            self.tokens.extend_from_slice(&before[n_common..]);
            (self.hidden_start, self.followed) = (before.len(), 0..0);
            self.hidden.clear();
        }
        self.owner = Some(owner);
        self.tokens.extend_from_slice(tokens);
        self.hidden.extend_from_slice(hidden);
        let n_more = (self.hidden.len() / self.width).saturating_sub(HIDDEN_STATES_MAX);
        self.hidden.drain(..n_more * self.width);
        self.hidden_start += n_more;
    }

    fn truncate(&mut self, n_tokens: usize) {
        self.tokens.truncate(n_tokens);
        self.hidden_start = self.hidden_start.min(n_tokens);
        self.hidden.truncate((n_tokens - self.hidden_start) * self.width);
        self.followed.end = self.followed.end.min(n_tokens);
    }

    /// Returns where a head starts to compute, to draft after a target's next token; `None` if the hidden state before
    /// that token is missing.
    ///
    /// Cost: as [`Self::record`].
    pub fn start(&self, target: &DraftTarget<'_>) -> Option<HeadStart> {
        let n_computed = target.tokens.len();
        // Rejected tokens may follow the target's.
        let is_known = self.owner == Some(target.owner) && self.tokens.starts_with(target.tokens);
        if !is_known || self.hidden_start >= n_computed {
            return None;
        }
        let followed_end = self.followed.end.min(n_computed);
        // The first token that is computed needs the hidden state before it.
        Some(match followed_end > self.followed.start.max(self.hidden_start) {
            true => HeadStart { from: followed_end as u32, is_anew: false },
            false => HeadStart { from: self.hidden_start as u32 + 1, is_anew: true },
        })
    }

    /// Returns the hidden state of the token before a position.
    ///
    /// Panics: if the position is not one that [`Self::start`] allows.
    pub fn hidden_before(&self, position: u32) -> &[f32] {
        let idx = (position as usize - 1 - self.hidden_start) * self.width;
        &self.hidden[idx..idx + self.width]
    }

    /// Records that the head has state of the tokens up to `end`, from this start on.
    pub fn follow(&mut self, start: HeadStart, end: u32) {
        if start.is_anew {
            self.followed.start = start.from as usize;
        }
        self.followed.end = end as usize;
    }

    /// Returns the position after the last token whose state the head has; 0 without one.
    pub fn followed_end(&self) -> u32 {
        self.followed.end as u32
    }

    /// Forgets everything.
    pub fn forget(&mut self) {
        *self = Self::new(self.width);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use warmpath_common::block_hash::BlockHash;

    use super::*;

    const OWNER: DraftStateOwner = DraftStateOwner::Root(BlockHash([1; 32]));

    /// Returns the hidden state that the model computes for the last of these tokens: one that only they have.
    fn hidden(tokens: &[Token]) -> f32 {
        tokens.iter().fold(1.0, |sum, token| (sum * 31.0 + *token as f32) % 65_521.0)
    }

    fn record(heads: &mut HeadSequence, before: &[Token], tokens: &[Token]) {
        let all = [before, tokens].concat();
        let states: Vec<f32> = (before.len()..all.len()).map(|end| hidden(&all[..=end])).collect();
        heads.record(OWNER, before, tokens, &states);
    }

    fn start(heads: &HeadSequence, tokens: &[Token]) -> Option<(u32, bool)> {
        let target = DraftTarget { owner: OWNER, tokens, next: 9 };
        heads.start(&target).map(|start| (start.from, start.is_anew))
    }

    fn follow(heads: &mut HeadSequence, tokens: &[Token]) {
        let target = DraftTarget { owner: OWNER, tokens, next: 9 };
        let start = heads.start(&target).expect("a start");
        heads.follow(start, tokens.len() as u32);
    }

    #[test]
    fn a_head_computes_what_it_lacks_since_it_last_drafted() {
        let mut heads = HeadSequence::new(1);
        assert_eq!(start(&heads, &[]), None);
        record(&mut heads, &[], &[1, 2, 3, 4]);
        assert_eq!(start(&heads, &[1, 2, 3, 4]), Some((1, true)), "nothing comes before the first token");
        follow(&mut heads, &[1, 2, 3, 4]);
        assert_eq!(start(&heads, &[1, 2, 3, 4]), Some((4, false)));
        // A draft of 6 and 7, of which 6 is accepted.
        record(&mut heads, &[1, 2, 3, 4], &[5, 6, 7]);
        assert_eq!(start(&heads, &[1, 2, 3, 4, 5, 6]), Some((4, false)));
        assert_eq!(heads.hidden_before(5), [hidden(&[1, 2, 3, 4, 5])]);
        follow(&mut heads, &[1, 2, 3, 4, 5, 6]);
        record(&mut heads, &[1, 2, 3, 4, 5, 6], &[8]);
        assert_eq!(start(&heads, &[1, 2, 3, 4, 5, 6, 8]), Some((6, false)));
    }

    #[test]
    fn a_head_starts_anew_behind_state_that_was_not_computed_here() {
        let mut heads = HeadSequence::new(1);
        record(&mut heads, &[], &[1, 2, 3, 4]);
        follow(&mut heads, &[1, 2, 3, 4]);
        // The slot got the state of other tokens.
        assert_eq!(start(&heads, &[7, 7, 7, 7, 7]), None);
        record(&mut heads, &[7, 7, 7, 7, 7], &[8, 9]);
        assert_eq!(start(&heads, &[7, 7, 7, 7, 7, 8, 9]), Some((6, true)));
        record(&mut heads, &[7, 7, 7, 7, 7], &[8]);
        assert_eq!(start(&heads, &[7, 7, 7, 7, 7, 8]), Some((6, true)), "only the next token is computed");
        let other = DraftTarget { owner: DraftStateOwner::Sequence(1), tokens: &[7, 7, 7, 7, 7, 8], next: 9 };
        assert_eq!(heads.start(&other), None);
        heads.forget();
        assert_eq!(start(&heads, &[7, 7, 7, 7, 7, 8]), None);
    }

    #[test]
    fn hidden_states_of_the_last_tokens_are_kept() {
        let mut heads = HeadSequence::new(1);
        let tokens: Vec<Token> = (0..700).collect();
        record(&mut heads, &[], &tokens[..400]);
        record(&mut heads, &tokens[..400], &tokens[400..]);
        assert_eq!(start(&heads, &tokens), Some((700 - HIDDEN_STATES_MAX as u32 + 1, true)));
        follow(&mut heads, &tokens);
        let longer: Vec<Token> = (0..1400).collect();
        record(&mut heads, &tokens, &longer[700..]);
        assert_eq!(start(&heads, &longer), Some((1400 - HIDDEN_STATES_MAX as u32 + 1, true)), "too many are missing");
    }

    /// What happens to a slot.
    #[derive(Debug, Clone)]
    enum Event {
        /// The model computes tokens, of which only the first `n_kept` stay.
        Compute { tokens: Vec<Token>, n_kept: usize },
        /// The slot gets the state of its first `n_kept` tokens and these, computed elsewhere.
        Restore { n_kept: usize, tokens: Vec<Token> },
        /// The head drafts.
        Draft,
    }

    fn event() -> impl Strategy<Value = Event> {
        let tokens = || prop::collection::vec(0_u32..3, 1..6);
        prop_oneof![
            4 => (tokens(), 1_usize..6).prop_map(|(tokens, n_kept)| Event::Compute { tokens, n_kept }),
            1 => (0_usize..30, tokens()).prop_map(|(n_kept, tokens)| Event::Restore { n_kept, tokens }),
            3 => Just(Event::Draft),
        ]
    }

    proptest! {
        #[test]
        fn every_token_of_a_head_is_computed_with_the_hidden_state_of_the_token_before_it(
            events in prop::collection::vec(event(), 1..40),
        ) {
            let mut heads = HeadSequence::new(1);
            let mut slot: Vec<Token> = Vec::new();
            // The head's state: its tokens by position, each with the hidden state that it was computed with.
            let mut state: Vec<Option<(Token, f32)>> = Vec::new();
            for event in events {
                match event {
                    Event::Compute { tokens, n_kept } => {
                        record(&mut heads, &slot, &tokens);
                        slot.extend(&tokens[..n_kept.min(tokens.len())]);
                        // What was just computed can always be drafted after.
                        prop_assert!(start(&heads, &slot).is_some());
                    }
                    Event::Restore { n_kept, tokens } => {
                        slot.truncate(n_kept);
                        slot.extend(tokens);
                    }
                    Event::Draft => {
                        let target = DraftTarget { owner: OWNER, tokens: &slot, next: 9 };
                        let Some(start) = heads.start(&target) else { continue };
                        prop_assert!(start.from >= 1 && start.from as usize <= slot.len());
                        if start.is_anew {
                            state.clear();
                        }
                        state.resize(start.from as usize, None);
                        for position in start.from as usize..slot.len() {
                            let before = heads.hidden_before(position as u32)[0];
                            prop_assert_eq!(before, hidden(&slot[..position]));
                            state.push(Some((slot[position], before)));
                        }
                        prop_assert_eq!(heads.hidden_before(slot.len() as u32)[0], hidden(&slot));
                        heads.follow(start, slot.len() as u32);
                        // No gaps, and no tokens of another sequence.
                        let first = state.iter().position(Option::is_some).unwrap_or(state.len());
                        for (position, entry) in state.iter().enumerate().skip(first) {
                            prop_assert_eq!(*entry, Some((slot[position], hidden(&slot[..position]))));
                        }
                    }
                }
            }
        }
    }
}
