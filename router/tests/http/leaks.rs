//! What clients learn of the fleet: no address of a worker, and no header or status that is not meant for them.
//!
//! Not here: tenants (`tenants`), web pages (`cors`).

use crate::support::stock::FakeStock;
use crate::support::worker::{Behaviour, FakeWorker};
use crate::support::{TestRouter, chat_body, error_of, fleet_of_one, header};
use serde_json::{Value, json};

/// Returns a whole response, as one text.
async fn all_of(response: reqwest::Response) -> String {
    let head = format!("{} {:?}", response.status(), response.headers());
    head + &response.text().await.expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_reveals_the_address_of_a_worker_or_a_stock_server() {
    let (worker, stock) = (FakeWorker::start(1), FakeStock::start("other"));
    // A real worker's default: its host's name and its port.
    worker.with(|script| script.name = Some("gpu-box:8081".to_owned()));
    let router = TestRouter::ready_for(&[worker.url(), stock.flag()], &["--attempts-max", "1"]).await;
    let addresses = [worker.url(), stock.url()].map(|url| url.trim_start_matches("http://").to_owned());
    let chat = |model: &str, stream: bool| {
        json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": "hello"}]}).to_string()
    };
    for (model, name) in [("tiny", "worker-0"), ("other", "stock-1")] {
        for stream in [false, true] {
            let response = router.post("/v1/chat/completions", chat(model, stream)).await;
            assert_eq!((response.status().as_u16(), header(&response, "x-warmpath-worker").as_str()), (200, name));
        }
    }
    let fleet = router.fleet().await;
    let named = |idx: usize| (fleet["workers"][idx]["name"].clone(), fleet["workers"][idx]["url"].clone());
    assert_eq!(named(0), (json!("worker-0"), json!(worker.url())), "operators see name and URL");
    assert_eq!(named(1), (json!("stock-1"), json!(stock.url())));

    let mut told = Vec::new();
    for behaviour in
        [Behaviour::BreakAtOnce, Behaviour::BreakMidway, Behaviour::BreakBehindComment, Behaviour::Refuse(503)]
    {
        worker.with(|script| script.behaviour = behaviour);
        for (path, stream) in [("/v1/chat/completions", false), ("/v1/chat/completions", true), ("/v1/messages", true)]
        {
            let mut body: Value = serde_json::from_str(&chat("tiny", stream)).expect("JSON");
            body["max_tokens"] = json!(5);
            told.push(all_of(router.post(path, body.to_string()).await).await);
        }
    }
    let shown = ["/v1/models", "/v1/models/tiny", "/v1/models/nothing", "/props", "/props?model=tiny"];
    for path in shown.into_iter().chain(["/readyz", "/health", "/openapi.json"]) {
        told.push(all_of(router.client.get(router.url(path)).send().await.expect("an answer")).await);
    }
    for text in told {
        let leaked: Vec<_> =
            addresses.iter().map(String::as_str).chain(["gpu-box"]).filter(|at| text.contains(at)).collect();
        assert!(leaked.is_empty(), "{leaked:?} in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_known_by_the_plain_name_that_it_gives_itself() {
    let worker = FakeWorker::start(1);
    worker.with(|script| script.name = Some("rack-7.worker_2".to_owned()));
    // A response's own headers of this kind are not trusted.
    worker.with(|script| script.headers = vec![("x-warmpath-worker", "http://10.0.0.5:1"), ("x-warmpath-route", "x")]);
    let router = TestRouter::ready(&[&worker], &[]).await;
    let response = router.chat("hello").await;
    let all = |name: &str| response.headers().get_all(name).iter().map(|value| value.as_bytes()).collect::<Vec<_>>();
    assert_eq!(all("x-warmpath-worker"), [b"rack-7.worker_2"]);
    assert_eq!(all("x-warmpath-route"), [b"only"]);
    assert_eq!(router.fleet().await["workers"][0]["name"], "rack-7.worker_2");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_listed_headers_of_a_worker_reach_clients() {
    let (worker, router) = fleet_of_one().await;
    worker.with(|script| {
        script.headers = vec![
            ("set-cookie", "a=b"),
            ("location", "http://10.0.0.5:1/"),
            ("server", "llama.cpp"),
            ("x-powered-by", "anything"),
            ("www-authenticate", "Basic"),
            ("strict-transport-security", "max-age=1"),
            ("alt-svc", "h3"),
            ("access-control-allow-origin", "*"),
            ("x-warmpath-anything", "1"),
            ("cache-control", "no-cache"),
            ("x-ratelimit-remaining-requests", "7"),
        ]
    });
    let ours = ["x-request-id", "x-warmpath-worker", "x-warmpath-route", "x-warmpath-predicted-cached-tokens"];
    let passed = [
        "content-type",
        "cache-control",
        "x-accel-buffering",
        "x-ratelimit-remaining-requests",
        "x-warmpath-cached-tokens",
    ];
    let framing = ["date", "content-length", "transfer-encoding", "retry-after"];
    for (behaviour, status) in [(Behaviour::Answer, 200), (Behaviour::Refuse(400), 400), (Behaviour::Refuse(503), 503)]
    {
        worker.with(|script| script.behaviour = behaviour);
        // A worker that does not serve gets nothing more for a moment, so it is tried last and once.
        for stream in [false, true].into_iter().take(if status == 503 { 1 } else { 2 }) {
            let response = router.post("/v1/chat/completions", chat_body("hello", stream)).await;
            assert_eq!(response.status().as_u16(), status);
            let names = response.headers().keys().map(|name| name.as_str());
            let known = |name: &&str| ours.contains(name) || passed.contains(name) || framing.contains(name);
            let others: Vec<_> = names.filter(|name| !known(name)).collect();
            assert!(others.is_empty(), "{status}: {others:?}");
            let is_flowing = stream && status == 200;
            let expected = if is_flowing { "no-cache, no-transform" } else { "no-cache" };
            assert_eq!(header(&response, "cache-control"), expected);
            assert_eq!(header(&response, "x-ratelimit-remaining-requests"), "7");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_no_gateway_may_pass_on_is_a_broken_answer() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let router = TestRouter::ready(&[&workers[0]], &["--attempts-max", "1"]).await;
    for status in [204, 400, 404, 418, 422, 501] {
        workers[0].with(|script| script.behaviour = Behaviour::Refuse(status));
        assert_eq!(router.chat("hello").await.status().as_u16(), status, "the worker decides the status");
    }
    for status in [101, 206, 300, 301, 302, 304, 307, 308, 407, 426, 511, 600, 999] {
        workers[0].with(|script| script.behaviour = Behaviour::Refuse(status));
        let error = error_of(router.chat("hello").await, 502).await;
        assert_eq!((&error["code"], &error["type"]), (&json!("worker_failed"), &json!("server_error")), "{status}");
        workers[0].with(|script| script.behaviour = Behaviour::Answer);
        assert_eq!(router.chat("hello").await.status(), 200, "after {status}");
    }
    assert_eq!(router.metric("warmpath_router_failed_attempts_total{failure=\"broken\"}").await, 13.0);
    workers[0].with(|script| script.behaviour = Behaviour::Refuse(302));
    let message = json!({"max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}).to_string();
    let response = router.post("/v1/messages", message).await;
    let (status, told) = (response.status(), response.json::<Value>().await.expect("JSON"));
    assert_eq!((status.as_u16(), &told["type"], &told["error"]["type"]), (502, &json!("error"), &json!("api_error")));

    // Another worker gets the request that the first could not answer.
    let both = TestRouter::ready(&workers.each_ref(), &[]).await;
    for _ in 0..4 {
        assert_eq!(both.chat("hello").await.status(), 200);
    }
}
