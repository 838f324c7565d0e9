//! The cache of tokenized fragments: the texts between special tokens, each tokenized once.
//!
//! Not here: where the fragments come from. The idea: a fragment's tokens depend on its text alone, so the text is the
//! key (no hash that could collide), and turn 20 of a chat finds all fragments of its first 19 turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::DefaultHashBuilder;
use moka::sync::Cache;
use warmpath_common::ids::Token;

/// Is what an entry costs beside its text and tokens: two `Arc` headers, the cache's own node and its queues' nodes.
///
/// Source: the sizes of moka 0.12's `ValueEntry`, deque nodes and hash table slot, rounded up.
const ENTRY_OVERHEAD_BYTES: usize = 256;

/// Counts what the fragment cache has saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounters {
    /// Counts fragments whose tokens were in the cache.
    pub hits: u64,
    /// Counts fragments that had to be tokenized.
    pub misses: u64,
    /// Counts bytes of fragments whose tokens were in the cache.
    pub hit_bytes: u64,
    /// Counts bytes of fragments that had to be tokenized.
    pub tokenized_bytes: u64,
    /// Is the number of entries; a little behind while entries are being written.
    pub entries: u64,
    /// Is what the entries weigh; a little behind while entries are being written.
    pub bytes: u64,
}

/// Maps fragments to their tokens.
#[derive(Debug)]
pub(crate) struct FragmentCache {
    /// Is hashed with secret seeds, faster than by the standard library's hasher: fragments are long.
    cache: Cache<Arc<str>, Arc<[Token]>, DefaultHashBuilder>,
    hits: AtomicU64,
    misses: AtomicU64,
    hit_bytes: AtomicU64,
    tokenized_bytes: AtomicU64,
}

impl FragmentCache {
    pub fn new(bytes_max: u64) -> Self {
        let cache = Cache::builder()
            .max_capacity(bytes_max)
            .weigher(|text: &Arc<str>, tokens: &Arc<[Token]>| {
                let bytes = text.len() + std::mem::size_of_val::<[Token]>(tokens) + ENTRY_OVERHEAD_BYTES;
                u32::try_from(bytes).unwrap_or(u32::MAX)
            })
            .build_with_hasher(DefaultHashBuilder::default());
        let [hits, misses, hit_bytes, tokenized_bytes] = std::array::from_fn(|_| AtomicU64::new(0));
        Self { cache, hits, misses, hit_bytes, tokenized_bytes }
    }

    /// Returns the tokens of `fragment` if they are in the cache.
    pub fn seen(&self, fragment: &str) -> Option<Arc<[Token]>> {
        let tokens = self.cache.get(fragment)?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.hit_bytes.fetch_add(fragment.len() as u64, Ordering::Relaxed);
        Some(tokens)
    }

    /// Returns the tokens of `fragment`, from the cache or from `tokenize`.
    pub fn tokens(&self, fragment: &str, tokenize: impl FnOnce(&str) -> Vec<Token>) -> Arc<[Token]> {
        self.seen(fragment).unwrap_or_else(|| self.add(fragment, tokenize(fragment)))
    }

    /// Takes in the tokens of a fragment that was not in the cache.
    pub fn add(&self, fragment: &str, tokens: Vec<Token>) -> Arc<[Token]> {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.tokenized_bytes.fetch_add(fragment.len() as u64, Ordering::Relaxed);
        let tokens: Arc<[Token]> = tokens.into();
        self.cache.insert(fragment.into(), Arc::clone(&tokens));
        tokens
    }

    /// Waits until the cache has weighed every entry.
    #[cfg(test)]
    pub fn settle(&self) {
        self.cache.run_pending_tasks();
    }

    pub fn counters(&self) -> CacheCounters {
        CacheCounters {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            hit_bytes: self.hit_bytes.load(Ordering::Relaxed),
            tokenized_bytes: self.tokenized_bytes.load(Ordering::Relaxed),
            entries: self.cache.entry_count(),
            bytes: self.cache.weighted_size(),
        }
    }
}
