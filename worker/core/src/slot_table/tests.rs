//! Random life of a worker against a naive KV model: what is held, announced and freed.

use std::collections::HashMap;

use proptest::prelude::*;
use warmpath_common::block_hash::{BlockKey, ChainRoot, block_chain};
use warmpath_common::summary::{Change, Resume, RunState};

use super::*;
use crate::slot_plan::{Reuse, Wish, plan};

const BLOCK: u32 = 2;
const CONTEXT: u32 = 40;

fn root(salt: u8) -> BlockHash {
    ChainRoot { model_fingerprint: &[0; 32], lora: &[], cache_salt: &[salt] }.hash()
}

/// Is one thing that happens.
#[derive(Debug, Clone)]
enum Happening {
    /// A request comes with a prompt made of some conversation's first tokens and others.
    Come { from: usize, n_kept: usize, extra: Vec<Token>, salt: u8, leaves_nothing: bool },
    /// A running sequence computes some of its tokens.
    Compute { which: usize, n: usize },
    /// A running sequence ends: finished, cancelled or failed, all the same.
    End { which: usize },
    /// A running sequence loses its KV state and fails.
    Lose { which: usize },
    /// An idle slot is cleared.
    Clear { which: usize },
}

fn happening() -> impl Strategy<Value = Happening> {
    let extra = prop::collection::vec(0_u32..3, 1..14);
    prop_oneof![
        3 => (0_usize..6, 0_usize..30, extra, 0_u8..2, prop::bool::weighted(0.2)).prop_map(
            |(from, n_kept, extra, salt, leaves_nothing)| Happening::Come { from, n_kept, extra, salt, leaves_nothing }
        ),
        6 => (0_usize..4, 1_usize..12).prop_map(|(which, n)| Happening::Compute { which, n }),
        2 => (0_usize..4).prop_map(|which| Happening::End { which }),
        1 => (0_usize..4).prop_map(|which| Happening::Lose { which }),
        1 => (0_usize..4).prop_map(|which| Happening::Clear { which }),
    ]
}

/// Is the naive model: KV state as plain lists, announcements as a map.
struct Model {
    table: SlotTable,
    memory: MemoryKind,
    /// Is the tokens whose KV state each slot has, and under which root.
    kv: Vec<(u8, Vec<Token>)>,
    /// Is the prompt and the wish to leave nothing of what runs in each slot.
    running: Vec<Option<(Vec<Token>, bool)>>,
    announced: HashMap<BlockKey, (RunState, SlotId, bool)>,
    conversations: Vec<Vec<Token>>,
}

impl Model {
    fn new(n_slots: u16, memory: MemoryKind) -> Self {
        Self {
            table: SlotTable::new(n_slots, CONTEXT, BLOCK, memory),
            memory,
            kv: vec![(0, Vec::new()); usize::from(n_slots)],
            running: vec![None; usize::from(n_slots)],
            announced: HashMap::new(),
            conversations: vec![Vec::new()],
        }
    }

    fn happen(&mut self, happening: Happening) {
        let busy: Vec<usize> = (0..self.running.len()).filter(|idx| self.running[*idx].is_some()).collect();
        let pick = |which: usize| (!busy.is_empty()).then(|| busy[which % busy.len()]);
        match happening {
            Happening::Come { from, n_kept, extra, salt, leaves_nothing } => {
                let mut prompt = self.conversations[from % self.conversations.len()].clone();
                prompt.truncate(n_kept);
                prompt.extend(extra);
                prompt.truncate(CONTEXT as usize - 1);
                self.come(prompt, salt, leaves_nothing);
            }
            Happening::Compute { which, n } => {
                if let Some(idx) = pick(which) {
                    self.compute(idx, n);
                }
            }
            Happening::End { which } => {
                if let Some(idx) = pick(which) {
                    self.end(idx);
                }
            }
            Happening::Lose { which } => {
                if let Some(idx) = pick(which) {
                    self.kv[idx].1.clear();
                    self.table.forget(SlotId(idx as u16));
                    self.end(idx);
                }
            }
            Happening::Clear { which } => {
                let idx = which % self.kv.len();
                if self.running[idx].is_none() {
                    self.kv[idx].1.clear();
                    self.table.forget(SlotId(idx as u16));
                }
            }
        }
        self.check();
    }

    fn come(&mut self, prompt: Vec<Token>, salt: u8, leaves_nothing: bool) {
        let root = root(salt);
        let reuse = if leaves_nothing { Reuse::Forbidden } else { Reuse::Allowed };
        let Some(plan) = plan(&self.table, &Wish { prompt: &prompt, root: &root, reuse, wanted: None }) else {
            assert!(self.running.iter().all(Option::is_some), "a request waits beside an idle slot");
            return;
        };
        let idx = usize::from(plan.slot.0);
        let n_kept = plan.start.n_kept() as usize;
        let (kv_salt, kv) = &mut self.kv[idx];
        assert!(self.running[idx].is_none());
        assert!(n_kept < prompt.len(), "nothing is left to compute");
        assert!(n_kept == 0 || (*kv_salt == salt && !leaves_nothing), "KV state crosses a border");
        assert_eq!(kv[..n_kept], prompt[..n_kept], "the kept KV state is another prompt's");
        assert!(n_kept == 0 || n_kept == kv.len() || self.memory.rewinds_anywhere(), "the state cannot be cut there");
        kv.truncate(n_kept);
        *kv_salt = salt;
        self.table.acquire(Acquire {
            slot: plan.slot,
            start: plan.start,
            root,
            prompt_chain: &block_chain(&root, &prompt, BLOCK),
            after_use: if leaves_nothing { AfterUse::Forget } else { AfterUse::Keep },
        });
        self.running[idx] = Some((prompt, leaves_nothing));
    }

    fn compute(&mut self, idx: usize, n: usize) {
        let Some((prompt, _)) = &self.running[idx] else { return };
        let kv = &mut self.kv[idx].1;
        let next: Vec<Token> = match prompt.len().saturating_sub(kv.len()) {
            // An answer of one token at a time, as long as there is room.
            0 => std::iter::once(9).take(CONTEXT as usize - kv.len()).collect(),
            left => prompt[kv.len()..kv.len() + n.min(left)].to_vec(),
        };
        kv.extend(&next);
        self.table.extend(SlotId(idx as u16), &next);
    }

    fn end(&mut self, idx: usize) {
        let (_, leaves_nothing) = self.running[idx].take().unwrap();
        self.conversations.push(self.kv[idx].1.clone());
        if self.conversations.len() > 6 {
            self.conversations.remove(0);
        }
        let after_use = self.table.release(SlotId(idx as u16));
        assert_eq!(after_use == AfterUse::Forget, leaves_nothing);
        if leaves_nothing {
            self.kv[idx].1.clear();
        }
    }

    fn check(&mut self) {
        self.table.check_invariants();
        for (id, slot) in self.table.iter() {
            assert_eq!(slot.tokens(), self.kv[usize::from(id.0)].1, "slot {id} holds something else");
            assert_eq!(slot.is_busy(), self.running[usize::from(id.0)].is_some());
        }
        let n_held: usize = self.kv.iter().map(|(_, kv)| kv.len()).sum();
        assert_eq!(self.table.held_tokens() + self.table.free_cells(), self.kv.len() as u64 * u64::from(CONTEXT));
        assert_eq!(self.table.held_tokens(), n_held as u64);
        for change in self.table.take_changes() {
            self.apply(change);
        }
        self.check_announced();
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Stored(run) => {
                let last = run.keys.len() - 1;
                for (idx, key) in run.keys.iter().enumerate() {
                    let resumes = run.resume == Resume::EveryBlock || idx == last;
                    self.announced.insert(*key, (run.state, run.slot.unwrap(), resumes));
                }
            }
            Change::Removed(keys) => {
                for key in keys {
                    assert!(self.announced.remove(&key).is_some(), "withdrew what was never announced");
                }
            }
            Change::Accepted(_) => panic!("the table accepts no requests"),
        }
    }

    /// Compares what routers believe with what the naive model says they should.
    fn check_announced(&self) {
        let mut truth: HashMap<BlockKey, Vec<(RunState, SlotId, bool)>> = HashMap::new();
        for (idx, (salt, kv)) in self.kv.iter().enumerate() {
            let running = self.running[idx].as_ref();
            let is_silent = running.is_some_and(|(_, secret)| *secret || !self.memory.rewinds_anywhere());
            if is_silent {
                continue;
            }
            let chain = |tokens: &[Token]| block_chain(&root(*salt), tokens, BLOCK);
            let ready = chain(kv);
            let filling = running.map(|(prompt, _)| chain(prompt)).unwrap_or_default();
            let n_ready = ready.len();
            let rest = filling.into_iter().skip(n_ready);
            for (depth, hash) in ready.into_iter().chain(rest).enumerate() {
                let state = if depth < n_ready { RunState::Ready } else { RunState::Filling };
                let resumes = self.memory.rewinds_anywhere() || depth + 1 == n_ready;
                truth.entry(hash.key()).or_default().push((state, SlotId(idx as u16), resumes));
            }
        }
        assert_eq!(self.announced.len(), truth.len(), "routers know of other blocks than there are");
        for (key, holders) in truth {
            let announced = &self.announced[&key];
            let any_ready = holders.iter().any(|(state, ..)| *state == RunState::Ready);
            let any_resumes = holders.iter().any(|(.., resumes)| *resumes);
            assert!(holders.contains(announced), "{key} is announced as {announced:?}, but there is {holders:?}");
            assert_eq!(announced.0 == RunState::Ready, any_ready, "{key} is announced worse than it is");
            assert_eq!(announced.2, any_resumes, "{key}'s resume point is announced wrong");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn holds_and_announces_exactly_what_was_computed(
        memory in prop::sample::select(vec![MemoryKind::Full, MemoryKind::Sliding, MemoryKind::Recurrent, MemoryKind::Hybrid]),
        n_slots in 1_u16..5,
        happenings in prop::collection::vec(happening(), 1..80),
    ) {
        let mut model = Model::new(n_slots, memory);
        for happening in happenings {
            model.happen(happening);
        }
    }
}

fn busy_table() -> SlotTable {
    let mut table = SlotTable::new(1, CONTEXT, BLOCK, MemoryKind::Full);
    let acquire =
        Acquire { slot: SlotId(0), start: Start::Cold, root: root(0), prompt_chain: &[], after_use: AfterUse::Keep };
    table.acquire(acquire);
    table
}

#[test]
#[should_panic(expected = "released twice")]
fn a_slot_cannot_be_released_twice() {
    let mut table = busy_table();
    let _ = table.release(SlotId(0));
    let _ = table.release(SlotId(0));
}

#[test]
#[should_panic(expected = "more than a context")]
fn a_slot_cannot_hold_more_than_a_context() {
    busy_table().extend(SlotId(0), &[1; CONTEXT as usize + 1]);
}

#[test]
#[should_panic(expected = "idle")]
fn an_idle_slot_cannot_be_extended() {
    SlotTable::new(1, CONTEXT, BLOCK, MemoryKind::Full).extend(SlotId(0), &[1]);
}

/// Runs a prompt cold to its end in a slot of a model that cannot be rewound.
fn run_to_the_end(table: &mut SlotTable, slot: u16, tokens: &[Token]) {
    let (slot, start, root) = (SlotId(slot), Start::Cold, root(0));
    table.acquire(Acquire { slot, start, root, prompt_chain: &[], after_use: AfterUse::Keep });
    table.extend(slot, tokens);
    let _ = table.release(slot);
}

#[test]
fn a_resume_point_inside_a_longer_chain_stays_one_while_someone_ends_there() {
    let mut table = SlotTable::new(2, CONTEXT, BLOCK, MemoryKind::Recurrent);
    let chain = block_chain(&root(0), &[1, 2, 3, 4, 5, 6], BLOCK);
    let keys = |blocks: std::ops::Range<usize>| chain[blocks].iter().map(BlockHash::key).collect::<Vec<_>>();
    let stored = |table: &mut SlotTable| -> Vec<(Vec<BlockKey>, SlotId)> {
        let changes = table.take_changes().into_iter();
        let runs = changes.filter_map(|change| if let Change::Stored(run) = change { Some(run) } else { None });
        runs.map(|run| (run.keys, run.slot.unwrap())).collect()
    };
    run_to_the_end(&mut table, 0, &[1, 2, 3, 4, 9]);
    assert_eq!(stored(&mut table), [(keys(0..2), SlotId(0))]);
    run_to_the_end(&mut table, 1, &[1, 2, 3, 4, 5, 6]);
    assert_eq!(stored(&mut table), [(keys(2..3), SlotId(1))]);
    table.forget(SlotId(0));
    assert_eq!(stored(&mut table), [(keys(0..3), SlotId(1))]);
    table.check_invariants();
}
