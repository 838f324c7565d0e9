//! A worker's stream of events, passed on in whole events and with time limits.
//!
//! A partial event is of no use to a client and corrupts an error event that follows it, so the start of an event waits
//! for its end. A whole event passes without being copied.
//!
//! Not here: the parser of events (`warmpath_router_core::event_stream`), the error event for a broken stream
//! (`relay`).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::{Instant, timeout_at};
use warmpath_router_core::event_stream::{EndMark, Ends, EventReader, Splitter, StreamProgress, StreamState, is_whole};
use warmpath_router_core::overload::retry::WorkerFailure;

use super::journal::{JournalLimits, JournalReader};
use crate::config::{EVENT_HELD_BYTES_MAX, JOURNAL_BYTES_MAX};
use crate::endpoint::EndpointKind;

/// Pieces of a body, until its end or the loss of its worker.
pub(super) type BodyPieces = BoxStream<'static, Result<Bytes, WorkerFailure>>;

/// A worker's stream of events.
pub(super) struct Events {
    pieces: BodyPieces,
    splitter: Splitter,
    reader: EventReader,
    /// Start of an event whose end has not arrived.
    held: BytesMut,
    /// Whole events that are returned next.
    ready: Option<Bytes>,
    /// Whether the current event exceeds the buffer's limit, so that it is passed on in parts.
    is_overlong: bool,
    /// Deadline of the next part of the response; `None` right after a part.
    deadline: Option<Instant>,
    idle_timeout: Duration,
    /// Reader of the journal; `None` if the worker sends none.
    journal: Option<JournalReader>,
    /// Pieces, without the journal, that are read next.
    unread: VecDeque<Bytes>,
}

/// A piece that is passed on.
pub(super) struct Passed {
    /// Whole events, or a part of one that exceeds the buffer's limit.
    pub(super) bytes: Bytes,
    /// The furthest progress among these events.
    pub(super) progress: StreamProgress,
}

/// Last event of a chat or completion, sent to the client if its server has omitted it.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Returns the mark that completes the stream of a request for so many choices; `None` if no dialect defines one.
pub(super) fn end_mark(endpoint: EndpointKind, path: &str, n_choices: u32) -> Option<EndMark> {
    match endpoint {
        EndpointKind::Chat => Some(EndMark::Done),
        EndpointKind::Completion if path.starts_with("/v1/") => Some(EndMark::Done),
        EndpointKind::Completion | EndpointKind::Infill => Some(EndMark::Stop { n_choices }),
        EndpointKind::Messages => Some(EndMark::MessageStop),
        EndpointKind::Responses => Some(EndMark::Response),
        EndpointKind::Embeddings | EndpointKind::Rerank | EndpointKind::Passthrough(_) => None,
    }
}

impl Events {
    /// Returns the events in `pieces`. The first event of the response must arrive by the deadline, each further one
    /// within the timeout.
    pub(super) fn new(pieces: BodyPieces, mark: EndMark, deadline: Instant, idle_timeout: Duration) -> Self {
        Self {
            pieces,
            splitter: Splitter::default(),
            reader: EventReader::new(mark),
            held: BytesMut::new(),
            ready: None,
            is_overlong: false,
            deadline: Some(deadline),
            idle_timeout,
            journal: None,
            unread: VecDeque::new(),
        }
    }

    /// Removes the journal from the stream; `lines` is the journal before it, with so many choices that have ended.
    pub(super) fn with_journal(self, lines: Vec<u8>, n_ended_choices: u32) -> Self {
        let limits = JournalLimits { journal_bytes_max: JOURNAL_BYTES_MAX, held_bytes_max: EVENT_HELD_BYTES_MAX };
        let reader = self.reader.after(n_ended_choices);
        Self { journal: Some(JournalReader::new(limits, lines)), reader, ..self }
    }

    /// Returns whether the worker sends a journal.
    pub(super) fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// Takes the lines of the journal so far, with the number of choices that have ended; `None` if the response cannot
    /// be continued.
    pub(super) fn take_lines(&mut self) -> Option<(Vec<u8>, u32)> {
        let lines = self.journal.as_mut()?.take_lines()?;
        Some((lines, self.reader.state().n_ended_choices))
    }

    /// Returns the error event with which the worker ended the stream, if another worker may continue after it.
    pub(super) fn last_words(&self) -> Option<Bytes> {
        let partial_line = self.journal.as_ref()?.rest();
        let mut reader = self.reader.clone();
        reader.read(partial_line);
        (partial_line.ends_with(b"\n\n") && reader.state().has_failed).then(|| Bytes::copy_from_slice(partial_line))
    }

    /// Returns the next piece; `None` once the response has ended as its dialect defines.
    ///
    /// Comments are passed on without resetting the timeout. Errors: `Timeout`, and `Broken` if the stream ends before
    /// the response does.
    pub(super) async fn next(&mut self) -> Option<Result<Passed, WorkerFailure>> {
        let next_piece = match self.ready.take() {
            Some(events) => self.read(events),
            None => match self.take_piece().await {
                Ok(Some(next_piece)) => next_piece,
                Ok(None) => return None,
                Err(failure) => return self.failed(failure),
            },
        };
        if next_piece.progress >= StreamProgress::Empty {
            self.deadline = None;
        }
        Some(Ok(next_piece))
    }

    /// Returns the state that the stream has reported so far.
    pub(super) fn state(&self) -> StreamState {
        self.reader.state()
    }

    /// Returns whether the client has only a part of the last event, so that no other event can follow.
    pub(super) fn is_within_event(&self) -> bool {
        self.is_overlong
    }

    async fn take_piece(&mut self) -> Result<Option<Passed>, WorkerFailure> {
        loop {
            let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + self.idle_timeout);
            if self.unread.is_empty() {
                let piece = timeout_at(deadline, self.pieces.next()).await.map_err(|_| WorkerFailure::Timeout)?;
                let Some(piece) = piece.transpose()? else { return self.end() };
                match &mut self.journal {
                    Some(journal) => self.unread.extend(journal.push(piece)),
                    None => self.unread.push_back(piece),
                }
            }
            let next_piece = self.unread.pop_front().and_then(|piece| self.cut(piece));
            let is_generated =
                next_piece.as_ref().is_some_and(|next_piece| next_piece.progress >= StreamProgress::Empty);
            // During a flood of comments the timeout above never fires. What has arrived is passed on: the journal that
            // another worker continues has it.
            if !is_generated && self.unread.is_empty() && Instant::now() >= deadline {
                return Err(WorkerFailure::Timeout);
            }
            if next_piece.is_some() {
                return Ok(next_piece);
            }
        }
    }

    /// Returns the part of a piece that can be passed on; the start of an event waits.
    fn cut(&mut self, mut piece: Bytes) -> Option<Passed> {
        let Some(Ends { first, last }) = self.splitter.split(&piece) else { return self.hold(piece) };
        let beginning = piece.split_off(last);
        let next_piece = if self.is_overlong {
            self.is_overlong = false;
            self.reader.skip();
            self.reader.read(&piece[first..]);
            Passed { bytes: piece, progress: StreamProgress::Content }
        } else if self.held.is_empty() {
            self.read(piece)
        } else {
            let piece_after = piece.split_off(first);
            self.ready = Some(piece_after).filter(|piece_after| !piece_after.is_empty());
            self.held.extend_from_slice(&piece);
            let events = self.held.split().freeze();
            self.read(events)
        };
        self.held.extend_from_slice(&beginning);
        Some(next_piece)
    }

    /// Buffers a part of an event, or passes it on if the event is too long.
    fn hold(&mut self, part: Bytes) -> Option<Passed> {
        if self.is_overlong {
            return Some(Passed { bytes: part, progress: StreamProgress::Opening });
        }
        self.held.extend_from_slice(&part);
        if self.held.len() <= EVENT_HELD_BYTES_MAX {
            return None;
        }
        self.is_overlong = true;
        Some(Passed { bytes: self.held.split().freeze(), progress: StreamProgress::Opening })
    }

    fn read(&mut self, events: Bytes) -> Passed {
        let progress = self.reader.read(&events);
        Passed { bytes: events, progress }
    }

    /// Returns the rest of the stream at the end of the connection: the last event may lack its empty line.
    fn end(&mut self) -> Result<Option<Passed>, WorkerFailure> {
        let mut last = self.held.split();
        let has_rest = !last.trim_ascii().is_empty();
        last.extend_from_slice(b"\n\n");
        let mut next_piece = is_whole(&last).then(|| self.read(last.freeze()));
        if self.reader.lacks_only_done() && !self.is_overlong && next_piece.is_some() == has_rest {
            let before = next_piece.map(|next_piece| next_piece.bytes).unwrap_or_default();
            next_piece = Some(self.read([&before, DONE].concat().into()));
        }
        if self.is_overlong || !self.reader.may_end() { Err(WorkerFailure::Broken) } else { Ok(next_piece) }
    }

    /// Returns a failure, unless the response is complete and the client has all of it.
    fn failed(&mut self, failure: WorkerFailure) -> Option<Result<Passed, WorkerFailure>> {
        self.pieces = futures::stream::empty().boxed();
        self.held.clear();
        self.unread.clear();
        if self.reader.may_end() && !self.is_overlong { None } else { Some(Err(failure)) }
    }
}

#[cfg(test)]
mod tests;
