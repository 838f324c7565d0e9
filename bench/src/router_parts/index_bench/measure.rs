//! Measures one index on one fleet, with the same steps in the same order for our index and for others.
//!
//! Contents and lookups are made in `workload`; the indexes are adapted elsewhere. An index receives the fleet's
//! changes as its own router would send them, each prepared before its time is measured. Then it is queried, and then
//! everything is removed again.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::workload::{Fleet, Stretch};

/// Maximum number of lookups that are compared with brute force.
const N_CHECKED_MAX: usize = 2_000;
/// Maximum work of all brute-force checks together. Units: workers times lookups.
const CHECKED_WORK_MAX: usize = 500_000;
/// Number of workers whose views are replaced.
const N_REPLACED: u32 = 16;

/// An index that can be measured.
pub trait Subject {
    /// A change in the index's own form.
    type Change;
    /// A query in the index's own form.
    type Ask;
    /// A result in the index's own form.
    type Answer;

    /// Returns the change that stores `keys` after `parent`.
    fn stored(&self, stretch: Stretch, parent: Option<u64>, keys: &[u64]) -> Self::Change;
    /// Returns the change that removes `keys`.
    fn removed(&self, stretch: Stretch, keys: &[u64]) -> Self::Change;
    /// Applies a change.
    fn apply(&mut self, change: Self::Change);
    /// Replaces all that a worker holds by `view`.
    fn replace(&mut self, worker: u32, view: Vec<Self::Change>);
    /// Informs the index that a request with the prompt `keys` was routed.
    fn routed(&self, keys: &[u64]);
    /// Returns the query for the holders of a chain.
    fn ask(&self, keys: &[u64]) -> Self::Ask;
    /// Runs a query.
    fn look_up(&self, ask: Self::Ask) -> Self::Answer;
    /// Returns the blocks and the worker of each match.
    fn read(answer: Self::Answer) -> Vec<(u32, u32)>;
    /// Returns the memory in use. Units: bytes.
    fn bytes(&self) -> usize;
}

/// Size of the measured fleet and number of lookups.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Number of workers.
    pub n_workers: u32,
    /// Approximate number of blocks that each worker holds.
    pub blocks_per_worker: usize,
    /// Number of lookups that are timed.
    pub n_lookups: usize,
    /// Seed of the workers' blocks and of the lookups.
    pub seed: u64,
}

/// Measurements of one index with one fleet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Name of the index.
    pub index: String,
    /// Number of workers.
    pub n_workers: u32,
    /// Number of distinct blocks.
    pub n_blocks: usize,
    /// Number of claims: pairs of a worker and a block that it holds.
    pub n_claims: usize,
    /// Median time of a lookup, including that of reading the clock. Units: nanoseconds.
    pub lookup_ns_p50: u64,
    /// 99th percentile of that time. Units: nanoseconds.
    pub lookup_ns_p99: u64,
    /// Number of claims that are recorded per second.
    pub stored_blocks_per_s: f64,
    /// Number of claims that are removed per second.
    pub removed_blocks_per_s: f64,
    /// Number of claims of a new view that are recorded per second; half of the view is known already.
    pub replaced_blocks_per_s: f64,
    /// Memory per distinct block. Units: bytes.
    pub bytes_per_block: f64,
    /// Number of lookups that were compared with brute force; all agreed.
    pub n_checked: usize,
}

/// Measures the index that `new` creates.
///
/// Errors: a result differs from brute force.
pub fn measure<S: Subject>(name: &str, size: Size, new: impl FnOnce() -> S) -> anyhow::Result<Row> {
    let mut fleet = Fleet::random(size.n_workers, size.blocks_per_worker, size.seed);
    let (n_blocks, n_claims) = (fleet.n_blocks(), fleet.n_claims());
    let mut subject = new();
    let stretches = std::mem::take(&mut fleet.stored);
    let n_stored: usize = stretches.iter().map(|stretch| stretch.to - stretch.from).sum();
    let stored_s = store(&mut subject, &fleet, &stretches).as_secs_f64();
    let n_checks = N_CHECKED_MAX.min(size.n_lookups).min(CHECKED_WORK_MAX / size.n_workers as usize) / 2;
    check(&subject, &mut fleet, n_checks)?;
    let times = time_lookups(&subject, &mut fleet, size.n_lookups);
    let bytes = subject.bytes();
    let (n_replaced, replaced) = replace(&mut subject, &mut fleet, size.n_workers.min(N_REPLACED));
    check(&subject, &mut fleet, n_checks)?;
    let removals = fleet.removals();
    let n_removed: usize = removals.iter().map(|stretch| stretch.to - stretch.from).sum();
    let removed_s = remove(&mut subject, &fleet, &removals).as_secs_f64();
    for chain in fleet.chains.iter().take(n_checks) {
        let remaining_matches = S::read(subject.look_up(subject.ask(chain)));
        anyhow::ensure!(
            remaining_matches.is_empty(),
            "{name}: {remaining_matches:?} are left behind after all was removed"
        );
    }
    Ok(Row {
        index: name.to_owned(),
        n_workers: size.n_workers,
        n_blocks,
        n_claims,
        lookup_ns_p50: times.value_at_quantile(0.5),
        lookup_ns_p99: times.value_at_quantile(0.99),
        stored_blocks_per_s: n_stored as f64 / stored_s,
        removed_blocks_per_s: n_removed as f64 / removed_s,
        replaced_blocks_per_s: n_replaced as f64 / replaced.as_secs_f64(),
        bytes_per_block: bytes as f64 / n_blocks as f64,
        n_checked: 2 * n_checks,
    })
}

fn store<S: Subject>(subject: &mut S, fleet: &Fleet, stretches: &[Stretch]) -> Duration {
    let mut time_spent = Duration::ZERO;
    for &stretch in stretches {
        let chain = &fleet.chains[stretch.chain];
        if stretch.from > fleet.system_blocks[stretch.chain] {
            subject.routed(&chain[..stretch.from]);
        }
        let change = stored_change(subject, chain, stretch);
        let start = Instant::now();
        subject.apply(change);
        time_spent += start.elapsed();
    }
    time_spent
}

fn stored_change<S: Subject>(subject: &S, chain: &[u64], stretch: Stretch) -> S::Change {
    let parent = stretch.from.checked_sub(1).map(|parent| chain[parent]);
    subject.stored(stretch, parent, &chain[stretch.from..stretch.to])
}

fn remove<S: Subject>(subject: &mut S, fleet: &Fleet, removals: &[Stretch]) -> Duration {
    let mut time_spent = Duration::ZERO;
    for &stretch in removals {
        let change = subject.removed(stretch, &fleet.chains[stretch.chain][stretch.from..stretch.to]);
        let start = Instant::now();
        subject.apply(change);
        time_spent += start.elapsed();
    }
    time_spent
}

/// Replaces the views of the first `n` workers; returns the number of blocks of the new views, and the time.
fn replace<S: Subject>(subject: &mut S, fleet: &mut Fleet, n: u32) -> (usize, Duration) {
    let mut n_blocks = 0;
    let mut time_spent = Duration::ZERO;
    for worker in 0..n {
        let view = fleet.replace(worker);
        n_blocks += view.iter().map(|stretch| stretch.to - stretch.from).sum::<usize>();
        let change = |stretch: &Stretch| stored_change(subject, &fleet.chains[stretch.chain], *stretch);
        let changes = view.iter().map(change).collect();
        let start = Instant::now();
        subject.replace(worker, changes);
        time_spent += start.elapsed();
    }
    (n_blocks, time_spent)
}

fn check<S: Subject>(subject: &S, fleet: &mut Fleet, n: usize) -> anyhow::Result<()> {
    for _ in 0..n {
        let chain = fleet.ask();
        let mut matches = S::read(subject.look_up(subject.ask(&chain)));
        matches.sort_unstable_by_key(|&(blocks, worker)| (std::cmp::Reverse(blocks), worker));
        let expected = fleet.expected(&chain);
        anyhow::ensure!(matches == expected, "the index says {matches:?}, brute force says {expected:?}");
    }
    Ok(())
}

fn time_lookups<S: Subject>(subject: &S, fleet: &mut Fleet, n: usize) -> Histogram<u64> {
    // From one nanosecond to a second; `saturating_record` clamps to the bounds, so they are fixed here.
    let mut times = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).expect("the bounds are valid");
    for _ in 0..n {
        let ask = std::hint::black_box(subject.ask(&fleet.ask()));
        let start = Instant::now();
        let answer = std::hint::black_box(subject.look_up(ask));
        times.saturating_record(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        drop(answer);
    }
    times
}
