//! Where whole events end in a stream that is cut at any byte.
//!
//! An event ends with an empty line, and a line ends with `\n`, `\r\n` or `\r`. A comment with no field before it
//! counts as whole by itself, since many servers send a single line to keep a connection open.

/// Ends of complete events in a piece of a stream. Units: bytes from the piece's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// End of the event with which the piece begins, or which it continues.
    pub first: usize,
    /// End of the last whole event.
    pub last: usize,
}

/// Finder of the ends of events.
#[derive(Debug, Clone, Default)]
pub struct Splitter {
    line: LineKind,
    /// Whether the event has a line other than a comment.
    has_fields: bool,
    /// Whether the last byte was a carriage return, whose line feed may follow.
    after_return: bool,
}

/// Kind of the line that is being read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum LineKind {
    #[default]
    Empty,
    Comment,
    Field,
}

impl Splitter {
    /// Returns where events end in the next piece of the stream, or `None` if none ends there.
    ///
    /// Cost: O(n), no allocation.
    pub fn split(&mut self, piece: &[u8]) -> Option<Ends> {
        let mut ends: Option<Ends> = None;
        let mut at = 0;
        while at < piece.len() {
            let bytes_left = &piece[at..];
            let text_len = memchr::memchr2(b'\n', b'\r', bytes_left).unwrap_or(bytes_left.len());
            if text_len > 0 {
                self.go_on(bytes_left[0]);
            }
            at += text_len;
            let Some(&byte) = piece.get(at) else { break };
            // The line feed belongs to the carriage return before it, and to the event that ended with that.
            let is_rest_of_end = byte == b'\n' && self.after_return;
            let is_event_end = if is_rest_of_end { self.is_between_events() } else { self.end_line() };
            self.after_return = byte == b'\r';
            let end = at + 1;
            if is_event_end {
                let first = ends.map_or(end, |ends| ends.first);
                let first = if is_rest_of_end && first == at { end } else { first };
                ends = Some(Ends { first, last: end });
            }
            at = end;
        }
        ends
    }

    /// Returns whether the stream is between two events.
    pub fn is_between_events(&self) -> bool {
        self.line == LineKind::Empty && !self.has_fields
    }

    /// Continues a line with a text that begins with this byte.
    fn go_on(&mut self, first: u8) {
        self.after_return = false;
        if self.line == LineKind::Empty {
            self.line = if first == b':' { LineKind::Comment } else { LineKind::Field };
        }
    }

    /// Ends a line; returns whether an event ends with it.
    fn end_line(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        match line {
            LineKind::Empty => self.has_fields = false,
            LineKind::Comment => {}
            LineKind::Field => self.has_fields = true,
        }
        !self.has_fields
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the ends of all events in a complete text, by a naive reading of its lines.
    fn naive_ends(text: &str) -> Vec<usize> {
        let (mut ends, mut has_fields, mut at) = (Vec::new(), false, 0);
        while let Some(len) = text[at..].find(['\n', '\r']) {
            let line = &text[at..at + len];
            let end_len = if text[at + len..].starts_with("\r\n") { 2 } else { 1 };
            at += len + end_len;
            has_fields = if line.is_empty() { false } else { has_fields || !line.starts_with(':') };
            if !has_fields {
                ends.push(at);
            }
        }
        ends
    }

    fn check(piece: &str, expected: Option<(usize, usize)>) {
        let ends = Splitter::default().split(piece.as_bytes());
        assert_eq!(ends.map(|ends| (ends.first, ends.last)), expected, "{piece:?}");
    }

    #[test]
    fn an_event_ends_with_an_empty_line_in_every_spelling() {
        check("data: 1", None);
        check("data: 1\n", None);
        check("data: 1\n\n", Some((9, 9)));
        check("data: 1\r\r", Some((9, 9)));
        check("data: 1\r\n\r\n", Some((11, 11)));
        check("data: 1\n\ndata: 2\n\ndata", Some((9, 18)));
        check("event: a\n: comment\ndata: 1\n\n", Some((28, 28)));
        check(": comment\n", Some((10, 10)));
        check(": comment", None);
        check("\n\n", Some((1, 2)));
    }

    proptest! {
        #[test]
        fn ends_are_the_same_wherever_the_stream_is_cut(
            parts in prop::collection::vec("(data: [a-c]{0,3}|: x|event: e|id|)(\n|\r\n|\r)", 0..12),
            tail in "[a:]{0,2}",
            cuts in prop::collection::vec(1_usize..9, 1..20),
        ) {
            let text = parts.concat() + &tail;
            let mut splitter = Splitter::default();
            let (mut at, mut last_end) = (0, 0);
            for len in cuts.iter().cycle() {
                if at == text.len() {
                    break;
                }
                let piece = &text.as_bytes()[at..(at + len).min(text.len())];
                if let Some(ends) = splitter.split(piece) {
                    prop_assert!(ends.first <= ends.last);
                    // No end lies between the previous one and this piece's first one, except for a line feed after its
                    // carriage return.
                    let skipped = naive_ends(&text).into_iter().filter(|end| *end > last_end && *end < at + ends.first);
                    prop_assert_eq!(skipped.collect::<Vec<_>>(), Vec::<usize>::new());
                    last_end = at + ends.last;
                }
                at += piece.len();
            }
            let expected = naive_ends(&text).last().copied().unwrap_or(0);
            prop_assert_eq!(last_end, expected, "{:?}", text);
        }
    }
}
