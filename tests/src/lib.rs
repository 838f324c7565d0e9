//! Shared code of the whole-system tests: the tree's own lints, programs that are downloaded for tests, and the rig
//! that runs real binaries.
//!
//! The tests are in `tests/tests`; processes are started by `warmpath_bench::fleet`.

pub mod rig;
pub mod tidy;
pub mod tools;
