//! The output of a sequence, free of IO: which tokens a grammar allows, their probabilities, and the text they make.
//!
//! The crate knows neither llama.cpp nor a vocabulary; the engine passes bytes, logits and tokens in. Not here: which
//! sequence runs and what is cached (`warmpath-worker-core`), JSON schemas and parsers of messages (the worker).

pub mod grammar;
pub mod infill;
pub mod logprobs;
pub mod stream_decoder;
pub mod tool_call_detector;
