//! The output of a sequence, without IO: the probabilities of its tokens, and their text.
//!
//! The crate uses neither llama.cpp nor a vocabulary; the engine passes bytes, logits and tokens in. Not here: running
//! and caching sequences (`warmpath-worker-core`), the tokens that may come next (`warmpath-constraint`).

pub mod infill;
pub mod logprobs;
pub mod reasoning_budget;
pub mod stream_decoder;
pub mod tool_call_detector;
