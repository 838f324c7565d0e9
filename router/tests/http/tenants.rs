//! Tenants: the headers that a client may set, and what a response reveals of another tenant.
//!
//! Not here: access (`keys`), fairness (`overload`), separation in workers (`worker/tests/http/answers.rs`).

use crate::support::keys::{KeyFile, key};
use crate::support::stock::FakeStock;
use crate::support::worker::{Behaviour, FakeWorker, chat_keys};
use crate::support::{TestRouter, chat_body, eventually, header, long_text};
use axum::http::HeaderValue;
use futures::StreamExt;
use serde_json::{Value, json};
use warmpath_common::headers::CACHE_SALT;

/// Chat endpoints, each with a body.
const CHATS: [(&str, &str); 4] = [
    ("/v1/chat/completions", r#"{"messages": [{"role": "user", "content": "hello"}]}"#),
    ("/v1/completions", r#"{"prompt": "hello"}"#),
    ("/v1/messages", r#"{"max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}"#),
    ("/v1/responses", r#"{"input": "hello"}"#),
];

/// Two tenants `a` and `b` with a key each.
struct Tenants {
    keys: [String; 2],
    file: KeyFile,
}

impl Tenants {
    fn new() -> Self {
        let ((a, first), (b, second)) = (key("a", ""), key("b", ""));
        Self { keys: [a, b], file: KeyFile::new(&format!("{first}{second}")) }
    }

    async fn router(&self, worker: &FakeWorker) -> TestRouter {
        TestRouter::ready(&[worker], &self.file.flags()).await
    }

    fn ask(&self, router: &TestRouter, tenant: usize, body: impl Into<reqwest::Body>) -> reqwest::RequestBuilder {
        router.client.post(router.url("/v1/chat/completions")).bearer_auth(&self.keys[tenant]).body(body)
    }
}

fn bytes(value: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(value).expect("a header's value")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_header_of_a_client_removes_or_replaces_one_of_ours() {
    let worker = FakeWorker::start(1);
    let tenants = Tenants::new();
    let router = tenants.router(&worker).await;
    for (path, body) in CHATS {
        let before = worker.seen().len();
        for connection in [
            "close, x-warmpath-cache-salt",
            "X-Warmpath-Cache-Salt",
            "x-request-id, traceparent, x-warmpath-predicted-cached-tokens",
            "authorization, content-length, host",
        ] {
            let request = router.client.post(router.url(path)).bearer_auth(&tenants.keys[0]).body(body);
            let request = request
                .header("connection", connection)
                .header(CACHE_SALT, "own")
                .header("x-request-id", "r-1")
                .header("x-warmpath-predicted-cached-tokens", "999999")
                .header("x-warmpath-expected-block", "00")
                .header("x-warmpath-slot", "3")
                .header("x-warmpath-tenant", "b");
            assert_eq!(request.send().await.expect("an answer").status(), 200, "{path} {connection}");
        }
        for seen in &worker.seen()[before..] {
            let all = |name: &str| seen.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
            assert_eq!(all(CACHE_SALT), [b"a:own"], "{path}");
            assert_eq!(all("x-request-id"), [b"r-1"], "{path}");
            for (name, value) in [("x-warmpath-expected-block", "00"), ("x-warmpath-slot", "3")] {
                assert!(!all(name).contains(&value.as_bytes()), "{path}: {name}");
            }
            assert_ne!(all("x-warmpath-predicted-cached-tokens"), [b"999999"], "{path}");
            assert_eq!(all("x-warmpath-tenant"), [b"a"], "{path}");
            assert!(all("connection").is_empty(), "{path}: {:?}", seen.headers);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_salt_in_any_language_is_hashed_unchanged() {
    let worker = FakeWorker::start(1);
    let tenants = Tenants::new();
    let router = tenants.router(&worker).await;
    let text = long_text("bread");
    let keys = chat_keys(&text, "a:z\u{fc}rich");
    worker.hold_keys(keys.clone(), 0);
    eventually("it is known", || async { router.fleet().await["workers"][0]["blocks"] == json!(keys.len()) }).await;
    let predicted = async |tenant: usize, salt: &str| {
        let request = tenants.ask(&router, tenant, chat_body(&text, false)).header(CACHE_SALT, bytes(salt.as_bytes()));
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200, "{salt}");
        let seen = worker.seen().pop().expect("it was asked");
        let expected = format!("{}:{salt}", ["a", "b"][tenant]);
        assert_eq!(seen.headers[CACHE_SALT].as_bytes(), expected.as_bytes());
        header(&response, "x-warmpath-predicted-cached-tokens").parse::<usize>().expect("a number")
    };
    assert_eq!(predicted(0, "z\u{fc}rich").await, keys.len() * 16);
    for (tenant, other) in [(1, "z\u{fc}rich"), (0, "\u{65e5}\u{672c}"), (0, "zu\u{308}rich"), (0, "zrich")] {
        assert_eq!(predicted(tenant, other).await, 0, "{other}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_salt_is_refused_and_never_treated_as_absent() {
    let worker = FakeWorker::start(1);
    let tenants = Tenants::new();
    let (keyed, open) = (tenants.router(&worker).await, TestRouter::ready(&[&worker], &[]).await);
    let cases: [(&[&[u8]], &str); 4] = [
        (&[b"z\xfcrich"], "must be UTF-8"),
        (&[b""], "must not be empty"),
        (&[b"a", b"b"], "must be given once"),
        (&[b"a", b"a"], "must be given once"),
    ];
    for (router, (path, body)) in [&keyed, &open].into_iter().flat_map(|router| CHATS.map(|chat| (router, chat))) {
        for (salts, reason) in cases {
            let request = router.client.post(router.url(path)).bearer_auth(&tenants.keys[0]).body(body);
            let request = salts.iter().fold(request, |request, salt| request.header(CACHE_SALT, bytes(salt)));
            let response = request.send().await.expect("an answer");
            let (status, told) = (response.status(), response.json::<Value>().await.expect("JSON"));
            assert_eq!(status, 400, "{path} {salts:?}: {told}");
            let error = &told["error"];
            assert!(error["message"].as_str().is_some_and(|text| text.contains(reason)), "{path}: {told}");
            assert_eq!(error["type"], "invalid_request_error");
            match path {
                "/v1/messages" => assert_eq!(told["type"], "error"),
                _ => assert_eq!(error["param"], CACHE_SALT),
            }
        }
    }
    for (path, body) in CHATS {
        for wrong in [json!(""), json!(5), json!(["a"]), json!({}), json!(true)] {
            let mut body: Value = serde_json::from_str(body).expect("JSON");
            body["cache_salt"] = wrong.clone();
            let response = open.post(path, body.to_string()).await;
            assert_eq!(response.status(), 400, "{path} {wrong}");
        }
    }
    assert!(worker.seen().is_empty(), "no worker has seen any of it");
    let url = format!("http://{}/internal/v1/route", open.server.admin_address);
    let dry = open.client.post(url).header(CACHE_SALT, bytes(b"\xff")).body(CHATS[0].1);
    assert_eq!(dry.send().await.expect("an answer").status(), 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_body_gives_a_tenant_another_salt_however_it_is_hidden() {
    let worker = FakeWorker::start(1);
    let tenants = Tenants::new();
    let router = tenants.router(&worker).await;
    let paths = ["/v1/messages/count_tokens", "/tokenize"];
    for (path, body) in CHATS.into_iter().chain(paths.map(|path| (path, CHATS[2].1))) {
        let open = body.strip_suffix('}').expect("an object");
        for salt in [
            r#""cache_salt": "b:""#,
            r#""n": "x", "cache_salt": "b:""#,
            r#""cache_salt": "b:", "cache_salt": "b:""#,
            r#""cache_salt": ["b:"]"#,
            r#""cache_salt": """#,
        ] {
            let body = format!("{open}, {salt}}}");
            let request = router.client.post(router.url(path)).bearer_auth(&tenants.keys[0]).body(body.clone());
            assert_eq!(request.send().await.expect("an answer").status(), 400, "{path} {body}");
        }
        // If there are two, the first may hide the second from one parser and not from another.
        let body = format!(r#"{open}, "cache_salt": null, "cache_salt": "b:"}}"#);
        let request = router.client.post(router.url(path)).bearer_auth(&tenants.keys[0]).body(body);
        assert_eq!(request.send().await.expect("an answer").status(), 400, "{path}");
    }
    assert!(worker.seen().is_empty(), "no worker has seen any of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_servers_learn_no_salt() {
    let stock = FakeStock::start("tiny");
    let tenants = Tenants::new();
    let router = TestRouter::ready_for(&[stock.flag()], &tenants.file.flags()).await;
    for (tenant, salt) in [(0, None), (1, Some("own"))] {
        let request = tenants.ask(&router, tenant, chat_body(&long_text("bread"), false));
        let request = salt.into_iter().fold(request, |request, salt| request.header(CACHE_SALT, salt));
        assert_eq!(request.send().await.expect("an answer").status(), 200);
    }
    for seen in stock.seen() {
        let ours: Vec<_> = seen.headers.keys().filter(|name| name.as_str().starts_with("x-warmpath-")).collect();
        assert!(ours.is_empty(), "{ours:?}");
    }
}

/// Asks where the prefix of a chat of these messages broke.
async fn prefix_break(tenants: &Tenants, router: &TestRouter, tenant: usize, messages: &Value) -> String {
    let request = tenants.ask(router, tenant, json!({"messages": messages}).to_string());
    let response = request.header("x-warmpath-debug", "prefix").send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    header(&response, "x-warmpath-prefix-break")
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_reported_about_another_tenant_s_conversations() {
    let worker = FakeWorker::start(1);
    let tenants = Tenants::new();
    let router = tenants.router(&worker).await;
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let (system, question) = (long_text("rules"), long_text("bread"));
    let first = json!([message("system", &system), message("user", &question)]);
    let mut second = first.clone();
    let turns = second.as_array_mut().expect("messages");
    turns.extend([message("assistant", &long_text("flour")), message("user", "And salt?")]);
    let mut changed = second.clone();
    changed[0] = message("system", &format!("{system} It is 12:01."));
    let turns = changed.as_array_mut().expect("messages");
    turns.extend([message("assistant", "Some."), message("user", "And yeast?")]);
    assert_eq!(prefix_break(&tenants, &router, 0, &first).await, "new");
    assert_eq!(prefix_break(&tenants, &router, 0, &second).await, "intact");
    // The other tenant must get the same report as from a router without requests.
    for asked in [&changed, &first] {
        assert_eq!(prefix_break(&tenants, &router, 1, asked).await, "new");
    }
    assert!(prefix_break(&tenants, &router, 0, &changed).await.contains("role=system"), "its own is remembered");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_predicted_from_another_tenant_s_requests_in_flight_or_held() {
    let worker = FakeWorker::start(1);
    let tenants = Tenants::new();
    let router = tenants.router(&worker).await;
    let text = long_text("bread");
    let keys = chat_keys(&text, "a:");
    let told = async |tenant: usize| {
        let response = tenants.ask(&router, tenant, chat_body(&text, true)).send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        (header(&response, "x-warmpath-predicted-cached-tokens"), response)
    };
    worker.with(|script| script.behaviour = Behaviour::Hang);
    let (_, running) = told(0).await;
    let mut running = running.bytes_stream();
    running.next().await.expect("an event").expect("bytes");
    let whole = (keys.len() * 16).to_string();
    assert_eq!(told(0).await.0, whole, "its own prefix is in flight");
    assert_eq!(told(1).await.0, "0", "the other tenant's prefix is not predicted");
    drop(running);
    worker.with(|script| script.behaviour = Behaviour::Answer);
    worker.hold_keys(keys.clone(), 0);
    eventually("it is known", || async { router.fleet().await["workers"][0]["blocks"] == json!(keys.len()) }).await;
    assert_eq!(told(0).await.0, whole);
    assert_eq!(told(1).await.0, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_of_one_tenant_at_a_stock_server_are_not_assumed_cached_for_another() {
    let stock = FakeStock::start("tiny");
    let tenants = Tenants::new();
    let router = TestRouter::ready_for(&[stock.flag()], &tenants.file.flags()).await;
    let body = chat_body(&long_text("bread"), false);
    let predicted = async |tenant: usize| {
        let response = tenants.ask(&router, tenant, body.clone()).send().await.expect("an answer");
        header(&response, "x-warmpath-predicted-cached-tokens").parse::<u32>().expect("a number")
    };
    assert_eq!(predicted(0).await, 0);
    eventually("it is remembered", || async { predicted(0).await > 0 }).await;
    assert_eq!(predicted(1).await, 0);
}
