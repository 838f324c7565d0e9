//! The output of a sequence, without IO: the tokens that a grammar allows, their probabilities, and their text.
//!
//! The crate uses neither llama.cpp nor a vocabulary; the engine passes bytes, logits and tokens in. Not here: running
//! and caching sequences (`warmpath-worker-core`), JSON schemas and parsers of messages (the worker).

pub mod grammar;
pub mod infill;
pub mod logprobs;
pub mod reasoning_budget;
pub mod stream_decoder;
pub mod tool_call_detector;
