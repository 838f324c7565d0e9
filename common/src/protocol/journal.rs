//! The lines in a worker's response from which another worker can continue it.
//!
//! In an event stream, such a line is a comment behind each write of whole events; the router strips it. A response
//! that is sent in one piece is preceded by lines without events.

/// Start of a line; the choice, its tokens and the reason of its end follow, or nothing if the write belongs to no
/// choice.
pub const LINE_START: &str = ":wp";

/// Start of the last line before a response that is sent in one piece; the status, a line break and the body follow.
pub const STATUS_START: &str = ":wp= ";

/// A line without content.
pub const MARK_ALONE: &[u8] = b":wp\n";
