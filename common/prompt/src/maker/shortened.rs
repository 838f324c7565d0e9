//! Texts for vectors and scores, shortened to a number of tokens.
//!
//! Tokens of the client's text are removed at one end; those around it stay.

use std::ops::Range;

use warmpath_common::ids::Token;
use warmpath_common::prompts::RawPrompt;

use super::{PromptMaker, RawError};
use crate::fragments::Scope;
use crate::vocabulary::{AddSpecial, ParseSpecial};

/// Bytes of a text that are tokenized for each of its tokens, before more are. Source: own choice: four times the need
/// of prose and code.
const TOKEN_BYTES: usize = 16;

/// Tokens next to a cut of a text that are not used. Source: own choice: a cut in the middle of a word or of a control
/// token changes fewer.
const MARGIN_TOKENS: usize = 64;

/// End of a text at which tokens are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutEnd {
    /// The first tokens are removed.
    Start,
    /// The last tokens are removed.
    End,
}

/// Room for a text, and the end at which a longer one is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextRoom {
    /// Most tokens of the text, or of a pair of texts.
    pub n_tokens_max: usize,
    /// Most tokens of a pair's document.
    pub n_document_max: usize,
    /// End at which tokens are removed.
    pub cut_end: CutEnd,
}

/// Tokens of a text that fits into its room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FittedText {
    /// The tokens.
    pub tokens: Vec<Token>,
    /// Whether some were removed.
    pub is_cut: bool,
}

impl FittedText {
    /// Returns a text of which nothing was removed.
    pub fn whole(tokens: Vec<Token>) -> Self {
        Self { tokens, is_cut: false }
    }
}

impl PromptMaker {
    /// Returns the tokens of a text and those that the vocabulary puts around it; token ids are only cut.
    ///
    /// Cost: that of tokenizing the part that fits. Errors: [`RawError`].
    pub fn fitted_text(&self, prompt: &RawPrompt, room: &TextRoom) -> Result<FittedText, RawError> {
        let RawPrompt::Text(text) = prompt else {
            let mut tokens = self.raw(prompt, u32::MAX, Scope::default())?.tokens;
            let (place, n_over) = (0..tokens.len(), tokens.len().saturating_sub(room.n_tokens_max));
            remove(&mut tokens, place, n_over, room.cut_end);
            return Ok(FittedText { tokens, is_cut: n_over > 0 });
        };
        let (prefix, suffix) = (&self.vocabulary.settings.prefix, &self.vocabulary.settings.suffix);
        let n_text_max = room.n_tokens_max.saturating_sub(prefix.len() + suffix.len());
        let tokenize = |part: &str| self.tokenize(part, AddSpecial::No, ParseSpecial::Yes);
        let mut text_tokens = nearest_tokens(text, n_text_max, room.cut_end, tokenize);
        let (place, n_over) = (0..text_tokens.len(), text_tokens.len().saturating_sub(n_text_max));
        remove(&mut text_tokens, place, n_over, room.cut_end);
        Ok(FittedText { tokens: [&prefix[..], &text_tokens, suffix].concat(), is_cut: n_over > 0 })
    }
}

/// Removes `n_over` tokens at one end of those in `place`.
pub(super) fn remove(tokens: &mut Vec<Token>, place: Range<usize>, n_over: usize, end: CutEnd) {
    tokens.drain(match end {
        CutEnd::Start => place.start..place.start + n_over,
        CutEnd::End => place.end - n_over..place.end,
    });
}

/// Returns the tokens of a text, or of a part of it that has more than `n_tokens` and begins or ends like the text.
pub(super) fn nearest_tokens(
    text: &str,
    n_tokens: usize,
    cut_end: CutEnd,
    tokenize: impl Fn(&str) -> Vec<Token>,
) -> Vec<Token> {
    let n_enough = n_tokens.saturating_add(MARGIN_TOKENS);
    let mut n_bytes = n_enough.saturating_mul(TOKEN_BYTES);
    loop {
        let part = match cut_end {
            CutEnd::End => &text[..text.floor_char_boundary(n_bytes)],
            CutEnd::Start => &text[text.ceil_char_boundary(text.len().saturating_sub(n_bytes))..],
        };
        let tokens = tokenize(part);
        if part.len() == text.len() || tokens.len() >= n_enough {
            return tokens;
        }
        n_bytes = n_bytes.saturating_mul(2);
    }
}
