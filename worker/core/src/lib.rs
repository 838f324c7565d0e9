//! The worker's decisions as pure functions: the tokens of slots, the start of a request, the contents of a batch.
//!
//! The crate uses neither llama.cpp nor threads, clocks or IO.
//!
//! The shell collects the inputs, calls this crate and executes the result. Every decision is a value (a plan) computed
//! from values, so each can be tested against a naive model.

pub mod batches;
pub mod curve;
pub mod drafting;
pub mod reports;
pub mod slots;
pub mod store;
pub mod tenants;
