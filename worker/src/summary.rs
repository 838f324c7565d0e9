//! The summary for routers: the published view of the worker's KV cache, kept by one task and streamed to subscribers.
//!
//! Not here: the protocol's types (`warmpath_common::summary`), the view and its frames
//! (`warmpath_worker_core::reports::summary_writer`), the cache (the engine), HTTP (`http::fleet::summary`).

mod publisher;

pub use publisher::SummaryPublisher;
