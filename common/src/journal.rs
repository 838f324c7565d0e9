//! The lines in a worker's event stream from which another worker can continue the response.
//!
//! A line is a comment at the end of a write of whole events; the router removes it, so no client sees it. Not here:
//! writing and reading its content (the worker's `lifecycle/journal`), which a router repeats unread.

/// Start of a line; the choice and its tokens follow, or nothing if the write belongs to no choice.
pub const LINE_START: &str = ":wp";

/// A line without content.
pub const MARK_ALONE: &[u8] = b":wp\n";
