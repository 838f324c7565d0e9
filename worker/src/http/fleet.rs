//! Endpoints for routers, operators and probes: the summary, KV state, the cache, pins, health and metrics.

pub mod cache;
pub mod health;
pub mod kv;
pub mod pins;
pub mod summary;
