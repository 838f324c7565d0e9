//! The commands of `warmpath`.
//!
//! Not here: the command line itself (`main`).

pub mod capacity;
pub mod serve;
pub mod status;
