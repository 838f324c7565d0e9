//! What a router remembers for operators only. No decision depends on it.

pub mod decision_log;
pub mod history;
pub mod prefix_breaks;
pub mod tool_lists;
