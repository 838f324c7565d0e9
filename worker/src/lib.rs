//! The llama.cpp worker: engine thread, HTTP, summaries.

pub mod engine;
