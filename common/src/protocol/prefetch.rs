//! Prefixes whose KV state workers fetch from each other before a request needs it.
//!
//! A worker lists the prefixes that it holds, a router chooses, and sends another worker the prefixes to fetch, each
//! with the worker that holds it. All chats of an application begin alike. So on the wire a prefix that begins like an
//! earlier one of its list refers to that one instead of repeating its tokens.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::hash::block_hash::{BlockHash, block_chain};
use crate::ids::Token;

/// Most tokens of one list; tokens that prefixes have in common are counted once.
///
/// Source: own choice: 1.5 MB of JSON; KV state of 6 GB for a model of 135 M parameters, 34 GB for one of 8 B.
pub const LIST_TOKENS_MAX: usize = 1 << 18;

/// Most tokens of all prefixes of a list together. Units: tokens.
///
/// Source: own choice: 64 MB of memory, enough for a hundred chats with instructions of 100,000 tokens.
pub const ALL_TOKENS_MAX: usize = 1 << 24;

/// Longest list on the wire. Units: bytes.
///
/// Source: each token takes at most eight digits and a comma; the rest is for the other fields.
pub const LIST_BYTES_MAX: usize = LIST_TOKENS_MAX * 16;

/// Prefix of a sequence: whole blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotPrefix {
    /// Root of its chain.
    pub root: BlockHash,
    /// Its tokens, at least one block.
    pub tokens: Vec<Token>,
}

/// A prefix in a list on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedPrefix {
    /// Root of its chain.
    pub root: BlockHash,
    /// Index of an earlier prefix of the list that begins alike, and the number of tokens that both have in common;
    /// absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<(usize, usize)>,
    /// The prefix's tokens behind those of `like`.
    pub tokens: Vec<Token>,
}

/// A prefix to fetch, in the body of a `POST` to [`crate::protocol::summary::KV_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchItem {
    /// Base URL of the worker that holds it.
    pub peer: String,
    /// The prefix.
    #[serde(flatten)]
    pub prefix: PackedPrefix,
}

/// A worker's list of prefixes: the response to a `GET` of [`crate::protocol::summary::KV_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotList {
    /// Number of tokens per block.
    pub block_size_tokens: u32,
    /// Prefixes, the most recently used first.
    pub prefixes: Vec<PackedPrefix>,
}

/// Prefixes to fetch: the body of a `POST` to [`crate::protocol::summary::KV_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefetch {
    /// Prefixes, the most important first.
    pub prefixes: Vec<PrefetchItem>,
}

/// Error: a prefix refers to one that does not precede it, or the list is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "`like` must name an earlier prefix of the same root, and all together must have at most {ALL_TOKENS_MAX} tokens"
)]
pub struct Unpackable;

/// Returns the prefixes in the form for the wire. Cost: a hash of every block.
///
/// Panics: when `block_size_tokens` is 0.
pub fn pack<'a>(prefixes: impl IntoIterator<Item = &'a HotPrefix>, block_size_tokens: u32) -> Vec<PackedPrefix> {
    let mut places: HashMap<BlockHash, usize> = HashMap::new();
    let packed_prefixes = prefixes.into_iter().enumerate().map(|(idx, HotPrefix { root, tokens })| {
        let chain = block_chain(root, tokens, block_size_tokens);
        let beginning = chain.iter().enumerate().rev().find_map(|(block, hash)| Some((*places.get(hash)?, block + 1)));
        let like = beginning.map(|(earlier, n_blocks)| (earlier, n_blocks * block_size_tokens as usize));
        for hash in chain {
            places.entry(hash).or_insert(idx);
        }
        PackedPrefix { root: *root, like, tokens: tokens[like.map_or(0, |(_, n_tokens)| n_tokens)..].to_vec() }
    });
    packed_prefixes.collect()
}

/// Returns the prefixes of a list.
///
/// Errors: [`Unpackable`].
pub fn unpack<'a>(packed_prefixes: impl IntoIterator<Item = &'a PackedPrefix>) -> Result<Vec<HotPrefix>, Unpackable> {
    let mut prefixes: Vec<HotPrefix> = Vec::new();
    let mut n_left = ALL_TOKENS_MAX;
    for PackedPrefix { root, like, tokens } in packed_prefixes {
        let beginning = match like {
            None => &[][..],
            Some((idx, n_tokens)) => {
                let earlier = prefixes.get(*idx).filter(|earlier| earlier.root == *root).ok_or(Unpackable)?;
                earlier.tokens.get(..*n_tokens).ok_or(Unpackable)?
            }
        };
        n_left = n_left.checked_sub(beginning.len() + tokens.len()).ok_or(Unpackable)?;
        let tokens = [beginning, tokens].concat();
        prefixes.push(HotPrefix { root: *root, tokens });
    }
    Ok(prefixes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(root: u8, tokens: &[Token]) -> HotPrefix {
        HotPrefix { root: BlockHash([root; 32]), tokens: tokens.to_vec() }
    }

    #[test]
    fn a_prefix_that_begins_like_an_earlier_one_repeats_no_whole_block() {
        let prefixes = [prefix(0, &[1, 2, 3, 4]), prefix(0, &[1, 2, 3, 5]), prefix(1, &[1, 2]), prefix(0, &[1, 2])];
        let packed = pack(&prefixes, 2);
        let like: Vec<_> = packed.iter().map(|packed| packed.like).collect();
        assert_eq!(like, [None, Some((0, 2)), None, Some((0, 2))]);
        assert_eq!(packed[1].tokens, [3, 5]);
        assert_eq!(serde_json::to_value(&packed[2]).expect("JSON")["like"], serde_json::Value::Null);
    }

    #[test]
    fn a_list_that_names_no_earlier_prefix_or_is_endless_is_refused() {
        let packed = |root, like, tokens: &[Token]| PackedPrefix { like, ..pack(&[prefix(root, tokens)], 1).remove(0) };
        let first = packed(0, None, &[1, 2]);
        for second in [
            packed(0, Some((1, 1)), &[3]),
            packed(0, Some((0, 3)), &[3]),
            packed(1, Some((0, 1)), &[3]),
            packed(0, Some((usize::MAX, usize::MAX)), &[3]),
        ] {
            assert_eq!(unpack([&first, &second]), Err(Unpackable), "{second:?}");
        }
        let long = PackedPrefix { tokens: vec![1; ALL_TOKENS_MAX / 2], ..packed(0, None, &[]) };
        let same = packed(0, Some((0, ALL_TOKENS_MAX / 2)), &[]);
        assert!(unpack([&long, &same]).is_ok());
        assert_eq!(unpack([&long, &same, &packed(0, Some((0, 1)), &[])]), Err(Unpackable));
    }

    proptest! {
        #[test]
        fn what_was_packed_is_unpacked(
            prefixes in prop::collection::vec((0u8..2, prop::collection::vec(0u32..2, 1..12)), 0..12),
            block_size_tokens in 1u32..4,
        ) {
            let prefixes: Vec<HotPrefix> = prefixes.iter().map(|(root, tokens)| prefix(*root, tokens)).collect();
            let packed = pack(&prefixes, block_size_tokens);
            let read: Vec<PackedPrefix> =
                serde_json::from_value(serde_json::to_value(&packed).expect("JSON")).expect("a list");
            prop_assert_eq!(unpack(&read), Ok(prefixes));
        }
    }
}
