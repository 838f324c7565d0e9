//! What a program says of itself: the log, metrics, traces.

pub mod log;
pub mod metrics;
pub mod trace;
