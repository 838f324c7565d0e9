//! The cache of tokenized fragments: the texts between special tokens, each tokenized once.
//!
//! A fragment's tokens depend only on its text, so the text is the key (no hash that could collide), and turn 20 of a
//! chat finds all fragments of its first 19 turns in the cache. A cached fragment takes less time, which would reveal
//! one tenant's texts to another. So each salt has fragments of its own.

use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::{DefaultHashBuilder, Equivalent};
use moka::sync::Cache;
use warmpath_common::ids::Token;

/// Memory of an entry in addition to its text and tokens: two `Arc` headers, the cache's own node and its queues'
/// nodes.
///
/// Source: the sizes of moka 0.12's `ValueEntry`, deque nodes and hash table slot, rounded up.
const ENTRY_OVERHEAD_BYTES: usize = 256;

/// Name of a group of requests that share fragments: those with the same salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Scope([u8; 32]);

impl Scope {
    /// Returns the scope of the requests with a salt; an empty salt counts as none.
    pub fn of(salt: &str) -> Self {
        if salt.is_empty() {
            return Self::default();
        }
        Self(blake3::derive_key("warmpath 2026 fragment scope v1", salt.as_bytes()))
    }

    /// Returns the scope's own bytes, for keys of other caches.
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Text between special tokens, in its scope.
#[derive(Debug, PartialEq, Eq)]
struct Fragment<Text> {
    /// Hash of the other fields: the cache hashes a key again whenever its table moves, and fragments are long.
    hash: u64,
    scope: Scope,
    text: Text,
}

impl<Text> Hash for Fragment<Text> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Equivalent<Fragment<Arc<str>>> for Fragment<&str> {
    fn equivalent(&self, entry: &Fragment<Arc<str>>) -> bool {
        self.hash == entry.hash && self.scope == entry.scope && *self.text == *entry.text
    }
}

/// Counters of the fragment cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounters {
    /// Fragments whose tokens were in the cache.
    pub hits: u64,
    /// Fragments that were tokenized.
    pub misses: u64,
    /// Bytes of fragments whose tokens were in the cache.
    pub hit_bytes: u64,
    /// Bytes of fragments that were tokenized.
    pub tokenized_bytes: u64,
    /// Number of entries; updated slightly late while entries are being written.
    pub entries: u64,
    /// Memory of the entries; updated slightly late while entries are being written.
    pub bytes: u64,
}

/// Cache from fragments to their tokens.
#[derive(Debug)]
pub(crate) struct FragmentCache {
    cache: Cache<Fragment<Arc<str>>, Arc<[Token]>, DefaultHashBuilder>,
    /// Hasher with secret seeds, faster than the standard library's for long fragments.
    hasher: DefaultHashBuilder,
    hits: AtomicU64,
    misses: AtomicU64,
    hit_bytes: AtomicU64,
    tokenized_bytes: AtomicU64,
}

impl FragmentCache {
    pub fn new(bytes_max: u64) -> Self {
        let cache = Cache::builder()
            .max_capacity(bytes_max)
            .weigher(|fragment: &Fragment<Arc<str>>, tokens: &Arc<[Token]>| {
                let bytes = fragment.text.len() + std::mem::size_of_val::<[Token]>(tokens) + ENTRY_OVERHEAD_BYTES;
                u32::try_from(bytes).unwrap_or(u32::MAX)
            })
            .build_with_hasher(DefaultHashBuilder::default());
        let [hits, misses, hit_bytes, tokenized_bytes] = std::array::from_fn(|_| AtomicU64::new(0));
        Self { cache, hasher: DefaultHashBuilder::default(), hits, misses, hit_bytes, tokenized_bytes }
    }

    /// Returns the tokens of the fragment `text` if they are in the cache.
    pub fn seen(&self, scope: Scope, text: &str) -> Option<Arc<[Token]>> {
        let tokens = self.cache.get(&self.fragment(scope, text))?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.hit_bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
        Some(tokens)
    }

    /// Returns the tokens of the fragment `text`, from the cache or from `tokenize`.
    pub fn tokens(&self, scope: Scope, text: &str, tokenize: impl FnOnce(&str) -> Vec<Token>) -> Arc<[Token]> {
        self.seen(scope, text).unwrap_or_else(|| self.add(scope, text, tokenize(text)))
    }

    /// Adds the tokens of a fragment that was not in the cache.
    pub fn add(&self, scope: Scope, text: &str, tokens: Vec<Token>) -> Arc<[Token]> {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.tokenized_bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
        let tokens: Arc<[Token]> = tokens.into();
        let Fragment { hash, scope, text } = self.fragment(scope, text);
        self.cache.insert(Fragment { hash, scope, text: text.into() }, Arc::clone(&tokens));
        tokens
    }

    fn fragment<'t>(&self, scope: Scope, text: &'t str) -> Fragment<&'t str> {
        Fragment { hash: self.hasher.hash_one((scope, text)), scope, text }
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
