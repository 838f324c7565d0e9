//! Benchmarks of whole fleets of processes, and the load that they get.

pub mod chaos;
pub mod chat_load;
pub mod fleets;
pub mod load;
pub mod models;
