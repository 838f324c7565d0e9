//! Pins: prefixes that are not evicted, because an operator named them or because they are used most.
//!
//! The share of a tier that pins may guard is in `guards`; the shell checks which clients may pin.
//!
//! A named pin is a chain, stored or not. All its chunks that are stored, now or later, are pinned. Automatic pins are
//! the chunks at which the most uses ended, each with all chunks before it: a common prefix ends where conversations
//! diverge.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use hashbrown::HashMap;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;

use super::entry::ChunkRecord;
use super::{ChunkId, ChunkIndex, Prefix};

/// Maximum number of named pins.
///
/// Source: more prefixes than an operator names; each pin keeps a prompt's tokens in memory, and clients may pin.
pub const PIN_MAX: usize = 256;
/// Minimum number of uses that ended at a chunk for an automatic pin.
///
/// Source: every prompt that is sent twice has one use.
const ENDS_MIN: u32 = 2;
/// Number of uses after which all counts of ends are halved, so that a prefix loses its pin when its use declines.
///
/// Source: a worker serves this many requests in minutes to an hour.
const HALVED_EVERY: u32 = 1024;

/// Identifier of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PinId(pub u64);

/// Error: the limit on pins is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there are {PIN_MAX} pins already")]
pub struct TooManyPins;

/// A pin, with the sizes of its stored and its guarded part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinView {
    /// Identifier of the pin.
    pub pin: PinId,
    /// Number of tokens in the prefix's whole blocks.
    pub n_tokens: u64,
    /// Bytes of the stored chunks and checkpoints of the prefix, each counted once.
    pub n_stored_bytes: u64,
    /// Bytes of the chunks and checkpoints that are guarded in their fastest tier.
    pub n_guarded_bytes: u64,
}

/// All pins.
#[derive(Debug, Clone)]
pub(super) struct Pins {
    top: usize,
    named: Vec<PinEntry>,
    /// Named pins that have a block at a depth of their chain.
    blocks: HashMap<(usize, BlockHash), Vec<PinId>>,
    /// Chunks at which uses ended, by ascending number of these uses; ties: the newest first.
    ranking: BTreeSet<(u32, Reverse<ChunkId>)>,
    /// Last chunks of the chains that are pinned automatically.
    hot: BTreeSet<ChunkId>,
    n_ends_until_halved: u32,
}

/// One named pin.
#[derive(Debug, Clone)]
struct PinEntry {
    pin: PinId,
    root: BlockHash,
    chain: Vec<BlockHash>,
    tokens: Vec<Token>,
}

impl PinEntry {
    /// Returns whether the chunk or checkpoint of `record` is on the pinned chain.
    fn covers(&self, record: &ChunkRecord) -> bool {
        let (depth, hash) = record.key_block();
        let tokens = record.key_tokens();
        let start = depth * tokens.len();
        self.root == record.root
            && self.chain.get(depth) == Some(&hash)
            && self.tokens.get(start..start + tokens.len()) == Some(tokens)
    }
}

impl Pins {
    pub(super) fn new(top: usize) -> Self {
        Self {
            top,
            named: Vec::new(),
            blocks: HashMap::new(),
            ranking: BTreeSet::new(),
            hot: BTreeSet::new(),
            n_ends_until_halved: HALVED_EVERY,
        }
    }

    /// Returns the number of named pins that cover `record`.
    pub(super) fn count_on(&self, record: &ChunkRecord) -> u32 {
        let on_block = self.blocks.get(&record.key_block()).into_iter().flatten();
        let pins = on_block.filter_map(|pin| self.named.iter().find(|named| named.pin == *pin));
        u32::try_from(pins.filter(|named| named.covers(record)).count()).expect("at most PIN_MAX pins")
    }

    /// Returns the last chunk of each automatic pin.
    fn hottest(&self) -> BTreeSet<ChunkId> {
        let most_first = self.ranking.iter().rev().take(self.top);
        most_first.filter(|(n_ends, _)| *n_ends >= ENDS_MIN).map(|(_, Reverse(id))| *id).collect()
    }
}

impl ChunkIndex {
    /// Pins a prefix: its stored chunks, now or later, are not evicted as long as pins take at most half of a tier.
    ///
    /// A pin with the same identifier is replaced. Named pins take precedence over automatic ones. Returns the stored
    /// and guarded sizes.
    /// Cost: O(blocks). Errors: [`TooManyPins`].
    pub fn pin(&mut self, pin: PinId, prefix: &Prefix<'_>) -> Result<PinView, TooManyPins> {
        self.unpin(pin);
        if self.pins.named.len() >= PIN_MAX {
            return Err(TooManyPins);
        }
        let n_blocks = self.blocks_of(prefix).len().min(prefix.chain.len());
        let n_tokens = n_blocks * self.limits.block_size_tokens as usize;
        let chain = prefix.chain[..n_blocks].to_vec();
        for (depth, hash) in chain.iter().enumerate() {
            self.pins.blocks.entry((depth, *hash)).or_default().push(pin);
        }
        let named = PinEntry { pin, root: prefix.root, chain, tokens: prefix.tokens[..n_tokens].to_vec() };
        for id in self.covered(&named) {
            self.chunk_mut(id).n_named_pins += 1;
            self.repin(id);
        }
        let view = self.pin_view(&named);
        self.pins.named.push(named);
        Ok(view)
    }

    /// Removes a pin and returns whether it existed.
    pub fn unpin(&mut self, pin: PinId) -> bool {
        let Some(idx) = self.pins.named.iter().position(|named| named.pin == pin) else { return false };
        let named = self.pins.named.remove(idx);
        for (depth, hash) in named.chain.iter().enumerate() {
            let Some(pins) = self.pins.blocks.get_mut(&(depth, *hash)) else { continue };
            pins.retain(|other| *other != pin);
            if pins.is_empty() {
                self.pins.blocks.remove(&(depth, *hash));
            }
        }
        for id in self.covered(&named) {
            self.chunk_mut(id).n_named_pins -= 1;
            self.repin(id);
        }
        true
    }

    /// Returns the named pins, the oldest first.
    pub fn pins(&self) -> Vec<PinView> {
        self.pins.named.iter().map(|named| self.pin_view(named)).collect()
    }

    /// Returns the stored chunks and checkpoints that a pin covers, in the order of the chain.
    fn covered(&self, named: &PinEntry) -> Vec<ChunkId> {
        let mut covered = Vec::new();
        for (depth, hash) in named.chain.iter().enumerate() {
            let chunk = self.blocks.get(hash).map(|(id, _)| *id);
            let ids = chunk.into_iter().chain(self.checkpoints.get(hash).copied());
            let is_here = |id: &ChunkId| {
                let record = &self.chunks[id].record;
                record.key_block() == (depth, *hash) && named.covers(record)
            };
            covered.extend(ids.filter(is_here));
        }
        covered
    }

    fn pin_view(&self, named: &PinEntry) -> PinView {
        let covered = self.covered(named);
        let n_bytes = |id: &ChunkId| self.chunks[id].record.n_bytes;
        let is_guarded = |id: &&ChunkId| {
            if self.chunks[*id].in_ram { self.ram.is_guarded(**id) } else { self.disk.is_guarded(**id) }
        };
        PinView {
            pin: named.pin,
            n_tokens: named.tokens.len() as u64,
            n_stored_bytes: covered.iter().map(n_bytes).sum(),
            n_guarded_bytes: covered.iter().filter(is_guarded).map(n_bytes).sum(),
        }
    }

    /// Passes the kind of a chunk's pin to both tiers.
    fn repin(&mut self, id: ChunkId) {
        let pinned = self.chunks[&id].pinned();
        self.ram.set_pinned(id, pinned);
        self.disk.set_pinned(id, pinned);
    }

    /// Records that a use ended at a chunk.
    pub(super) fn count_end(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        self.pins.ranking.remove(&(chunk.n_ends, Reverse(id)));
        chunk.n_ends += 1;
        self.pins.ranking.insert((chunk.n_ends, Reverse(id)));
        self.pins.n_ends_until_halved -= 1;
        if self.pins.n_ends_until_halved == 0 {
            self.pins.n_ends_until_halved = HALVED_EVERY;
            self.halve_ends();
        }
        self.pin_hottest();
    }

    /// Resets the uses of a chunk that is being removed.
    pub(super) fn forget_use(&mut self, id: ChunkId) {
        let n_ends = std::mem::take(&mut self.chunk_mut(id).n_ends);
        self.pins.ranking.remove(&(n_ends, Reverse(id)));
        if self.pins.hot.contains(&id) {
            self.pin_hottest();
        }
    }

    fn halve_ends(&mut self) {
        for (n_ends, Reverse(id)) in std::mem::take(&mut self.pins.ranking) {
            self.chunk_mut(id).n_ends = n_ends / 2;
            if n_ends >= 2 {
                self.pins.ranking.insert((n_ends / 2, Reverse(id)));
            }
        }
    }

    /// Moves the automatic pins to the chunks at which the most uses ended.
    fn pin_hottest(&mut self) {
        let hottest = self.pins.hottest();
        let was = std::mem::replace(&mut self.pins.hot, hottest.clone());
        for id in was.difference(&hottest) {
            self.pin_chain(*id, |n_pins| n_pins - 1);
        }
        for id in hottest.difference(&was) {
            self.pin_chain(*id, |n_pins| n_pins + 1);
        }
    }

    fn pin_chain(&mut self, end: ChunkId, count: impl Fn(u32) -> u32) {
        let mut next = Some(end);
        while let Some(id) = next {
            let chunk = self.chunk_mut(id);
            chunk.n_automatic_pins = count(chunk.n_automatic_pins);
            next = chunk.parent;
            self.repin(id);
        }
    }

    /// Checks that pins match the stored chunks, for tests. Panics: if they do not.
    pub(super) fn check_pins(&self) {
        assert_eq!(self.pins.hot, self.pins.hottest(), "the automatic pins are not at the hottest chunks");
        for (id, chunk) in &self.chunks {
            let n_named = self.pins.named.iter().filter(|named| named.covers(&chunk.record)).count();
            assert_eq!(n_named, chunk.n_named_pins as usize, "a named pin does not pin its chunks");
            let is_before = |end: &&ChunkId| {
                let mut next = Some(**end);
                while next.is_some_and(|next| next != *id) {
                    next = next.and_then(|next| self.chunks[&next].parent);
                }
                next.is_some()
            };
            let n_automatic = self.pins.hot.iter().filter(is_before).count();
            assert_eq!(n_automatic, chunk.n_automatic_pins as usize, "an automatic pin does not pin its whole chain");
            assert_eq!(chunk.n_ends > 0, self.pins.ranking.contains(&(chunk.n_ends, Reverse(*id))));
        }
    }
}
