//! The contents of a fleet and the lookups in it: the same changes and queries for every index that is measured.
//!
//! Timing is in `measure`; the indexes are elsewhere. Conversations that share system prompts grow turn by turn at
//! their workers, and some are held in part by several workers. The expected results are found by brute force in sets
//! of keys.

use std::collections::{HashSet, VecDeque};
use std::ops::RangeInclusive;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// Number of different system prompts.
const N_SYSTEM_PROMPTS: usize = 16;
/// Shortest and longest system prompt: 256 to 4,096 tokens in blocks of 16. Units: blocks.
const SYSTEM_BLOCKS: RangeInclusive<usize> = 16..=256;
/// Longest prompt: 32,768 tokens in blocks of 16. Units: blocks.
const CHAIN_BLOCKS_MAX: usize = 2_048;
/// Shortest part of a conversation after the system prompt. Units: blocks.
const OWN_BLOCKS_MIN: usize = 16;
/// Shortest and longest turn, question and response together. Units: blocks.
const TURN_BLOCKS: RangeInclusive<usize> = 4..=64;
/// Number of conversations that a worker holds at the same time: its slots.
const N_SLOTS: usize = 4;
/// Maximum number of blocks of one removal.
const REMOVED_BLOCKS_MAX: usize = 64;

/// Consecutive blocks of one chain at one worker.
#[derive(Debug, Clone, Copy)]
pub struct Stretch {
    /// The worker.
    pub worker: u32,
    /// Slot in which the conversation is held.
    pub slot: u16,
    /// Index of the chain in [`Fleet::chains`].
    pub chain: usize,
    /// First block.
    pub from: usize,
    /// One more than the last block.
    pub to: usize,
}

/// Contents of the fleet, in simple collections.
pub struct Fleet {
    /// All chains: a system prompt followed by a conversation.
    pub chains: Vec<Vec<u64>>,
    /// Length of the system prompt of each chain.
    pub system_blocks: Vec<usize>,
    /// Stretches that the workers store, in order.
    pub stored: Vec<Stretch>,
    /// Stretches of conversations that each worker holds at the end, without system prompts.
    held: Vec<Vec<Stretch>>,
    /// Keys that each worker holds.
    sets: Vec<HashSet<u64>>,
    rng: ChaCha8Rng,
}

impl Fleet {
    /// Gives each of `n_workers` workers conversations until it holds `blocks_per_worker` blocks.
    pub fn random(n_workers: u32, blocks_per_worker: usize, seed: u64) -> Self {
        let n = n_workers as usize;
        let mut fleet = Self {
            chains: Vec::new(),
            system_blocks: Vec::new(),
            stored: Vec::new(),
            held: vec![Vec::new(); n],
            sets: vec![HashSet::new(); n],
            rng: ChaCha8Rng::seed_from_u64(seed),
        };
        let systems: Vec<Vec<u64>> = (0..N_SYSTEM_PROMPTS).map(|_| fleet.system_prompt()).collect();
        let mut slots: Vec<[Option<Stretch>; N_SLOTS]> = vec![[None; N_SLOTS]; n];
        let mut busy: Vec<u32> = (0..n_workers).collect();
        while !busy.is_empty() {
            let at = fleet.below(busy.len());
            let worker = busy[at];
            if fleet.sets[worker as usize].len() >= blocks_per_worker {
                busy.swap_remove(at);
                continue;
            }
            let slot = fleet.below(N_SLOTS);
            let last = slots[worker as usize][slot].take().filter(|last| last.to < fleet.chains[last.chain].len());
            let last = last.unwrap_or_else(|| fleet.open(worker, slot as u16, &systems));
            let to = (last.to + fleet.between(TURN_BLOCKS)).min(fleet.chains[last.chain].len());
            let next = Stretch { from: last.to, to, ..last };
            fleet.store(next);
            slots[worker as usize][slot] = Some(next);
            if to == fleet.chains[next.chain].len() && fleet.below(4) == 0 {
                fleet.share(next);
            }
        }
        fleet
    }

    fn system_prompt(&mut self) -> Vec<u64> {
        let n = self.between(SYSTEM_BLOCKS);
        self.keys(n)
    }

    /// Starts a conversation; returns the stretch of its system prompt.
    fn open(&mut self, worker: u32, slot: u16, systems: &[Vec<u64>]) -> Stretch {
        // The lower of two draws, so that some system prompts are much more popular than others.
        let system = &systems[self.below(systems.len()).min(self.below(systems.len()))];
        let doublings = (CHAIN_BLOCKS_MAX / OWN_BLOCKS_MIN).ilog2() as usize;
        let shortest = OWN_BLOCKS_MIN << self.below(doublings);
        let n_own = self.between(shortest..=2 * shortest).min(CHAIN_BLOCKS_MAX - system.len());
        let mut chain = system.clone();
        chain.extend(self.keys(n_own));
        self.chains.push(chain);
        self.system_blocks.push(system.len());
        let stretch = Stretch { worker, slot, chain: self.chains.len() - 1, from: 0, to: system.len() };
        self.store(stretch);
        stretch
    }

    /// Stores a prefix of a conversation at another worker.
    fn share(&mut self, of: Stretch) {
        let worker = self.below(self.sets.len()) as u32;
        let (system, len) = (self.system_blocks[of.chain], self.chains[of.chain].len());
        if worker != of.worker && !self.held[worker as usize].iter().any(|stretch| stretch.chain == of.chain) {
            let to = system + 1 + self.below(len - system);
            self.store(Stretch { worker, from: 0, to: system, ..of });
            self.store(Stretch { worker, from: system, to, ..of });
        }
    }

    /// Records a stretch, unless the worker holds it already.
    fn store(&mut self, stretch: Stretch) {
        let (set, chain) = (&mut self.sets[stretch.worker as usize], &self.chains[stretch.chain]);
        if set.contains(&chain[stretch.to - 1]) {
            return;
        }
        set.extend(&chain[stretch.from..stretch.to]);
        self.stored.push(stretch);
        let system = self.system_blocks[stretch.chain];
        let stretches = &mut self.held[stretch.worker as usize];
        if stretch.from >= system {
            match stretches.iter_mut().rev().find(|other| other.chain == stretch.chain) {
                Some(other) => other.to = stretch.to,
                None => stretches.push(stretch),
            }
        }
    }

    /// Replaces every second conversation of a worker by another one; returns all that it then holds, chain by chain.
    pub fn replace(&mut self, worker: u32) -> Vec<Stretch> {
        let mut stretches = std::mem::take(&mut self.held[worker as usize]);
        let mut set = HashSet::new();
        for stretch in stretches.iter_mut().step_by(2) {
            let mut chain = self.chains[stretch.chain][..stretch.from].to_vec();
            chain.extend(self.keys(stretch.to - stretch.from));
            self.system_blocks.push(stretch.from);
            self.chains.push(chain);
            stretch.chain = self.chains.len() - 1;
        }
        let mut view = Vec::new();
        for &stretch in &stretches {
            let chain = &self.chains[stretch.chain];
            if !set.contains(&chain[stretch.from - 1]) {
                view.push(Stretch { from: 0, to: stretch.from, ..stretch });
            }
            view.push(stretch);
            set.extend(&chain[..stretch.to]);
        }
        self.held[worker as usize] = stretches;
        self.sets[worker as usize] = set;
        view
    }

    /// Returns the removals that empty the fleet: leaves before their parents within a worker, with the workers
    /// interleaved at random.
    pub fn removals(&mut self) -> Vec<Stretch> {
        let mut removals_left: Vec<VecDeque<Stretch>> =
            self.held.iter().zip(&self.sets).map(|(held, set)| self.removals_of(held, set)).collect();
        let mut removals = Vec::new();
        while !removals_left.is_empty() {
            let at = self.below(removals_left.len());
            match removals_left[at].pop_front() {
                Some(stretch) => removals.push(stretch),
                None => drop(removals_left.swap_remove(at)),
            }
        }
        removals
    }

    /// Returns the removals that empty one worker, which holds the conversations `stretches` and the keys `set`.
    fn removals_of(&self, stretches: &[Stretch], set: &HashSet<u64>) -> VecDeque<Stretch> {
        let mut systems: HashSet<u64> = HashSet::new();
        let (mut removals, mut last) = (VecDeque::new(), Vec::new());
        for &stretch in stretches {
            removals.extend(pieces(stretch));
            let system = Stretch { from: 0, to: stretch.from, ..stretch };
            if systems.insert(self.chains[stretch.chain][0]) {
                last.extend(pieces(system));
            }
        }
        // Every stored system prompt has a conversation after it.
        debug_assert!(systems.iter().all(|key| set.contains(key)));
        removals.extend(last);
        removals
    }

    /// Returns the number of pairs of a worker and a block that it holds.
    pub fn n_claims(&self) -> usize {
        self.sets.iter().map(HashSet::len).sum()
    }

    /// Returns the number of distinct blocks.
    pub fn n_blocks(&self) -> usize {
        let mut all: Vec<u64> = self.sets.iter().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    }

    /// Returns a prompt as a router would look it up: a conversation with a new turn, a new conversation, or a wholly
    /// new prompt.
    pub fn ask(&mut self) -> Vec<u64> {
        let chain = self.below(self.chains.len());
        let n_kept = match self.below(20) {
            0 => 0,
            1..6 => self.system_blocks[chain],
            _ => self.chains[chain].len(),
        };
        let mut prompt = self.chains[chain][..n_kept].to_vec();
        let n_new = self.between(TURN_BLOCKS);
        prompt.extend(self.keys(n_new));
        prompt
    }

    /// Returns the result of brute force: how many leading blocks each worker holds, the most first, then by worker.
    pub fn expected(&self, prompt: &[u64]) -> Vec<(u32, u32)> {
        let mut expected: Vec<(u32, u32)> = (0..)
            .zip(&self.sets)
            .map(|(worker, set)| (prompt.iter().take_while(|key| set.contains(key)).count() as u32, worker))
            .filter(|&(blocks, _)| blocks > 0)
            .collect();
        expected.sort_unstable_by_key(|&(blocks, worker)| (std::cmp::Reverse(blocks), worker));
        expected
    }

    fn keys(&mut self, n: usize) -> Vec<u64> {
        (0..n).map(|_| self.rng.next_u64()).collect()
    }

    fn between(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// Returns a number below `n`; the bias is negligible, since `n` is small against 2^64.
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.rng.next_u64() % n as u64).expect("below a usize")
    }
}

fn pieces(stretch: Stretch) -> impl Iterator<Item = Stretch> {
    let starts = (stretch.from..stretch.to).step_by(REMOVED_BLOCKS_MAX).rev();
    starts.map(move |from| Stretch { from, to: stretch.to.min(from + REMOVED_BLOCKS_MAX), ..stretch })
}
