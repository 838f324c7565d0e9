//! From the lists of a GGUF file, in which bytes are spelled as characters, to tokens and symbols by their bytes.

use hashbrown::HashMap;
use warmpath_common::ids::Token;

use crate::alphabet::{spelled, unspell};
use crate::error::UnsupportedVocabulary;
use crate::merge::{Merge, Symbol};

/// The bytes of all tokens that spell any, one behind the other.
pub(crate) struct Spellings {
    bytes: Vec<u8>,
    /// Each token with the end of its bytes; they begin where those before it end.
    ends: Vec<(Token, usize)>,
}

impl Spellings {
    pub fn of_tokens(tokens: &[Vec<u8>]) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(tokens.len()));
        for (token, text) in (0..).zip(tokens) {
            let start = bytes.len();
            match unspell(text, &mut bytes) {
                Some(()) => ends.push((token, bytes.len())),
                None => bytes.truncate(start),
            }
        }
        Self { bytes, ends }
    }

    /// Returns the tokens by their bytes. Errors: `Alike`.
    pub fn by_bytes(&self) -> Result<HashMap<&[u8], Token>, UnsupportedVocabulary> {
        let (mut tokens, mut start) = (HashMap::with_capacity(self.ends.len()), 0);
        for &(token, end) in &self.ends {
            if tokens.insert(&self.bytes[start..end], token).is_some() {
                return Err(UnsupportedVocabulary::Alike { token });
            }
            start = end;
        }
        Ok(tokens)
    }
}

/// The bytes of all merges, those of a merge's left and right text one behind the other.
pub(crate) struct Pairs {
    bytes: Vec<u8>,
    /// The ends of each merge's left and right text, in the order of their ranks.
    ends: Vec<[usize; 2]>,
}

/// Symbols and merges of a vocabulary.
pub(crate) struct Symbols<'p> {
    /// The bytes of each symbol.
    pub texts: Vec<&'p [u8]>,
    pub merges: Vec<Merge>,
}

/// Every byte, for the symbols of single ones.
const BYTES: &[u8; 256] = {
    let (mut bytes, mut byte) = ([0; 256], 0);
    while byte < 256 {
        bytes[byte] = byte as u8;
        byte += 1;
    }
    &{ bytes }
};

impl Pairs {
    /// Reads merges, each of which has a space between its texts, which may begin with one.
    ///
    /// Source: llama.cpp's `llama_vocab::impl::load`. A text that spells no bytes can never be found in another one.
    pub fn read(merges: &[Vec<u8>]) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(merges.len()));
        for merge in merges {
            let start = bytes.len();
            let Some(space) = merge.iter().skip(1).position(|byte| *byte == b' ') else { continue };
            let (left, right) = (&merge[..=space], &merge[space + 2..]);
            let ends_of_texts = unspell(left, &mut bytes).and_then(|()| {
                let end_of_left = bytes.len();
                unspell(right, &mut bytes).map(|()| [end_of_left, bytes.len()])
            });
            match ends_of_texts {
                Some([left, right]) if start < left && left < right => ends.push([left, right]),
                _ => bytes.truncate(start),
            }
        }
        Self { bytes, ends }
    }

    /// Numbers the texts that bytes can be merged to.
    pub fn symbols(&self) -> Symbols<'_> {
        let mut texts: Vec<&[u8]> = BYTES.chunks(1).collect();
        texts.reserve(self.ends.len());
        let mut symbols = HashMap::with_capacity(256 + self.ends.len());
        symbols.extend(texts.iter().copied().zip(0..));
        let mut number = |text| {
            *symbols.entry(text).or_insert_with(|| {
                texts.push(text);
                Symbol::try_from(texts.len() - 1).expect("a file has fewer merges")
            })
        };
        let (mut merges, mut start) = (Vec::with_capacity(self.ends.len()), 0);
        for &[end_of_left, end] in &self.ends {
            let (left, right) = (number(&self.bytes[start..end_of_left]), number(&self.bytes[end_of_left..end]));
            merges.push(Merge { left, right, merged: number(&self.bytes[start..end]) });
            start = end;
        }
        Symbols { texts, merges }
    }
}

/// Returns for each byte the token whose whole text it is, spelled as it is.
pub(crate) fn of_spelled_bytes(tokens: &[Vec<u8>]) -> [Option<Token>; 256] {
    let mut of_byte = [None; 256];
    for (token, text) in (0..).zip(tokens) {
        if let [byte] = text[..] {
            of_byte[usize::from(byte)] = Some(token);
        }
    }
    of_byte
}

/// Returns the tokens of a symbol that is no token: those of the bytes of its spelling; bytes without a token are lost.
///
/// Source: llama.cpp's `llm_tokenizer_bpe_session::tokenize`.
pub(crate) fn byte_tokens(text: &[u8], of_byte: &[Option<Token>; 256]) -> Box<[Token]> {
    let spelling: String = text.iter().map(|byte| spelled(*byte)).collect();
    spelling.bytes().filter_map(|byte| of_byte[usize::from(byte)]).collect()
}
