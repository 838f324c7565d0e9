//! Prefetch: KV state that moves before a request needs it, to a new worker and from one that leaves.
//!
//! A new worker fetches the prefixes that other workers used last, as far as it has room. Prefixes that only a leaving
//! worker holds are divided among the others. Each prefix goes to the worker that already holds most of it, so that
//! only the rest is sent. All routers compute the same division, and a worker ignores prefixes that it has, so several
//! routers cause no further transfers. Not here: fetching for a request (`transfer`), the transfer itself (the
//! workers).

use std::collections::{HashMap, HashSet};

use warmpath_common::block_hash::{BlockHash, BlockKey, block_chain};
use warmpath_common::model::Fingerprint;
use warmpath_common::prefetch::{HotPrefix, LIST_TOKENS_MAX};
use warmpath_common::summary::RunState;

use super::transfer::exchanged;
use crate::WorkerIdx;
use crate::fleet::FleetView;
use crate::index::Match;

/// Most workers from which a new worker fetches prefixes.
///
/// Source: own choice: the workers that hold most have more than one worker can take.
const SOURCES_MAX: usize = 4;

/// Fleet change after which state moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetChange {
    /// A worker has joined that holds nothing.
    Joined(WorkerIdx),
    /// A worker drains.
    Drains(WorkerIdx),
}

/// Prefixes that a worker used last, the most important first.
#[derive(Debug, Clone, PartialEq)]
pub struct HotPrefixes {
    /// The worker.
    pub worker: WorkerIdx,
    /// Prefixes.
    pub prefixes: Vec<HotPrefix>,
}

/// A worker that can take over the state of one that leaves.
#[derive(Debug, Clone, Copy)]
pub struct Receiver<'a> {
    /// The worker.
    pub idx: WorkerIdx,
    /// Its name, by which all routers break ties alike.
    pub name: &'a str,
}

/// Returns the identity of a worker's state, if it exchanges state.
fn layout(fleet: &FleetView, worker: WorkerIdx) -> Option<Fingerprint> {
    Some(exchanged(fleet.worker(worker)?)?.layout)
}

/// Returns the workers from which a new worker fetches prefixes: those with the most blocks, at most `SOURCES_MAX`.
pub fn sources(fleet: &FleetView, new: WorkerIdx) -> Vec<WorkerIdx> {
    let Some(own_layout) = layout(fleet, new) else { return Vec::new() };
    let others = fleet.workers.iter().filter(|other| other.idx != new && other.blocks.n_blocks > 0);
    let mut sources: Vec<_> =
        others.filter(|other| exchanged(other).is_some_and(|kv| kv.layout == own_layout)).collect();
    sources.sort_by_key(|other| (std::cmp::Reverse(other.blocks.n_blocks), other.idx));
    sources.into_iter().map(|other| other.idx).take(SOURCES_MAX).collect()
}

/// Returns the workers that can take over the state of one that leaves.
pub fn receivers(fleet: &FleetView, leaving: WorkerIdx) -> Vec<WorkerIdx> {
    let Some(own_layout) = layout(fleet, leaving) else { return Vec::new() };
    let stays = fleet.workers.iter().filter(|other| other.idx != leaving && !other.load.draining && !other.is_leaving);
    stays.filter(|other| exchanged(other).is_some_and(|kv| kv.layout == own_layout)).map(|other| other.idx).collect()
}

/// Returns the prefixes of several workers, each with its worker, the most important of each in turn.
///
/// No prefix is the start of an earlier one. Together they have at most [`LIST_TOKENS_MAX`] tokens, shared tokens
/// counted once.
pub fn merge(lists: Vec<HotPrefixes>, block_size_tokens: u32) -> Vec<(WorkerIdx, HotPrefix)> {
    let mut hashes: HashSet<BlockHash> = HashSet::new();
    let mut n_left = LIST_TOKENS_MAX;
    let mut prefixes = Vec::new();
    let mut lists: Vec<_> = lists.into_iter().map(|list| (list.worker, list.prefixes.into_iter())).collect();
    while !lists.is_empty() {
        lists.retain_mut(|(worker, list)| {
            let Some(prefix) = list.next() else { return false };
            let chain = block_chain(&prefix.root, &prefix.tokens, block_size_tokens);
            let n_new = chain.iter().filter(|hash| !hashes.contains(*hash)).count();
            let Some(n_left_after) = n_left.checked_sub(n_new * block_size_tokens as usize) else { return false };
            // A prefix that is the start of an earlier one has no new block.
            if n_new > 0 {
                n_left = n_left_after;
                hashes.extend(chain);
                prefixes.push((*worker, prefix));
            }
            true
        });
    }
    prefixes
}

/// Returns for each receiver the prefixes that it is to fetch from the leaving worker, the most important first.
///
/// `matches` returns the part of a chain that each worker holds. A prefix that one receiver holds completely is left
/// out. Ties go to the receiver with the fewest tokens to fetch, then by name.
pub fn divide(
    prefixes: Vec<HotPrefix>,
    receivers: &[Receiver<'_>],
    block_size_tokens: u32,
    matches: impl Fn(&[BlockKey]) -> Vec<Match>,
) -> HashMap<WorkerIdx, Vec<HotPrefix>> {
    let mut shares: HashMap<WorkerIdx, Vec<HotPrefix>> = HashMap::new();
    let mut n_given: HashMap<WorkerIdx, usize> = HashMap::new();
    // Blocks that each receiver will have.
    let mut blocks_given: HashSet<(WorkerIdx, BlockHash)> = HashSet::new();
    for prefix in prefixes {
        let chain = block_chain(&prefix.root, &prefix.tokens, block_size_tokens);
        let keys: Vec<BlockKey> = chain.iter().map(BlockHash::key).collect();
        let prefix_matches = matches(&keys);
        let n_held = |receiver: WorkerIdx| {
            let is_ready = |found: &&Match| found.worker == receiver && found.state == RunState::Ready;
            let ready_match = prefix_matches.iter().find(is_ready);
            let n_given = chain.iter().take_while(|hash| blocks_given.contains(&(receiver, **hash))).count();
            n_given.max(ready_match.map_or(0, |prefix_match| prefix_match.blocks as usize))
        };
        // The receiver that will hold most of the prefix gets what it lacks.
        let order = |place: &usize| {
            let Receiver { idx: receiver, name } = receivers[*place];
            (std::cmp::Reverse(n_held(receiver)), n_given.get(&receiver).copied().unwrap_or_default(), name)
        };
        let Some(place) = (0..receivers.len()).min_by_key(order) else { break };
        let receiver = receivers[place].idx;
        let n_missing = chain.len() - n_held(receiver).min(chain.len());
        if n_missing > 0 {
            *n_given.entry(receiver).or_default() += n_missing;
            blocks_given.extend(chain.into_iter().map(|hash| (receiver, hash)));
            shares.entry(receiver).or_default().push(prefix);
        }
    }
    shares
}

#[cfg(test)]
mod tests;
