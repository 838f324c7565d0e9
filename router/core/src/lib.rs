//! The routing decision, pure: what each worker holds, what a request would cost there, which worker gets it.
//!
//! Not here: HTTP, sockets, clocks, metrics (the `warmpath-router` crate reads the world and does what is decided here).
//! The idea: inputs are values (`now`, decoded frames, a random source), outputs are values that say what to do, so that
//! the same code decides in production and in the simulation.

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

/// Names one worker of the fleet as long as the router runs; assigned in the order of configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerIdx(pub u32);

impl WorkerIdx {
    /// Is one more than the largest index: the prefix index packs it into 24 bits.
    pub const COUNT_MAX: u32 = 1 << 24;
}
