//! A response in one piece, which follows the lines of its journal.
//!
//! A worker sends the lines while it computes the response, then the status, and then the response. None of it reaches
//! the client before it is complete, so another worker can continue it from the lines. Not here: the journal of a
//! stream (`journal`).

use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use warmpath_common::journal::{LINE_START, STATUS_START};
use warmpath_router_core::overload::retry::WorkerFailure;

use super::journal::append;
use crate::config::{EVENT_HELD_BYTES_MAX, JOURNAL_BYTES_MAX};

/// Reader of such a response.
#[derive(Debug)]
pub(super) struct WholeReader {
    /// Start of a line whose end has not arrived; after the status, the body of the response.
    unread: BytesMut,
    /// Lines so far; `None` once there are too many.
    lines: Option<Vec<u8>>,
    /// Status; `None` until it has arrived.
    status: Option<StatusCode>,
    /// Whether a line has arrived, which means that the prompt is computed.
    has_begun: bool,
}

impl WholeReader {
    /// Returns the reader of a response that continues the one with these lines; `lines` is empty for a new response.
    pub(super) fn new(lines: Vec<u8>) -> Self {
        Self { unread: BytesMut::new(), lines: Some(lines), status: None, has_begun: false }
    }

    /// Takes the next piece.
    ///
    /// Errors: `Broken` if the response does not have this form.
    pub(super) fn push(&mut self, piece: &Bytes) -> Result<(), WorkerFailure> {
        self.unread.extend_from_slice(piece);
        while self.status.is_none() {
            let Some(end) = memchr::memchr(b'\n', &self.unread) else {
                let is_endless = self.unread.len() > EVENT_HELD_BYTES_MAX;
                return if is_endless { Err(WorkerFailure::Broken) } else { Ok(()) };
            };
            let line = self.unread.split_to(end + 1);
            if let Some(status) = line.strip_prefix(STATUS_START.as_bytes()) {
                let status = StatusCode::from_bytes(status.trim_ascii()).map_err(|_| WorkerFailure::Broken)?;
                self.status = Some(status);
            } else {
                let content = line.strip_prefix(LINE_START.as_bytes()).ok_or(WorkerFailure::Broken)?;
                append(&mut self.lines, content, JOURNAL_BYTES_MAX);
                self.has_begun = true;
            }
        }
        Ok(())
    }

    /// Returns whether the prompt is computed.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns the length of the response's own body so far.
    pub(super) fn body_bytes(&self) -> usize {
        if self.status.is_some() { self.unread.len() } else { 0 }
    }

    /// Takes the status and the body so far; `None` if no status has come.
    pub(super) fn take(&mut self) -> Option<(StatusCode, Bytes)> {
        self.status.map(|status| (status, self.unread.split().freeze()))
    }

    /// Returns the lines so far; `None` if there are none, or too many.
    pub(super) fn into_lines(self) -> Option<Vec<u8>> {
        self.lines.filter(|lines| !lines.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = ":wp 0 1,2\n:wp 1 3\n:wp\n:wp= 200\n{\"text\": \"\n:wp 0 7\n\"}";

    fn read(text: &str, piece_bytes: usize) -> Result<WholeReader, WorkerFailure> {
        let mut reader = WholeReader::new(b"0 0\n".to_vec());
        let pieces = text.as_bytes().chunks(piece_bytes);
        pieces.into_iter().try_for_each(|piece| reader.push(&Bytes::copy_from_slice(piece)))?;
        Ok(reader)
    }

    #[test]
    fn lines_status_and_body_are_distinguished_however_they_arrive() {
        for piece_bytes in 1..=WHOLE.len() {
            let mut reader = read(WHOLE, piece_bytes).expect("it can be read");
            assert!(reader.has_begun());
            assert_eq!(reader.body_bytes(), WHOLE.len() - WHOLE.find('{').expect("a body"));
            let body = Bytes::from_static(b"{\"text\": \"\n:wp 0 7\n\"}");
            assert_eq!(reader.take(), Some((StatusCode::OK, body)));
            assert_eq!(reader.into_lines().as_deref(), Some(&b"0 0\n0 1,2\n1 3\n"[..]));
        }
    }

    #[test]
    fn there_is_no_response_before_its_status_arrives() {
        let status = WHOLE.find(":wp=").expect("a status");
        for length in 0..status + ":wp= 200".len() {
            let mut reader = read(&WHOLE[..length], 3).expect("it can be read");
            assert_eq!((reader.body_bytes(), reader.take()), (0, None), "{length}");
        }
        assert!(!read("", 1).expect("it can be read").has_begun());
        assert_eq!(WholeReader::new(Vec::new()).into_lines(), None);
    }

    #[test]
    fn other_responses_are_broken() {
        for text in ["{\"text\": 1}\n", ":wp= x\n", ":wp= 20\n", "\n", ": comment\n"] {
            assert_eq!(read(text, 1).err(), Some(WorkerFailure::Broken), "{text}");
        }
        let endless = "x".repeat(EVENT_HELD_BYTES_MAX + 1);
        assert_eq!(read(&endless, 1 << 16).err(), Some(WorkerFailure::Broken));
        let line = format!(":wp 0 {}\n", "1,".repeat(JOURNAL_BYTES_MAX / 4));
        let overlong = read(&[line.as_str(); 3].concat(), 1 << 20).expect("it can be read");
        assert_eq!(overlong.into_lines(), None);
    }
}
