//! Tokens of a text by byte-level byte-pair encoding, equal to llama.cpp's, at the speed of memory.
//!
//! A text is cut into pieces (`split`). Nearly all pieces of code and prose are tokens by themselves and are looked up;
//! the bytes of the others are merged (`merge`). Nothing here reads files or calls llama.cpp, and no vocabulary or text
//! can make it fail. Vocabularies of other kinds, and with pre-tokenizers that are not in `tables`, are llama.cpp's.

#![forbid(unsafe_code)]

pub mod alphabet;
mod classes;
mod error;
mod file;
mod merge;
mod pieces;
mod split;
mod splitter;
mod tables;

use std::sync::atomic::{AtomicU8, Ordering};

use hashbrown::HashMap;
use warmpath_common::ids::Token;

use crate::classes::Classes;
use crate::file::{Pairs, Spellings, byte_tokens, of_spelled_bytes};
use crate::merge::{Merges, Scratch, Symbol};
use crate::pieces::Pieces;
use crate::splitter::Splitter;
use crate::tables::PRE_TOKENIZERS;

pub use error::UnsupportedVocabulary;

/// A vocabulary as its GGUF file has it.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// `tokenizer.ggml.pre`; empty if it is missing.
    pub pre: &'a str,
    /// `tokenizer.ggml.tokens`, with llama.cpp's placeholders for empty ones.
    pub tokens: &'a [Vec<u8>],
    /// `tokenizer.ggml.merges`, the first of which is applied first.
    pub merges: Option<&'a [Vec<u8>]>,
}

/// Tokenizer of one vocabulary.
#[derive(Debug)]
pub struct BytePairTokenizer {
    splitter: Splitter,
    classes: Classes,
    /// Whether a piece that is a token is never merged from parts.
    ignore_merges: bool,
    /// Tokens by their bytes.
    pieces: Pieces,
    /// For each token, whether merging its bytes gives the token: a [`Merged`], found out when it is first looked up.
    merged: Box<[AtomicU8]>,
    merges: Merges,
    /// Token of each symbol, or [`SPELLED`].
    token_of: Vec<Token>,
    /// Tokens of the symbols that are no token by themselves.
    spelled: HashMap<Symbol, Box<[Token]>>,
}

/// In place of the token of a symbol that is none.
const SPELLED: Token = Token::MAX;

/// What merging the bytes of a token gives.
mod merged {
    /// Nobody has looked yet.
    pub const UNKNOWN: u8 = 0;
    /// The token.
    pub const ITSELF: u8 = 1;
    /// Other tokens.
    pub const OTHERS: u8 = 2;
}

/// Pre-tokenizer of files that name none. Source: llama.cpp's `llama_vocab::impl::load`.
const DEFAULT_PRE: &str = "default";

/// Pre-tokenizer whose vocabularies may have no merges. Source: as above.
const PRE_WITHOUT_MERGES: &str = "kimi-k2";

impl BytePairTokenizer {
    /// Makes the tokenizer of a vocabulary whose `tokenizer.ggml.model` is `gpt2`.
    ///
    /// Cost: proportional to tokens and merges: 100 ms for 150,000. Errors: every [`UnsupportedVocabulary`].
    pub fn new(source: Source<'_>) -> Result<Self, UnsupportedVocabulary> {
        let pre = if source.pre.is_empty() { DEFAULT_PRE } else { source.pre };
        // The splitter, and the lists of the file.
        let entry = PRE_TOKENIZERS.iter().find(|(name, ..)| *name == pre);
        let &(_, splitter, ignore_merges) =
            entry.ok_or_else(|| UnsupportedVocabulary::PreTokenizer { pre: pre.to_owned() })?;
        let merges = match source.merges {
            Some(merges) => merges,
            None if pre == PRE_WITHOUT_MERGES => &[],
            None => return Err(UnsupportedVocabulary::NoMerges),
        };
        // Tokens and merges by the bytes that they spell.
        let spellings = Spellings::of_tokens(source.tokens);
        let tokens = spellings.by_bytes()?;
        let pairs = Pairs::read(merges);
        let symbols = pairs.symbols();
        let of_byte = of_spelled_bytes(source.tokens);
        // A symbol that is no token becomes the tokens of its bytes, as in llama.cpp.
        let (mut token_of, mut spelled) = (Vec::with_capacity(symbols.texts.len()), HashMap::new());
        for (symbol, text) in (0..).zip(&symbols.texts) {
            let token = tokens.get(text).copied();
            token_of.push(token.unwrap_or(SPELLED));
            if token.is_none() {
                spelled.insert(symbol, byte_tokens(text, &of_byte));
            }
        }
        Ok(Self {
            splitter,
            classes: Classes::new(),
            ignore_merges,
            pieces: Pieces::new(&tokens),
            merged: source.tokens.iter().map(|_| AtomicU8::new(merged::UNKNOWN)).collect(),
            merges: Merges::new(&symbols.merges),
            token_of,
            spelled,
        })
    }

    /// Appends the tokens of a text; special tokens in it are text.
    ///
    /// Cost: 10 to 40 ns for each byte.
    pub fn tokenize(&self, text: &str, tokens: &mut Vec<Token>) {
        let mut scratch = Scratch::default();
        self.splitter.split(text, &self.classes, &mut |piece: &[u8]| match self.whole(piece, &mut scratch) {
            Some(token) => tokens.push(token),
            None => self.merge(piece, &mut scratch, tokens),
        });
    }

    /// Returns the token that is the only one of a piece, if there is one that is known without merging.
    #[inline]
    fn whole(&self, piece: &[u8], scratch: &mut Scratch) -> Option<Token> {
        let token = self.pieces.find(piece)?;
        if self.ignore_merges {
            return Some(token);
        }
        let state = &self.merged[token as usize];
        let of_token = match state.load(Ordering::Relaxed) {
            merged::UNKNOWN => {
                let symbols = self.merges.symbols(piece, scratch);
                let is_itself = matches!(symbols, [symbol] if self.token_of[*symbol as usize] == token);
                let of_token = if is_itself { merged::ITSELF } else { merged::OTHERS };
                state.store(of_token, Ordering::Relaxed);
                of_token
            }
            of_token => of_token,
        };
        (of_token == merged::ITSELF).then_some(token)
    }

    fn merge(&self, piece: &[u8], scratch: &mut Scratch, tokens: &mut Vec<Token>) {
        for symbol in self.merges.symbols(piece, scratch) {
            match self.token_of[*symbol as usize] {
                SPELLED => tokens.extend_from_slice(&self.spelled[symbol]),
                token => tokens.push(token),
            }
        }
    }
}

#[cfg(test)]
mod tests;
