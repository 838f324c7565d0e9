//! The decisions of a host, which loads several models on one machine: its catalogue, memory, and when models swap.
//!
//! Pure: no IO, no clock, no async. The shell reads files, runs workers and measures time (`cli/src/host`).

pub mod catalogue;
pub mod disk;
pub mod memory;
pub mod swaps;
