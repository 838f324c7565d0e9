//! Tests of images by URL against a local server, with hostile clients and hosts.

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;

/// Bytes with the signature of a PNG.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\nrest";

/// Longest body in these tests. Units: bytes.
const BODY_BYTES_MAX: usize = 100_000;

/// Starts a server of images; returns its host and port.
async fn server() -> String {
    let routes = Router::new()
        .route("/a.png", get(async || PNG))
        .route("/a.gif", get(async || b"GIF89a".as_slice()))
        .route("/page", get(async || "<html>"))
        .route("/long", get(async || [PNG, &[0; 2000]].concat()))
        .route("/gone", get(async || StatusCode::NOT_FOUND))
        .route("/fails", get(async || StatusCode::INTERNAL_SERVER_ERROR))
        .route("/silent", get(async || std::future::pending::<Response>().await))
        .route("/nowhere", get(async || StatusCode::FOUND))
        .route("/file", get(async || Redirect::temporary("file:///etc/passwd")))
        .route("/inner", get(async || Redirect::temporary("http://127.0.0.2/a.png")))
        .route("/hops/{n}", get(hop));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, routes).await });
    address.to_string()
}

async fn hop(Path(n): Path<usize>) -> Response {
    match n {
        0 => PNG.into_response(),
        n => Redirect::temporary(&format!("/hops/{}", n - 1)).into_response(),
    }
}

fn fetcher(hosts: &str, limits: FetchLimits) -> Arc<ImageUrls> {
    let hosts: Vec<ImageHost> = hosts.split(',').map(|host| host.parse().expect("a host")).collect();
    let tls = ClientFiles::default().open().expect("the system's roots");
    Arc::new(ImageUrls { hosts, tls, limits })
}

fn bodies(bytes_max: usize) -> BodyLimits {
    BodyLimits { bytes_max, timeout: Duration::from_secs(1), room: BodyRoom::new(3 * BODY_BYTES_MAX) }
}

async fn inline(fetcher: &Arc<ImageUrls>, body: &Value) -> Result<Value, Refusal> {
    let inlined = fetcher.inline(body.to_string().into(), &bodies(BODY_BYTES_MAX), &Sender::Unknown).await?;
    Ok(serde_json::from_slice(&inlined).expect("JSON"))
}

fn chat(url: &str) -> Value {
    json!({"messages": [
        {"role": "user", "content": "a \"http"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}]},
    ]})
}

/// Checks that a URL is refused, for a reason that has this text.
async fn check_refused(fetcher: &Arc<ImageUrls>, url: &str, says: &str) {
    match inline(fetcher, &chat(url)).await {
        Err(Refusal::Field { param, reason }) => {
            assert_eq!(param, "messages[1]");
            assert!(reason.contains(says), "{url}: {reason}");
        }
        other => panic!("{url}: {other:?}"),
    }
}

#[tokio::test]
async fn every_dialect_gets_data_in_place_of_urls() {
    let host = server().await;
    let fetcher = fetcher(&host, LIMITS);
    let url = |path: &str| format!("http://{host}/{path}");
    let png = STANDARD_OF_PNG;
    let data = format!("data:image/png;base64,{png}");
    let mut expected = chat(&data);
    assert_eq!(inline(&fetcher, &chat(&url("a.png"))).await.expect("it is fetched"), expected);
    expected["messages"][1]["content"][0]["image_url"]["url"] = json!("data:image/gif;base64,R0lGODlh");
    assert_eq!(inline(&fetcher, &chat(&url("a.gif"))).await.expect("it is fetched"), expected);
    assert!(inline(&fetcher, &chat(&url("hops/3"))).await.is_ok(), "three redirects are followed");

    let input = |image: &str| {
        let image = json!({"type": "input_image", "image_url": image, "detail": "auto"});
        json!({"model": "m", "input": [
            {"role": "user", "content": [image]},
            {"type": "function_call_output", "call_id": "c", "output": [image]},
        ]})
    };
    assert_eq!(inline(&fetcher, &input(&url("a.png"))).await.expect("it is fetched"), input(&data));

    let blocks = |source: Value| {
        let image = json!({"type": "image", "source": source});
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [image]});
        json!({"messages": [{"role": "user", "content": [image, result]}], "max_tokens": 1})
    };
    let fetched = inline(&fetcher, &blocks(json!({"type": "url", "url": url("a.png")}))).await.expect("it is fetched");
    assert_eq!(fetched, blocks(json!({"type": "base64", "media_type": "image/png", "data": png})));
}

/// [`PNG`] in base64.
const STANDARD_OF_PNG: &str = "iVBORw0KGgpyZXN0";

#[tokio::test]
async fn bodies_without_such_urls_stay_as_they_are() {
    let fetcher = fetcher("*", LIMITS);
    let places = bodies(10);
    for body in [
        r#"{"messages": [{"role": "user", "content": "look at \"http://a/\", an \"image\""}]}"#,
        r#"{ "messages":  [{"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}], "x": "http"}"#,
        r#"{"tools": [{"type": "image_url", "image_url": {"url": "http://a/"}}]}"#,
        r#"{"messages": [{"content": [{"type": "image", "source": {"type": "base64", "url": "http://a/"}}]}]}"#,
        r#"{"messages": ["image_url", "http://a/"#,
        "",
    ] {
        let same = fetcher.inline(body.into(), &places, &Sender::Unknown).await.expect("nothing is fetched");
        assert_eq!(same, body.as_bytes());
    }
}

#[tokio::test]
async fn hosts_and_addresses_that_are_not_listed_are_not_contacted() {
    let host = server().await;
    let port = host.rsplit_once(':').expect("a port").1;
    let other = |list: &str| fetcher(list, LIMITS);
    check_refused(&other("a.example"), &format!("http://{host}/a.png"), "not fetched from 127.0.0.1").await;
    check_refused(&other("127.0.0.1"), &format!("http://{host}/a.png"), "not fetched from 127.0.0.1").await;
    check_refused(&other(&format!("*:{port}")), &format!("http://{host}/a.png"), "is not public").await;
    // The name leads to an address of this machine.
    let named = format!("http://localhost:{port}/a.png");
    check_refused(&other(&format!("localhost:{port}")), &named, "is not public").await;
    assert!(inline(&other(&format!("localhost:{port},{host}")), &chat(&named)).await.is_ok());
    check_refused(&other(&host), &format!("http://{host}/inner"), "not fetched from 127.0.0.2").await;
    check_refused(&other(&host), &format!("http://u:p@{host}/a.png"), "not fetched from 127.0.0.1").await;
    check_refused(&other(&host), "http://", "URL cannot be read").await;
}

#[tokio::test]
async fn what_a_host_answers_wrongly_is_reported() {
    let host = server().await;
    let fetcher = fetcher(&host, FetchLimits { bytes_max: 1000, ..LIMITS });
    for (path, says) in [
        ("gone", "answers 404"),
        ("fails", "answers 500"),
        ("page", "is not a PNG"),
        ("long", "longer than 1000 bytes"),
        ("nowhere", "redirects without an address"),
        ("file", "redirects without an address"),
        ("hops/4", "more than 3 times"),
    ] {
        check_refused(&fetcher, &format!("http://{host}/{path}"), says).await;
    }
    check_refused(&fetcher, &format!("https://{host}/a.png"), "cannot be reached").await;
}

#[tokio::test]
async fn the_urls_of_a_history_stay_where_they_cannot_be_fetched() {
    let host = server().await;
    let fetcher = fetcher(&host, FetchLimits { file_timeout: Duration::from_secs(1), ..LIMITS });
    let say =
        |role: &str, url: &str| json!({"role": role, "content": [{"type": "image_url", "image_url": {"url": url}}]});
    let data = format!("data:image/png;base64,{STANDARD_OF_PNG}");
    let [gone, other, seen] = ["gone", "inner", "a.png"].map(|path| format!("http://{host}/{path}"));
    let history = |seen: &str| json!({"messages": [say("user", &gone), say("tool", &other), say("assistant", "data:,"), say("user", seen)]});
    assert_eq!(inline(&fetcher, &history(&seen)).await.expect("the new image is fetched"), history(&data));
    check_refused(&fetcher, &gone, "answers 404").await;
    // An image that is gone, in the history and in the new message.
    assert!(matches!(inline(&fetcher, &history(&gone)).await, Err(Refusal::Field { .. })));
}

#[tokio::test]
async fn hosts_that_are_silent_or_away_are_not_waited_for() {
    let host = server().await;
    let short = Duration::from_millis(50);
    let late = "has not arrived in time";
    let of_file = fetcher(&host, FetchLimits { file_timeout: short, ..LIMITS });
    check_refused(&of_file, &format!("http://{host}/silent"), late).await;
    let of_request = fetcher(&host, FetchLimits { request_timeout: short, ..LIMITS });
    check_refused(&of_request, &format!("http://{host}/silent"), late).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
    let away = listener.local_addr().expect("it is bound").to_string();
    drop(listener);
    check_refused(&fetcher(&away, LIMITS), &format!("http://{away}/a.png"), "cannot be reached").await;
}

#[tokio::test]
async fn a_request_has_few_urls_and_its_images_fit_into_a_body() {
    let host = server().await;
    let fetcher = fetcher(&host, LIMITS);
    let with = |urls: &mut dyn Iterator<Item = String>| {
        let parts: Vec<Value> = urls.map(|url| json!({"type": "image_url", "image_url": {"url": url}})).collect();
        json!({"messages": [{"role": "user", "content": parts}]})
    };
    let many = |n: usize| with(&mut (0..n).map(|n| format!("http://{host}/a.png?{n}")));
    assert!(inline(&fetcher, &many(IMAGE_URLS_MAX)).await.is_ok());
    let refused = inline(&fetcher, &many(IMAGE_URLS_MAX + 1)).await;
    assert!(matches!(refused, Err(Refusal::Field { .. })), "{refused:?}");
    // One image in many places is fetched once, and counts in each of them.
    let repeated = with(&mut std::iter::repeat_n(format!("http://{host}/long"), 50));
    let refused = inline(&fetcher, &repeated).await;
    let bytes_max = BODY_BYTES_MAX;
    assert!(matches!(refused, Err(Refusal::Body(BodyError::TooLong { bytes_max: n })) if n == bytes_max));
    let full = BodyLimits { room: BodyRoom::new(100), ..bodies(BODY_BYTES_MAX) };
    let body = chat(&format!("http://{host}/long")).to_string();
    let refused = fetcher.inline(body.into(), &full, &Sender::Unknown).await;
    assert!(matches!(refused, Err(Refusal::Body(BodyError::NoRoom))), "{refused:?}");
    assert_eq!(full.room.n_bytes(), 0, "the memory is free again");
}
