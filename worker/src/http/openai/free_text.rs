//! The text of a custom tool's call, parsed from the JSON of its function's arguments as they arrive.
//!
//! The arguments are one object with one string, so the text begins after the third quote and ends at the next one;
//! escapes are decoded once they are complete. Not here: the function with a text (`warmpath_common::dialects`).

/// Quotes before the text: two around its name, and the one that opens it.
const N_QUOTES_BEFORE: usize = 3;

/// Length of an escape code (`\u00e9`); some characters take two of them. Units: characters.
const CODE_LEN: usize = 6;
const CODE_PAIR_LEN: usize = 2 * CODE_LEN;

/// Incremental parser of the text.
#[derive(Debug, Default)]
pub struct FreeText {
    n_quotes: usize,
    /// Incomplete escaped character.
    escape: String,
}

impl FreeText {
    /// Returns the text of whole arguments, or of a prefix of them.
    pub fn of(arguments: &str) -> String {
        Self::default().push(arguments)
    }

    /// Returns the text that further arguments add.
    pub fn push(&mut self, arguments: &str) -> String {
        let mut text = String::new();
        arguments.chars().for_each(|char| self.read(char, &mut text));
        text
    }

    fn read(&mut self, char: char, text: &mut String) {
        if self.n_quotes != N_QUOTES_BEFORE {
            self.n_quotes += usize::from(char == '"');
        } else if !self.escape.is_empty() || char == '\\' {
            self.escape.push(char);
            if self.is_complete() {
                let decoded_escape = serde_json::from_str::<String>(&format!("\"{}\"", self.escape));
                text.push_str(&decoded_escape.unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.to_string()));
                self.escape.clear();
            }
        } else if char == '"' {
            self.n_quotes += 1;
        } else {
            text.push(char);
        }
    }

    /// Returns whether the escaped character is complete.
    fn is_complete(&self) -> bool {
        let Some(code) = self.escape.strip_prefix("\\u") else { return self.escape.len() > 1 };
        let is_first_of_two = matches!(code.as_bytes(), [b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..]);
        self.escape.chars().count() >= if is_first_of_two { CODE_PAIR_LEN } else { CODE_LEN }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn any_text_in_any_pieces_is_read_as_it_was_written(text in any::<String>(), at in any::<prop::sample::Index>()) {
            let ascii = |text: &str| {
                let unit = |unit: u16| if unit < 128 { char::from(unit as u8).to_string() } else { format!("\\u{unit:04x}") };
                text.encode_utf16().map(unit).collect::<String>()
            };
            let plain = json!({"input": text}).to_string();
            for arguments in [plain.clone(), ascii(&plain), plain.replacen(':', " : ", 1)] {
                let chars: Vec<char> = arguments.chars().collect();
                let (begun, rest) = chars.split_at(at.index(chars.len() + 1));
                let mut reader = FreeText::default();
                let mut read = reader.push(&begun.iter().collect::<String>());
                read.push_str(&reader.push(&rest.iter().collect::<String>()));
                prop_assert_eq!(&read, &text, "{}", arguments);
                prop_assert!(text.starts_with(&FreeText::of(&begun.iter().collect::<String>())));
            }
        }
    }

    #[test]
    fn other_json_is_no_text() {
        for arguments in ["", "{}", "{\"input\": 5}", "{\"input", "{\"input\": \"\\"] {
            assert_eq!(FreeText::of(arguments), "", "{arguments}");
        }
        assert_eq!(FreeText::of("{\"input\": \"a\\ud83dbcdefg\"}"), "a\u{fffd}");
    }
}
