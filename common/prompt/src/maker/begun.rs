//! A chat on its way to its tokens: rendered, cut at its special tokens, and what was seen before looked up.
//!
//! Not here: rendering (`fitted`), cutting (`partition`). The idea: to come this far takes some nanoseconds a byte, to tokenize takes
//! twenty times that. Who must not be held up can see in between how much is left.

use std::ops::Range;
use std::sync::Arc;

use warmpath_common::ids::Token;
use warmpath_common::openai::ChatPrompt;

use super::{Cut, Prompt, PromptMaker};
use crate::error::PromptError;
use crate::partition::Piece;

/// Is a chat of which only text is left to be tokenized that was not seen before.
#[derive(Debug)]
pub struct BegunChat {
    cut: Cut,
    parts: Vec<Part>,
    unseen_bytes: usize,
}

/// Is what stands at one place of a prompt.
#[derive(Debug)]
enum Part {
    Special(Token),
    Seen(Arc<[Token]>),
    Unseen(Range<usize>),
}

impl BegunChat {
    /// Returns how much text is left to be tokenized. Units: bytes.
    pub fn unseen_bytes(&self) -> usize {
        self.unseen_bytes
    }
}

impl PromptMaker {
    /// Renders a chat and looks up what is known of its tokens.
    ///
    /// Cost: rendering; nothing is tokenized. Errors: see [`PromptError`].
    pub fn begin_chat(&self, request: &ChatPrompt) -> Result<BegunChat, PromptError> {
        Ok(self.begin(self.cut(self.rendered(request)?)))
    }

    /// Returns the prompt of a chat that this maker has begun.
    ///
    /// Cost: that of tokenizing what is left.
    pub fn finish_chat(&self, begun: BegunChat) -> Prompt {
        let tokens = self.finish(&begun);
        Prompt { text: begun.cut.into_text(), tokens }
    }

    pub(super) fn begin(&self, cut: Cut) -> BegunChat {
        let mut unseen_bytes = 0;
        let part = |piece: &Piece| match piece {
            Piece::Special { token, .. } => Part::Special(*token),
            Piece::Text(range) => match self.fragments.seen(&cut.fragment(range)) {
                Some(tokens) => Part::Seen(tokens),
                None => {
                    unseen_bytes += range.len();
                    Part::Unseen(range.clone())
                }
            },
        };
        let parts = cut.pieces.iter().map(part).collect();
        BegunChat { cut, parts, unseen_bytes }
    }

    /// Returns the tokens, with those that the vocabulary adds.
    pub(super) fn finish(&self, begun: &BegunChat) -> Vec<Token> {
        let mut tokens = self.vocabulary.prefix.clone();
        // What prose takes; where it is more, the list grows.
        tokens.reserve(begun.cut.text.len() / 4);
        for part in &begun.parts {
            match part {
                Part::Special(token) => tokens.push(*token),
                Part::Seen(seen) => tokens.extend_from_slice(seen),
                Part::Unseen(range) => {
                    let fragment = begun.cut.fragment(range);
                    let fresh = self.vocabulary.tokenize_plain(&fragment);
                    tokens.extend_from_slice(&self.fragments.add(&fragment, fresh));
                }
            }
        }
        tokens.extend_from_slice(&self.vocabulary.suffix);
        tokens
    }
}
