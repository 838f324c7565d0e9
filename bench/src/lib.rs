//! Measurement and demonstration of Warmpath: the model maker, the load generator, the benchmarks, the demo.
//!
//! Nothing here runs in production.

pub mod agents;
pub mod changes;
pub mod chaos;
pub mod chat_load;
pub mod client;
pub mod demo;
pub mod event_queue;
pub mod fake_worker;
pub mod figures;
pub mod fleet;
pub mod fleets;
pub mod index_bench;
pub mod load;
pub mod model;
pub mod overhead;
pub mod peers;
pub mod pictures;
pub mod policies;
pub mod prompts;
pub mod replicas;
pub mod report;
pub mod resync;
pub mod sim;
pub mod sounds;
pub mod speculation;
pub mod summary;
pub mod transfer;
pub mod worker_bench;
