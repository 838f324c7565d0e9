//! Measures the indexes with the allocator of Warmpath's router.
//!
//! Everything but the allocator is in the library.

use cap::Cap;
use mimalloc::MiMalloc;

/// Allocator that counts the memory that it hands out, by one atomic addition per allocation.
#[global_allocator]
static ALLOCATOR: Cap<MiMalloc> = Cap::new(MiMalloc, usize::MAX);

fn main() -> anyhow::Result<()> {
    warmpath_bench_peers::run(", mimalloc", || ALLOCATOR.allocated())
}
