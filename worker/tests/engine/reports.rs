//! The engine's reports to routers and other subscribers.

use std::collections::HashMap;

use tokio::sync::mpsc::UnboundedReceiver;
use warmpath_bench::model::Preset;
use warmpath_common::block_hash::{BlockKey, block_chain};
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::{Change, Load, Resume, RunState, Tier};
use warmpath_worker::engine::{EngineConfig, EngineUpdate, StoreConfig};
use warmpath_worker_core::reports::pending_prefills::AnnouncementId;

use super::support::{ask, config, root, start, stop, tokens, until};

const BLOCK: u32 = 16;

fn blocks(preset: Preset) -> EngineConfig {
    EngineConfig { n_slots: 2, context_tokens_total: 4096, block_size_tokens: BLOCK, ..config(preset) }
}

/// A router's view.
#[derive(Default)]
struct Router {
    held: HashMap<BlockKey, (RunState, Tier, Option<SlotId>)>,
    n_come: usize,
    n_counted: usize,
    n_filling: usize,
    load: Load,
}

impl Router {
    /// Applies the updates of steps so far.
    fn listen(&mut self, updates: &mut UnboundedReceiver<EngineUpdate>) {
        while let Ok(update) = updates.try_recv() {
            self.apply_update(update);
        }
    }

    fn apply_update(&mut self, update: EngineUpdate) {
        match update {
            EngineUpdate::Step { changes, load, counted } => {
                changes.into_iter().for_each(|change| self.apply(change));
                self.load = load;
                self.n_counted += counted.len();
            }
            EngineUpdate::Arrived { .. } => self.n_come += 1,
            EngineUpdate::Resolved(_) => {}
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Stored(run) => {
                self.n_filling += usize::from(run.state == RunState::Filling);
                self.held.extend(run.keys.iter().map(|key| (*key, (run.state, run.tier, run.slot))));
            }
            Change::Removed(keys) => keys.iter().for_each(|key| assert!(self.held.remove(key).is_some())),
            Change::Accepted(_) => panic!("only the summary's publisher sends this change"),
        }
    }
}

fn keys(tokens: &[Token]) -> Vec<BlockKey> {
    block_chain(&root(0), tokens, BLOCK).iter().map(|hash| hash.key()).collect()
}

#[tokio::test]
async fn routers_learn_of_a_prefix_when_it_is_admitted_and_when_it_is_computed() {
    let (engine, mut updates) = start(blocks(Preset::Tiny));
    let mut router = Router::default();
    let mut answering = ask(&tokens(1, 100), 60).submit(&engine).unwrap();
    answering.next().await;
    until("the prompt is announced", || {
        router.listen(&mut updates);
        router.n_filling > 0
    })
    .await;
    assert_eq!((router.n_come, router.n_counted), (1, 1));
    let answer = answering.answer().await;
    until("the load is zero", || {
        router.listen(&mut updates);
        router.load.busy_slots.is_empty() && router.load.rates.answer_tokens.is_some()
    })
    .await;
    let held = [tokens(1, 100), answer.tokens[..59].to_vec()].concat();
    let here = (RunState::Ready, Tier::Resident, Some(answer.started.unwrap().slot));
    let expected: HashMap<_, _> = keys(&held).into_iter().map(|key| (key, here)).collect();
    assert_eq!(router.held, expected);
    assert_eq!(router.load.free_cells, 4096 - 159);
    assert_eq!((router.load.n_queued, router.load.n_decoding, router.load.draining), (0, 0, false));
    assert_eq!(router.load.rates.answer_tokens, Some(60.0));
    stop(engine).await;
}

/// Reports about one request's prompt before the request runs.
struct Story {
    keys: Vec<BlockKey>,
    announcement: Option<AnnouncementId>,
    told: Vec<&'static str>,
}

impl Story {
    fn of(prompt: &[Token]) -> Self {
        Self { keys: keys(prompt), announcement: None, told: Vec::new() }
    }

    fn apply_update(&mut self, update: &EngineUpdate) {
        match update {
            EngineUpdate::Arrived { id, keys, is_filling: true, .. } if *keys == self.keys => {
                self.announcement = Some(*id);
                self.told.push("promised");
            }
            EngineUpdate::Resolved(id) if self.announcement == Some(*id) => self.told.push("settled"),
            EngineUpdate::Step { changes, .. } if changes.iter().any(|change| self.is_filling(change)) => {
                self.told.push("filling");
            }
            _ => {}
        }
    }

    fn listen(&mut self, updates: &mut UnboundedReceiver<EngineUpdate>) -> &[&'static str] {
        while let Ok(update) = updates.try_recv() {
            self.apply_update(&update);
        }
        &self.told
    }

    fn is_filling(&self, change: &Change) -> bool {
        matches!(change, Change::Stored(run) if run.state == RunState::Filling && run.keys == self.keys)
    }
}

#[tokio::test]
async fn a_request_s_blocks_are_announced_from_its_arrival_until_it_starts() {
    let (engine, mut updates) = start(EngineConfig { n_slots: 1, ..blocks(Preset::Tiny) });
    let mut first = ask(&tokens(1, 40), 1000).submit(&engine).unwrap();
    first.tokens(1).await;
    let mut story = Story::of(&tokens(2, 96));
    let second = ask(&tokens(2, 96), 1).submit(&engine).unwrap();
    assert_eq!(story.listen(&mut updates), ["promised"], "the arrival was reported late");
    drop(first);
    assert!(second.answer().await.finished.is_some());
    stop(engine).await;
    assert_eq!(story.listen(&mut updates), ["promised", "filling", "settled"]);
}

#[tokio::test]
async fn announcements_of_requests_that_never_start_are_withdrawn() {
    let (engine, mut updates) = start(EngineConfig { n_slots: 1, ..blocks(Preset::Tiny) });
    let mut first = ask(&tokens(1, 40), 500).submit(&engine).unwrap();
    first.tokens(1).await;
    let (mut given_up, mut refused) = (Story::of(&tokens(2, 96)), Story::of(&tokens(3, 96)));
    drop(ask(&tokens(2, 96), 1).submit(&engine).unwrap());
    let mut broken = ask(&tokens(3, 96), 1);
    broken.generation.sampling.grammar = Some("root ::= (".to_owned());
    assert!(broken.submit(&engine).is_err());
    assert!(first.answer().await.finished.is_some());
    stop(engine).await;
    while let Ok(update) = updates.try_recv() {
        given_up.apply_update(&update);
        refused.apply_update(&update);
    }
    assert_eq!(given_up.told, ["promised", "settled"]);
    assert_eq!(refused.told, ["promised", "settled"]);
}

#[tokio::test]
async fn routers_are_informed_of_evictions() {
    let store = StoreConfig { ram_bytes: 0, ..StoreConfig::default() };
    let (engine, mut updates) = start(EngineConfig { n_slots: 1, store, ..blocks(Preset::Tiny) });
    let mut router = Router::default();
    let first = ask(&tokens(1, 64), 1).answer(&engine).await;
    assert_eq!(first.tokens.len(), 1);
    ask(&[tokens(1, 32), tokens(2, 48)].concat(), 1).answer(&engine).await;
    stop(engine).await;
    router.listen(&mut updates);
    let expected = keys(&[tokens(1, 32), tokens(2, 48)].concat());
    assert_eq!(router.held.len(), expected.len());
    assert!(expected.iter().all(|key| router.held[key].0 == RunState::Ready));
}

#[tokio::test]
async fn routers_learn_that_state_has_moved_from_a_slot_to_memory() {
    let (engine, mut updates) = start(EngineConfig { n_slots: 1, ..blocks(Preset::Tiny) });
    let mut router = Router::default();
    ask(&tokens(1, 300), 1).answer(&engine).await;
    let second = ask(&tokens(2, 64), 1).answer(&engine).await;
    stop(engine).await;
    router.listen(&mut updates);
    let stored = keys(&tokens(1, 300)).into_iter().map(|key| (key, (RunState::Ready, Tier::Ram, None)));
    let here = (RunState::Ready, Tier::Resident, Some(second.started.unwrap().slot));
    let resident = keys(&tokens(2, 64)).into_iter().map(|key| (key, here));
    assert_eq!(router.held, stored.chain(resident).collect());
}

#[tokio::test]
async fn requests_that_leave_no_state_are_not_announced() {
    let (engine, mut updates) = start(blocks(Preset::Tiny));
    let mut router = Router::default();
    let mut request = ask(&tokens(1, 100), 20);
    request.cache_prompt = false;
    request.answer(&engine).await;
    stop(engine).await;
    while let Ok(update) = updates.try_recv() {
        if let EngineUpdate::Arrived { keys, n_tokens, .. } = &update {
            assert_eq!((keys.len(), *n_tokens), (0, 100), "no block is announced");
        }
        router.apply_update(update);
    }
    assert_eq!((router.held.len(), router.n_filling, router.n_come, router.n_counted), (0, 0, 1, 1));
}

#[tokio::test]
async fn a_recurrent_model_announces_checkpoints_and_the_end_of_a_sequence_once_it_is_over() {
    let (engine, mut updates) = start(blocks(Preset::TinyRecurrent));
    assert_eq!(engine.facts().memory, MemoryKind::Recurrent);
    let answer = ask(&tokens(1, 104), 60).answer(&engine).await;
    let held = [tokens(1, 104), answer.tokens[..59].to_vec()].concat();
    let next = ask(&[held.clone(), tokens(2, 10)].concat(), 1).answer(&engine).await;
    assert_eq!(next.cached_tokens(), 163);
    stop(engine).await;
    let mut stored = Vec::new();
    while let Ok(update) = updates.try_recv() {
        let changes = match update {
            EngineUpdate::Step { changes, .. } => changes,
            EngineUpdate::Arrived { is_filling, .. } => {
                assert!(!is_filling, "no request can start from a running sequence, so its blocks are not announced");
                continue;
            }
            EngineUpdate::Resolved(_) => continue,
        };
        stored.extend(changes.into_iter().filter_map(|change| match change {
            Change::Stored(run) => Some(run),
            _ => None,
        }));
    }
    let ends_with = |tokens: &[Token], tier: Tier| {
        stored.iter().any(|run| (run.keys.last(), run.tier) == (keys(tokens).last(), tier))
    };
    assert!(ends_with(&tokens(1, 96), Tier::Ram), "no checkpoint 8 tokens before a prompt's end: {stored:?}");
    assert!(ends_with(&held, Tier::Resident), "no resume point at the end: {stored:?}");
    assert!(!ends_with(&held[..112], Tier::Ram), "a resume point between the two: {stored:?}");
    assert!(stored.iter().all(|run| run.state == RunState::Ready));
    assert!(stored.iter().all(|run| run.resume != Resume::EveryBlock || run.keys.len() == 1), "{stored:?}");
}

#[tokio::test]
async fn the_slots_are_shown() {
    let (engine, _updates) = start(blocks(Preset::Tiny));
    let mut request = ask(&tokens(1, 100), 2000);
    request.id = "shown".to_owned();
    let mut answering = request.submit(&engine).unwrap();
    answering.tokens(5).await;
    let slot = answering.so_far().started.unwrap().slot;
    until("the slot shows its request", || {
        let slots = engine.slots();
        let view = &slots[usize::from(slot.0)];
        view.request_id.as_ref().is_some_and(|id| id.as_str() == "shown") && view.decoded_tokens >= 5
    })
    .await;
    drop(answering);
    until("the slot shows that it is idle", || engine.slots()[usize::from(slot.0)].request_id.is_none()).await;
    assert!(engine.slots()[usize::from(slot.0)].held_tokens >= 100);
    stop(engine).await;
}

#[tokio::test]
async fn facts_match_the_configuration() {
    let (engine, _updates) = start(blocks(Preset::Tiny));
    let facts = engine.facts().clone();
    assert_eq!((facts.n_slots, facts.context_tokens, facts.memory), (2, 2048, MemoryKind::Full));
    assert_eq!((facts.flash_attn, facts.kv_unified, facts.block_size_tokens), (false, false, BLOCK));
    assert!(facts.description.contains("llama") && facts.n_params > 0 && facts.model_bytes > 0, "{facts:?}");
    stop(engine).await;
}
