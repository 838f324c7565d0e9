//! Benchmarks of one worker, compared with llama-server on the same model.

pub mod agents;
pub mod busy;
pub mod speculation;
pub mod worker_bench;
