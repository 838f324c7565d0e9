//! Measures the indexes with the system's allocator.
//!
//! Everything but the allocator is in the library.

use std::alloc::System;

use cap::Cap;

/// Allocator that counts the memory that it hands out, by one atomic addition per allocation.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

fn main() -> anyhow::Result<()> {
    warmpath_bench_peers::run("", || ALLOCATOR.allocated())
}
