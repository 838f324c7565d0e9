//! Content codings of request bodies.
//!
//! Bodies are received in `body`.
//!
//! Decoded bytes reserve memory like received ones, and decoding stops at the limit. So a body that would expand
//! without end costs no more than a body at the limit.

use std::io;

use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder};
use async_compression::zstd::DParameter;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures::stream;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt};
use tokio_util::io::StreamReader;

use super::{BodyError, Claim};

/// Supported content codings, in the form of the header `accept-encoding`.
pub const CODINGS: &str = "gzip, deflate, br, zstd";

/// Base-2 logarithm of the largest window that a zstd body may use: 8 MiB. Units: log2 of bytes.
///
/// Source: RFC 9659, section 3: no sender may use a larger window, and a decoder allocates as much as the body
/// requests.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Decoded bytes after which the task yields to others. Units: bytes.
///
/// Source: own choice: less than a millisecond of decoding.
const PIECE_BYTES: u64 = 128 << 10;

/// Content coding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl Coding {
    /// Returns the coding in the headers; absent if the body is not encoded.
    ///
    /// Errors: `UnknownCoding`.
    pub(super) fn named(headers: &HeaderMap) -> Result<Option<Self>, BodyError> {
        let names = headers.get_all(header::CONTENT_ENCODING).iter();
        let names = names.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
        let names = names.map(|name| name.trim_ascii().to_ascii_lowercase());
        let mut names = names.filter(|name| !name.is_empty() && name != b"identity");
        let Some(first) = names.next() else { return Ok(None) };
        // Nested codings would have to be decoded without a limit in between.
        match (Self::of(&first), names.next()) {
            (Some(coding), None) => Ok(Some(coding)),
            _ => Err(BodyError::UnknownCoding),
        }
    }

    /// Returns the decoded bytes of a body in pieces; each piece is dropped after it has been read.
    ///
    /// Units: `bytes_max` is bytes. Errors: `TooLong`, `NoRoom`, `Undecodable`.
    pub(super) async fn decode(
        self,
        encoded_pieces: Vec<Bytes>,
        bytes_max: usize,
        claim: &mut Claim,
    ) -> Result<Bytes, BodyError> {
        let pieces = stream::iter(encoded_pieces.into_iter().map(Ok::<_, io::Error>));
        let mut decoder = self.decoder(StreamReader::new(pieces));
        let mut content = Vec::new();
        loop {
            let n_read = (&mut decoder).take(PIECE_BYTES).read_to_end(&mut content).await;
            let n_new = n_read.map_err(|_| BodyError::Undecodable { coding: self.label() })?;
            if content.len() > bytes_max {
                return Err(BodyError::TooLong { bytes_max });
            }
            claim.grow(n_new)?;
            if (n_new as u64) < PIECE_BYTES {
                return Ok(content.into());
            }
            // Lets other tasks run.
            tokio::task::yield_now().await;
        }
    }

    /// Returns the coding with this name in lower case.
    fn of(name: &[u8]) -> Option<Self> {
        match name {
            // Source of the second name: RFC 9110, section 8.4.1.3.
            b"gzip" | b"x-gzip" => Some(Self::Gzip),
            b"deflate" => Some(Self::Deflate),
            b"br" => Some(Self::Brotli),
            b"zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    fn decoder(self, encoded_bytes: impl AsyncBufRead + Send + Unpin + 'static) -> Box<dyn AsyncRead + Send + Unpin> {
        match self {
            Self::Gzip => {
                let mut decoder = GzipDecoder::new(encoded_bytes);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
            Self::Deflate => Box::new(ZlibDecoder::new(encoded_bytes)),
            Self::Brotli => Box::new(BrotliDecoder::new(encoded_bytes)),
            Self::Zstd => {
                let window = DParameter::window_log_max(ZSTD_WINDOW_LOG_MAX);
                let mut decoder = ZstdDecoder::with_params(encoded_bytes, &[window]);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
        }
    }
}

#[cfg(test)]
mod tests;
