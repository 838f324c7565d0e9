//! Bodies in every coding: complete, broken, too long, and with unknown codings.

mod encoded;

use std::time::Duration;

use async_compression::tokio::bufread::ZstdEncoder;
use async_compression::{Level, zstd::CParameter};
use axum::body::Body;
use axum::http::HeaderValue;

use super::super::{BodyLimits, BodyRoom, Sender};
use super::*;
use encoded::encoded;

/// Memory for more than three bodies at the limit.
const ROOM: usize = 600_000;

/// Limit of bodies, longer than a piece.
const BYTES_MAX: usize = 150_000;

const ALL: [&str; 4] = ["gzip", "deflate", "br", "zstd"];

async fn read(headers: &mut HeaderMap, body: Body, room: usize) -> Result<Bytes, BodyError> {
    let limits = BodyLimits { bytes_max: BYTES_MAX, timeout: Duration::from_secs(60), room: BodyRoom::new(room) };
    let read = limits.read(headers, body, Sender::Unknown).await;
    let n_bytes = read.as_ref().map_or(0, Bytes::len);
    assert_eq!(limits.room.n_bytes(), n_bytes, "a body takes the memory of its bytes");
    read
}

/// Reads a body that arrives in small pieces.
async fn read_as(codings: &[&str], body: &[u8]) -> Result<Bytes, BodyError> {
    let value = |name: &&str| (header::CONTENT_ENCODING, HeaderValue::from_str(name).expect("a value"));
    let mut headers: HeaderMap = codings.iter().map(value).collect();
    let pieces: Vec<_> = body.chunks(1000).map(Bytes::copy_from_slice).map(Ok::<_, io::Error>).collect();
    let read = read(&mut headers, Body::from_stream(futures::stream::iter(pieces)), ROOM).await;
    assert!(read.is_err() || !headers.contains_key(header::CONTENT_ENCODING), "a decoded body has no coding");
    read
}

fn text() -> Vec<u8> {
    (0..20_000u32).flat_map(|n| (n * n).to_le_bytes()).collect()
}

#[tokio::test]
async fn a_body_is_what_was_encoded() {
    for coding in ALL {
        for text in [text(), b"{}".to_vec(), Vec::new()] {
            let encoded = encoded(coding, &text).await;
            for name in [coding.to_owned(), coding.to_uppercase(), format!("identity, {coding} ,")] {
                assert_eq!(read_as(&[&name], &encoded).await.expect(coding), text, "{name}");
            }
        }
    }
    assert_eq!(read_as(&["x-gzip"], &encoded("gzip", b"a").await).await.expect("gzip"), "a");
    for plain in [&[][..], &["identity"], &[""]] {
        assert_eq!(read_as(plain, b"as it is").await.expect("plain"), "as it is");
    }
    let members = [encoded("gzip", b"one, ").await, encoded("gzip", b"two").await].concat();
    assert_eq!(read_as(&["gzip"], &members).await.expect("both"), "one, two");
}

#[tokio::test]
async fn a_body_that_is_cut_off_or_changed_is_refused() {
    for coding in ALL {
        let encoded = encoded(coding, &text()).await;
        let undecodable = Err(BodyError::Undecodable { coding });
        assert_eq!(read_as(&[coding], &encoded[..encoded.len() / 2]).await, undecodable, "{coding}");
        assert_eq!(read_as(&[coding], &encoded[..encoded.len() - 1]).await, undecodable, "{coding}");
        assert_eq!(read_as(&[coding], b"{\"messages\": []}").await, undecodable, "{coding}");
    }
}

#[tokio::test]
async fn a_body_is_refused_at_the_limit_both_compressed_and_decoded() {
    let too_long = Err(BodyError::TooLong { bytes_max: BYTES_MAX });
    for coding in ALL {
        let whole = vec![b' '; BYTES_MAX];
        assert_eq!(read_as(&[coding], &encoded(coding, &whole).await).await.expect("it fits"), whole, "{coding}");
        let bomb = encoded(coding, &vec![b' '; 50_000_000]).await;
        assert!(bomb.len() < BYTES_MAX, "{coding}: {}", bomb.len());
        assert_eq!(read_as(&[coding], &bomb).await, too_long, "{coding}");
    }
    assert_eq!(read_as(&[], &vec![b' '; BYTES_MAX + 1]).await, too_long);
    // A body that decodes to nothing is limited by its encoded length.
    let nothing = encoded("gzip", b"").await.repeat(BYTES_MAX / 10);
    assert_eq!(read_as(&["gzip"], &nothing).await, too_long);
}

#[tokio::test]
async fn a_zstd_body_with_a_large_window_is_refused() {
    let text = b"a".repeat(5000);
    for (window_log, is_taken) in [(ZSTD_WINDOW_LOG_MAX, true), (27, false)] {
        let parameters = [CParameter::window_log(window_log), CParameter::content_size_flag(false)];
        let mut encoded = Vec::new();
        let mut encoder = ZstdEncoder::with_quality_and_params(&text[..], Level::Default, &parameters);
        encoder.read_to_end(&mut encoded).await.expect("memory can be read");
        assert_eq!(read_as(&["zstd"], &encoded).await.is_ok(), is_taken, "{window_log}");
    }
}

#[tokio::test]
async fn other_codings_and_several_are_refused() {
    for codings in [&["compress"][..], &["gzip, gzip"], &["gzip", "br"], &["*"], &["gzip;q=1"], &["aws-chunked"]] {
        assert_eq!(read_as(codings, b"anything").await, Err(BodyError::UnknownCoding), "{codings:?}");
    }
    assert!(BodyError::UnknownCoding.to_string().contains(CODINGS));
}

#[tokio::test]
async fn a_body_that_breaks_off_is_distinguished_from_an_invalid_one() {
    for coding in [None, Some("gzip"), Some("zstd")] {
        let encoded = encoded(coding.unwrap_or("gzip"), &text()).await;
        let pieces = [Ok(Bytes::from(encoded).slice(..100)), Err(io::Error::other("scripted"))];
        let mut headers = HeaderMap::new();
        if let Some(coding) = coding {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
        }
        let read = read(&mut headers, Body::from_stream(futures::stream::iter(pieces)), ROOM).await;
        assert_eq!(read, Err(BodyError::Unread), "{coding:?}");
    }
}

#[tokio::test]
async fn decoded_bytes_reserve_memory_like_received_ones() {
    let whole = vec![b' '; BYTES_MAX];
    let encoded = encoded("gzip", &whole).await;
    for (room, expected) in [(ROOM, Ok(Bytes::from(whole))), (BYTES_MAX, Err(BodyError::NoRoom))] {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(read(&mut headers, Body::from(encoded.clone()), room).await, expected);
    }
}

#[tokio::test]
async fn an_encoded_part_takes_no_memory_once_it_is_decoded() {
    // Incompressible data: as long encoded as decoded.
    let whole: Vec<u8> = (0..2_000_000u64).map(|n| (warmpath_common::mix::mix(n) >> 8) as u8).collect();
    for coding in ALL {
        let encoded = encoded(coding, &whole).await;
        assert!(encoded.len() > whole.len() * 9 / 10, "{coding}: {}", encoded.len());
        // One sender may use a third.
        for (room, is_enough) in [(whole.len() * 4, true), (whole.len() * 2, false)] {
            let limits =
                BodyLimits { bytes_max: 3_000_000, timeout: Duration::from_secs(60), room: BodyRoom::new(room) };
            let pieces: Vec<_> = encoded.chunks(16_000).map(Bytes::copy_from_slice).map(Ok::<_, io::Error>).collect();
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_str(coding).expect("a value"));
            let body = Body::from_stream(futures::stream::iter(pieces));
            let read = limits.read(&mut headers, body, Sender::Unknown).await;
            assert_eq!(read.is_ok(), is_enough, "{coding} in {room}: {:?}", read.as_ref().err());
            assert_eq!(limits.room.n_bytes(), read.as_ref().map_or(0, Bytes::len), "{coding}");
            assert!(read.is_err() || read.is_ok_and(|read| read == whole), "{coding}");
            assert_eq!(limits.room.n_bytes(), 0);
        }
    }
}
