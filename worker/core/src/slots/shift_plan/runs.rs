//! Runs of tokens that two texts have in common, in the same order in both.
//!
//! All windows of the minimum length are hashed in both texts, and each window of the second text is looked up among
//! the sorted windows of the first. Consecutive matches form a run. Runs may overlap or be in a different order in the
//! two texts; the chain of compatible runs that covers the most tokens is chosen.
//!
//! Repetitive texts cost no more than others, because a window is looked up at most twice even if it has many matches.

use std::cmp::Reverse;

use warmpath_common::ids::Token;

/// Maximum number of runs, the longest ones, among which the chain is chosen.
///
/// Source: an agent that shortens its history changes some dozens of messages; choosing takes time in proportion to the
/// square.
pub(super) const RUNS_MAX: usize = 64;

/// Multiplier of the rolling hash. Source: 2^64 divided by the golden ratio, odd, as in Fibonacci hashing.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Consecutive tokens that two texts have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommonRun {
    /// Index of the first token in the first text.
    pub from: usize,
    /// Index of the first token in the second text.
    pub to: usize,
    /// Number of tokens.
    pub n: usize,
}

impl CommonRun {
    /// Returns how many of its first tokens overlap another run before it.
    fn n_lost_behind(&self, before: &Self) -> usize {
        let n_lost_to = (before.to + before.n).saturating_sub(self.to);
        n_lost_to.max((before.from + before.n).saturating_sub(self.from))
    }

    fn without_first(self, n: usize) -> Self {
        Self { from: self.from + n, to: self.to + n, n: self.n - n }
    }
}

/// Returns runs of at least `n_run_min` tokens, each after the previous one in both texts. `n_run_min` is at least 1.
///
/// They are the chain of the longest [`RUNS_MAX`] runs that covers the most tokens. If the first text has a run's start
/// several times, the first occurrence after the previous run is used, or else the first one.
/// Cost: O(n log n) for n tokens in both texts, and `RUNS_MAX` comparisons of a run.
pub(super) fn in_common(slot_tokens: &[Token], prompt_tokens: &[Token], n_run_min: usize) -> Vec<CommonRun> {
    let mut runs = by_hash(slot_tokens, prompt_tokens, n_run_min);
    runs.sort_by_key(|run| Reverse(run.n));
    runs.truncate(RUNS_MAX);
    // Different tokens may have the same hash.
    runs.retain(|run| slot_tokens[run.from..run.from + run.n] == prompt_tokens[run.to..run.to + run.n]);
    runs.sort_by_key(|run| run.to);
    let mut chain = best_chain(&runs, n_run_min);
    let mut before = CommonRun { from: 0, to: 0, n: 0 };
    for run in &mut chain {
        *run = run.without_first(run.n_lost_behind(&before));
        // A text that occurs several times may have been matched with a wrong occurrence, so the gap is searched again.
        let (slot_tokens, prompt_tokens) =
            (&slot_tokens[before.from + before.n..run.from], &prompt_tokens[before.to + before.n..run.to]);
        let same = slot_tokens
            .iter()
            .rev()
            .zip(prompt_tokens.iter().rev())
            .take_while(|(slot_tokens, prompt_tokens)| slot_tokens == prompt_tokens);
        let n_more = same.count();
        *run = CommonRun { from: run.from - n_more, to: run.to - n_more, n: run.n + n_more };
        before = *run;
    }
    chain
}

/// Returns runs of windows with equal hashes, in the order of the second text.
fn by_hash(slot_tokens: &[Token], prompt_tokens: &[Token], n_window: usize) -> Vec<CommonRun> {
    let mut windows: Vec<(u64, usize)> = hashes(slot_tokens, n_window).into_iter().zip(0..).collect();
    windows.sort_unstable();
    let next = |hash: u64, behind: usize| {
        let idx = windows.partition_point(|window| *window < (hash, behind));
        windows.get(idx).filter(|(found, _)| *found == hash).map(|(_, from)| *from)
    };
    let mut runs: Vec<CommonRun> = Vec::new();
    for (to, hash) in hashes(prompt_tokens, n_window).into_iter().enumerate() {
        let last = to + n_window - 1;
        if let Some(run) = runs.last_mut()
            && run.to + run.n == last
            && slot_tokens.get(run.from + run.n) == Some(&prompt_tokens[last])
        {
            run.n += 1;
            continue;
        }
        let behind = runs.last().map_or(0, |run| run.from + run.n);
        if let Some(from) = next(hash, behind).or_else(|| next(hash, 0)) {
            runs.push(CommonRun { from, to, n: n_window });
        }
    }
    runs
}

/// Returns the hash of each window of `n` tokens, at least 1.
fn hashes(tokens: &[Token], n: usize) -> Vec<u64> {
    if tokens.len() < n {
        return Vec::new();
    }
    let digit = |token: &Token| u64::from(*token) + 1;
    let append = |hash: u64, token: &Token| hash.wrapping_mul(MULTIPLIER).wrapping_add(digit(token));
    let weight_of_first = (1..n).fold(1_u64, |weight, _| weight.wrapping_mul(MULTIPLIER));
    let mut hash = tokens[..n].iter().fold(0, append);
    let mut hashes = vec![hash];
    for (first, new) in tokens.iter().zip(&tokens[n..]) {
        hash = append(hash.wrapping_sub(digit(first).wrapping_mul(weight_of_first)), new);
        hashes.push(hash);
    }
    hashes
}

/// Returns the chain of runs that covers the most tokens; `runs` are in the order of the second text. A run that
/// overlaps the previous one loses its first tokens.
fn best_chain(runs: &[CommonRun], n_run_min: usize) -> Vec<CommonRun> {
    // For each run: the number of tokens of the best chain that ends with it, and the previous run in that chain.
    let mut best: Vec<(usize, Option<usize>)> = Vec::with_capacity(runs.len());
    for (idx, run) in runs.iter().enumerate() {
        let behind = (0..idx).filter_map(|before| {
            let n_lost = run.n_lost_behind(&runs[before]);
            (run.n >= n_lost + n_run_min).then(|| (best[before].0 + run.n - n_lost, Some(before)))
        });
        best.push(behind.fold((run.n, None), Ord::max));
    }
    let mut at = (0..runs.len()).max_by_key(|idx| best[*idx].0);
    let mut chain = Vec::new();
    while let Some(idx) = at {
        chain.push(runs[idx]);
        at = best[idx].1;
    }
    chain.reverse();
    chain
}
