//! Measures the indexes with the system's allocator.
//!
//! Not here: all but the allocator.

use std::alloc::System;

use cap::Cap;

/// Counts what is handed out: one atomic addition an allocation.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

fn main() -> anyhow::Result<()> {
    warmpath_bench_peers::run("", || ALLOCATOR.allocated())
}
