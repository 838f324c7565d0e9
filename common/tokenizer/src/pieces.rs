//! Look-up of pieces among the tokens.

use hashbrown::HashMap;
use warmpath_common::ids::Token;

/// Tokens by their bytes; short ones, as nearly all are, are found without a second access to memory.
#[derive(Debug)]
pub(crate) struct Pieces {
    short: HashMap<[u8; 16], Token>,
    long: HashMap<Box<[u8]>, Token>,
}

/// Longest piece that is its own key, together with its length. Units: bytes.
const SHORT_BYTES_MAX: usize = 15;

/// Returns a piece's bytes and length; `None` if it is too long.
#[inline]
fn key(piece: &[u8]) -> Option<[u8; 16]> {
    let mut key = [0; 16];
    key[..SHORT_BYTES_MAX].get_mut(..piece.len())?.copy_from_slice(piece);
    key[SHORT_BYTES_MAX] = u8::try_from(piece.len()).ok()?;
    Some(key)
}

impl Pieces {
    pub fn new(tokens: &HashMap<&[u8], Token>) -> Self {
        let (mut short, mut long) = (HashMap::with_capacity(tokens.len()), HashMap::new());
        for (&piece, &token) in tokens {
            match key(piece) {
                Some(key) => short.insert(key, token),
                None => long.insert(piece.into(), token),
            };
        }
        Self { short, long }
    }

    /// Returns the token with these bytes, if there is one.
    #[inline]
    pub fn find(&self, piece: &[u8]) -> Option<Token> {
        match key(piece) {
            Some(key) => self.short.get(&key).copied(),
            None => self.long.get(piece).copied(),
        }
    }
}
