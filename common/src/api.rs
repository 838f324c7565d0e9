//! What clients send and are shown: the fields of requests that router and worker both read.

pub mod cache_breakpoints;
pub mod clean_text;
pub mod dialects;
pub mod embeddings;
pub mod history;
pub mod llama_server;
pub mod media;
pub mod names;
pub mod openai;
pub mod prompts;
pub mod salt;
