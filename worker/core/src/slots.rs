//! Slots: the tokens that each of them holds, and the start of a request in one of them.

pub mod checkpoints;
pub mod prefix_tree;
pub mod shift_plan;
pub mod slot_plan;
pub mod slot_shares;
pub mod slot_table;
