//! Fleets and hosts in virtual time, run by production's decisions.

pub mod sim;
pub mod simulated;
