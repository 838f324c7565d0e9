//! The alphabet in which byte-level vocabularies spell bytes as visible characters.
//!
//! Source: GPT-2's `bytes_to_unicode`.

/// Returns the character by which byte-level vocabularies spell a byte: visible characters stand for themselves, the
/// other bytes are mapped to U+0100 and above.
pub fn spelled(byte: u8) -> char {
    let shift = match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => return char::from(byte),
        0..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x121 + u32::from(byte) - 0x7f,
        0xad => 0x143,
    };
    char::from_u32(shift).expect("these are characters")
}

/// Returns the byte that a character spells in byte-level vocabularies, if it spells one.
pub fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Appends the bytes that `spelling` spells to `bytes`; `None`, with an unspecified part of them appended, if it is not
/// UTF-8 or has other characters.
pub(crate) fn unspell(spelling: &[u8], bytes: &mut Vec<u8>) -> Option<()> {
    for character in str::from_utf8(spelling).ok()?.chars() {
        bytes.push(byte_of(character)?);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_byte_is_mapped_to_its_own_character_and_back() {
        let characters: HashSet<char> = (0..=u8::MAX).map(spelled).collect();
        assert_eq!(characters.len(), 256);
        assert!((0..=u8::MAX).all(|byte| byte_of(spelled(byte)) == Some(byte)));
        assert_eq!((spelled(b' '), spelled(b'\n'), spelled(0x7f), spelled(0xa0)), ('Ġ', 'Ċ', 'ġ', 'ł'));
        let mut bytes = Vec::new();
        assert_eq!((unspell("aĠ".as_bytes(), &mut bytes), bytes.as_slice()), (Some(()), b"a ".as_slice()));
        assert_eq!(unspell("｜".as_bytes(), &mut bytes), None);
    }
}
