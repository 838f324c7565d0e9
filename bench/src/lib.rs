//! Measurement of Warmpath: the load generator and the benchmarks, with the fleets, client and models of the demo.
//!
//! Nothing here runs in production.

pub mod agents;
pub mod busy;
pub mod cgroup;
pub mod chaos;
pub mod chat_load;
pub mod corpora;
pub mod fake_worker;
pub mod figures;
pub mod fleets;
pub mod index_bench;
pub mod load;
pub mod models;
pub mod names;
pub mod overhead;
pub mod peers;
pub mod pictures;
pub mod prompts;
pub mod report;
pub mod sim;
pub mod simulated;
pub mod sounds;
pub mod speculation;
pub mod table;
#[cfg(test)]
mod testing;
pub mod tokenize;
pub mod worker_bench;

pub use warmpath_demo::{client, fleet, model, summary};
