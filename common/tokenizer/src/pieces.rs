//! Look-up of pieces among the tokens.

use hashbrown::HashMap;
use warmpath_common::ids::Token;

/// Tokens by their bytes; short ones, as nearly all are, are found without a second access to memory.
#[derive(Debug)]
pub(crate) struct Pieces {
    short: HashMap<u128, Token>,
    long: HashMap<Box<[u8]>, Token>,
}

/// Longest piece that is its own key, together with its length. Units: bytes.
const SHORT_BYTES_MAX: usize = 15;

/// Returns a piece's bytes, the first lowest, with its length above them; `None` if it is too long.
///
/// It is read in overlapping words, since copying a few bytes takes longer than all else here.
#[inline]
fn key(piece: &[u8]) -> Option<u128> {
    let n = piece.len();
    let bytes = match piece {
        [] => 0,
        [first, ..] if n < 4 => {
            let (middle, last) = (piece[n / 2], piece[n - 1]);
            u128::from(*first) | u128::from(middle) << (n / 2 * 8) | u128::from(last) << ((n - 1) * 8)
        }
        _ if n < 8 => {
            let (first, last) = (piece.first_chunk()?, piece.last_chunk()?);
            u128::from(u32::from_le_bytes(*first)) | u128::from(u32::from_le_bytes(*last)) << ((n - 4) * 8)
        }
        _ if n <= SHORT_BYTES_MAX => {
            let (first, last) = (piece.first_chunk()?, piece.last_chunk()?);
            u128::from(u64::from_le_bytes(*first)) | u128::from(u64::from_le_bytes(*last)) << ((n - 8) * 8)
        }
        _ => return None,
    };
    Some(bytes | (n as u128) << (SHORT_BYTES_MAX * 8))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_piece_is_its_key() {
        let bytes: Vec<u8> = (1..=20).collect();
        for n in 0..=SHORT_BYTES_MAX {
            let mut expected = [0; 16];
            expected[..n].copy_from_slice(&bytes[..n]);
            expected[SHORT_BYTES_MAX] = u8::try_from(n).unwrap();
            assert_eq!(key(&bytes[..n]), Some(u128::from_le_bytes(expected)), "{n} bytes");
        }
        assert_eq!(key(&bytes[..=SHORT_BYTES_MAX]), None);
        assert_ne!(key(b"\0"), key(b"\0\0"));
    }

    #[test]
    fn pieces_of_every_length_are_found() {
        let texts: Vec<Vec<u8>> = (1..40).map(|n| vec![b'a'; n]).collect();
        let tokens: HashMap<&[u8], Token> = texts.iter().map(Vec::as_slice).zip(7..).collect();
        let pieces = Pieces::new(&tokens);
        assert!(texts.iter().zip(7..).all(|(text, token)| pieces.find(text) == Some(token)));
        assert_eq!([pieces.find(b""), pieces.find(b"b"), pieces.find(&[b'a'; 40])], [None; 3]);
    }
}
