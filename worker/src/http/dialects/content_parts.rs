//! The parts of a response's message in the dialects: reasoning, texts and calls, one after the other.
//!
//! Pieces arrive in any order and size. A part stays open while its own pieces arrive; the next piece of another kind
//! closes it. At most one part is open. Not here: their names and formats in a dialect.

use crate::lifecycle::message::ToolCallDelta;

/// Piece of a response's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessagePiece<'a> {
    /// Further reasoning.
    Thought(&'a str),
    /// Further text.
    Text(&'a str),
    /// Further part of a call.
    Call(&'a ToolCallDelta),
}

/// Kind of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartKind {
    /// Reasoning.
    Thought,
    /// Text.
    Text,
    /// A call of a tool.
    Call {
        /// Index among the calls.
        call_idx: usize,
        /// Id of the call.
        id: String,
        /// Name of the function.
        name: String,
    },
}

/// A part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagePart {
    /// Index among the parts.
    pub index: usize,
    /// Its kind.
    pub kind: PartKind,
    /// Its text so far: content, reasoning, or a call's arguments as JSON.
    pub text: String,
}

/// Changes that a piece makes, in this order.
#[derive(Debug, PartialEq, Eq)]
pub struct PartChanges<'a> {
    /// Index of the part that was closed; `None` if there was none.
    pub closed: Option<usize>,
    /// Whether the last part is new.
    pub opened: bool,
    /// New text of the last part; may be empty.
    pub grown: &'a str,
}

/// Parts of a message so far, of which the last is open.
#[derive(Debug, Default)]
pub struct MessageParts {
    parts: Vec<MessagePart>,
}

impl MessageParts {
    /// Adds a piece; returns its changes, `None` if there are none.
    pub fn push<'a>(&mut self, piece: MessagePiece<'a>) -> Option<PartChanges<'a>> {
        let grown = match piece {
            MessagePiece::Thought(text) | MessagePiece::Text(text) => text,
            MessagePiece::Call(call) => &call.arguments,
        };
        let goes_on = self.parts.last().is_some_and(|last| belongs(&piece, &last.kind));
        if grown.is_empty() && (goes_on || !matches!(piece, MessagePiece::Call(_))) {
            return None;
        }
        let n_before = self.parts.len();
        if !goes_on {
            self.parts.push(MessagePart { index: n_before, kind: kind(&piece), text: String::new() });
        }
        self.parts.last_mut().expect("there is one").text.push_str(grown);
        let closed_idx = if goes_on { None } else { n_before.checked_sub(1) };
        Some(PartChanges { closed: closed_idx, opened: !goes_on, grown })
    }

    /// Returns the open part.
    pub fn open(&self) -> Option<&MessagePart> {
        self.parts.last()
    }

    /// Returns the parts.
    pub fn list(&self) -> &[MessagePart] {
        &self.parts
    }
}

fn belongs(piece: &MessagePiece<'_>, kind: &PartKind) -> bool {
    match (piece, kind) {
        (MessagePiece::Thought(_), PartKind::Thought) | (MessagePiece::Text(_), PartKind::Text) => true,
        (MessagePiece::Call(call), PartKind::Call { call_idx, .. }) => call.index == *call_idx,
        _ => false,
    }
}

fn kind(piece: &MessagePiece<'_>) -> PartKind {
    match piece {
        MessagePiece::Thought(_) => PartKind::Thought,
        MessagePiece::Text(_) => PartKind::Text,
        MessagePiece::Call(call) => PartKind::Call {
            call_idx: call.index,
            id: call.id.clone().unwrap_or_default(),
            name: call.name.clone().unwrap_or_default(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(index: usize, head: Option<(&str, &str)>, arguments: &str) -> ToolCallDelta {
        let head = head.map(|(id, name)| (id.to_owned(), name.to_owned()));
        let (id, name) = head.unzip();
        ToolCallDelta { index, id, name, arguments: arguments.to_owned() }
    }

    fn opens(closed: Option<usize>, grown: &str) -> Option<PartChanges<'_>> {
        Some(PartChanges { closed, opened: true, grown })
    }

    fn grows(grown: &str) -> Option<PartChanges<'_>> {
        Some(PartChanges { closed: None, opened: false, grown })
    }

    #[test]
    fn a_part_is_open_until_a_piece_of_another_one_arrives() {
        let mut parts = MessageParts::default();
        assert_eq!(parts.push(MessagePiece::Text("")), None);
        assert_eq!(parts.push(MessagePiece::Thought("hm")), opens(None, "hm"));
        assert_eq!(parts.push(MessagePiece::Text("")), None, "there is no text yet");
        assert_eq!(parts.push(MessagePiece::Thought("m")), grows("m"));
        assert_eq!(parts.push(MessagePiece::Text("a")), opens(Some(0), "a"));
        assert_eq!(parts.push(MessagePiece::Call(&call(0, Some(("x", "f")), ""))), opens(Some(1), ""));
        assert_eq!(parts.push(MessagePiece::Call(&call(0, None, ""))), None);
        assert_eq!(parts.push(MessagePiece::Call(&call(0, None, "{}"))), grows("{}"));
        assert_eq!(parts.push(MessagePiece::Call(&call(1, Some(("y", "g")), "["))), opens(Some(2), "["));
        let said: Vec<_> = parts.list().iter().map(|part| (part.index, part.text.as_str())).collect();
        assert_eq!(said, [(0, "hmm"), (1, "a"), (2, "{}"), (3, "[")]);
        assert_eq!(parts.open().map(|part| part.index), Some(3));
        assert_eq!(parts.list()[2].kind, PartKind::Call { call_idx: 0, id: "x".to_owned(), name: "f".to_owned() });
    }
}
