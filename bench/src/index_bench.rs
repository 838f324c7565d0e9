//! `warmpath-bench index`: how fast and how large the router's prefix index is, with every answer checked.
//!
//! Not here: routing on top of it. The idea: workers hold conversations that share system prompts; the index takes their
//! runs, answers look-ups and forgets again, each timed; a brute-force table of sets says what the answers should be.

use std::collections::HashSet;
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde::Serialize;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::SlotId;
use warmpath_common::summary::{Resume, Run, RunState, Tier};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::index::{IndexOptions, IndexWriter, PrefixIndex};

/// Is the most memory the index may take: no benchmark reaches it. Units: bytes.
const INDEX_BYTES_MAX: usize = 4 << 30;
/// Is the number of different system prompts.
const N_SYSTEM_PROMPTS: usize = 16;
/// Is the length of a system prompt: 1,024 tokens. Units: blocks.
const SYSTEM_BLOCKS: usize = 32;
/// Is the longest conversation behind a system prompt: 8,192 tokens. Units: blocks.
const CONVERSATION_BLOCKS_MAX: usize = 256;
/// Is how many look-ups are compared with brute force for each fleet size.
const N_CHECKED: usize = 2_000;

/// Is what `warmpath-bench index` is told.
#[derive(Debug, Clone, clap::Args)]
pub struct IndexArgs {
    /// Lists the fleet sizes.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 64, 256])]
    pub workers: Vec<u16>,
    /// Is how many blocks each worker holds, about.
    #[arg(long, default_value_t = 8192)]
    pub blocks_per_worker: usize,
    /// Is how many look-ups are timed for each fleet size.
    #[arg(long, default_value_t = 200_000)]
    pub lookups: usize,
    /// Seeds what workers hold and what is asked.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Prints JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Is what was measured with one fleet size.
#[derive(Debug, Clone, Serialize)]
pub struct IndexReport {
    /// Is the number of workers.
    pub n_workers: u16,
    /// Is the number of different blocks held.
    pub n_blocks: usize,
    /// Is the number of claims: pairs of a worker and a block that it holds.
    pub n_claims: usize,
    /// Is the median time of a look-up, the clock's own included. Units: nanoseconds.
    pub lookup_ns_p50: u64,
    /// Is the 99th percentile of it. Units: nanoseconds.
    pub lookup_ns_p99: u64,
    /// Is how many claims are recorded a second.
    pub stored_blocks_per_s: f64,
    /// Is how many claims are forgotten a second.
    pub removed_blocks_per_s: f64,
    /// Is the index's memory for each different block. Units: bytes.
    pub bytes_per_block: f64,
    /// Is the index's memory for each claim. Units: bytes.
    pub bytes_per_claim: f64,
    /// Is how many look-ups were compared with brute force; all agreed.
    pub n_checked: usize,
}

/// Runs `warmpath-bench index` and prints the reports.
///
/// Errors: where an answer differs from brute force.
pub fn run(args: &IndexArgs) -> anyhow::Result<()> {
    let reports = args.workers.iter().map(|&n_workers| measure(n_workers, args)).collect::<anyhow::Result<Vec<_>>>()?;
    let text = if args.json { serde_json::to_string_pretty(&reports)? } else { table(&reports).to_string() };
    println(&text);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the report is the command's output")]
fn println(text: &str) {
    println!("{text}");
}

fn table(reports: &[IndexReport]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "workers",
        "blocks",
        "claims",
        "look-up p50 ns",
        "p99 ns",
        "stored/s",
        "removed/s",
        "B/block",
        "B/claim",
        "checked",
    ]);
    for report in reports {
        table.add_row([
            report.n_workers.to_string(),
            report.n_blocks.to_string(),
            report.n_claims.to_string(),
            report.lookup_ns_p50.to_string(),
            report.lookup_ns_p99.to_string(),
            format!("{:.2}M", report.stored_blocks_per_s / 1e6),
            format!("{:.2}M", report.removed_blocks_per_s / 1e6),
            format!("{:.1}", report.bytes_per_block),
            format!("{:.1}", report.bytes_per_claim),
            report.n_checked.to_string(),
        ]);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// Measures one fleet size.
///
/// Errors: where an answer differs from brute force.
pub fn measure(n_workers: u16, args: &IndexArgs) -> anyhow::Result<IndexReport> {
    let mut rng = ChaCha8Rng::seed_from_u64(args.seed);
    let held = Held::random(n_workers, args.blocks_per_worker, &mut rng);
    let mut writer = IndexWriter::new(IndexOptions { bytes_max: INDEX_BYTES_MAX, seed: args.seed });
    let n_stored = held.chains.iter().map(|(_, chain)| chain.len()).sum::<usize>() as f64;
    let start = Instant::now();
    for (worker, chain) in &held.chains {
        writer.insert(*worker, &run_of(chain));
    }
    let stored_s = start.elapsed().as_secs_f64();
    let index = writer.reader();
    let n_checked = N_CHECKED.min(args.lookups);
    for _ in 0..n_checked {
        let asked = held.ask(&mut rng);
        held.check(&index, &asked)?;
    }
    let (lookup_ns_p50, lookup_ns_p99) = time_lookups(&index, &held, (args.lookups, &mut rng));
    let (n_blocks, bytes) = (index.n_blocks(), index.bytes() as f64);
    let n_claims = (0..n_workers).map(|worker| writer.n_blocks_of(worker_idx(worker))).sum::<usize>();
    let start = Instant::now();
    for (worker, chain) in &held.chains {
        writer.remove(*worker, chain);
    }
    let removed_s = start.elapsed().as_secs_f64();
    anyhow::ensure!(index.n_blocks() == 0, "{} blocks are left behind after all were removed", index.n_blocks());
    Ok(IndexReport {
        n_workers,
        n_blocks,
        n_claims,
        lookup_ns_p50,
        lookup_ns_p99,
        stored_blocks_per_s: n_stored / stored_s,
        removed_blocks_per_s: n_stored / removed_s,
        bytes_per_block: bytes / n_blocks as f64,
        bytes_per_claim: bytes / n_claims as f64,
        n_checked,
    })
}

fn time_lookups(index: &PrefixIndex, held: &Held, (n, rng): (usize, &mut ChaCha8Rng)) -> (u64, u64) {
    // One nanosecond to a second; `saturating_record` clamps to the bounds, so they are given and not grown.
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).expect("the bounds are valid");
    for _ in 0..n {
        let asked = held.ask(rng);
        let start = Instant::now();
        std::hint::black_box(index.matches(std::hint::black_box(&asked)));
        histogram.saturating_record(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    (histogram.value_at_quantile(0.5), histogram.value_at_quantile(0.99))
}

fn worker_idx(worker: u16) -> WorkerIdx {
    WorkerIdx(worker.into())
}

fn run_of(chain: &[BlockKey]) -> Run {
    Run {
        keys: chain.to_vec(),
        tier: Tier::Resident,
        slot: Some(SlotId(0)),
        state: RunState::Ready,
        resume: Resume::EveryBlock,
    }
}

/// Is what the fleet holds, kept the simple way.
struct Held {
    chains: Vec<(WorkerIdx, Vec<BlockKey>)>,
    /// Lists the conversations' chains once each.
    conversations: Vec<Vec<BlockKey>>,
    /// Lists for each worker the blocks that it holds.
    sets: Vec<HashSet<BlockKey>>,
}

impl Held {
    /// Gives each worker conversations until it holds `blocks_per_worker`; every fourth is held by another worker too.
    fn random(n_workers: u16, blocks_per_worker: usize, rng: &mut ChaCha8Rng) -> Self {
        let mut keys = |n: usize| -> Vec<BlockKey> { (0..n).map(|_| BlockKey(rng.next_u64())).collect() };
        let systems: Vec<_> = (0..N_SYSTEM_PROMPTS).map(|_| keys(SYSTEM_BLOCKS)).collect();
        let mut held =
            Self { chains: Vec::new(), conversations: Vec::new(), sets: vec![HashSet::new(); n_workers.into()] };
        for worker in 0..n_workers {
            while held.sets[usize::from(worker)].len() < blocks_per_worker {
                let mut chain = systems[below(rng, N_SYSTEM_PROMPTS)].clone();
                let n_own = 1 + below(rng, CONVERSATION_BLOCKS_MAX);
                chain.extend((0..n_own).map(|_| BlockKey(rng.next_u64())));
                held.give(worker, &chain);
                if below(rng, 4) == 0 {
                    let other = below(rng, usize::from(n_workers)) as u16;
                    held.give(other, &chain[..SYSTEM_BLOCKS + 1 + below(rng, n_own)]);
                }
                held.conversations.push(chain);
            }
        }
        held
    }

    fn give(&mut self, worker: u16, chain: &[BlockKey]) {
        self.sets[usize::from(worker)].extend(chain);
        self.chains.push((worker_idx(worker), chain.to_vec()));
    }

    /// Returns a chain as a router would ask for it: a conversation with a new turn, now and then a new conversation.
    fn ask(&self, rng: &mut ChaCha8Rng) -> Vec<BlockKey> {
        let conversation = &self.conversations[below(rng, self.conversations.len())];
        let kept = if below(rng, 4) == 0 { SYSTEM_BLOCKS } else { conversation.len() };
        let mut asked = conversation[..kept].to_vec();
        asked.extend((0..below(rng, 16)).map(|_| BlockKey(rng.next_u64())));
        asked
    }

    /// Compares the index's answer with a walk along the chain for every worker.
    fn check(&self, index: &PrefixIndex, asked: &[BlockKey]) -> anyhow::Result<()> {
        let mut expected: Vec<(u32, WorkerIdx)> = (0..)
            .zip(&self.sets)
            .map(|(worker, set)| (asked.iter().take_while(|key| set.contains(key)).count() as u32, worker_idx(worker)))
            .filter(|&(blocks, _)| blocks > 0)
            .collect();
        expected.sort_unstable_by_key(|&(blocks, worker)| (std::cmp::Reverse(blocks), worker));
        let found: Vec<_> = index.matches(asked).iter().map(|found| (found.blocks, found.worker)).collect();
        anyhow::ensure!(found == expected, "the index says {found:?}, brute force says {expected:?}");
        Ok(())
    }
}

/// Returns a number below `n`, which is small against 2^64: the bias is not worth a loop.
fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    usize::try_from(rng.next_u64() % n as u64).expect("below a usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> IndexArgs {
        IndexArgs { workers: vec![3], blocks_per_worker: 400, lookups: 300, seed: 7, json: false }
    }

    #[test]
    fn answers_agree_with_brute_force_and_everything_is_removed() {
        let report = measure(3, &args()).unwrap();
        assert_eq!(report.n_checked, 300);
        assert!(report.n_claims >= 3 * 400 && report.n_blocks <= report.n_claims);
        assert!(report.bytes_per_block > 8.0, "{report:?}");
        // No chain of dozens of blocks is looked up faster than memory answers a few times.
        assert!(report.lookup_ns_p50 >= 20 && report.lookup_ns_p99 > report.lookup_ns_p50, "{report:?}");
        assert!(table(&[report]).to_string().contains("look-up p50"));
    }

    #[test]
    fn a_wrong_answer_is_told() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let held = Held::random(2, 100, &mut rng);
        let empty = IndexWriter::new(IndexOptions { bytes_max: 1 << 20, seed: 1 });
        assert!(held.check(&empty.reader(), &held.conversations[0]).is_err());
    }
}
