//! The worker's decisions, free of IO: the tokens of slots, the start of a request, the contents of a batch.
//!
//! The crate knows neither llama.cpp nor threads, clocks or IO.
//!
//! The shell reads the world, calls this crate and executes the result. Every decision is a value (a plan) computed
//! from values, so that each can be tested against a naive model.

pub mod adapter_turns;
pub mod arrivals;
pub mod batch_plan;
pub mod call_watch;
pub mod checkpoints;
pub mod chunk_index;
pub mod costs;
pub mod embed_plan;
pub mod grammar;
pub mod infill;
pub mod micro_batches;
pub mod output;
pub mod prefix_tree;
pub mod probabilities;
pub mod promises;
pub mod rates;
pub mod runs;
pub mod shift_plan;
pub mod slot_plan;
pub mod slot_shares;
pub mod slot_table;
pub mod tenants;
