//! The commands of `warmpath`.

pub mod capacity;
pub mod serve;
pub mod status;
