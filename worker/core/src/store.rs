//! Stored KV state: its index and tiers, reading it, and its transfer from another worker.

pub mod chunk_index;
pub mod disk_reads;
pub mod restore_costs;
pub mod transfer_plan;
