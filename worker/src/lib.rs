//! The llama.cpp worker: HTTP, the engine thread that owns llama.cpp, the summary for routers, metrics.
//!
//! A request goes through `http` -> `lifecycle` -> `engine`, and its response comes back the same way; `start` sets
//! everything up. Not here: the decisions on the cache and the next batch (`warmpath-worker-core`), prompts as tokens
//! (`warmpath-prompt`).

pub mod app;
pub mod backends;
pub mod config;
pub mod download;
pub mod embedder;
pub mod engine;
mod error;
mod http;
mod kv_transfer;
mod lifecycle;
mod loaded_model;
mod metrics;
pub mod model_files;
mod pages;
mod prompt_pools;
pub mod request;
mod response_format;
mod slot_context;
pub mod start;
pub mod store;
mod summary;
mod tools;
mod version;

pub use http::openapi;
