//! The naive worker: slots, payloads, files and clients as plain lists, used as the shell uses the core.
//!
//! The start of a request is in `starts`, announcements to routers in `announced`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use warmpath_common::block_hash::{BlockHash, ChainRoot, block_hash};
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::Tier;
use warmpath_worker_core::slots::prefix_tree::BlockHasher;
use warmpath_worker_core::slots::slot_plan::{PlanInputs, best_usable};
use warmpath_worker_core::slots::slot_table::{AfterUse, SlotSizes, SlotTable};
use warmpath_worker_core::store::chunk_index::{
    CheckpointPlace, ChunkId, ChunkIndex, NewChunk, PinId, Prefix, StateKind, StoreLimits, StoreOrder,
};
use warmpath_worker_core::store::restore_costs::Costs;
use warmpath_worker_core::tenants::{Tenant, TenantId};

use crate::announced::Announced;
use crate::{Keeps, Outcome};

pub const BLOCK: u32 = 2;
pub const CONTEXT: u32 = 40;
const BLOCK_BYTES: u64 = 10;
const CHECKPOINT_BYTES: u64 = 8;

/// Configuration of a worker.
#[derive(Debug, Clone)]
pub struct Setting {
    pub memory: MemoryKind,
    pub hasher: BlockHasher,
    pub n_slots: u16,
    pub ram_blocks: u64,
    pub disk_blocks: u64,
    pub copy_ms: f64,
    pub export_ms: f64,
}

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    pub prompt: Vec<Token>,
    pub salt: u8,
    pub keeps: Keeps,
}

/// Request that has not started.
pub struct Waiting {
    pub request: Request,
    pub chain: Vec<BlockHash>,
    pub fetching: Vec<ChunkId>,
}

/// Request that has started.
pub struct Running {
    pub request: Request,
    pub stops: Vec<u32>,
}

/// Actual KV state of a slot.
#[derive(Debug, Clone, Default)]
pub struct Kv {
    pub salt: u8,
    pub tokens: Vec<Token>,
    /// Minimum number of tokens to which a sliding window's state can be cut back.
    pub n_fixed: usize,
}

/// Tokens from which a payload was computed: all up to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truth {
    pub salt: u8,
    pub kind: StateKind,
    pub first_block: usize,
    pub tokens: Vec<Token>,
}

/// Numbers of events, by name.
#[derive(Debug, Clone, Default)]
pub struct Ways(BTreeMap<&'static str, u32>);

impl Ways {
    pub fn count(&mut self, name: &'static str) {
        *self.0.entry(name).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (name, n) in &other.0 {
            *self.0.entry(name).or_default() += n;
        }
    }

    /// Returns every kind of start and wait with its number.
    pub fn all(&self) -> Vec<(&'static str, u32)> {
        const NAMES: [&str; 14] = [
            "cold",
            "keep",
            "keep with a checkpoint",
            "copy",
            "copy with a checkpoint",
            "import",
            "import with a checkpoint",
            "start from disk",
            "start without the disk",
            "wait for a prefix",
            "wait for the disk",
            "save first",
            "read without room",
            "read that fails",
        ];
        NAMES.map(|name| (name, self.0.get(name).copied().unwrap_or(0))).to_vec()
    }
}

/// The whole worker.
pub struct World {
    pub setting: Setting,
    pub table: SlotTable,
    pub index: ChunkIndex,
    pub costs: Costs,
    pub kv: Vec<Kv>,
    pub running: Vec<Option<Running>>,
    pub waiting: Vec<Waiting>,
    pub payloads: HashMap<ChunkId, Truth>,
    pub passing: HashSet<ChunkId>,
    pub files: HashMap<ChunkId, Truth>,
    writing: Vec<(ChunkId, Truth)>,
    pub reading: Vec<ChunkId>,
    /// Whether requests do without the disk, because a read takes too long.
    pub is_disk_late: bool,
    announced: Announced,
    conversations: Vec<(u8, Vec<Token>)>,
    pub now_ms: u64,
    pub ways: Ways,
}

pub fn root(salt: u8) -> BlockHash {
    ChainRoot { model_fingerprint: &[0; 32], lora: &[], cache_salt: &[salt] }.hash()
}

pub fn tenant(root: &BlockHash) -> Tenant {
    Tenant::with_share(TenantId::of_root(root))
}

impl World {
    pub fn new(setting: Setting) -> Self {
        let Setting { memory, hasher, n_slots, .. } = setting;
        let shape = SlotSizes { n_slots, context_tokens: CONTEXT, block_size_tokens: BLOCK, memory, hasher };
        let stores = setting.ram_blocks > 0;
        let limits = StoreLimits {
            ram_bytes: setting.ram_blocks * BLOCK_BYTES,
            disk_bytes: if stores { setting.disk_blocks * BLOCK_BYTES } else { 0 },
            min_hold_ms: 4,
            chunk_blocks_max: 3,
            block_size_tokens: BLOCK,
        };
        let costs = Costs {
            prefill_ms_per_token: 1.0,
            copy_ms_per_token: (memory != MemoryKind::Recurrent).then_some(setting.copy_ms),
            export_ms_per_token: stores.then_some(setting.export_ms),
            import_ms_per_byte: 0.002,
            read_ms_per_byte: 0.01,
            suffix_rounding: None,
        };
        Self {
            table: SlotTable::new(shape),
            index: ChunkIndex::new(limits),
            costs,
            kv: vec![Kv::default(); usize::from(n_slots)],
            running: (0..n_slots).map(|_| None).collect(),
            waiting: Vec::new(),
            payloads: HashMap::new(),
            passing: HashSet::new(),
            files: HashMap::new(),
            writing: Vec::new(),
            reading: Vec::new(),
            is_disk_late: false,
            announced: Announced::default(),
            conversations: vec![(0, Vec::new())],
            now_ms: 1,
            ways: Ways::default(),
            setting,
        }
    }

    pub fn ways(&self) -> &Ways {
        &self.ways
    }

    pub fn conversation(&self, which: usize) -> (u8, Vec<Token>) {
        self.conversations[which % self.conversations.len()].clone()
    }

    fn busy(&self, which: usize) -> Option<usize> {
        let busy: Vec<usize> = (0..self.running.len()).filter(|idx| self.running[*idx].is_some()).collect();
        (!busy.is_empty()).then(|| busy[which % busy.len()])
    }

    pub fn come(&mut self, request: Request) {
        let chain = self.table.tree().chain_of(&root(request.salt), &request.prompt);
        self.waiting.push(Waiting { request, chain, fetching: Vec::new() });
    }

    /// Returns the positions of a prompt's checkpoints: every few blocks and at its end.
    pub fn checkpoints(&self, tokens: Range<u32>) -> Vec<u32> {
        if self.setting.memory.stored_state_rewinds() || self.setting.ram_blocks == 0 {
            return Vec::new();
        }
        let last = tokens.end.saturating_sub(1) / BLOCK;
        let is_here = |block: &u32| *block * BLOCK > tokens.start && (block.is_multiple_of(2) || *block == last);
        (1..=last).filter(is_here).map(|block| block * BLOCK).collect()
    }

    pub fn compute(&mut self, which: usize, n: usize) {
        let Some(idx) = self.busy(which) else { return };
        let running = self.running[idx].as_ref().unwrap();
        let kv = &mut self.kv[idx].tokens;
        let prompt = &running.request.prompt;
        let stop = running.stops.iter().map(|stop| *stop as usize).find(|stop| *stop > kv.len());
        let until = stop.unwrap_or(prompt.len()).min(prompt.len());
        let next: Vec<Token> = match until.saturating_sub(kv.len()) {
            // One token of the response at a time, as long as there is space.
            0 => std::iter::once(9).take(CONTEXT as usize - kv.len()).collect(),
            left => prompt[kv.len()..kv.len() + n.min(left)].to_vec(),
        };
        kv.extend(&next);
        let n_held = kv.len() as u32;
        self.table.extend(SlotId(idx as u16), &next);
        let running = self.running[idx].as_mut().unwrap();
        if running.stops.contains(&n_held) {
            running.stops.retain(|stop| *stop > n_held);
            self.keep_checkpoint(idx);
        }
    }

    pub fn end(&mut self, which: usize) {
        let Some(idx) = self.busy(which) else { return };
        let keeps = self.running[idx].take().unwrap().request.keeps;
        if self.kv[idx].tokens.len() > 3 {
            self.conversations.push((self.kv[idx].salt, self.kv[idx].tokens.clone()));
        }
        if self.conversations.len() > 6 {
            self.conversations.remove(0);
        }
        let after_use = self.table.release(SlotId(idx as u16));
        assert_eq!(after_use == AfterUse::Forget, keeps == Keeps::Nothing);
        if keeps == Keeps::Nothing {
            self.kv[idx] = Kv::default();
        }
    }

    pub fn lose(&mut self, which: usize) {
        let Some(idx) = self.busy(which) else { return };
        self.kv[idx] = Kv::default();
        self.table.forget(SlotId(idx as u16));
        self.end(which);
    }

    pub fn leave(&mut self, which: usize) {
        if self.waiting.is_empty() {
            return;
        }
        let gone = self.waiting.remove(which % self.waiting.len());
        self.release(&gone.fetching);
    }

    pub fn move_out(&mut self, which: usize) {
        let idx = which % self.kv.len();
        if self.running[idx].is_none() {
            self.save(idx);
            self.kv[idx] = Kv::default();
            self.table.forget(SlotId(idx as u16));
        }
    }

    /// Stores a slot's state.
    pub fn save(&mut self, idx: usize) {
        let slot = self.table.slot(SlotId(idx as u16));
        let (Some(root), tokens) = (slot.root().copied(), slot.exact_tokens().to_vec()) else { return };
        if self.setting.memory == MemoryKind::Recurrent || !slot.lends() {
            return;
        }
        let chain = self.table.tree().chain_of(&root, &tokens);
        let prefix = Prefix { root, chain: &chain, tokens: &tokens };
        for blocks in self.index.missing(&prefix) {
            let n_tokens = blocks.end * BLOCK as usize;
            let (first_block, n_bytes) = (blocks.start, blocks.len() as u64 * BLOCK_BYTES);
            let new = NewChunk { prefix, blocks, n_bytes, priority: 0, tenant: tenant(&root), now_ms: self.now_ms };
            let Ok(id) = self.index.insert(&new) else { break };
            let tokens = self.kv[idx].tokens[..n_tokens].to_vec();
            self.payloads.insert(id, Truth { salt: self.kv[idx].salt, kind: StateKind::Chunk, first_block, tokens });
            self.execute_orders();
        }
        self.execute_orders();
    }

    fn keep_checkpoint(&mut self, idx: usize) {
        let Kv { salt, tokens, .. } = self.kv[idx].clone();
        let chain = self.table.tree().chain_of(&root(salt), &tokens);
        let prefix = Prefix { root: root(salt), chain: &chain, tokens: &tokens };
        let blocks = 0..chain.len();
        let new = NewChunk {
            prefix,
            blocks,
            n_bytes: CHECKPOINT_BYTES,
            priority: 0,
            tenant: tenant(&root(salt)),
            now_ms: self.now_ms,
        };
        let place = if chain.len().is_multiple_of(3) { CheckpointPlace::Shared } else { CheckpointPlace::End };
        if let Ok(id) = self.index.insert_checkpoint(&new, place) {
            self.payloads.insert(id, Truth { salt, kind: StateKind::Checkpoint, first_block: 0, tokens });
        }
        self.execute_orders();
    }

    pub fn release(&mut self, chunks: &[ChunkId]) {
        for id in chunks {
            self.index.release(*id);
            if !self.index.is_held(*id) && self.passing.remove(id) {
                self.payloads.remove(id);
            }
        }
    }

    /// Ends a disk operation: a read if one is in progress, otherwise a write.
    pub fn hear_from_disk(&mut self, which: usize, outcome: Outcome) {
        if !self.reading.is_empty() {
            let id = self.reading.remove(which % self.reading.len());
            self.is_disk_late = false;
            self.hear_of_read(id, outcome);
        } else if !self.writing.is_empty() {
            let (id, truth) = self.writing.remove(which % self.writing.len());
            match outcome {
                Outcome::Good => {
                    self.files.insert(id, truth);
                    self.index.written(id, self.now_ms);
                }
                Outcome::Bad => self.index.write_failed(id),
            }
        }
        self.execute_orders();
    }

    /// Makes the reads in progress late until one of them ends.
    pub fn stall(&mut self) {
        self.is_disk_late = !self.reading.is_empty();
    }

    fn hear_of_read(&mut self, id: ChunkId, outcome: Outcome) {
        let Some(truth) = self.files.get(&id).filter(|_| outcome == Outcome::Good).cloned() else {
            self.ways.count("read that fails");
            self.files.remove(&id);
            return self.index.lost(id);
        };
        let has_room = self.index.read_back(id, self.now_ms);
        if !has_room && !self.index.is_held(id) {
            return;
        }
        if !has_room {
            self.ways.count("read without room");
            self.passing.insert(id);
        }
        self.payloads.insert(id, truth);
    }

    pub fn pin(&mut self, which: usize, name: u64) {
        if self.index.unpin(PinId(name)) {
            return;
        }
        let (salt, tokens) = self.conversation(which);
        let root = root(salt);
        let chain = self.table.tree().chain_of(&root, &tokens);
        self.index.pin(PinId(name), &Prefix { root, chain: &chain, tokens: &tokens }).unwrap();
    }

    pub fn clear(&mut self) {
        self.index.clear();
        self.execute_orders();
    }

    /// Executes the index's orders.
    pub fn execute_orders(&mut self) {
        for order in self.index.take_orders() {
            match order {
                StoreOrder::DropRam(id) => {
                    assert!(self.payloads.remove(&id).is_some(), "bytes are dropped that are not in RAM")
                }
                StoreOrder::Write(id) => self.writing.push((id, self.payloads[&id].clone())),
                StoreOrder::DropFile(id, _) => {
                    self.files.remove(&id);
                    self.writing.retain(|(writing, _)| *writing != id);
                }
            }
        }
    }

    /// Runs until all requests have ended; panics if one never starts.
    pub fn run_out(&mut self) {
        for _ in 0..400 {
            for _ in 0..self.reading.len() + self.writing.len() {
                self.hear_from_disk(0, Outcome::Good);
            }
            for which in 0..self.running.len() {
                self.compute(which, CONTEXT as usize);
            }
            let is_done = |idx: &usize| {
                let running = self.running[*idx].as_ref();
                running.is_some_and(|running| self.kv[*idx].tokens.len() > running.request.prompt.len().min(38))
            };
            if let Some(idx) = (0..self.running.len()).find(is_done) {
                let which = (0..idx).filter(|idx| self.running[*idx].is_some()).count();
                self.end(which);
            }
            self.admit();
            self.check();
            if self.waiting.is_empty() && self.running.iter().all(Option::is_none) {
                return self.check_at_rest();
            }
        }
        panic!("{} requests never start", self.waiting.len());
    }

    fn check_at_rest(&self) {
        let held: Vec<ChunkId> = self.index.entries().iter().map(|entry| entry.chunk).collect();
        assert!(held.iter().all(|id| !self.index.is_held(*id)), "a chunk is held although no request needs it");
        assert!(self.passing.is_empty(), "a payload stays although no request waits for it");
        assert!(self.index.totals(Tier::Ram).n_bytes <= self.setting.ram_blocks * BLOCK_BYTES);
        assert!(self.index.totals(Tier::Disk).n_bytes <= self.setting.disk_blocks * BLOCK_BYTES);
    }

    /// Returns whether hashes may collide. Announcements may then be wrong, which can cause a wrong route but never a
    /// wrong response.
    pub fn collides(&self) -> bool {
        !std::ptr::fn_addr_eq(self.setting.hasher, block_hash as BlockHasher)
    }

    /// Compares the core's state with the naive state.
    pub fn check(&mut self) {
        self.now_ms += 1;
        for news in self.index.take_changes() {
            self.table.apply(news);
        }
        if !self.collides() {
            self.table.check_invariants();
        }
        self.index.check_invariants();
        for (id, slot) in self.table.iter() {
            let kv = &self.kv[usize::from(id.0)];
            assert_eq!(slot.tokens(), kv.tokens, "slot {id} has other tokens");
            assert_eq!(slot.is_busy(), self.running[usize::from(id.0)].is_some());
        }
        for entry in self.index.entries() {
            let place = if entry.tier == Tier::Ram { &self.payloads } else { &self.files };
            assert!(place.contains_key(&entry.chunk), "{entry:?} is not in its tier");
            assert!(!entry.is_on_disk || self.files.contains_key(&entry.chunk), "{entry:?} has no file");
        }
        let n_payloads = self.index.totals(Tier::Ram).n_chunks as usize + self.passing.len();
        assert_eq!(self.payloads.len(), n_payloads, "payloads without a chunk remain");
        let changes = self.table.take_changes();
        let mut announced = std::mem::take(&mut self.announced);
        announced.check(self, changes);
        self.announced = announced;
        if !self.collides() && self.setting.memory.rewinds_anywhere() {
            self.check_expected();
        }
    }

    /// Compares the router's expected reuse of every request with the worker's.
    fn check_expected(&self) {
        // A router is not told that the disk is late.
        let outlook = PlanInputs { is_disk_late: false, ..self.outlook() };
        for waiting in self.waiting.iter().filter(|waiting| waiting.request.keeps == Keeps::State) {
            let usable = best_usable(&outlook, &self.slot_request(waiting, &root(waiting.request.salt))) / BLOCK;
            let n_most = (waiting.request.prompt.len() - 1) / BLOCK as usize;
            let expected = self.announced.n_expected(&waiting.chain[..n_most.min(waiting.chain.len())]);
            assert_eq!(expected, usable as usize, "a router expects another reuse for {:?}", waiting.request);
        }
    }
}
