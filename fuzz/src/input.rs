//! The parts of an input: how a stream is cut, and sections whose lengths need not be written in the input.
//!
//! libFuzzer inserts and deletes bytes. An input with lengths in it would not survive that, so sections end at a mark.

use memchr::memmem;

/// Mark between two sections.
pub(crate) const MARK: &[u8] = b"\n--\n";

/// Lengths of the pieces in which a stream arrives, in turn. Units: bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cuts([usize; 2]);

impl Cuts {
    /// Takes the cuts from the start of an input; returns them with the rest.
    pub(crate) fn take(input: &[u8]) -> Option<(Self, &[u8])> {
        let ([first, second], rest) = input.split_first_chunk()?;
        Some((Self([usize::from(*first) + 1, usize::from(*second) + 1]), rest))
    }

    /// Returns the pieces of a stream.
    pub(crate) fn pieces(self, mut stream: &[u8]) -> impl Iterator<Item = &[u8]> {
        let mut lengths = self.0.into_iter().cycle();
        std::iter::from_fn(move || {
            let length = lengths.next().filter(|_| !stream.is_empty())?;
            let (piece, rest) = stream.split_at(length.min(stream.len()));
            stream = rest;
            Some(piece)
        })
    }
}

/// Returns the sections of an input, at least one.
pub(crate) fn sections(input: &[u8]) -> Vec<&[u8]> {
    let mut sections = Vec::new();
    let mut start = 0;
    for at in memmem::find_iter(input, MARK) {
        sections.push(&input[start..at]);
        start = at + MARK.len();
    }
    sections.push(&input[start..]);
    sections
}
