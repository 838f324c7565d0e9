//! The rest of a prompt of which only the beginning has been tokenized.
//!
//! Not here: tokenizing. The idea: a prompt's blocks are looked up to see who holds them, and behind the first that nobody holds there
//! is nothing to find. So a long prompt is tokenized a little beyond what has been seen before; where somebody holds or is
//! computing all of that, the rest is read, once for all who ask.

use std::fmt::Debug;

use warmpath_common::block_hash::BlockKey;

/// Is a prompt that has been tokenized to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whole {
    /// Is its length. Units: tokens.
    pub n_tokens: u32,
    /// Lists the keys of its full blocks, those of its beginning too.
    pub keys: Vec<BlockKey>,
}

/// Is a prompt that can be read to its end.
pub trait Rest: Debug + Send + Sync {
    /// Returns the whole prompt, if somebody has read it.
    fn whole(&self) -> Option<&Whole>;

    /// Returns the whole prompt.
    ///
    /// Cost: that of tokenizing the rest, the first time.
    fn read(&self) -> &Whole;
}
