//! The routing decision: what a request would cost at each worker, and which worker gets it.

pub mod choose;
pub mod cost;
pub mod prefetch;
pub mod transfer;
