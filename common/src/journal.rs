//! The lines in a worker's event stream from which another worker can continue the response.
//!
//! A line ends a write of whole events: a comment that only a router sees, which strips it. Not here: writing and
//! reading its content (the worker's `lifecycle/journal`), which a router only repeats.

/// Start of a line; behind it come the choice and its tokens, or nothing if the write belongs to no choice.
pub const LINE_START: &str = ":wp";

/// A line without content.
pub const MARK_ALONE: &[u8] = b":wp\n";
