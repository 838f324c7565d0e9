//! Removes the journal from a worker's event stream: the lines from which another worker can continue.
//!
//! Each write of a worker ends with such a line. Events before a line are passed on together; events behind the last
//! line wait. So a client has exactly the events that the lines cover. Not here: the content of the lines, which only
//! workers read.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::memmem::Finder;
use warmpath_common::journal::LINE_START;

/// Finder of the mark that begins a line of the journal, made once because every event is searched.
static LINE_STARTS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(LINE_START));

/// Reader of a stream with a journal.
#[derive(Debug)]
pub struct JournalReader {
    limits: JournalLimits,
    /// Events whose line has not arrived.
    held: BytesMut,
    /// Lines so far, without their prefix; `None` once a limit was exceeded.
    lines: Option<Vec<u8>>,
    /// Whether events are passed on as they arrive, because one write was too long.
    is_overlong: bool,
    /// Whether the last byte that was passed on is within a line.
    is_within_line: bool,
}

/// Limits of a journal. Units: bytes.
#[derive(Debug, Clone, Copy)]
pub struct JournalLimits {
    /// Longest journal.
    pub journal_bytes_max: usize,
    /// Longest write that is held until its line arrives.
    pub held_bytes_max: usize,
}

impl JournalReader {
    /// Returns the reader of a stream that continues the response with these lines; `lines` is empty for a new
    /// response.
    pub fn new(limits: JournalLimits, lines: Vec<u8>) -> Self {
        Self { limits, held: BytesMut::new(), lines: Some(lines), is_overlong: false, is_within_line: false }
    }

    /// Takes the next piece of the stream; returns the pieces that can be passed on, without the journal.
    pub fn push(&mut self, piece: Bytes) -> Vec<Bytes> {
        let mut piece = if self.held.is_empty() {
            piece
        } else {
            self.held.extend_from_slice(&piece);
            self.held.split().freeze()
        };
        let mut passed = Vec::new();
        while let Some((start, line_end)) = self.next_line(&piece) {
            self.is_within_line = false;
            let mut events = piece.split_to(line_end);
            let line = events.split_off(start);
            append(&mut self.lines, &line[LINE_START.len()..], self.limits.journal_bytes_max);
            if !events.is_empty() {
                passed.push(events);
            }
        }
        if self.is_overlong || piece.len() > self.limits.held_bytes_max {
            // The rest of this write is passed on before its line, which may never come.
            (self.is_overlong, self.lines) = (true, None);
            let rest = piece.split_off(piece.len() - self.partial_line(&piece));
            if let Some(last) = piece.last() {
                self.is_within_line = *last != b'\n';
                passed.push(piece);
            }
            piece = rest;
        }
        self.held.extend_from_slice(&piece);
        passed
    }

    /// Returns the bytes behind the last line.
    pub fn rest(&self) -> &[u8] {
        &self.held
    }

    /// Takes the lines so far; `None` if the response cannot be continued.
    pub fn take_lines(&mut self) -> Option<Vec<u8>> {
        self.lines.take()
    }

    /// Returns the start and the end of the first whole line of the journal.
    fn next_line(&self, piece: &[u8]) -> Option<(usize, usize)> {
        let begins_line = |at: &usize| match at.checked_sub(1) {
            Some(before) => piece[before] == b'\n',
            None => !self.is_within_line,
        };
        let start = LINE_STARTS.find_iter(piece).find(begins_line)?;
        let length = memchr::memchr(b'\n', &piece[start..])?;
        Some((start, start + length + 1))
    }

    /// Returns the length of a piece's end that may become a line of the journal.
    fn partial_line(&self, piece: &[u8]) -> usize {
        let last_end = memchr::memrchr(b'\n', piece);
        if last_end.is_none() && self.is_within_line {
            return 0;
        }
        let end = &piece[last_end.map_or(0, |at| at + 1)..];
        let mark = LINE_START.as_bytes();
        let may_be_one = if end.len() < mark.len() { mark.starts_with(end) } else { end.starts_with(mark) };
        if may_be_one { end.len() } else { 0 }
    }
}

/// Appends a line's content to the lines so far; a line without content belongs to no choice. If the lines exceed the
/// limit, they are dropped.
pub(super) fn append(lines: &mut Option<Vec<u8>>, content: &[u8], bytes_max: usize) {
    let content = content.trim_ascii();
    let Some(so_far) = lines.as_mut().filter(|_| !content.is_empty()) else { return };
    // A line without tokens keeps the blank behind the number of its choice.
    let end: &[u8] = if content.contains(&b' ') { b"\n" } else { b" \n" };
    if so_far.len() + content.len() + end.len() > bytes_max {
        *lines = None;
        return;
    }
    so_far.extend_from_slice(content);
    so_far.extend_from_slice(end);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: JournalLimits = JournalLimits { journal_bytes_max: 1000, held_bytes_max: 1000 };

    fn passed(reader: &mut JournalReader, piece: &str) -> String {
        let pieces = reader.push(Bytes::from(piece.to_owned()));
        String::from_utf8(pieces.concat()).expect("text")
    }

    #[test]
    fn events_wait_for_their_journal_line_which_is_never_passed_on() {
        let mut reader = JournalReader::new(LIMITS, Vec::new());
        assert_eq!(passed(&mut reader, "data: 1\n\ndata: 2\n\n"), "");
        assert_eq!(passed(&mut reader, ":wp 0 1"), "");
        assert_eq!(passed(&mut reader, "7,8x2\ndata: 3\n\n"), "data: 1\n\ndata: 2\n\n");
        assert_eq!(reader.rest(), b"data: 3\n\n");
        assert_eq!(passed(&mut reader, ":wp 1 \n: comment\n\n:wp\ndata: :wp 5\n\n"), "data: 3\n\n: comment\n\n");
        assert_eq!(reader.rest(), b"data: :wp 5\n\n");
        assert_eq!(reader.take_lines().as_deref(), Some(&b"0 17,8x2\n1 \n"[..]));
    }

    #[test]
    fn a_whole_write_passes_without_a_copy() {
        let piece = Bytes::from_static(b"data: 1\n\n:wp 0 1\n");
        let passed = JournalReader::new(LIMITS, Vec::new()).push(piece.clone());
        assert_eq!((passed.len(), passed[0].as_ptr()), (1, piece.as_ptr()));
    }

    #[test]
    fn over_a_limit_the_journal_is_given_up_and_no_event_is_lost() {
        let limits = JournalLimits { journal_bytes_max: 9, held_bytes_max: 20 };
        let mut reader = JournalReader::new(limits, Vec::new());
        assert_eq!(passed(&mut reader, "data: 1\n\n:wp 0 1\ndata: 2\n\n:wp 0 2,3\n"), "data: 1\n\ndata: 2\n\n");
        assert_eq!(reader.take_lines(), None);

        let mut reader = JournalReader::new(limits, Vec::new());
        let long = format!("data: {}", "x".repeat(30));
        assert_eq!(passed(&mut reader, &long), long);
        assert_eq!(passed(&mut reader, "\n\n:w"), "\n\n");
        assert_eq!(passed(&mut reader, "p 0 1\ndata: 2\n\n"), "data: 2\n\n");
        assert_eq!(passed(&mut reader, "da"), "da");
        assert_eq!(reader.take_lines(), None);
    }

    proptest! {
        #[test]
        fn the_same_passes_wherever_the_stream_is_cut(
            writes in prop::collection::vec(
                ("(data: [a-c:wp ]{0,4}\n\n){0,2}", "[0-2] ([0-9]{1,3}(x[02])?,?){0,3}|"),
                0..8,
            ),
            tail in "(data: x\n\n)?(:|:w|:wp|:wp 0)?",
            cuts in prop::collection::vec(1_usize..12, 1..20),
            held_bytes_max in prop_oneof![Just(1000_usize), Just(4)],
        ) {
            let mut text = String::new();
            let mut events = String::new();
            let mut lines = String::new();
            for (write, line) in &writes {
                text += write;
                events += write;
                text += &if line.is_empty() { ":wp\n".to_owned() } else { format!(":wp {line}\n") };
                if !line.is_empty() {
                    lines += &format!("{line}\n");
                }
            }
            text += &tail;
            let mut reader = JournalReader::new(JournalLimits { held_bytes_max, ..LIMITS }, Vec::new());
            let (mut given, mut at) = (String::new(), 0);
            for length in cuts.iter().cycle() {
                if at >= text.len() {
                    break;
                }
                let end = (at + length).min(text.len());
                given += &passed(&mut reader, &text[at..end]);
                prop_assert!(held_bytes_max == 4 || text[..end].len() >= given.len());
                at = end;
            }
            let all = given.clone() + std::str::from_utf8(reader.rest()).expect("text");
            prop_assert_eq!(&all, &(events.clone() + &tail));
            if let Some(told) = reader.take_lines() {
                prop_assert_eq!(given, events);
                prop_assert_eq!(String::from_utf8(told).expect("text"), lines);
            }
        }
    }
}
