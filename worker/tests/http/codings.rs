//! Bodies in a content coding, and unreadable salts, of clients that send their requests to the worker directly.
//!
//! Not here: the codings themselves (`warmpath_shell::body::coding`), the router's side (`router/tests`).

#[path = "../../../common/shell/src/http/body/coding/tests/encoded.rs"]
mod encoded;

use encoded::encoded;
use reqwest::header::HeaderValue;
use serde_json::{Value, json};

use crate::harness::{TestWorker, user};

const CHAT: &str = "/v1/chat/completions";

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

#[tokio::test]
async fn a_salt_is_hashed_as_sent_or_refused_and_never_ignored() {
    let worker = TestWorker::start("--slots 2").await;
    let secret = "The same long secret. ".repeat(10);
    let body = json!({"messages": user(&secret), "max_tokens": 1});
    let ask = async |path: &str, salts: &[&[u8]], hidden: bool| {
        let value = |salt: &&[u8]| HeaderValue::from_bytes(salt).expect("a header's value");
        let request = salts
            .iter()
            .fold(worker.post(path, &body), |request, salt| request.header("x-warmpath-cache-salt", value(salt)));
        let request = if hidden { request.header("connection", "close, x-warmpath-cache-salt") } else { request };
        let response = request.send().await.expect("the worker responds");
        (response.status().as_u16(), response.json::<Value>().await.expect("JSON"))
    };
    let cached = async |salt: &str, hidden: bool| {
        let (status, answer) = ask(CHAT, &[salt.as_bytes()], hidden).await;
        assert_eq!(status, 200, "{answer}");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    assert_eq!(cached("z\u{fc}rich", false).await, 0);
    assert_eq!(cached("\u{65e5}\u{672c}", false).await, 0);
    assert_eq!(cached("zrich", true).await, 0, "`Connection` removes no salt");
    assert!(cached("z\u{fc}rich", true).await > 0);
    let of_body = json!({"messages": user(&secret), "max_tokens": 1, "cache_salt": "z\u{fc}rich"});
    let answer = worker.ask(CHAT, of_body).await;
    assert!(
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0),
        "the header and the field are not one salt: {answer}"
    );

    for salts in [&[&b"z\xfcrich"[..]][..], &[b""], &[b"a", b"a"], &[b"a", b"b"]] {
        for path in
            [CHAT, "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions/input_tokens", "/cache/pin"]
        {
            let (status, told) = ask(path, salts, false).await;
            assert_eq!(status, 400, "{path} {salts:?}: {told}");
            let message = told["error"]["message"].as_str().unwrap_or_default();
            assert!(message.contains("x-warmpath-cache-salt"), "{path}: {told}");
        }
    }
    for wrong in [json!(""), json!(5), json!(["a"])] {
        for path in [CHAT, "/cache/pin"] {
            let (status, told) = worker.try_ask(path, &json!({"messages": user(&secret), "cache_salt": wrong})).await;
            assert_eq!((status, &told["error"]["param"]), (400, &json!("cache_salt")), "{path}: {told}");
        }
    }
}
