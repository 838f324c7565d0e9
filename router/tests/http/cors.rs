//! Web pages of other origins: refused unless the operator names them; what a browser sends and reads.
//!
//! Not here: valid origins (`config::cors` of the crate).

use crate::support::stock::FakeStock;
use crate::support::worker::FakeWorker;
use crate::support::{TestRouter, chat_body, fleet_of_one, header};
use axum::http::HeaderMap;
use reqwest::{Method, RequestBuilder};

const PAGE: &str = "https://app.example";
const CHAT: &str = "/v1/chat/completions";

/// Returns the preflight that a browser sends before a page's request.
fn preflight(router: &TestRouter, origin: &str) -> RequestBuilder {
    let request = router.client.request(Method::OPTIONS, router.url(CHAT)).header("origin", origin);
    let request = request.header("access-control-request-method", "POST");
    request.header("access-control-request-headers", "authorization,content-type,x-stainless-lang")
}

fn request(router: &TestRouter, origin: &str) -> RequestBuilder {
    router.client.post(router.url(CHAT)).header("origin", origin).body(chat_body("hello", false))
}

fn allowed(headers: &HeaderMap) -> Vec<String> {
    headers.keys().map(ToString::to_string).filter(|name| name.starts_with("access-control-")).collect()
}

/// Returns the headers of a stock server's own response.
async fn router_less(stock: &FakeStock) -> HeaderMap {
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    client.get(format!("{}/v1/models", stock.url())).send().await.expect("an answer").headers().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_origin_is_allowed_without_the_flag() {
    let (_worker, router) = fleet_of_one().await;
    let response = preflight(&router, PAGE).send().await.expect("an answer");
    assert_eq!((response.status().as_u16(), allowed(response.headers())), (405, Vec::new()));
    let response = request(&router, PAGE).send().await.expect("an answer");
    assert_eq!((response.status().as_u16(), allowed(response.headers())), (200, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_listed_origins_may_send_requests_and_read_answers() {
    let worker = FakeWorker::start(1);
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys.toml");
    let (key, entry) = warmpath_router::keys::new_key("page").expect("a good name");
    std::fs::write(&keys, entry).expect("it can be written");
    let flags = ["--cors-origin", PAGE, "--cors-origin", "http://localhost:3000", "--api-keys-file"];
    let flags: Vec<&str> = flags.into_iter().chain([keys.to_str().expect("UTF-8")]).collect();
    let router = TestRouter::ready(&[&worker], &flags).await;

    // A browser sends no key with it.
    for origin in [PAGE, "http://localhost:3000"] {
        let response = preflight(&router, origin).send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "access-control-allow-origin"), origin);
        assert!(header(&response, "access-control-allow-methods").contains("POST"));
        assert_eq!(header(&response, "access-control-allow-headers"), "authorization,content-type,x-stainless-lang");
        assert_eq!(header(&response, "access-control-max-age"), "600");
        assert!(header(&response, "vary").to_ascii_lowercase().contains("origin"));
    }
    assert!(worker.seen().is_empty());

    let response = request(&router, PAGE).bearer_auth(&key).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "access-control-allow-origin"), PAGE);
    assert_eq!(header(&response, "access-control-allow-credentials"), "");
    let exposed = header(&response, "access-control-expose-headers");
    let ours: Vec<String> = response.headers().keys().map(ToString::to_string).collect();
    let ours = ours.iter().filter(|name| name.starts_with("x-"));
    assert!(ours.clone().count() > 3, "{:?}", response.headers());
    for name in ours {
        assert!(exposed.split(',').any(|exposed| exposed == name), "{name} is not among {exposed}");
    }

    // Errors can be read as well.
    let response = request(&router, PAGE).send().await.expect("an answer");
    assert_eq!((response.status().as_u16(), header(&response, "access-control-allow-origin")), (401, PAGE.to_owned()));

    for response in
        [preflight(&router, "https://evil.example"), request(&router, "https://evil.example").bearer_auth(&key)]
    {
        let response = response.send().await.expect("an answer");
        assert_eq!(header(&response, "access-control-allow-origin"), "", "{:?}", response.headers());
    }
    let admin = format!("http://{}/internal/v1/fleet", router.server.admin_address);
    let response = router.client.get(admin).header("origin", PAGE).send().await.expect("an answer");
    assert_eq!(allowed(response.headers()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_star_allows_every_origin() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--cors-origin", "*"]).await;
    for request in [preflight(&router, PAGE), request(&router, "null")] {
        let response = request.send().await.expect("an answer");
        assert_eq!((response.status().as_u16(), header(&response, "access-control-allow-origin").as_str()), (200, "*"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_server_s_cors_headers_are_not_passed_on() {
    let stock = FakeStock::start("stock");
    let direct = router_less(&stock).await;
    assert_eq!(allowed(&direct), ["access-control-allow-origin"]);
    let router = TestRouter::ready_for(&[stock.flag()], &[]).await;
    let response = request(&router, PAGE).send().await.expect("an answer");
    assert_eq!((response.status().as_u16(), allowed(response.headers())), (200, Vec::new()));
}
