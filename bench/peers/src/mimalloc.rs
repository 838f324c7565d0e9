//! Measures the indexes with the allocator of Warmpath's router.
//!
//! Not here: all but the allocator.

use cap::Cap;
use mimalloc::MiMalloc;

/// Counts what is handed out: one atomic addition an allocation.
#[global_allocator]
static ALLOCATOR: Cap<MiMalloc> = Cap::new(MiMalloc, usize::MAX);

fn main() -> anyhow::Result<()> {
    warmpath_bench_peers::run(", mimalloc", || ALLOCATOR.allocated())
}
