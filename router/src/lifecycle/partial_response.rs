//! A response so far, which another worker can continue.

/// A response so far, for the worker that continues it.
#[derive(Debug, Clone, Default)]
pub(super) struct PartialResponse {
    /// Lines of its journal.
    pub(super) lines: Vec<u8>,
    /// Choices of its stream that have ended, as `Events::take_lines` counts them.
    pub(super) n_ended_choices: u32,
    /// Reused prompt tokens that were reported to the client.
    pub(super) cached_tokens: Option<u32>,
}
