//! The summary for routers: the published view of the worker's KV cache, kept by one task and streamed to subscribers.
//!
//! Not here: the protocol's types (`warmpath_common::summary`), the cache (the engine), HTTP (`http::summary`).

mod published;
mod publisher;

pub use publisher::{HEARTBEAT, SummaryPublisher};
