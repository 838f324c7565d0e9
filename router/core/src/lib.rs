//! The routing decision, without IO: what each worker holds, what a request would cost there, and which worker gets it.
//!
//! HTTP, sockets, clocks and metrics belong to the `warmpath-router` crate, which gathers the inputs and executes the
//! decisions. Inputs are values (`now`, decoded frames, a random source) and outputs are values that describe an
//! action, so production and simulation run the same code.

pub mod diagnostics;
pub mod event_stream;
pub mod fleet;
pub mod hosts;
pub mod index;
pub mod ledger;
pub mod ollama;
pub mod overload;
pub mod routing;
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
