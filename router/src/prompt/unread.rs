//! A prompt of which only the beginning has been tokenized, as it is kept until somebody needs the rest.
//!
//! Not here: when that is (`warmpath_router_core::rest`), where it is read (the module above).

use std::fmt;
use std::sync::{Arc, OnceLock};

use warmpath_common::block_hash::{BlockHash, BlockKey};
use warmpath_common::ids::Token;
use warmpath_prompt::BegunPrompt;
use warmpath_router_core::rest::{Rest, Whole};

use super::chains::Chains;
use crate::fleet::vocabulary::Vocabulary;

/// Is what tokens become keys with.
pub(super) struct Hashing {
    pub(super) root: BlockHash,
    pub(super) block_size_tokens: u32,
    pub(super) chains: Arc<Chains>,
}

impl Hashing {
    /// Returns the keys of the full blocks.
    pub(super) fn keys(&self, tokens: &[Token]) -> Vec<BlockKey> {
        self.chains.keys(&self.root, tokens, self.block_size_tokens)
    }
}

/// Is a prompt that can be read to its end.
pub(super) struct Unread {
    vocabulary: Arc<Vocabulary>,
    begun: Box<BegunPrompt>,
    hashing: Hashing,
    whole: OnceLock<Whole>,
}

impl Unread {
    /// Returns the prompt that has been begun with `vocabulary`.
    pub(super) fn new(vocabulary: Arc<Vocabulary>, begun: Box<BegunPrompt>, hashing: Hashing) -> Self {
        Self { vocabulary, begun, hashing, whole: OnceLock::new() }
    }
}

impl fmt::Debug for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unread").field("is_read", &self.whole.get().is_some()).finish_non_exhaustive()
    }
}

impl Rest for Unread {
    fn whole(&self) -> Option<&Whole> {
        self.whole.get()
    }

    fn read(&self) -> &Whole {
        self.whole.get_or_init(|| {
            let tokens = self.vocabulary.maker.tokens(&self.begun);
            let n_tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
            Whole { n_tokens, keys: self.hashing.keys(&tokens) }
        })
    }
}
