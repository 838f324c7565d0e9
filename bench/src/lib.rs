//! Measurement of Warmpath: the load generator and the benchmarks, with the fleets, client and models of the demo.
//!
//! Nothing here runs in production.

mod inputs;
mod one_worker;
mod output;
pub mod report;
mod router_parts;
mod servers;
mod virtual_time;
mod whole_fleet;

pub use inputs::{corpora, pictures, prompts, sounds};
pub use one_worker::{agents, busy, speculation, worker_bench};
pub use output::{figures, names, table};
pub use router_parts::{index_bench, overhead, tokenize};
pub use servers::{cgroup, fake_worker, peers};
pub use virtual_time::{sim, simulated};
pub use warmpath_demo::{client, fleet, model, summary};
pub use whole_fleet::{chaos, chat_load, fleets, load, models};
