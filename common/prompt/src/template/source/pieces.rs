//! A template's source in pieces: texts, statements and all else; and the tokens within a statement.

use std::ops::Range;

/// A part of a template's source.
#[derive(Debug)]
pub(super) enum Piece {
    /// Text between tags.
    Text(String),
    /// A statement: `{% ... %}`.
    Tag(String),
    /// An expression, a comment or a raw block.
    Other(String),
}

impl Piece {
    /// Returns the source of the piece.
    pub fn source(&self) -> &str {
        let (Self::Text(source) | Self::Tag(source) | Self::Other(source)) = self;
        source
    }

    /// Returns the statement of a tag; empty for anything else.
    pub fn statement(&self) -> &str {
        if let Self::Tag(tag) = self { statement(tag) } else { "" }
    }

    /// Returns whether a statement's first word is `word`.
    pub fn begins(&self, word: &str) -> bool {
        self.statement().strip_prefix(word).is_some_and(|behind| !behind.starts_with(is_word))
    }
}

/// Returns the statement of a `{% tag %}`; empty for anything else.
pub(super) fn statement(tag: &str) -> &str {
    let inner = tag.strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}")).unwrap_or_default();
    inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim()
}

/// Returns the string literal, word or other character at `at`.
pub(super) fn token(text: &str, at: usize) -> Range<usize> {
    let text_here = &text[at..];
    let first = text_here.chars().next().unwrap_or_default();
    let length = match first {
        '"' | '\'' => {
            let mut is_escaped = false;
            let end = text_here[1..].find(|character| {
                let ends = character == first && !is_escaped;
                is_escaped = character == '\\' && !is_escaped;
                ends
            });
            end.map_or(text_here.len(), |end| end + 2)
        }
        _ if is_word(first) => text_here.find(|character| !is_word(character)).unwrap_or(text_here.len()),
        _ => first.len_utf8(),
    };
    at..at + length
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}
