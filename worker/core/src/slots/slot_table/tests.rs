//! Random events of a worker compared with a naive model of KV state: held, announced and freed state.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use proptest::prelude::*;
use warmpath_common::block_hash::{BlockKey, ChainRoot, block_chain, block_hash};
use warmpath_common::summary::{Change, RunState};

use super::*;
use crate::slots::slot_plan::{PlanInputs, PrefixSource, Reuse, SlotDecision, SlotRequest, plan};
use crate::store::chunk_index::{ChunkIndex, StoreLimits};
use crate::store::restore_costs::Costs;
use crate::tenants::TenantId;

const BLOCK: u32 = 2;
const CONTEXT: u32 = 40;

fn root(salt: u8) -> BlockHash {
    ChainRoot { model_fingerprint: &[0; 32], lora: &[], cache_salt: &[salt] }.hash()
}

fn shape(n_slots: u16, memory: MemoryKind) -> SlotSizes {
    SlotSizes { n_slots, context_tokens: CONTEXT, block_size_tokens: BLOCK, memory, hasher: block_hash }
}

/// One random event.
#[derive(Debug, Clone)]
enum Happening {
    /// A request arrives whose prompt has the first tokens of a conversation and new ones.
    Come { from: usize, n_kept: usize, extra: Vec<Token>, salt: u8, leaves_nothing: bool },
    /// A running sequence computes some of its tokens.
    Compute { which: usize, n: usize },
    /// A running sequence ends, whether finished, cancelled or failed.
    End { which: usize },
    /// A running sequence of a model that can be shifted drops tokens from its middle.
    Shift { which: usize, from: usize, n: usize },
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
        1 => (0_usize..4, 0_usize..30, 1_usize..8).prop_map(|(which, from, n)| Happening::Shift { which, from, n }),
        1 => (0_usize..4).prop_map(|which| Happening::Lose { which }),
        1 => (0_usize..4).prop_map(|which| Happening::Clear { which }),
    ]
}

/// Naive model: KV state as plain lists, announcements as a map.
struct Model {
    table: SlotTable,
    memory: MemoryKind,
    /// Root and tokens of each slot's KV state.
    kv: Vec<(u8, Vec<Token>)>,
    /// Number of each slot's first tokens whose state is exact.
    n_exact: Vec<usize>,
    /// Prompt of the sequence in each slot, and whether it asked to leave nothing in the cache.
    running: Vec<Option<(Vec<Token>, bool)>>,
    /// Range of each slot's prompt with moved state that waits until the tokens before it are computed.
    parked: Vec<Option<Range<usize>>>,
    announced: HashMap<BlockKey, (RunState, SlotId, bool)>,
    conversations: Vec<Vec<Token>>,
}

impl Model {
    fn new(n_slots: u16, memory: MemoryKind) -> Self {
        Self {
            table: SlotTable::new(shape(n_slots, memory)),
            memory,
            kv: vec![(0, Vec::new()); usize::from(n_slots)],
            n_exact: vec![0; usize::from(n_slots)],
            running: vec![None; usize::from(n_slots)],
            parked: vec![None; usize::from(n_slots)],
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
            Happening::Shift { which, from, n } => {
                if let Some(idx) = pick(which).filter(|_| self.memory == MemoryKind::Full) {
                    self.shift(idx, (from, n));
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
        let chain = block_chain(&root, &prompt, BLOCK);
        let request = SlotRequest {
            prompt: &prompt,
            chain: &chain,
            root: &root,
            tenant: Some(TenantId::of_root(&root)),
            reuse,
            wanted: None,
            media: &[],
        };
        let (index, at_hand, costs) = (empty_index(), HashSet::new(), costs(self.memory));
        let (table, index, at_hand, costs) = (&self.table, &index, &at_hand, &costs);
        let outlook = PlanInputs { table, index, at_hand, costs, is_disk_late: false };
        let plan = match plan(&outlook, &request) {
            SlotDecision::Start(plan) => plan,
            SlotDecision::WaitFor { slot, n_tokens } => return self.check_wait(&prompt, (slot, n_tokens)),
            SlotDecision::NoSlot => {
                assert!(self.running.iter().all(Option::is_some), "a request waits although a slot is idle");
                return;
            }
            SlotDecision::Fetch(_) => panic!("the model stores no state"),
        };
        let idx = usize::from(plan.slot.0);
        let n_start = plan.start.n_tokens() as usize;
        assert!(self.running[idx].is_none());
        assert!(n_start < prompt.len(), "no token remains to be computed");
        assert!(plan.checkpoint.is_none(), "there are no checkpoints");
        let source = match plan.start {
            PrefixSource::Cold => None,
            PrefixSource::Keep { .. } => Some(idx),
            PrefixSource::Copy { from, .. } => Some(usize::from(from.0)),
            PrefixSource::Import { .. } => panic!("the model stores no state"),
        };
        if let Some(source) = source {
            let (kv_salt, kv) = &self.kv[source];
            assert!(*kv_salt == salt && !leaves_nothing, "KV state is reused across roots or without reuse");
            let secret = self.running[source].as_ref().is_some_and(|(_, secret)| *secret);
            assert!(!secret, "state of a request that leaves nothing in the cache is reused");
            assert_eq!(kv[..n_start], prompt[..n_start], "the state belongs to another prompt");
            assert!(n_start <= self.n_exact[source], "inexact state is reused");
            let is_whole = source == idx && n_start == kv.len();
            assert!(is_whole || self.memory.rewinds_anywhere(), "the state cannot be cut there");
        }
        self.kv[idx] = (salt, prompt[..n_start].to_vec());
        self.n_exact[idx] = n_start;
        self.table.acquire(Acquire {
            slot: plan.slot,
            prompt: &prompt,
            n_start_tokens: n_start as u32,
            rewinds_to_tokens: 0,
            root,
            prompt_chain: &chain,
            after_use: if leaves_nothing { AfterUse::Forget } else { AfterUse::Keep },
        });
        if matches!(plan.start, PrefixSource::Keep { .. }) && self.memory == MemoryKind::Full {
            self.expect_moved(idx, &prompt);
        }
        self.running[idx] = Some((prompt, leaves_nothing));
    }

    /// Assumes that some of the prompt's next tokens are found elsewhere in the slot; their range is derived from the
    /// prompt.
    fn expect_moved(&mut self, idx: usize, prompt: &[Token]) {
        let n_held = self.kv[idx].1.len();
        let start = n_held + prompt[0] as usize * 3;
        let range = start..start + prompt.len() % 5;
        if !range.is_empty() && range.end < prompt.len() {
            self.table.expect_moved(SlotId(idx as u16), start as u32);
            self.parked[idx] = Some(range);
            self.move_parked(idx, prompt);
        }
    }

    fn move_parked(&mut self, idx: usize, prompt: &[Token]) {
        if let Some(range) = self.parked[idx].take_if(|range| range.start == self.kv[idx].1.len()) {
            self.kv[idx].1.extend(&prompt[range.clone()]);
            self.table.extend_moved(SlotId(idx as u16), &prompt[range]);
        }
    }

    /// Checks that a running sequence will compute the prefix for which a request waits.
    fn check_wait(&self, prompt: &[Token], (slot, n_tokens): (SlotId, u32)) {
        let (running, secret) = self.running[usize::from(slot.0)].as_ref().unwrap();
        let n_tokens = n_tokens as usize;
        assert!(
            !secret && running[..n_tokens] == prompt[..n_tokens],
            "a request waits for a prefix that is never computed"
        );
        let parked = self.parked[usize::from(slot.0)].as_ref();
        assert!(parked.is_none_or(|range| n_tokens <= range.start), "a request waits for moved state");
        let n_held = self.kv[usize::from(slot.0)].1.len();
        assert!(n_held < n_tokens, "a request waits for a prefix that is computed already");
        assert!(n_held <= self.n_exact[usize::from(slot.0)], "a request waits for inexact state");
    }

    fn compute(&mut self, idx: usize, n: usize) {
        let Some((prompt, _)) = self.running[idx].clone() else { return };
        let kv = &mut self.kv[idx].1;
        let n = self.parked[idx].as_ref().map_or(n, |range| n.min(range.start - kv.len()));
        let next: Vec<Token> = match prompt.len().saturating_sub(kv.len()) {
            // One token of the response at a time, as long as there is space.
            0 => std::iter::once(9).take(CONTEXT as usize - kv.len()).collect(),
            left => prompt[kv.len()..kv.len() + n.min(left)].to_vec(),
        };
        if self.n_exact[idx] == kv.len() {
            self.n_exact[idx] += next.len();
        }
        kv.extend(&next);
        self.table.extend(SlotId(idx as u16), &next);
        self.move_parked(idx, &prompt);
    }

    /// Drops tokens of a response or of a computed prompt, like a context shift.
    fn shift(&mut self, idx: usize, (from, n): (usize, usize)) {
        let kv = &mut self.kv[idx].1;
        let n_prompt = self.running[idx].as_ref().map_or(0, |(prompt, _)| prompt.len());
        if kv.len() < n_prompt || from + n >= kv.len() {
            return;
        }
        kv.drain(from..from + n);
        self.n_exact[idx] = self.n_exact[idx].min(from);
        self.table.shift(SlotId(idx as u16), Shift { from_token: from as u32, n_dropped: n as u32 });
        // No other request can continue the remaining tokens.
        if let Some((prompt, _)) = &mut self.running[idx] {
            prompt.truncate(from);
        }
    }

    fn end(&mut self, idx: usize) {
        let (_, leaves_nothing) = self.running[idx].take().unwrap();
        self.parked[idx] = None;
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
            assert_eq!(slot.tokens(), self.kv[usize::from(id.0)].1, "slot {id} has other tokens");
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
                let n = run.keys.len();
                for (idx, key) in run.keys.iter().enumerate() {
                    let resumes = run.resume.is_behind(idx, n);
                    self.announced.insert(*key, (run.state, run.slot.unwrap(), resumes));
                }
            }
            Change::Removed(keys) => {
                for key in keys {
                    assert!(self.announced.remove(&key).is_some(), "a block was withdrawn that was not announced");
                }
            }
            Change::Accepted(_) => panic!("the table accepts no requests"),
        }
    }

    /// Compares the announced state with that of the naive model.
    fn check_announced(&self) {
        let mut truth: HashMap<BlockKey, Vec<(RunState, SlotId, bool)>> = HashMap::new();
        for (idx, (salt, kv)) in self.kv.iter().enumerate() {
            let running = self.running[idx].as_ref();
            let is_silent = running.is_some_and(|(_, secret)| *secret || self.memory == MemoryKind::Recurrent);
            if is_silent {
                continue;
            }
            let chain = |tokens: &[Token]| block_chain(&root(*salt), tokens, BLOCK);
            let ready = chain(&kv[..self.n_exact[idx].min(kv.len())]);
            let is_exact = self.n_exact[idx] >= kv.len();
            let n_coming = self.parked[idx].as_ref().map_or(usize::MAX, |range| range.start);
            let coming =
                |prompt: &Vec<Token>| if is_exact { chain(&prompt[..n_coming.min(prompt.len())]) } else { Vec::new() };
            let filling = running.map(|(prompt, _)| coming(prompt)).unwrap_or_default();
            let n_ready = ready.len();
            let rest = filling.into_iter().skip(n_ready);
            for (depth, hash) in ready.into_iter().chain(rest).enumerate() {
                let state = if depth < n_ready { RunState::Ready } else { RunState::Filling };
                let resumes = self.memory.rewinds_anywhere() || (running.is_none() && depth + 1 == n_ready);
                truth.entry(hash.key()).or_default().push((state, SlotId(idx as u16), resumes));
            }
        }
        assert_eq!(self.announced.len(), truth.len(), "the announced blocks differ from the held ones");
        for (key, holders) in truth {
            let announced = &self.announced[&key];
            let any_ready = holders.iter().any(|(state, ..)| *state == RunState::Ready);
            let any_resumes = holders.iter().any(|(.., resumes)| *resumes);
            assert!(holders.contains(announced), "{key} is announced as {announced:?}, but held as {holders:?}");
            assert_eq!(announced.0 == RunState::Ready, any_ready, "{key} is ready and not announced so");
            assert_eq!(announced.2, any_resumes, "{key}'s resume point is announced wrongly");
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

fn empty_index() -> ChunkIndex {
    let limits =
        StoreLimits { ram_bytes: 0, disk_bytes: 0, min_hold_ms: 0, chunk_blocks_max: 1, block_size_tokens: BLOCK };
    ChunkIndex::new(limits)
}

/// Returns costs at which moving state is cheap if it is possible without a store.
fn costs(memory: MemoryKind) -> Costs {
    Costs {
        prefill_ms_per_token: 1.0,
        copy_ms_per_token: memory.rewinds_anywhere().then_some(0.01),
        export_ms_per_token: None,
        import_ms_per_byte: 0.01,
        read_ms_per_byte: 0.01,
        suffix_rounding: None,
    }
}

/// Starts a prompt cold.
fn start(table: &mut SlotTable, slot: u16, prompt: &[Token]) {
    table.acquire(Acquire {
        slot: SlotId(slot),
        prompt,
        n_start_tokens: 0,
        rewinds_to_tokens: 0,
        root: root(0),
        prompt_chain: &block_chain(&root(0), prompt, BLOCK),
        after_use: AfterUse::Keep,
    });
}

fn busy_table() -> SlotTable {
    let mut table = SlotTable::new(shape(1, MemoryKind::Full));
    start(&mut table, 0, &[1]);
    table
}

#[test]
fn state_after_a_shift_is_never_shared_or_announced() {
    let mut table = SlotTable::new(shape(1, MemoryKind::Full));
    start(&mut table, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    table.extend(SlotId(0), &[1, 2, 3, 4, 5, 6, 7, 8]);
    table.shift(SlotId(0), Shift { from_token: 3, n_dropped: 2 });
    table.extend(SlotId(0), &[9, 9]);
    table.check_invariants();
    let slot = table.slot(SlotId(0));
    assert_eq!(slot.tokens(), [1, 2, 3, 6, 7, 8, 9, 9]);
    assert_eq!(slot.exact_tokens(), [1, 2, 3]);
    assert_eq!(slot.n_common(&[1, 2, 3, 6, 7], &root(0)), 3);
    assert_eq!(slot.n_coming(&[1, 2, 3, 6, 7], &root(0)), 3);
    let _ = table.release(SlotId(0));
    table.check_invariants();
    assert_eq!(table.slot(SlotId(0)).n_common(&[1, 2, 3, 6, 7], &root(0)), 3);
    let chain = block_chain(&root(0), &[1, 2, 3, 6], BLOCK);
    assert_eq!(table.tree().slots_with(&chain), [(SlotId(0), 1)]);
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
    SlotTable::new(shape(1, MemoryKind::Full)).extend(SlotId(0), &[1]);
}

/// Runs a prompt cold to its end in a slot of a model that cannot be rewound.
fn run_to_the_end(table: &mut SlotTable, slot: u16, tokens: &[Token]) {
    start(table, slot, tokens);
    table.extend(SlotId(slot), tokens);
    let _ = table.release(SlotId(slot));
}

#[test]
fn a_resume_point_within_a_longer_chain_stays_while_a_slot_ends_there() {
    let mut table = SlotTable::new(shape(2, MemoryKind::Recurrent));
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
    assert_eq!(stored(&mut table), [(keys(0..2), SlotId(1))]);
    table.check_invariants();
}

#[test]
fn reused_tokens_are_reported_once_and_only_while_they_are_held() {
    let mut table = SlotTable::new(shape(2, MemoryKind::Full));
    let run = |table: &mut SlotTable, prompt: &[Token], n_start_tokens: u32| {
        let root = root(0);
        table.acquire(Acquire {
            slot: SlotId(0),
            prompt,
            n_start_tokens,
            rewinds_to_tokens: 0,
            root,
            prompt_chain: &block_chain(&root, prompt, BLOCK),
            after_use: AfterUse::Keep,
        });
        table.extend(SlotId(0), &prompt[n_start_tokens as usize..]);
    };
    run(&mut table, &[1, 2, 3, 4, 5], 0);
    let _ = table.release(SlotId(0));
    assert_eq!(table.take_reused(SlotId(0)), 0);
    table.lend(SlotId(0), 4);
    table.lend(SlotId(0), 3);
    run(&mut table, &[1, 2, 3, 9], 3);
    let _ = table.release(SlotId(0));
    assert_eq!(table.take_reused(SlotId(0)), 3);
    assert_eq!(table.take_reused(SlotId(0)), 0);
    table.lend(SlotId(0), 2);
    run(&mut table, &[7, 8], 0);
    assert_eq!(table.take_reused(SlotId(0)), 0);
    table.check_invariants();
}
