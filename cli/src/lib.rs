//! The commands of `warmpath`.

pub mod capacity;
mod child;
pub mod host;
mod programs;
pub mod serve;
pub mod status;
