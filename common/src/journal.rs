//! The lines in a worker's response from which another worker can continue it.
//!
//! In an event stream a line ends a write of whole events: a comment that only a router sees, which strips it. Before a
//! response that is sent whole there are lines alone. Not here: writing and reading their content (the worker's
//! `lifecycle/journal`), which a router only repeats.

/// Start of a line; the choice and its tokens follow, or nothing if the write belongs to no choice.
pub const LINE_START: &str = ":wp";

/// Start of the last line before a response that is sent whole; behind it come the status, a line break and the body.
pub const STATUS_START: &str = ":wp= ";

/// A line without content.
pub const MARK_ALONE: &[u8] = b":wp\n";
