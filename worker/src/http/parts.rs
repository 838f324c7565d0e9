//! The parts of an answer's message as the dialects count them: a thought, a text, a call, each after the other.
//!
//! Not here: how a dialect calls and writes them. The idea: pieces come in any order and size; a part is open as long as its own
//! pieces come, the next piece of another kind closes it, and there is never more than one open.

use crate::lifecycle::message::ToolCallDelta;

/// Is a piece of an answer's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Is more of what the model thinks before it speaks.
    Thought(&'a str),
    /// Is more of what the model says.
    Text(&'a str),
    /// Is more of a call.
    Call(&'a ToolCallDelta),
}

/// Is what a part is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// What the model thinks before it speaks.
    Thought,
    /// What the model says.
    Text,
    /// A call of a tool.
    Call {
        /// Is its place among the calls.
        call_idx: usize,
        /// Names the call.
        id: String,
        /// Names the function.
        name: String,
    },
}

/// Is one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Is its place among the parts.
    pub index: usize,
    /// Is what it is.
    pub kind: Kind,
    /// Is its text so far: what is said or thought, or a call's arguments as JSON.
    pub text: String,
}

/// Is what a piece has changed, in this order.
#[derive(Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// Is the part that it has closed, if one.
    pub closed: Option<usize>,
    /// Says whether the last part is new.
    pub opened: bool,
    /// Is what the last part has grown by; may be empty.
    pub grown: &'a str,
}

/// Is the parts of a message so far, of which the last is open.
#[derive(Debug, Default)]
pub struct Parts {
    parts: Vec<Part>,
}

impl Parts {
    /// Adds a piece; returns what it changes, `None` for nothing.
    pub fn push<'a>(&mut self, piece: Piece<'a>) -> Option<Change<'a>> {
        let grown = match piece {
            Piece::Thought(text) | Piece::Text(text) => text,
            Piece::Call(call) => &call.arguments,
        };
        let goes_on = self.parts.last().is_some_and(|last| belongs(&piece, &last.kind));
        if grown.is_empty() && (goes_on || !matches!(piece, Piece::Call(_))) {
            return None;
        }
        let n_before = self.parts.len();
        if !goes_on {
            self.parts.push(Part { index: n_before, kind: kind(&piece), text: String::new() });
        }
        self.parts.last_mut().expect("there is one").text.push_str(grown);
        let closed = if goes_on { None } else { n_before.checked_sub(1) };
        Some(Change { closed, opened: !goes_on, grown })
    }

    /// Returns the part that is open.
    pub fn open(&self) -> Option<&Part> {
        self.parts.last()
    }

    /// Returns the parts.
    pub fn list(&self) -> &[Part] {
        &self.parts
    }
}

fn belongs(piece: &Piece<'_>, kind: &Kind) -> bool {
    match (piece, kind) {
        (Piece::Thought(_), Kind::Thought) | (Piece::Text(_), Kind::Text) => true,
        (Piece::Call(call), Kind::Call { call_idx, .. }) => call.index == *call_idx,
        _ => false,
    }
}

fn kind(piece: &Piece<'_>) -> Kind {
    match piece {
        Piece::Thought(_) => Kind::Thought,
        Piece::Text(_) => Kind::Text,
        Piece::Call(call) => Kind::Call {
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

    fn opens(closed: Option<usize>, grown: &str) -> Option<Change<'_>> {
        Some(Change { closed, opened: true, grown })
    }

    fn grows(grown: &str) -> Option<Change<'_>> {
        Some(Change { closed: None, opened: false, grown })
    }

    #[test]
    fn a_part_is_open_until_a_piece_of_another_comes() {
        let mut parts = Parts::default();
        assert_eq!(parts.push(Piece::Text("")), None);
        assert_eq!(parts.push(Piece::Thought("hm")), opens(None, "hm"));
        assert_eq!(parts.push(Piece::Text("")), None, "nothing is said yet");
        assert_eq!(parts.push(Piece::Thought("m")), grows("m"));
        assert_eq!(parts.push(Piece::Text("a")), opens(Some(0), "a"));
        assert_eq!(parts.push(Piece::Call(&call(0, Some(("x", "f")), ""))), opens(Some(1), ""));
        assert_eq!(parts.push(Piece::Call(&call(0, None, ""))), None);
        assert_eq!(parts.push(Piece::Call(&call(0, None, "{}"))), grows("{}"));
        assert_eq!(parts.push(Piece::Call(&call(1, Some(("y", "g")), "["))), opens(Some(2), "["));
        let said: Vec<_> = parts.list().iter().map(|part| (part.index, part.text.as_str())).collect();
        assert_eq!(said, [(0, "hmm"), (1, "a"), (2, "{}"), (3, "[")]);
        assert_eq!(parts.open().map(|part| part.index), Some(3));
        assert_eq!(parts.list()[2].kind, Kind::Call { call_idx: 0, id: "x".to_owned(), name: "f".to_owned() });
    }
}
