//! Check of a vocabulary before llama.cpp tokenizes with it: only metadata is read.
//!
//! llama.cpp fails assertions while it loads some vocabularies, and with others it throws an exception or never returns
//! when it tokenizes certain texts. Either would end a router's process or block it. So each kind of tokenizer has its
//! rules here, taken from `llama-vocab.cpp`: with a vocabulary that follows them, every text can be tokenized.

mod charsmap;

use std::collections::{HashMap, HashSet};

use crate::check::Header;

/// Most tokens of a vocabulary. Source: four times the largest of llama.cpp's (Gemma's 262,144).
pub const TOKENS_MAX: usize = 1 << 20;

/// Longest token. Units: bytes.
///
/// Source: own choice, far above the runs of spaces that are the longest tokens of real vocabularies; with a longer one
/// the time of llama.cpp's search for the longest match grows with the product of token and word.
pub const TOKEN_BYTES_MAX: usize = 4096;

/// GGUF's type of a token that stands for one byte.
const BYTE: i32 = 6;

/// Reason why llama.cpp must not load a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The file names no tokenizer, or one of an unknown kind.
    #[error("tokenizer.ggml.model is {}, which is none of {}", kind.as_deref().unwrap_or("missing"), KINDS.join(", "))]
    Kind {
        /// Kind that the file names, if any.
        kind: Option<String>,
    },
    /// The file has no tokens, or too many.
    #[error("it has {n_tokens} tokens, not 1 to {TOKENS_MAX}")]
    Count {
        /// Number of tokens.
        n_tokens: usize,
    },
    /// Two tokens have the same text.
    #[error("tokens {first} and {second} are both {text:?}")]
    Alike {
        /// First of the two tokens.
        first: usize,
        /// Second token.
        second: usize,
        /// Text of both.
        text: String,
    },
    /// A token is too long.
    #[error("token {token} has {n_bytes} bytes, more than {TOKEN_BYTES_MAX}")]
    Long {
        /// Index of the token.
        token: usize,
        /// Its length.
        n_bytes: usize,
    },
    /// A list does not have one entry for each token.
    #[error("{key} has {n_entries} entries for {n_tokens} tokens")]
    Length {
        /// Key of the list.
        key: &'static str,
        /// Length of the list.
        n_entries: usize,
        /// Number of tokens.
        n_tokens: usize,
    },
    /// No token can stand for a byte.
    #[error("no token stands for byte 0x{byte:02X}, which {kind} tokenizers need")]
    Byte {
        /// Byte.
        byte: u8,
        /// Kind of tokenizer.
        kind: &'static str,
    },
    /// Another requirement of the kind of tokenizer is not met.
    #[error("{reason}")]
    Shape {
        /// Description of the contradiction.
        reason: String,
    },
}

/// Known kinds of tokenizers, as `tokenizer.ggml.model` names them.
///
/// Source: llama.cpp's `llama_vocab::impl::load`, without `test` and the kinds that have no vocabulary.
const KINDS: [&str; 9] = ["llama", "bert", "gpt2", "t5", "rwkv", "plamo2", "gemma4", "hybriddna", "whitespace"];

impl Header {
    /// Returns the text of each token, as llama.cpp has them: with its placeholder for an empty one. Absent if there is
    /// no list of texts.
    fn token_texts(&self) -> Option<Vec<Vec<u8>>> {
        let mut texts = self.texts("tokenizer.ggml.tokens")?;
        for (token, text) in texts.iter_mut().enumerate().filter(|(_, text)| text.is_empty()) {
            *text = format!("[EMPTY_{token}]").into_bytes();
        }
        Some(texts)
    }

    /// Returns the text of each token of a vocabulary on which llama.cpp neither aborts while it loads it nor fails
    /// later, whatever the text. An empty token has llama.cpp's placeholder.
    ///
    /// Errors: every [`TokenizerError`]. Cost: proportional to the vocabulary.
    pub fn checked_tokens(&self) -> Result<Vec<Vec<u8>>, TokenizerError> {
        let kind = self.text("tokenizer.ggml.model");
        let Some(kind) = KINDS.into_iter().find(|name| kind.as_deref() == Some(name)) else {
            return Err(TokenizerError::Kind { kind });
        };
        let tokens = Tokens::read(self)?;
        match kind {
            // A byte that no token contains is looked up, and llama.cpp throws if it is not found.
            "llama" => {
                tokens.need_bytes(kind, |tokens, byte| tokens.has(&spelled(byte)) || byte != 0 && tokens.has(&[byte]))
            }
            "plamo2" => {
                tokens.need_bytes(kind, |tokens, byte| tokens.has(&spelled(byte)))?;
                tokens.need_utf8()
            }
            // A match that never ends starts again at the beginning of the text, in an endless loop.
            "rwkv" => tokens.need_first_bytes(),
            "bert" => tokens.refuse_bytes(),
            "t5" => charsmap::check(self).map_err(|reason| TokenizerError::Shape { reason }),
            _ => Ok(()),
        }?;
        Ok(tokens.texts)
    }
}

/// Returns the text of the token for a byte that no other token stands for.
fn spelled(byte: u8) -> Vec<u8> {
    format!("<0x{byte:02X}>").into_bytes()
}

/// Tokens in the form in which llama.cpp looks them up.
struct Tokens {
    texts: Vec<Vec<u8>>,
    /// Index of the token with each text.
    places: HashMap<Vec<u8>, usize>,
    kinds: Option<Vec<i32>>,
}

impl Tokens {
    /// Reads the tokens of a vocabulary. Errors: `Shape`, `Count`, `Length`, `Long`, `Alike`.
    fn read(header: &Header) -> Result<Self, TokenizerError> {
        let shape = |reason: &str| TokenizerError::Shape { reason: reason.to_owned() };
        let texts = header
            .token_texts()
            .ok_or_else(|| shape("it has no vocabulary: tokenizer.ggml.tokens is not a list of texts"))?;
        let n_tokens = texts.len();
        if !(1..=TOKENS_MAX).contains(&n_tokens) {
            return Err(TokenizerError::Count { n_tokens });
        }
        // llama.cpp reads these lists without a look at their length.
        let kinds = header.numbers("tokenizer.ggml.token_type");
        let lists = [
            ("tokenizer.ggml.token_type", kinds.as_ref().map(Vec::len)),
            ("tokenizer.ggml.scores", header.list_len("tokenizer.ggml.scores")),
        ];
        for (key, n_entries) in lists {
            if let Some(n_entries) = n_entries.filter(|n_entries| *n_entries < n_tokens) {
                return Err(TokenizerError::Length { key, n_entries, n_tokens });
            }
        }
        // llama.cpp looks tokens up by their text, so each must be the only one with its text.
        let mut places = HashMap::with_capacity(n_tokens);
        for (token, text) in texts.iter().enumerate() {
            if text.len() > TOKEN_BYTES_MAX {
                return Err(TokenizerError::Long { token, n_bytes: text.len() });
            }
            if let Some(first) = places.insert(text.clone(), token) {
                let text = String::from_utf8_lossy(text).into_owned();
                return Err(TokenizerError::Alike { first, second: token, text });
            }
        }
        Ok(Self { texts, places, kinds })
    }

    fn has(&self, text: &[u8]) -> bool {
        self.places.contains_key(text)
    }

    /// Requires that every byte is present. Errors: `Byte` for the first missing one.
    fn need_bytes(&self, kind: &'static str, is_there: impl Fn(&Self, u8) -> bool) -> Result<(), TokenizerError> {
        let missing = (0..=u8::MAX).find(|&byte| !is_there(self, byte));
        missing.map_or(Ok(()), |byte| Err(TokenizerError::Byte { byte, kind }))
    }

    /// Requires UTF-8. Errors: `Shape` for a token that is not UTF-8: llama.cpp would look up its pieces under another
    /// text.
    fn need_utf8(&self) -> Result<(), TokenizerError> {
        match self.texts.iter().position(|text| std::str::from_utf8(text).is_err()) {
            None => Ok(()),
            Some(token) => Err(TokenizerError::Shape { reason: format!("token {token} is not UTF-8") }),
        }
    }

    /// Requires that the first byte of every token is also a token by itself. Errors: `Byte`.
    fn need_first_bytes(&self) -> Result<(), TokenizerError> {
        let texts: Vec<Vec<u8>> = self.texts.iter().map(|text| unescaped(text)).collect();
        let single: HashSet<u8> = texts.iter().filter(|text| text.len() == 1).map(|text| text[0]).collect();
        let missing = texts.iter().filter_map(|text| text.first()).find(|&byte| !single.contains(byte));
        missing.map_or(Ok(()), |&byte| Err(TokenizerError::Byte { byte, kind: "rwkv" }))
    }

    /// Rejects tokens that stand for a byte: llama.cpp aborts on them with this kind of tokenizer. Errors: `Shape`.
    fn refuse_bytes(&self) -> Result<(), TokenizerError> {
        match self.kinds.iter().flatten().position(|kind| *kind == BYTE) {
            None => Ok(()),
            Some(token) => Err(TokenizerError::Shape { reason: format!("token {token} has the type of a byte") }),
        }
    }
}

/// Returns the bytes that an escaped token of RWKV stands for.
///
/// Source: llama.cpp's `llama_unescape_rwkv_token`.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut bytes_left = text.iter().copied();
    while let Some(byte) = bytes_left.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let Some(code) = bytes_left.next() else { break };
        match code {
            b't' => bytes.push(b'\t'),
            b'n' => bytes.push(b'\n'),
            b'r' => bytes.push(b'\r'),
            b'x' => {
                let (Some(high), Some(low)) = (bytes_left.next(), bytes_left.next()) else { break };
                let value = |digit: u8| digit.wrapping_sub(if digit >= b'a' { b'a' - 10 } else { b'0' });
                bytes.push((value(high) << 4).wrapping_add(value(low)));
            }
            other => bytes.push(other),
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
