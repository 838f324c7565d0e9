//! The routing decision, without IO: what each worker holds, what a request would cost there, and which worker gets it.
//!
//! HTTP, sockets, clocks and metrics belong to the `warmpath-router` crate, which reads the world and does what is
//! decided here. Inputs are values (`now`, decoded frames, a random source) and outputs are values that describe an
//! action, so that the same code decides in production and in the simulation.

pub mod admission;
pub mod agreement;
pub mod breaker;
pub mod choose;
pub mod conversations;
pub mod cost;
pub mod decision_log;
pub mod dispatch;
pub mod doubts;
pub mod event_stream;
pub mod fair_queue;
pub mod fleet;
pub mod follower;
pub mod given;
pub mod history;
pub mod index;
pub mod membership;
mod others;
pub mod pending;
pub mod retry;
pub mod reuse;
pub mod stock;

#[cfg(test)]
mod testing;

/// Index of a worker, valid as long as the router runs; assigned in the order of configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerIdx(pub u32);

impl WorkerIdx {
    /// One more than the largest index; the prefix index packs an index into 24 bits.
    pub const COUNT_MAX: u32 = 1 << 24;
}
