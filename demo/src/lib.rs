//! The demo: a local fleet, conversations through it, what was reused.
//!
//! Tests and benchmarks share its parts: fleets of child processes, the client, models made by code, summaries. Nothing
//! here runs in production.

pub mod client;
pub mod conversations;
pub mod fleet;
pub mod model;
pub mod models_on_demand;
pub mod summary;
