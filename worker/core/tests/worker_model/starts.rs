//! Starts of requests as in the shell, with a check of every plan against the naive state.
//!
//! All other events are in `world`.

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::Tier;
use warmpath_worker_core::slots::slot_plan::{
    PlanInputs, PrefixSource, Reuse, Save, SlotDecision, SlotPlan, SlotRequest, plan,
};
use warmpath_worker_core::slots::slot_table::{Acquire, AfterUse};
use warmpath_worker_core::store::chunk_index::{ChunkId, StateKind, StoredPrefix, UsedChunk};

use crate::Keeps;
use crate::world::{BLOCK, Kv, Running, Truth, Waiting, World, root, tenant};

impl World {
    /// Starts every request that can start, in the order of arrival.
    pub fn admit(&mut self) {
        let mut idx = 0;
        while idx < self.waiting.len() {
            let is_being_read = self.waiting[idx].fetching.iter().any(|id| self.reading.contains(id));
            if is_being_read && !self.is_disk_late {
                idx += 1;
                continue;
            }
            let waiting = &self.waiting[idx];
            match plan(&self.outlook(), &self.slot_request(waiting, &root(waiting.request.salt))) {
                SlotDecision::NoSlot => {
                    assert!(self.running.iter().all(Option::is_some), "a request waits although a slot is idle");
                    return;
                }
                SlotDecision::WaitFor { slot, n_tokens } => {
                    self.wait_for(idx, (slot, n_tokens));
                    idx += 1;
                }
                SlotDecision::Fetch(chunks) => {
                    self.fetch(idx, chunks);
                    idx += 1;
                }
                SlotDecision::Start(plan) => {
                    if is_being_read {
                        self.ways.count("start without the disk");
                    }
                    let waiting = self.waiting.remove(idx);
                    self.start(waiting, &plan);
                }
            }
        }
    }

    pub fn outlook(&self) -> PlanInputs<'_> {
        let Self { table, index, passing: at_hand, costs, is_disk_late, .. } = self;
        PlanInputs { table, index, at_hand, costs, is_disk_late: *is_disk_late }
    }

    pub fn slot_request<'a>(&self, waiting: &'a Waiting, root: &'a BlockHash) -> SlotRequest<'a> {
        let request = &waiting.request;
        let tenant = tenant(root).share_id();
        let reuse = if request.keeps == Keeps::State { Reuse::Allowed } else { Reuse::Forbidden };
        SlotRequest { prompt: &request.prompt, chain: &waiting.chain, root, tenant, reuse, wanted: None, media: &[] }
    }

    /// Checks that a running sequence will compute the prefix for which a request waits.
    fn wait_for(&mut self, idx: usize, (slot, n_tokens): (SlotId, u32)) {
        let n = n_tokens as usize;
        let waiting = &self.waiting[idx].request;
        let running = self.running[usize::from(slot.0)].as_mut().expect("a request waits for an idle slot");
        assert!(running.request.keeps == Keeps::State && waiting.keeps == Keeps::State);
        assert!(running.request.salt == waiting.salt, "a request waits for another tenant's prefix");
        assert_eq!(
            running.request.prompt[..n],
            waiting.prompt[..n],
            "a request waits for a prefix that is never computed"
        );
        assert!(self.kv[usize::from(slot.0)].tokens.len() < n, "a request waits for a prefix that is computed already");
        if !self.setting.memory.rewinds_anywhere()
            && let Err(idx) = running.stops.binary_search(&n_tokens)
        {
            running.stops.insert(idx, n_tokens);
        }
        self.ways.count("wait for a prefix");
    }

    fn fetch(&mut self, idx: usize, chunks: Vec<ChunkId>) {
        assert!(!chunks.is_empty() && !self.is_disk_late, "a request waits for a disk that is late");
        for id in &chunks {
            assert_eq!(self.index.tier(*id), Some(Tier::Disk), "a chunk is read that is not on disk");
            self.index.hold(*id);
            if !self.reading.contains(id) {
                self.reading.push(*id);
            }
        }
        self.waiting[idx].fetching.extend(chunks);
        self.ways.count("wait for the disk");
    }

    fn start(&mut self, waiting: Waiting, plan: &SlotPlan) {
        let Waiting { request, chain, fetching } = waiting;
        let idx = usize::from(plan.slot.0);
        assert!(self.running[idx].is_none(), "a plan uses a busy slot");
        let n_start = plan.start.n_tokens();
        assert!((n_start as usize) < request.prompt.len(), "no token remains to be computed");
        let waiting = Waiting { request, chain, fetching: Vec::new() };
        let rewinds_to = plan.rewinds_to(&self.table);
        let kv = self.bring(&waiting, plan);
        assert!(kv.n_fixed <= rewinds_to as usize, "the slot cannot be cut back as far as the table says");
        if !fetching.is_empty() && n_start > 0 {
            self.ways.count("start from disk");
        }
        self.release(&fetching);
        self.execute_orders();
        let Waiting { request, chain, .. } = waiting;
        self.kv[idx] = kv;
        self.table.acquire(Acquire {
            slot: plan.slot,
            prompt: &request.prompt,
            n_start_tokens: n_start,
            rewinds_to_tokens: rewinds_to,
            root: root(request.salt),
            prompt_chain: &chain,
            after_use: if request.keeps == Keeps::State { AfterUse::Keep } else { AfterUse::Forget },
        });
        self.table.set_tenant(plan.slot, tenant(&root(request.salt)).share_id());
        let stops = match request.keeps {
            Keeps::State => self.checkpoints(n_start..request.prompt.len() as u32),
            Keeps::Nothing => Vec::new(),
        };
        self.running[idx] = Some(Running { request, stops });
    }

    /// Returns the KV state that the plan brings to its slot.
    fn bring(&mut self, waiting: &Waiting, plan: &SlotPlan) -> Kv {
        let request = &waiting.request;
        let root = root(request.salt);
        let slot_request = SlotRequest {
            prompt: &request.prompt,
            chain: &waiting.chain,
            root: &root,
            tenant: None,
            reuse: Reuse::Allowed,
            wanted: None,
            media: &[],
        };
        let found = self.index.find(&slot_request.prefix());
        let n_start = plan.start.n_tokens() as usize;
        let pieces = match plan.start {
            PrefixSource::Import { .. } => self.pieces(&found, n_start),
            PrefixSource::Cold | PrefixSource::Keep { .. } | PrefixSource::Copy { .. } => Vec::new(),
        };
        let held: Vec<ChunkId> = pieces.iter().map(|chunk| chunk.id).chain(plan.checkpoint).collect();
        held.iter().for_each(|id| self.index.hold(*id));
        if plan.save == Save::First {
            self.ways.count("save first");
            self.save(usize::from(plan.slot.0));
        }
        let kv = self.brought(waiting, plan, &pieces);
        match plan.start {
            PrefixSource::Keep { n_tokens } => self.table.lend(plan.slot, n_tokens),
            PrefixSource::Copy { from, n_tokens } => self.table.lend(from, n_tokens),
            PrefixSource::Cold | PrefixSource::Import { .. } => {}
        }
        self.index.touch(&pieces, tenant(&root), self.now_ms);
        if let Some(checkpoint) = plan.checkpoint {
            self.index.touch_checkpoint(checkpoint, tenant(&root), self.now_ms);
        }
        self.release(&held);
        self.ways.count(way_name(plan));
        kv
    }

    /// Returns the chunks of a prompt's first tokens with the number of blocks taken from each.
    fn pieces(&self, found: &StoredPrefix, n_tokens: usize) -> Vec<UsedChunk> {
        if self.setting.memory == MemoryKind::Recurrent {
            return Vec::new();
        }
        assert!(n_tokens <= found.n_tokens, "the plan imports more tokens than are stored");
        found.first(n_tokens.div_ceil(BLOCK as usize)).collect()
    }

    fn brought(&self, waiting: &Waiting, plan: &SlotPlan, pieces: &[UsedChunk]) -> Kv {
        let request = &waiting.request;
        let n = plan.start.n_tokens() as usize;
        let memory = self.setting.memory;
        if n > 0 {
            assert!(request.keeps == Keeps::State, "a request without reuse gets cached state");
        }
        let own = &request.prompt[..n];
        if let Some(checkpoint) = plan.checkpoint {
            let truth = self.payload(checkpoint);
            assert_eq!((truth.salt, truth.kind), (request.salt, StateKind::Checkpoint));
            assert_eq!(truth.tokens, own, "the partial state belongs to another prompt");
        }
        let mut n_fixed = if plan.checkpoint.is_some() && memory == MemoryKind::Sliding { n } else { 0 };
        match plan.start {
            PrefixSource::Cold => assert!(plan.checkpoint.is_none()),
            PrefixSource::Keep { .. } | PrefixSource::Copy { .. } => {
                let source = if let PrefixSource::Copy { from, .. } = plan.start { from } else { plan.slot };
                assert!(
                    (source != plan.slot) == matches!(plan.start, PrefixSource::Copy { .. }),
                    "a slot copies from itself"
                );
                let kv = &self.kv[usize::from(source.0)];
                let secret = self.running[usize::from(source.0)].as_ref().map(|running| running.request.keeps);
                assert!(
                    secret != Some(Keeps::Nothing),
                    "state of a request that leaves nothing in the cache is reused"
                );
                let is_all_partial = memory == MemoryKind::Recurrent && plan.checkpoint.is_some();
                if !is_all_partial {
                    assert_eq!(kv.salt, request.salt, "KV state is reused across roots");
                    assert_eq!(kv.tokens[..n], *own, "the state belongs to another prompt");
                }
                let rewinds = memory.rewinds_anywhere() && n >= kv.n_fixed;
                assert!(n == kv.tokens.len() || rewinds || plan.checkpoint.is_some(), "the state cannot be cut there");
                n_fixed = n_fixed.max(if plan.checkpoint.is_none() { kv.n_fixed } else { 0 });
            }
            PrefixSource::Import { .. } => {
                assert!(memory.stored_state_rewinds() || plan.checkpoint.is_some(), "stored state cannot be cut there");
                let mut n_blocks = 0;
                for UsedChunk { id, n_blocks: n } in pieces {
                    let truth = self.payload(*id);
                    assert_eq!((truth.salt, truth.kind), (request.salt, StateKind::Chunk));
                    assert_eq!(truth.first_block, n_blocks, "a chunk is imported at another position");
                    n_blocks += n;
                    let n_tokens = own.len().min(n_blocks * BLOCK as usize);
                    assert_eq!(truth.tokens[..n_tokens], own[..n_tokens], "a chunk belongs to another prompt");
                }
            }
        }
        Kv { salt: request.salt, tokens: own.to_vec(), n_fixed }
    }

    fn payload(&self, id: ChunkId) -> &Truth {
        self.payloads.get(&id).expect("a plan needs bytes that are not in memory")
    }
}

fn way_name(plan: &SlotPlan) -> &'static str {
    match (plan.start, plan.checkpoint) {
        (PrefixSource::Cold, _) => "cold",
        (PrefixSource::Keep { .. }, None) => "keep",
        (PrefixSource::Keep { .. }, Some(_)) => "keep with a checkpoint",
        (PrefixSource::Copy { .. }, None) => "copy",
        (PrefixSource::Copy { .. }, Some(_)) => "copy with a checkpoint",
        (PrefixSource::Import { .. }, None) => "import",
        (PrefixSource::Import { .. }, Some(_)) => "import with a checkpoint",
    }
}
