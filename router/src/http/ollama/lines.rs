//! A stream of server-sent events as one of Ollama's lines.
//!
//! The last event of OpenAI's API becomes the last line; the events are still read to their end, which tells the relay
//! that the client has the whole answer.

use std::convert::Infallible;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use serde_json::Value;
use warmpath_router_core::event_stream::{Ends, Splitter, contents};
use warmpath_router_core::ollama::AnswerWriter;
use warmpath_shell::{one_line, timestamps};

use super::times::AnswerTimes;
use crate::config::WHOLE_ANSWER_BYTES_MAX;

/// Returns a body of lines for a body of events.
pub(super) fn body(events: Body, writer: AnswerWriter, times: AnswerTimes) -> Body {
    let lines = Lines {
        events: events.into_data_stream(),
        splitter: Splitter::default(),
        held: BytesMut::new(),
        writer,
        times,
        has_ended: false,
    };
    Body::from_stream(futures::stream::unfold(lines, Lines::next))
}

/// A stream on its way to its client.
struct Lines {
    events: BodyDataStream,
    splitter: Splitter,
    /// Start of an event whose end has not arrived.
    held: BytesMut,
    writer: AnswerWriter,
    times: AnswerTimes,
    has_ended: bool,
}

impl Lines {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let mut lines = Vec::new();
        while lines.is_empty() {
            if self.has_ended {
                return None;
            }
            match self.events.next().await {
                Some(Ok(piece)) => self.convert(piece, &mut lines),
                // The relay has logged why, and has sent an error event if it could.
                Some(Err(_)) | None => {
                    self.writer.end(&timestamps::now(), &self.times.measured(), &mut lines);
                    self.has_ended = true;
                }
            }
            self.has_ended |= self.writer.has_failed();
        }
        let mut out = Vec::new();
        for line in lines {
            one_line::write(&mut out, &line);
            out.push(b'\n');
        }
        Some((Ok(out.into()), self))
    }

    /// Writes the lines for the next piece of the events.
    fn convert(&mut self, mut piece: Bytes, lines: &mut Vec<Value>) {
        let Some(Ends { last, .. }) = self.splitter.split(&piece) else {
            self.held.extend_from_slice(&piece);
            if self.held.len() > WHOLE_ANSWER_BYTES_MAX {
                self.writer.fail("an event of the server is too long", lines);
            }
            return;
        };
        let beginning = piece.split_off(last);
        self.held.extend_from_slice(&piece);
        let events = self.held.split();
        self.held.extend_from_slice(&beginning);
        let now = timestamps::now();
        for content in contents(&events) {
            let Some(data) = content else { continue };
            if self.writer.event(&data, &now, &self.times.measured(), lines) {
                self.times.wrote_part();
            }
        }
        let has_only_comments = contents(&events).all(|content| content.is_none());
        if has_only_comments {
            self.writer.keep_alive(&now, lines);
        }
    }
}
