//! Measures other projects' prefix indexes on the workload of `warmpath-bench index`, and prints the rows as JSON.
//!
//! Our own index and the report are in `warmpath-bench`, which runs these programs; the allocators are in `system` and
//! `mimalloc`. Workload and measurement are the same source files; only the adapters to the two indexes are here.

mod chain_index;
#[path = "../../src/router_parts/index_bench/measure.rs"]
mod measure;
mod radix_tree;
#[path = "../../src/router_parts/index_bench/workload.rs"]
#[expect(dead_code, reason = "these indexes know no slots")]
mod workload;

use clap::Parser;

use measure::{Row, Size};

/// Measures kv-index and dynamo-kv-router.
#[derive(Debug, Parser)]
struct Args {
    /// Fleet sizes.
    #[arg(long, value_delimiter = ',')]
    workers: Vec<u32>,
    /// Approximate number of blocks that each worker holds.
    #[arg(long)]
    blocks_per_worker: usize,
    /// Number of lookups that are timed for each fleet size.
    #[arg(long)]
    lookups: usize,
    /// Seed of the workers' blocks and of the lookups.
    #[arg(long)]
    seed: u64,
}

/// Measures with the allocator of the calling program; `note` is appended to the indexes' names.
///
/// `allocated_bytes` returns the memory that the allocator has handed out. Units: bytes.
///
/// Errors: a result differs from brute force.
#[expect(clippy::print_stdout, reason = "the rows are the programs' output")]
pub fn run(note: &str, allocated_bytes: fn() -> usize) -> anyhow::Result<()> {
    let args = Args::parse();
    let mut rows: Vec<Row> = Vec::new();
    for &n_workers in &args.workers {
        let Args { blocks_per_worker, lookups, seed, .. } = args;
        let size = Size { n_workers, blocks_per_worker, n_lookups: lookups, seed };
        let name = |index: &str| format!("{index}{note}");
        rows.push(measure::measure(&name("kv-index"), size, || chain_index::Chain::new(n_workers))?);
        rows.push(measure::measure(&name("dynamo-kv-router"), size, || radix_tree::Radix::new(allocated_bytes))?);
    }
    println!("{}", serde_json::json!({ "rows": rows }));
    Ok(())
}
