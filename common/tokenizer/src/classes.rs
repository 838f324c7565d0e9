//! Classes of characters, as llama.cpp's splitters distinguish them.
//!
//! They are those of the Unicode version of llama.cpp's table, which differs from that of Rust's `char`.

use hashbrown::HashMap;

use crate::tables::RUNS;

/// Class of a character: a set of the constants below. A text's end has the class 0, as has a control character.
pub(crate) type Class = u8;

pub(crate) const LETTER: Class = 1;
pub(crate) const NUMBER: Class = 1 << 1;
pub(crate) const SPACE: Class = 1 << 2;
pub(crate) const MARK: Class = 1 << 3;
pub(crate) const PUNCTUATION: Class = 1 << 4;
pub(crate) const SYMBOL: Class = 1 << 5;
/// Chinese characters as Kimi's splitter knows them.
pub(crate) const HAN: Class = 1 << 6;
/// Chinese and Japanese characters as DeepSeek's splitter knows them.
pub(crate) const KANA_OR_HAN: Class = 1 << 7;

/// Characters of a block of the table.
const BLOCK: usize = 128;
const N_CHARACTERS: usize = 0x11_0000;

/// Table of all characters; equal blocks are stored once.
#[derive(Debug)]
pub(crate) struct Classes {
    ascii: [Class; 128],
    /// For each block of characters, the start of its classes in `blocks`.
    starts: Box<[u16]>,
    blocks: Box<[Class]>,
}

/// A character of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Character {
    pub class: Class,
    /// Its length in UTF-8; 0 at a text's end. Units: bytes.
    pub n_bytes: usize,
}

impl Classes {
    /// Makes the table. Cost: a millisecond.
    pub fn new() -> Self {
        let mut of_all = vec![0; N_CHARACTERS];
        let ends = RUNS.iter().skip(1).map(|(start, _)| *start as usize).chain([N_CHARACTERS]);
        for ((start, class), end) in RUNS.iter().zip(ends) {
            of_all[*start as usize..end].fill(*class);
        }
        let (mut starts, mut blocks, mut starts_of_blocks) = (Vec::new(), Vec::new(), HashMap::new());
        for block in of_all.chunks(BLOCK) {
            starts.push(*starts_of_blocks.entry(block).or_insert_with(|| {
                let start = u16::try_from(blocks.len()).expect("there are some two hundred different blocks");
                blocks.extend_from_slice(block);
                start
            }));
        }
        let ascii = std::array::from_fn(|code| of_all[code]);
        Self { ascii, starts: starts.into(), blocks: blocks.into() }
    }

    /// Returns the character at a position of a text, which is a character's start or the text's end.
    #[inline]
    pub fn at(&self, text: &[u8], at: usize) -> Character {
        let Some(&first) = text.get(at) else { return Character { class: 0, n_bytes: 0 } };
        if first < 0x80 {
            return Character { class: self.ascii[usize::from(first)], n_bytes: 1 };
        }
        // The text is UTF-8; a byte that is missing all the same counts as 0.
        let next = |n: usize| usize::from(text.get(at + n).copied().unwrap_or(0) & 0x3f);
        let first = usize::from(first);
        let (code, n_bytes) = match first {
            0..0xe0 => ((first & 0x1f) << 6 | next(1), 2),
            0xe0..0xf0 => ((first & 0xf) << 12 | next(1) << 6 | next(2), 3),
            _ => ((first & 7) << 18 | next(1) << 12 | next(2) << 6 | next(3), 4),
        };
        Character { class: self.of(code), n_bytes }
    }

    #[inline]
    fn of(&self, code: usize) -> Class {
        let Some(&start) = self.starts.get(code / BLOCK) else { return 0 };
        self.blocks.get(usize::from(start) + code % BLOCK).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_have_the_classes_of_their_unicode_category() {
        let classes = Classes::new();
        let of = |c: char| classes.at(c.encode_utf8(&mut [0; 4]).as_bytes(), 0);
        for (c, class) in [
            ('a', LETTER),
            ('é', LETTER),
            ('7', NUMBER),
            ('²', NUMBER),
            (' ', SPACE),
            ('\n', SPACE),
            ('\u{85}', SPACE),
            ('\u{3000}', SPACE),
            ('\u{301}', MARK),
            ('.', PUNCTUATION),
            ('$', SYMBOL),
            ('中', LETTER | HAN | KANA_OR_HAN),
            ('の', LETTER | KANA_OR_HAN),
            ('한', LETTER),
            ('🙂', SYMBOL),
            ('\0', 0),
            ('\u{10ffff}', 0),
        ] {
            assert_eq!(of(c), Character { class, n_bytes: c.len_utf8() }, "{c:?}");
        }
        assert_eq!(classes.at(b"a", 1), Character { class: 0, n_bytes: 0 });
    }
}
