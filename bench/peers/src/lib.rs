//! Measures other projects' prefix indexes on the very workload of `warmpath-bench index`, and prints the rows as JSON.
//!
//! Not here: our own index and the report (`warmpath-bench`, which runs these programs), the allocator (`system`,
//! `mimalloc`). The idea: workload and measuring are the same source files; only the adapters to the two indexes are here.

mod chain_index;
#[path = "../../src/index_bench/measure.rs"]
mod measure;
mod radix_tree;
#[path = "../../src/index_bench/workload.rs"]
#[expect(dead_code, reason = "slots are nothing to these indexes")]
mod workload;

use clap::Parser;

use measure::{Row, Size};

/// Measures kv-index and dynamo-kv-router.
#[derive(Debug, Parser)]
struct Args {
    /// Lists the fleet sizes.
    #[arg(long, value_delimiter = ',')]
    workers: Vec<u32>,
    /// Is how many blocks each worker holds, about.
    #[arg(long)]
    blocks_per_worker: usize,
    /// Is how many look-ups are timed for each fleet size.
    #[arg(long)]
    lookups: usize,
    /// Seeds what workers hold and what is asked.
    #[arg(long)]
    seed: u64,
}

/// Measures with the allocator of the calling program; `note` is put behind the indexes' names.
///
/// `allocated` says how much that allocator has handed out. Units: bytes.
///
/// Errors: where an answer differs from brute force.
#[expect(clippy::print_stdout, reason = "the rows are the programs' output")]
pub fn run(note: &str, allocated: fn() -> usize) -> anyhow::Result<()> {
    let args = Args::parse();
    let mut rows: Vec<Row> = Vec::new();
    for &n_workers in &args.workers {
        let Args { blocks_per_worker, lookups, seed, .. } = args;
        let size = Size { n_workers, blocks_per_worker, n_lookups: lookups, seed };
        let name = |index: &str| format!("{index}{note}");
        rows.push(measure::measure(&name("kv-index"), size, || chain_index::Chain::new(n_workers))?);
        rows.push(measure::measure(&name("dynamo-kv-router"), size, || radix_tree::Radix::new(allocated))?);
    }
    println!("{}", serde_json::json!({ "rows": rows }));
    Ok(())
}
