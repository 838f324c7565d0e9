//! Batches: which tokens are computed together, in which order, and with how many threads.

pub mod adapter_schedule;
pub mod batch_plan;
pub mod compute_threads;
pub mod decode_groups;
pub mod embedding_batch;
pub mod micro_batches;
