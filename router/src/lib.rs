//! The router's shell: HTTP for clients, connections to the fleet, every decision made by `warmpath-router-core`.
//!
//! One request: `http` -> `lifecycle` -> `prompt` -> the core's choice -> `lifecycle::upstream` -> `lifecycle::relay`.
//! Not here: the decision itself, rendering and tokenizing (`warmpath-prompt`), the protocol's types
//! (`warmpath-common`).

pub mod app;
pub mod config;
pub mod conversations;
pub mod decision_history;
pub mod discovery;
pub mod endpoint;
pub mod error;
pub mod fleet;
pub mod http;
pub mod keys;
pub mod lifecycle;
pub mod metrics;
pub mod prompt;
pub mod queue;
pub mod retries;
pub mod salt;
pub mod server;
