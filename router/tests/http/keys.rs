//! API keys: access, limits, and that tenants share nothing.
//!
//! Not here: the file's format and the counting (`keys` of the crate), fairness between keys (`overload`).

use crate::support::keys::{KeyFile, key};
use crate::support::worker::{Behaviour, FakeWorker};
use crate::support::{TestRouter, chat_body, config, error_of, eventually, header};
use serde_json::{Value, json};
use warmpath_common::headers::{CACHE_SALT, PRIORITY_MAX, TENANT};

async fn ask(router: &TestRouter, key: &str, body: Value, salt: Option<&str>) -> reqwest::Response {
    let request = router.client.post(router.url("/v1/chat/completions")).bearer_auth(key).body(body.to_string());
    let request = salt.into_iter().fold(request, |request, salt| request.header(CACHE_SALT, salt));
    request.send().await.expect("the router answers")
}

fn hello() -> Value {
    json!({"messages": [{"role": "user", "content": "hello"}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_a_key_that_is_known_get_401() {
    let worker = FakeWorker::start(1);
    let (good, entry) = key("a", "");
    let file = KeyFile::new(&entry);
    let router = TestRouter::ready(&[&worker], &file.flags()).await;
    let get = |path: &str| router.client.get(router.url(path));
    for request in [
        get("/v1/models"),
        get("/v1/models").bearer_auth("wp-wrong"),
        get("/v1/models").header("authorization", good.clone()),
        get("/v1/models").header("authorization", format!("Basic {good}")),
        get("/v1/models").header("x-api-key", "wrong"),
        router.client.post(router.url("/v1/chat/completions")).body(chat_body("hello", false)),
        router.client.post(router.url("/tokenize")).body("{}"),
    ] {
        let response = request.send().await.expect("an answer");
        assert_eq!(header(&response, "www-authenticate"), "Bearer");
        let error = error_of(response, 401).await;
        assert_eq!((&error["code"], &error["type"]), (&json!("invalid_api_key"), &json!("authentication_error")));
    }
    assert_eq!(router.metric("warmpath_router_auth_failures_total").await, 7.0);
    let response = router.client.post(router.url("/v1/messages")).body("{}").send().await.expect("an answer");
    assert_eq!(response.status(), 401);
    let body: Value = response.json().await.expect("JSON");
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("authentication_error")));
    assert!(worker.seen().is_empty());

    for path in ["/health", "/v1/health", "/livez", "/readyz"] {
        assert_eq!(router.get(path).await.0, 200, "{path} needs no key");
    }
    assert_eq!(ask(&router, &good, hello(), None).await.status(), 200);
    let by_header = router.client.post(router.url("/v1/chat/completions")).header("x-api-key", &good);
    assert_eq!(by_header.body(hello().to_string()).send().await.expect("an answer").status(), 200);
    for seen in worker.seen() {
        let shown = format!("{:?}", seen.headers);
        assert!(!shown.contains(&good), "the key goes no further: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_never_share_a_salt() {
    let worker = FakeWorker::start(1);
    let ((a, first), (b, second), (c, third)) = (key("a", ""), key("b", ""), key("c", "tenant = \"b\""));
    let file = KeyFile::new(&format!("{first}{second}{third}"));
    let router = TestRouter::ready(&[&worker], &file.flags()).await;
    for (key, salt) in [(&a, None), (&a, Some("b:")), (&b, None), (&c, None), (&c, Some("x"))] {
        assert_eq!(ask(&router, key, hello(), salt).await.status(), 200);
    }
    let salts: Vec<_> =
        worker.seen().iter().map(|seen| seen.headers[CACHE_SALT].to_str().expect("text").to_owned()).collect();
    assert_eq!(salts, ["a:", "a:b:", "b:", "b:", "b:x"]);
    let mut body = hello();
    body["cache_salt"] = json!("b:");
    let error = error_of(ask(&router, &a, body, None).await, 400).await;
    assert_eq!(error["param"], "cache_salt");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_get_the_key_s_tenant_and_priority_and_no_client_can_set_others() {
    let worker = FakeWorker::start(1);
    let ((a, first), (b, second)) = (key("a", ""), key("b", "tenant = \"team\"\npriority_max = 7"));
    let file = KeyFile::new(&format!("{first}{second}"));
    let keyed = TestRouter::ready(&[&worker], &file.flags()).await;
    let open = TestRouter::ready(&[&worker], &[]).await;
    let forged = async |router: &TestRouter, key: &str| {
        let request = router.client.post(router.url("/v1/chat/completions")).bearer_auth(key);
        let request = request.header(TENANT, "forged").header(PRIORITY_MAX, "100");
        let request = request.header("connection", format!("close, {TENANT}, {PRIORITY_MAX}"));
        assert_eq!(request.body(hello().to_string()).send().await.expect("an answer").status(), 200);
    };
    forged(&keyed, &a).await;
    forged(&keyed, &b).await;
    forged(&open, "").await;
    let seen = worker.seen();
    let said = |name: &str| -> Vec<Option<&str>> {
        seen.iter().map(|seen| seen.headers.get(name).map(|value| value.to_str().expect("text"))).collect()
    };
    assert_eq!(said(TENANT), [Some("a"), Some("team"), None]);
    assert_eq!(said(PRIORITY_MAX), [Some("2"), Some("7"), None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_its_limits() {
    let worker = FakeWorker::start(1);
    let ((few, first), (slow, second)) = (key("few", "requests_at_once = 1"), key("slow", "requests_per_minute = 2"));
    let file = KeyFile::new(&format!("{first}{second}"));
    let router = TestRouter::ready(&[&worker], &file.flags()).await;
    for _ in 0..2 {
        assert_eq!(ask(&router, &slow, hello(), None).await.status(), 200);
    }
    let response = ask(&router, &slow, hello(), None).await;
    let after: u64 = header(&response, "retry-after").parse().expect("a number");
    assert!((1..=30).contains(&after), "{after}");
    let error = error_of(response, 429).await;
    assert_eq!((&error["code"], &error["type"]), (&json!("rate_limit_exceeded"), &json!("rate_limit_error")));

    worker.with(|script| script.behaviour = Behaviour::Hang);
    let mut body = hello();
    body["stream"] = json!(true);
    let running = ask(&router, &few, body, None).await;
    assert_eq!(running.status(), 200);
    worker.with(|script| script.behaviour = Behaviour::Answer);
    error_of(ask(&router, &few, hello(), None).await, 429).await;
    drop(running);
    eventually("the place is free again", || async { ask(&router, &few, hello(), None).await.status() == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_can_be_added_and_removed_while_the_router_runs() {
    let worker = FakeWorker::start(1);
    let ((old, first), (new, second)) = (key("old", ""), key("new", ""));
    let file = KeyFile::new(&first);
    let router = TestRouter::ready(&[&worker], &file.flags()).await;
    let status = async |key: &str| ask(&router, key, hello(), None).await.status().as_u16();
    assert_eq!((status(&old).await, status(&new).await), (200, 401));
    file.write("[[key]");
    router.wait_for_metric("warmpath_router_key_file_failures_total", 1.0).await;
    assert_eq!((status(&old).await, status(&new).await), (200, 401), "a wrong file changes nothing");
    file.write(&second);
    eventually("the new key is known", || async { status(&new).await == 200 }).await;
    assert_eq!(status(&old).await, 401);

    file.write("key = 5");
    let error = warmpath_router::server::Server::start(config(&[&worker], &file.flags())).await;
    assert!(error.err().expect("a wrong file at the start").to_string().starts_with("--api-keys-file"));
}
