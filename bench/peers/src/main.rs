//! Measures other projects' prefix indexes on the very workload of `warmpath-bench index`, and prints the rows as JSON.
//!
//! Not here: our own index and the report (`warmpath-bench`, which runs this program). The idea: workload and measuring
//! are the same source files; only the adapters to the two indexes are here.

mod chain_index;
#[path = "../../src/index_bench/measure.rs"]
mod measure;
mod radix_tree;
#[path = "../../src/index_bench/workload.rs"]
#[expect(dead_code, reason = "slots are nothing to these indexes")]
mod workload;

use std::alloc::System;

use cap::Cap;
use clap::Parser;

use measure::{Row, Size};

/// Counts what is handed out: one atomic addition an allocation.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

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

#[expect(clippy::print_stdout, reason = "the rows are the program's output")]
fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut rows: Vec<Row> = Vec::new();
    for &n_workers in &args.workers {
        let Args { blocks_per_worker, lookups, seed, .. } = args;
        let size = Size { n_workers, blocks_per_worker, n_lookups: lookups, seed };
        rows.push(measure::measure("kv-index", size, || chain_index::Chain::new(n_workers))?);
        rows.push(measure::measure("dynamo-kv-router", size, radix_tree::Radix::new)?);
    }
    println!("{}", serde_json::to_string(&rows)?);
    Ok(())
}
