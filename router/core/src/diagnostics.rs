//! Records for operators. No decision depends on them.

pub mod decision_log;
pub mod history;
pub mod prefix_breaks;
pub mod tool_lists;
