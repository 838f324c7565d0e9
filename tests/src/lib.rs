//! What the whole-system tests share: the tree's own lints, the tools that are fetched for tests, and the rig that runs real binaries.
//!
//! Not here: the tests themselves (`tests/tests`), starting processes (`warmpath_bench::fleet`).

pub mod rig;
pub mod tidy;
pub mod tools;
