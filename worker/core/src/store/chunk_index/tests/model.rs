//! Random events of a store compared with a naive model: plain lists of chunks, each with all tokens before it.
//!
//! The order of eviction is tested in `eviction`.
//!
//! The model is a shell without bytes. It executes the orders, checks that each is valid in the chunk's state, reports
//! back in any order, and compares the index with its lists. Hashes have only a few bits, so that they collide often.

use std::collections::HashMap;

use proptest::prelude::*;
use warmpath_common::block_hash::block_hash;

use super::happening::{Happening, Prompt, happening, some_limits};
use super::*;
use crate::store::chunk_index::TierChange;

/// A stored chunk or checkpoint: its tiers and all tokens up to its end.
#[derive(Debug, Clone)]
struct Stored {
    id: ChunkId,
    record: ChunkRecord,
    lineage: Vec<Token>,
    in_ram: bool,
    file: Option<FileState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    Writing,
    Written,
}

impl Stored {
    /// Returns whether the chunk has the last of the whole blocks in `tokens`, after all the others.
    fn ends(&self, root: BlockHash, tokens: &[Token]) -> bool {
        let starts_before = self.before().len() < tokens.len();
        self.record.kind == StateKind::Chunk
            && self.record.root == root
            && starts_before
            && self.lineage.starts_with(tokens)
    }

    /// Returns the tokens before its first block.
    fn before(&self) -> &[Token] {
        &self.lineage[..self.record.first_block * BLOCK as usize]
    }

    fn tier(&self) -> Option<Tier> {
        let on_disk = (self.file == Some(FileState::Written)).then_some(Tier::Disk);
        if self.in_ram { Some(Tier::Ram) } else { on_disk }
    }
}

/// Naive model.
struct Model {
    index: ChunkIndex,
    limits: StoreLimits,
    hash_bits: u32,
    now_ms: u64,
    prompts: Vec<Sequence>,
    stored: Vec<Stored>,
    held: Vec<ChunkId>,
    writes: Vec<ChunkId>,
    pins: HashMap<u64, (BlockHash, Vec<Token>)>,
    told: HashMap<(StateKind, BlockHash), Tier>,
}

impl Model {
    fn new(limits: StoreLimits, hash_bits: u32) -> Self {
        Self {
            index: ChunkIndex::new(limits),
            limits,
            hash_bits,
            now_ms: 0,
            prompts: Vec::new(),
            stored: Vec::new(),
            held: Vec::new(),
            writes: Vec::new(),
            pins: HashMap::new(),
            told: HashMap::new(),
        }
    }

    /// Returns a sequence whose hashes have only a few bits.
    fn sequence(&self, salt: u8, tokens: Vec<Token>) -> Sequence {
        let mut parent = root(salt);
        let cut = |mut hash: BlockHash| {
            if self.hash_bits < 8 {
                hash.0[0] &= (1 << self.hash_bits) - 1;
                hash.0[1..].fill(0);
            }
            hash
        };
        let chain = tokens.chunks_exact(BLOCK as usize).map(|block| {
            parent = cut(block_hash(&parent, block));
            parent
        });
        Sequence { root: root(salt), chain: chain.collect(), tokens }
    }

    fn step(&mut self, happening: &Happening) {
        self.now_ms += 3;
        let guarded = self.guarded();
        match happening {
            Happening::Store { prompt, priority } => self.store(prompt, *priority),
            Happening::StoreCheckpoint { which, n_blocks } => self.store_checkpoint(*which, *n_blocks),
            Happening::Use { which } => {
                self.for_prompt(*which, |model, prompt| prompt.touch(&mut model.index, model.now_ms))
            }
            Happening::Hold { which } => self.for_prompt(*which, |model, prompt| {
                for piece in model.index.find(&prompt.prefix()).pieces {
                    model.index.hold(piece.chunk);
                    model.held.push(piece.chunk);
                }
            }),
            Happening::Release { which } if !self.held.is_empty() => {
                let id = self.held.swap_remove(which % self.held.len());
                self.index.release(id);
            }
            Happening::Write { which, works } if !self.writes.is_empty() => self.end_write(*which, *works),
            Happening::Read { which } => self.read(*which),
            Happening::Lose { which } => return self.lose(*which),
            Happening::Pin { pin, which, n_blocks } => self.pin(*pin, *which, *n_blocks),
            Happening::Unpin { pin } => {
                assert_eq!(self.index.unpin(PinId(*pin)), self.pins.remove(pin).is_some());
            }
            Happening::TakeNews => self.take_changes(),
            Happening::Clear => {
                self.index.clear();
                self.do_orders(&|_| true);
                assert_eq!(self.stored.len(), 0);
            }
            Happening::Restart { seed } => return self.restart(*seed),
            Happening::Release { .. } | Happening::Write { .. } => {}
        }
        let held = self.held.clone();
        // What was stored just now may be pinned, too, so that pins take more than their share.
        let guarded_now = self.guarded();
        let must_stay = |id| held.contains(&id) || guarded.contains(&id) && guarded_now.contains(&id);
        for dropped in self.do_orders(&|id| !must_stay(id)) {
            let has_file = |stored: &&Stored| stored.file.is_some();
            let is_cut_off = |stored: &Stored| dropped.ends(stored.record.root, stored.before());
            let is_back = self.stored.iter().filter(has_file).any(|stored| stored.id == dropped.id);
            assert!(
                is_back || !self.stored.iter().filter(has_file).any(is_cut_off),
                "a file cannot be reached after a restart"
            );
        }
    }

    fn for_prompt(&mut self, which: usize, act: impl FnOnce(&mut Self, &Sequence)) {
        if self.prompts.is_empty() {
            return;
        }
        let prompt = self.prompts.remove(which % self.prompts.len());
        act(self, &prompt);
        self.prompts.push(prompt);
    }

    fn store(&mut self, prompt: &Prompt, priority: i32) {
        let kept = self.prompts.get(prompt.from).map_or(&[][..], |earlier| &earlier.tokens);
        let mut tokens = kept[..prompt.n_kept.min(kept.len())].to_vec();
        tokens.extend(&prompt.extra);
        let sequence = self.sequence(prompt.salt, tokens);
        let missing = self.index.missing(&sequence.prefix());
        assert_eq!(missing, self.naive_missing(&sequence));
        for blocks in missing {
            let new = NewChunk { priority, ..sequence.new_chunk(blocks.clone(), self.now_ms) };
            match self.index.insert(&new) {
                Ok(id) => self.note_stored(id, &sequence, blocks.end),
                Err(refused) => {
                    assert!(matches!(refused, NotStored::NoRoom | NotStored::TooLarge), "{refused}");
                    break;
                }
            }
        }
        self.prompts.push(sequence);
        if self.prompts.len() > 8 {
            self.prompts.remove(0);
        }
    }

    fn note_stored(&mut self, id: ChunkId, sequence: &Sequence, n_blocks: usize) {
        let record = ChunkRecord::clone(self.index.record(id).expect("just stored"));
        let lineage = sequence.tokens[..n_blocks * BLOCK as usize].to_vec();
        self.stored.push(Stored { id, record, lineage, in_ram: true, file: None });
    }

    fn store_checkpoint(&mut self, which: usize, n_blocks: usize) {
        self.for_prompt(which, |model, prompt| {
            let n_blocks = n_blocks.min(prompt.chain.len());
            let new = NewChunk { n_bytes: 17, ..prompt.new_checkpoint(n_blocks, model.now_ms) };
            let is_taken = n_blocks > 0 && model.has_hash(StateKind::Checkpoint, &prompt.chain[n_blocks - 1]);
            match model.index.insert_checkpoint(&new, CheckpointPlace::End) {
                Ok(id) => model.note_stored(id, prompt, n_blocks),
                Err(refused) => assert_eq!(refused == NotStored::Taken, is_taken),
            }
        });
    }

    fn end_write(&mut self, which: usize, works: bool) {
        let id = self.writes.swap_remove(which % self.writes.len());
        let stored = self.stored.iter_mut().find(|stored| stored.id == id);
        if works {
            stored.into_iter().for_each(|stored| stored.file = Some(FileState::Written));
            self.index.written(id, self.now_ms);
        } else {
            stored.into_iter().for_each(|stored| stored.file = None);
            self.index.write_failed(id);
            assert_eq!(self.index.take_orders(), [], "writing continues after a failure");
        }
    }

    fn read(&mut self, which: usize) {
        let mut on_disk = self.stored.iter_mut().filter(|stored| stored.file == Some(FileState::Written));
        let Some(stored) = on_disk.nth(which % 10) else { return };
        if self.index.read_back(stored.id, self.now_ms) {
            stored.in_ram = true;
        }
    }

    fn lose(&mut self, which: usize) {
        let mut on_disk = self.stored.iter().filter(|stored| stored.file == Some(FileState::Written));
        let Some(lost) = on_disk.nth(which % 10).cloned() else { return };
        self.index.lost(lost.id);
        let behind = self.stored.iter().filter(|other| is_behind(other, &lost));
        let ids: Vec<ChunkId> = behind.map(|stored| stored.id).collect();
        let goes = |id| id == lost.id || !lost.in_ram && ids.contains(&id);
        self.do_orders(&goes);
        let has_gone = |id: &ChunkId| self.stored.iter().all(|stored| stored.id != *id);
        assert_eq!(has_gone(&lost.id), !lost.in_ram);
        assert!(lost.in_ram || ids.iter().all(has_gone), "a descendant of a lost chunk is kept");
    }

    fn pin(&mut self, pin: u64, which: usize, n_blocks: usize) {
        self.for_prompt(which, |model, prompt| {
            let n_blocks = n_blocks.min(prompt.chain.len());
            let prefix = Prefix { chain: &prompt.chain[..n_blocks], ..prompt.prefix() };
            let view = model.index.pin(PinId(pin), &prefix).expect("three pins");
            let tokens = prompt.tokens[..n_blocks * BLOCK as usize].to_vec();
            model.pins.insert(pin, (prompt.root, tokens));
            assert!(view.n_guarded_bytes <= view.n_stored_bytes);
        });
    }

    /// Returns the chunks that pins cover, if all of them are within the pins' share of both tiers.
    fn guarded(&self) -> Vec<ChunkId> {
        let is_pinned = |stored: &&Stored| {
            self.pins.values().any(|(root, tokens)| {
                let n_key = match stored.record.kind {
                    StateKind::Chunk => (stored.record.first_block + 1) * BLOCK as usize,
                    StateKind::Checkpoint => stored.lineage.len(),
                };
                stored.record.root == *root && tokens.starts_with(&stored.lineage[..n_key])
            })
        };
        // If hashes collide, a pin may also cover another prefix, which takes the pin's share.
        let all: Vec<&Stored> = self.stored.iter().filter(is_pinned).collect();
        let n_bytes: u64 = all.iter().map(|stored| stored.record.n_bytes).sum();
        let is_within = n_bytes <= self.limits.ram_bytes / 2 && n_bytes <= self.limits.disk_bytes / 2;
        if is_within && self.hash_bits >= 8 { all.iter().map(|stored| stored.id).collect() } else { Vec::new() }
    }

    /// Executes the index's orders, checks that each fits and is allowed, and returns the chunks whose files were
    /// dropped.
    fn do_orders(&mut self, may_go: &dyn Fn(ChunkId) -> bool) -> Vec<Stored> {
        let mut dropped = Vec::new();
        for order in self.index.take_orders() {
            let (StoreOrder::Write(id) | StoreOrder::DropRam(id) | StoreOrder::DropFile(id, _)) = order;
            let stored = self.stored.iter_mut().find(|stored| stored.id == id).expect("orders are about stored chunks");
            match order {
                StoreOrder::Write(_) => {
                    assert!(stored.in_ram && stored.file.is_none(), "a write without bytes in RAM, or a second write");
                    stored.file = Some(FileState::Writing);
                    self.writes.push(id);
                }
                StoreOrder::DropRam(_) => {
                    assert!(
                        may_go(id) && std::mem::take(&mut stored.in_ram),
                        "bytes are dropped that are held or not in RAM"
                    );
                }
                StoreOrder::DropFile(_, record) => {
                    assert!(
                        may_go(id) && stored.file.take().is_some(),
                        "a file is deleted that is held or does not exist"
                    );
                    assert_eq!(*record, stored.record);
                    dropped.push(stored.clone());
                }
            }
        }
        self.stored.retain(|stored| stored.tier().is_some());
        dropped
    }

    fn take_changes(&mut self) {
        for TierChange { kind, blocks, tier, .. } in self.index.take_changes() {
            for key in keys(kind, &blocks) {
                match tier {
                    Some(tier) => drop(self.told.insert(key, tier)),
                    None => assert!(self.told.remove(&key).is_some(), "a chunk is withdrawn that was not announced"),
                }
            }
        }
        let of = |stored: &Stored| {
            let tier = stored.tier().expect("every listed chunk is in a tier");
            keys(stored.record.kind, &stored.record.blocks).into_iter().map(move |key| (key, tier))
        };
        let truth: HashMap<(StateKind, BlockHash), Tier> = self.stored.iter().flat_map(of).collect();
        assert_eq!(self.told, truth, "the changes do not give the stored chunks");
    }

    /// Restarts from the files, in some order; a chunk that is reached only through a missing file is refused.
    fn restart(&mut self, seed: usize) {
        let is_written = |stored: &&Stored| stored.file == Some(FileState::Written);
        let mut files: Vec<Stored> = self.stored.iter().filter(is_written).cloned().collect();
        let n_files = files.len();
        files.rotate_left(seed % n_files.max(1));
        files.sort_by_key(|file| file.id.0 as usize * 7 % (seed + 1));
        let adopted_file = |file: &Stored| AdoptedFile { record: file.record.clone(), last_used_ms: file.id.0 };
        let adopted_files: Vec<AdoptedFile> = files.iter().map(adopted_file).collect();
        *self = Self {
            prompts: std::mem::take(&mut self.prompts),
            now_ms: self.now_ms,
            ..Self::new(self.limits, self.hash_bits)
        };
        let outcomes = self.index.adopt(&adopted_files);
        for (file, outcome) in files.iter().zip(&outcomes) {
            let is_parent = |(other, outcome): (&Stored, &Result<ChunkId, NotStored>)| {
                outcome.is_ok() && other.ends(file.record.root, file.before())
            };
            let has_parent = file.before().is_empty() || files.iter().zip(&outcomes).any(is_parent);
            assert_eq!(outcome.err(), (!has_parent).then_some(NotStored::NoParent));
            if let Ok(id) = outcome {
                self.stored.push(Stored { id: *id, in_ram: false, ..file.clone() });
            }
        }
        assert_eq!(self.index.take_orders(), [], "the files were within the limit before");
    }

    fn has_hash(&self, kind: StateKind, hash: &BlockHash) -> bool {
        let of_kind = self.stored.iter().filter(|stored| stored.record.kind == kind);
        of_kind.map(|stored| &stored.record.blocks).any(|blocks| match kind {
            StateKind::Chunk => blocks.contains(hash),
            StateKind::Checkpoint => blocks.last() == Some(hash),
        })
    }

    fn naive_prefix(&self, sequence: &Sequence) -> usize {
        let is_stored = |n_blocks: &usize| {
            let tokens = &sequence.tokens[..n_blocks * BLOCK as usize];
            self.stored.iter().any(|stored| stored.ends(sequence.root, tokens))
        };
        (1..=sequence.chain.len()).take_while(is_stored).count()
    }

    /// Returns how many tokens of a sequence are stored, including those of the next block in the last chunk.
    fn naive_tokens(&self, sequence: &Sequence, found: &StoredPrefix) -> usize {
        let n_whole = found.n_blocks * BLOCK as usize;
        let Some(last) = found.pieces.last() else { return n_whole };
        let chunk = self.stored.iter().find(|stored| stored.id == last.chunk).expect("found chunks are stored");
        let shared = chunk.lineage.iter().zip(&sequence.tokens).take_while(|(stored, wanted)| stored == wanted);
        shared.count().max(n_whole)
    }

    fn naive_missing(&self, sequence: &Sequence) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for depth in self.naive_prefix(sequence)..sequence.chain.len() {
            let hash = &sequence.chain[depth];
            if self.has_hash(StateKind::Chunk, hash) || sequence.chain[..depth].contains(hash) {
                break;
            }
            match ranges.last_mut() {
                Some(last) if depth % self.limits.chunk_blocks_max != 0 => last.end += 1,
                _ => ranges.push(depth..depth + 1),
            }
        }
        ranges
    }

    /// Compares the index with the lists.
    fn check(&self) {
        self.index.check_invariants();
        let sum = |is_there: fn(&Stored) -> bool| -> u64 {
            self.stored.iter().filter(|stored| is_there(stored)).map(|stored| stored.record.n_bytes).sum()
        };
        let (ram, disk) = (sum(|stored| stored.in_ram), sum(|stored| stored.file.is_some()));
        assert!(ram <= self.limits.ram_bytes && disk <= self.limits.disk_bytes);
        assert_eq!((self.index.totals(Tier::Ram).n_bytes, self.index.totals(Tier::Disk).n_bytes), (ram, disk));
        let entries: Vec<(ChunkId, Tier)> =
            self.index.entries().iter().map(|entry| (entry.chunk, entry.tier)).collect();
        let mut stored: Vec<(ChunkId, Tier)> =
            self.stored.iter().filter_map(|stored| Some((stored.id, stored.tier()?))).collect();
        stored.sort_unstable();
        assert_eq!(entries, stored);
        for stored in &self.stored {
            let before = stored.before();
            assert!(
                before.is_empty() || self.stored.iter().any(|other| other.ends(stored.record.root, before)),
                "an orphan is kept"
            );
        }
        for sequence in &self.prompts {
            let found = self.index.find(&sequence.prefix());
            assert_eq!(found.n_blocks, self.naive_prefix(sequence));
            let n_rest = found.n_tokens - found.n_blocks * BLOCK as usize;
            assert!(n_rest < BLOCK as usize);
            let n_pieces: usize = found.pieces.iter().map(|piece| piece.n_blocks).sum();
            assert_eq!(n_pieces, found.n_blocks + usize::from(n_rest > 0));
            assert_eq!(found.n_tokens, self.naive_tokens(sequence, &found));
            assert!(found.pieces.iter().all(|piece| self.index.tier(piece.chunk) == Some(piece.tier)));
            let points: Vec<ChunkId> =
                self.index.checkpoints(&sequence.prefix()).iter().map(|point| point.chunk).collect();
            let is_point = |stored: &&Stored| {
                stored.record.kind == StateKind::Checkpoint
                    && stored.record.root == sequence.root
                    && sequence.tokens.starts_with(&stored.lineage)
            };
            let mut naive: Vec<&Stored> = self.stored.iter().filter(is_point).collect();
            naive.sort_by_key(|stored| stored.lineage.len());
            assert_eq!(points, naive.iter().map(|stored| stored.id).collect::<Vec<_>>());
        }
    }
}

/// Returns the keys of a change: every block of a chunk, the last block of a checkpoint.
fn keys(kind: StateKind, blocks: &[BlockHash]) -> Vec<(StateKind, BlockHash)> {
    let n_before = if kind == StateKind::Chunk { 0 } else { blocks.len() - 1 };
    blocks[n_before..].iter().map(|hash| (kind, *hash)).collect()
}

/// Returns whether a chunk is a descendant of another one.
fn is_behind(chunk: &Stored, other: &Stored) -> bool {
    let first_block = other.record.first_block;
    let shared = &other.lineage[..(first_block + 1) * BLOCK as usize];
    let are_chunks = chunk.record.kind == StateKind::Chunk && other.record.kind == StateKind::Chunk;
    let shares = chunk.record.root == other.record.root && chunk.lineage.starts_with(shared);
    are_chunks && shares && chunk.record.first_block > first_block
}

proptest! {
    #[test]
    fn agrees_with_plain_lists_after_any_events(
        limits in some_limits(),
        hash_bits in prop::sample::select(vec![2_u32, 5, 8, 8]),
        happenings in prop::collection::vec(happening(), 1..120),
    ) {
        let mut model = Model::new(limits, hash_bits);
        for happening in &happenings {
            model.step(happening);
            model.check();
        }
    }
}
