//! Benchmarks of a router's parts: the prefix index, the latency that it adds, the tokenizer.

pub mod index_bench;
pub mod overhead;
pub mod tokenize;
