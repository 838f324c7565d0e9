//! The commands of `warmpath`.
//!
//! Not here: the command line's outline (`main`).

pub mod serve;
pub mod status;
