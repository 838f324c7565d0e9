//! Parts of a simulated fleet in virtual time: the order of events, a worker's engine with its KV state, and a host of
//! several models.
//!
//! `warmpath-bench sim` builds a fleet of them to measure times, and the simulation of the protocol
//! (`tests/tests/simulation`) to check invariants. Both add their routers, networks and clients.

pub mod disk;
pub mod engine;
pub mod event_queue;
pub mod host;
pub mod kv;
