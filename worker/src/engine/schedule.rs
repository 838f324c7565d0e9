//! Scheduling: which sequences the next batch computes.

pub(crate) mod batch;
