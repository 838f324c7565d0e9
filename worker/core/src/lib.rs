//! The worker's decisions as pure functions: the tokens of slots, the start of a request, the contents of a batch.
//!
//! The crate uses neither llama.cpp nor threads, clocks or IO.
//!
//! The shell collects the inputs, calls this crate and executes the result. Every decision is a value (a plan) computed
//! from values, so each can be tested against a naive model.

pub mod adapter_schedule;
pub mod batch_plan;
pub mod checkpoints;
pub mod chunk_index;
pub mod compute_threads;
pub mod decode_groups;
pub mod disk_reads;
pub mod drafting;
pub mod embedding_batch;
pub mod micro_batches;
pub mod pending_prefills;
pub mod prefix_tree;
pub mod rates;
pub mod restore_costs;
pub mod shift_plan;
pub mod slot_plan;
pub mod slot_shares;
pub mod slot_table;
pub mod summary_writer;
pub mod tenants;
pub mod transfer_plan;
pub mod unadmitted_requests;
