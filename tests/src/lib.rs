//! Shared code of the whole-system tests: the tree's own lints, tools that are downloaded for tests, and the rig that
//! runs real binaries.
//!
//! Not here: the tests (`tests/tests`), starting processes (`warmpath_bench::fleet`).

pub mod rig;
pub mod tidy;
pub mod tools;
