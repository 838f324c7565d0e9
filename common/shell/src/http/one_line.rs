//! JSON on one line, for streams that clients cut into lines.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::Formatter;

/// Writes a value as JSON in which no client finds the end of a line.
///
/// Panics: if the value has no JSON form.
pub fn write(out: &mut Vec<u8>, content: &impl Serialize) {
    let mut serializer = serde_json::Serializer::with_formatter(out, OneLine);
    content.serialize(&mut serializer).expect("the objects of an answer all have a JSON form");
}

/// JSON in which the characters are escaped that JSON allows and at which some clients end a line.
///
/// Source: `findings/line-separators-in-streams.sh`.
struct OneLine;

impl Formatter for OneLine {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut text_left = fragment;
        while let Some(at) = text_left.find(['\u{85}', '\u{2028}', '\u{2029}']) {
            writer.write_all(&text_left.as_bytes()[..at])?;
            let end = text_left[at..].chars().next().unwrap_or_default();
            write!(writer, "\\u{:04x}", u32::from(end))?;
            text_left = &text_left[at + end.len_utf8()..];
        }
        writer.write_all(text_left.as_bytes())
    }

    fn write_raw_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        // Outside strings JSON has none of them.
        self.write_string_fragment(writer, fragment)
    }
}
