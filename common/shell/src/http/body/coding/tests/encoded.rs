//! Bodies in a content coding, as clients send them.
//!
//! Decoding is in `coding`.
//!
//! The tests of router and worker use this file, too.

use async_compression::tokio::bufread::{BrotliEncoder, GzipEncoder, ZlibEncoder, ZstdEncoder};
use tokio::io::AsyncReadExt;

/// Returns `text` in a content coding: gzip, deflate, br or zstd.
pub async fn encoded(coding: &str, text: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    let read = match coding {
        "gzip" => GzipEncoder::new(text).read_to_end(&mut encoded).await,
        "deflate" => ZlibEncoder::new(text).read_to_end(&mut encoded).await,
        "br" => BrotliEncoder::new(text).read_to_end(&mut encoded).await,
        "zstd" => ZstdEncoder::new(text).read_to_end(&mut encoded).await,
        _ => panic!("{coding} is not one of the codings"),
    };
    read.expect("memory can be read");
    encoded
}
