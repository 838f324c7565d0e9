//! Pins: prefixes that are not evicted, because a client or operator named them.
//!
//! The share of a tier that pins may guard is in `guards`; the shell checks which clients may pin. A pin is a chain,
//! stored or not. All its chunks that are stored, now or later, are pinned.

use hashbrown::HashMap;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;

use super::entry::ChunkRecord;
use super::{ChunkId, ChunkIndex, Prefix};

/// Maximum number of pins.
///
/// Source: more prefixes than an operator names; each pin keeps a prompt's tokens in memory, and clients may pin.
pub const PIN_MAX: usize = 256;

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
#[derive(Debug, Clone, Default)]
pub(super) struct Pins {
    entries: Vec<PinEntry>,
    /// Pins that have a block at a depth of their chain.
    blocks: HashMap<(usize, BlockHash), Vec<PinId>>,
}

/// One pin.
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
    /// Returns the number of pins that cover `record`.
    pub(super) fn count_on(&self, record: &ChunkRecord) -> u32 {
        let on_block = self.blocks.get(&record.key_block()).into_iter().flatten();
        let pins = on_block.filter_map(|pin| self.entries.iter().find(|entry| entry.pin == *pin));
        u32::try_from(pins.filter(|entry| entry.covers(record)).count()).expect("at most PIN_MAX pins")
    }
}

impl ChunkIndex {
    /// Pins a prefix: its stored chunks, now or later, are not evicted as long as pins take at most half of a tier.
    ///
    /// A pin with the same identifier is replaced. Returns the stored and guarded sizes.
    /// Cost: O(blocks). Errors: [`TooManyPins`].
    pub fn pin(&mut self, pin: PinId, prefix: &Prefix<'_>) -> Result<PinView, TooManyPins> {
        self.unpin(pin);
        if self.pins.entries.len() >= PIN_MAX {
            return Err(TooManyPins);
        }
        let n_blocks = self.blocks_of(prefix).len().min(prefix.chain.len());
        let n_tokens = n_blocks * self.limits.block_size_tokens as usize;
        let chain = prefix.chain[..n_blocks].to_vec();
        for (depth, hash) in chain.iter().enumerate() {
            self.pins.blocks.entry((depth, *hash)).or_default().push(pin);
        }
        let entry = PinEntry { pin, root: prefix.root, chain, tokens: prefix.tokens[..n_tokens].to_vec() };
        for id in self.covered(&entry) {
            self.chunk_mut(id).n_pins += 1;
            self.repin(id);
        }
        let view = self.pin_view(&entry);
        self.pins.entries.push(entry);
        Ok(view)
    }

    /// Removes a pin and returns whether it existed.
    pub fn unpin(&mut self, pin: PinId) -> bool {
        let Some(idx) = self.pins.entries.iter().position(|entry| entry.pin == pin) else { return false };
        let entry = self.pins.entries.remove(idx);
        for (depth, hash) in entry.chain.iter().enumerate() {
            let Some(pins) = self.pins.blocks.get_mut(&(depth, *hash)) else { continue };
            pins.retain(|other| *other != pin);
            if pins.is_empty() {
                self.pins.blocks.remove(&(depth, *hash));
            }
        }
        for id in self.covered(&entry) {
            self.chunk_mut(id).n_pins -= 1;
            self.repin(id);
        }
        true
    }

    /// Returns the pins, the oldest first.
    pub fn pins(&self) -> Vec<PinView> {
        self.pins.entries.iter().map(|entry| self.pin_view(entry)).collect()
    }

    /// Returns the stored chunks and checkpoints that a pin covers, in the order of the chain.
    fn covered(&self, entry: &PinEntry) -> Vec<ChunkId> {
        let mut covered_chunks = Vec::new();
        for (depth, hash) in entry.chain.iter().enumerate() {
            let chunk = self.blocks.get(hash).map(|(id, _)| *id);
            let ids = chunk.into_iter().chain(self.checkpoints.get(hash).copied());
            let is_here = |id: &ChunkId| {
                let record = &self.chunks[id].record;
                record.key_block() == (depth, *hash) && entry.covers(record)
            };
            covered_chunks.extend(ids.filter(is_here));
        }
        covered_chunks
    }

    fn pin_view(&self, entry: &PinEntry) -> PinView {
        let covered_chunks = self.covered(entry);
        let n_bytes = |id: &ChunkId| self.chunks[id].record.n_bytes;
        let is_guarded = |id: &&ChunkId| {
            if self.chunks[*id].in_ram { self.ram.is_guarded(**id) } else { self.disk.is_guarded(**id) }
        };
        PinView {
            pin: entry.pin,
            n_tokens: entry.tokens.len() as u64,
            n_stored_bytes: covered_chunks.iter().map(n_bytes).sum(),
            n_guarded_bytes: covered_chunks.iter().filter(is_guarded).map(n_bytes).sum(),
        }
    }

    /// Passes to both tiers whether a chunk is pinned.
    fn repin(&mut self, id: ChunkId) {
        let pin_state = self.chunks[&id].pinned();
        self.ram.set_pinned(id, pin_state);
        self.disk.set_pinned(id, pin_state);
    }

    /// Checks that pins match the stored chunks, for tests. Panics: if they do not.
    pub(super) fn check_pins(&self) {
        for chunk in self.chunks.values() {
            let n_pins = self.pins.entries.iter().filter(|pin| pin.covers(&chunk.record)).count();
            assert_eq!(n_pins, chunk.n_pins as usize, "a pin does not pin its chunks");
        }
    }
}
