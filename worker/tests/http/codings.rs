//! Bodies in a content coding, by a client that asks the worker itself.
//!
//! Not here: the codings themselves (`warmpath_shell::body::coding`), the router's side (`router/tests`).

use async_compression::tokio::bufread::{BrotliEncoder, GzipEncoder, ZlibEncoder, ZstdEncoder};
use reqwest::header::HeaderValue;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::harness::{TestWorker, user};

const CHAT: &str = "/v1/chat/completions";

async fn encoded(coding: &str, text: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    let read = match coding {
        "gzip" => GzipEncoder::new(text).read_to_end(&mut encoded).await,
        "deflate" => ZlibEncoder::new(text).read_to_end(&mut encoded).await,
        "br" => BrotliEncoder::new(text).read_to_end(&mut encoded).await,
        _ => ZstdEncoder::new(text).read_to_end(&mut encoded).await,
    };
    read.expect("memory can be read");
    encoded
}

#[tokio::test]
async fn a_body_in_any_coding_is_decoded_within_the_limit() {
    let worker = TestWorker::start("--slots 1 --body-max 100000").await;
    let post = async |path: &str, coding: &str, body: Vec<u8>| {
        let request = worker.post(path, &Value::Null).header("content-encoding", coding).body(body);
        request.send().await.expect("the worker responds")
    };
    let chat = json!({"messages": user("hello"), "max_tokens": 2, "temperature": 0}).to_string();
    for (path, coding) in [CHAT, "/v1/messages", "/tokenize"]
        .into_iter()
        .flat_map(|path| ["gzip", "deflate", "br", "zstd"].map(|coding| (path, coding)))
    {
        let body = if path == "/tokenize" { "{\"content\": \"hello\"}" } else { &chat };
        let response = post(path, coding, encoded(coding, body.as_bytes()).await).await;
        assert_eq!(response.status(), 200, "{path} {coding}");
    }
    let error = async |path: &str, coding: &str, body: Vec<u8>| {
        let response = post(path, coding, body).await;
        let accepted = response.headers().get("accept-encoding").cloned();
        (response.status().as_u16(), accepted, response.json::<Value>().await.expect("JSON"))
    };
    let bomb = encoded("gzip", &vec![b' '; 50_000_000]).await;
    assert!(bomb.len() < 100_000, "{}", bomb.len());
    let (status, _, told) = error(CHAT, "gzip", bomb).await;
    assert_eq!((status, &told["error"]["code"]), (413, &json!("request_too_large")));
    let (status, accepted, told) = error(CHAT, "compress", b"anything".to_vec()).await;
    assert_eq!((status, &told["error"]["code"]), (415, &json!("unsupported_content_encoding")));
    assert_eq!(accepted, Some(HeaderValue::from_static("gzip, deflate, br, zstd")));
    let (status, _, told) = error("/v1/messages", "compress", b"anything".to_vec()).await;
    assert_eq!((status, &told["type"]), (415, &json!("error")));
    let (status, _, told) = error(CHAT, "zstd", chat.into_bytes()).await;
    assert_eq!((status, &told["error"]["code"]), (400, &json!("invalid_content_encoding")));
}
