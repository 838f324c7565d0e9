//! Clients that keep the router waiting, and host names that are not the router's: other clients are not affected.

use std::process::{Child, Command, Stdio};

use crate::support::keys::{KeyFile, key};
use crate::support::worker::answers::{End, N_TOKENS};
use crate::support::worker::{Behaviour, FakeWorker, full, idle, model};
use crate::support::{TestRouter, chat_body, config, error_of, eventually, fleet_of_one, header};
use futures::StreamExt as _;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use warmpath_common::model::ModelInfo;
use warmpath_common::summary::Load;

const CHAT: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n";

/// Metric of the memory of bodies.
const BODY_BYTES: &str = "warmpath_router_body_bytes";

/// Starts a router with 3 MiB of memory for bodies, of which one sender may use 1 MiB.
async fn with_small_body_memory(workers: &[&FakeWorker], flags: &[&str]) -> TestRouter {
    let mut config = config(workers, flags);
    config.requests.body_bytes_max = 1 << 20;
    config.requests.body_memory_bytes_max = 3 << 20;
    TestRouter::start_with(config).await.wait_until_ready().await
}

/// Returns the body of a chat with a word, and with so many bytes in a field that the router ignores.
fn long_chat(word: &str, n_ignored: usize, stream: bool) -> String {
    let messages = json!([{"role": "user", "content": word}]);
    json!({"messages": messages, "stream": stream, "x": ".".repeat(n_ignored)}).to_string()
}

async fn send(router: &TestRouter, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(router.server.address).await.expect("it listens");
    stream.write_all(bytes).await.expect("it takes bytes");
    stream
}

/// Sends the head of a chat with a body of one length, and a body of another.
async fn send_unfinished(router: &TestRouter, n_announced: usize, n_sent: usize) -> TcpStream {
    let head = format!("{CHAT}connection: close\r\ncontent-length: {n_announced}\r\n\r\n");
    send(router, &[head.as_bytes(), &vec![b' '; n_sent]].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_never_arrive_take_no_memory_from_others() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--requests-max", "2"]).await;
    let mut unfinished = Vec::new();
    for n_sent in [0, 1, 50, 99, 10] {
        unfinished.push(send_unfinished(&router, 100, n_sent).await);
    }
    router.wait_for_metric("warmpath_router_connections", 5.0).await;
    for _ in 0..3 {
        assert_eq!(router.chat("hello").await.status(), 200);
    }
    assert_eq!(router.metric("warmpath_router_requests_in_flight").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_bodies_take_bounded_memory_and_one_more_gets_retry_after() {
    const MIB: usize = 1 << 20;
    let worker = FakeWorker::start(1);
    let router = with_small_body_memory(&[&worker], &[]).await;
    let _held = send_unfinished(&router, MIB, MIB / 2).await;
    router.wait_for_metric(BODY_BYTES, (MIB / 2) as f64).await;
    let refused = router.post("/v1/chat/completions", vec![b' '; MIB]).await;
    assert!(!header(&refused, "retry-after").is_empty());
    let error = error_of(refused, 429).await;
    assert_eq!((&error["code"], &error["type"]), (&json!("bodies_full"), &json!("rate_limit_error")));
    assert!(router.metric(BODY_BYTES).await <= MIB as f64);
    assert_eq!(router.chat("hello").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_waiting_requests_count_and_another_sender_is_still_answered() {
    let worker = FakeWorker::start(1);
    worker.with(|script| script.poison = Some(("stay", Behaviour::Silent)));
    let ((a, first), (b, second)) = (key("a", ""), key("b", ""));
    let file = KeyFile::new(&format!("{first}{second}"));
    let router = with_small_body_memory(&[&worker], &file.flags()).await;
    let send = |key: &str, word: &str| {
        let request = router.client.post(router.url("/v1/chat/completions")).bearer_auth(key);
        request.body(long_chat(word, 600_000, false)).send()
    };
    let waiting = tokio::spawn(send(&a, "stay"));
    eventually("the worker has the first request", || async { worker.seen().len() == 1 }).await;
    assert!(router.metric(BODY_BYTES).await >= 600_000.0);
    let error = error_of(send(&a, "hello").await.expect("an answer"), 429).await;
    assert_eq!(error["code"], "bodies_full");
    assert_eq!(send(&b, "hello").await.expect("an answer").status(), 200);
    waiting.abort();
    eventually("no body is left", || async { router.metric(BODY_BYTES).await == 0.0 }).await;
    assert_eq!(send(&a, "hello").await.expect("an answer").status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_stream_loses_its_failover_where_a_new_body_needs_the_memory() {
    let (mut first, second) = (FakeWorker::start(1), FakeWorker::start(2));
    first.with(|script| script.behaviour = Behaviour::Journaled(2, End::Hang));
    second.with(|script| script.behaviour = Behaviour::Journaled(N_TOKENS, End::Close));
    for worker in [&first, &second] {
        worker.with(|script| script.poison = Some(("quick", Behaviour::Answer)));
    }
    let router = with_small_body_memory(&[&first, &second], &[]).await;
    let report = async |load: Load| {
        let shown = serde_json::to_value(&load).expect("JSON");
        second.update(Vec::new(), Some(load));
        eventually("the load is known", || async { router.fleet().await["workers"][1]["load"] == shown }).await;
    };
    report(full(10_000)).await;
    // Together they have three times the share of one sender.
    let mut streams = Vec::new();
    for n_ignored in [800_000, 700_000, 700_000, 700_000] {
        let response = router.post("/v1/chat/completions", long_chat("hello", n_ignored, true)).await;
        let (mut stream, mut text) = (response.bytes_stream(), String::new());
        while !text.contains("\"n\": 1") {
            text.push_str(&String::from_utf8_lossy(&stream.next().await.expect("more").expect("it is whole")));
        }
        streams.push((stream, text));
    }
    assert_eq!(first.seen().len(), 4);
    assert!(router.metric(BODY_BYTES).await >= 2_900_000.0);
    report(idle()).await;
    let quick = router.post("/v1/chat/completions", long_chat("quick", 700_000, false)).await;
    assert_eq!(quick.status(), 200);
    assert!(router.metric(BODY_BYTES).await < 2_900_000.0);
    first.kill();
    for (idx, (mut stream, mut text)) in streams.into_iter().enumerate() {
        while let Some(piece) = stream.next().await {
            text.push_str(&String::from_utf8_lossy(&piece.expect("the stream ends in order")));
        }
        let is_continued = text.contains("\"n\": 7") && text.contains("[DONE]");
        let is_failed = text.contains("worker_failed") && !text.contains("[DONE]");
        assert_eq!((is_continued, is_failed), (idx > 0, idx == 0), "{idx}: {text}");
    }
    for (result, n) in [("continued", 3.0), ("failed", 1.0)] {
        assert_eq!(router.metric(&format!("warmpath_router_failovers_total{{result=\"{result}\"}}")).await, n);
    }
    eventually("no body is left", || async { router.metric(BODY_BYTES).await == 0.0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_with_too_many_values_is_refused_in_each_dialect_and_reaches_no_worker() {
    let (worker, router) = fleet_of_one().await;
    let list = |item: &str| format!("[{}]", vec![item; 300_000].join(","));
    let (objects, numbers) = (list(r#"{"":0}"#), list("0"));
    let messages = r#""messages": [{"role": "user", "content": "hello"}]"#;
    for (path, body) in [
        ("/v1/chat/completions", format!(r#"{{{messages}, "chat_template_kwargs": {{"a": {objects}}}}}"#)),
        ("/v1/chat/completions", format!(r#"{{{messages}, "chat_template_kwargs": {{"a": {numbers}}}}}"#)),
        ("/v1/completions", format!(r#"{{"prompt": "hello", "x": {objects}}}"#)),
        ("/v1/responses", format!(r#"{{"model": "tiny", "input": "hello", "x": {numbers}}}"#)),
        ("/v1/messages", format!(r#"{{"model": "tiny", "max_tokens": 9, {messages}, "x": {objects}}}"#)),
        ("/tokenize", format!(r#"{{"content": "hello", "x": {objects}}}"#)),
    ] {
        let error = error_of(router.post(path, body).await, 400).await;
        assert_eq!(error["type"], "invalid_request_error", "{path}");
        assert_eq!(error["message"], "the request body has more than 262144 JSON values", "{path}");
    }
    assert!(worker.seen().is_empty());
    let body = format!(r#"{{"prompt": "hello", "x": {numbers}}}"#);
    assert_eq!(router.post("/v1/completions", body).await.status(), 200, "a completion may have as many numbers");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stops_is_given_up_before_its_time_is_over() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--body-timeout", "0.3"]).await;
    let mut answer = String::new();
    send_unfinished(&router, 100, 10).await.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_lock_neither_clients_nor_operators_out() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--connections-max", "4"]).await;
    let mut silent = Vec::new();
    for n in 0..30 {
        let sent = ["", "POST /v1/ch", "PRI * HTTP/2.0\r\n\r\n"][n % 3];
        silent.push(send(&router, sent.as_bytes()).await);
    }
    let mut at_admin = Vec::new();
    for _ in 0..100 {
        at_admin.push(TcpStream::connect(router.server.admin_address).await.expect("it listens"));
    }
    assert_eq!(router.get("/readyz").await.0, 200);
    assert_eq!(router.chat("hello").await.status(), 200);
    assert!(router.metric("warmpath_router_displaced_connections_total").await >= 10.0);
    assert!(router.metric("warmpath_router_connections").await <= 4.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_a_host_that_is_not_this_router_are_refused_as_each_api_has_it() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--allowed-host", "router.example"]).await;
    let ask = async |path: &str, host: &str| {
        let request = router.client.post(router.url(path)).header("host", host).body(chat_body("hello", false));
        request.send().await.expect("an answer")
    };
    let refused = ask("/v1/chat/completions", "evil.example:8080").await;
    assert!(!header(&refused, "x-request-id").is_empty());
    let error = error_of(refused, 403).await;
    assert_eq!((&error["code"], &error["type"]), (&json!("host_not_allowed"), &json!("permission_error")));
    let refused = ask("/v1/messages", "evil.example").await;
    assert_eq!(refused.status(), 403);
    let body: serde_json::Value = refused.json().await.expect("JSON");
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("permission_error")));
    assert_eq!(ask("/readyz", "evil.example").await.status(), 403);
    for host in ["localhost", "127.0.0.1:1", "router.example"] {
        assert_eq!(ask("/v1/chat/completions", host).await.status(), 200, "{host}");
    }
    let admin = async |host: &str| {
        let url = format!("http://{}/internal/v1/fleet", router.server.admin_address);
        router.client.get(url).header("host", host).send().await.expect("an answer").status().as_u16()
    };
    for (host, status) in
        [("evil.example", 403), ("10.1.2.3:9090", 200), ("[fd00::1]", 200), ("localhost", 200), ("router.example", 200)]
    {
        assert_eq!(admin(host).await, status, "{host}");
    }
    let mut answer = String::new();
    let mut stream = send(&router, b"GET /livez HTTP/1.1\r\nconnection: close\r\n\r\n").await;
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_fits_no_worker_is_refused_in_each_dialect_and_reaches_none() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let larger = ModelInfo { context_tokens: 16_384, ..model() };
    workers[1].with(|script| script.summary.snapshot.model = larger);
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    eventually("the vocabulary is there", || async { router.fleet().await["vocabularies"][0]["state"] == "ready" })
        .await;
    let text = ".".repeat(4 << 20);
    let messages = json!([{"role": "user", "content": text}]);
    for (path, body) in [
        ("chat/completions", json!({"messages": messages})),
        ("completions", json!({"prompt": text})),
        ("responses", json!({"model": "tiny", "input": text})),
        ("messages", json!({"model": "tiny", "max_tokens": 9, "messages": messages})),
    ] {
        let refused = router.post(&format!("/v1/{path}"), body.to_string()).await;
        let error = error_of(refused, 400).await;
        let says = match path {
            "messages" => "prompt is too long: 16385 tokens > 16383 maximum",
            _ => "the prompt of at least 16385 tokens exceeds the available context size, which is 16384 tokens",
        };
        assert!(error["message"].as_str().is_some_and(|text| text.starts_with(says)), "{path}: {error}");
        assert_eq!(error["type"], "invalid_request_error", "{path}");
        if path != "messages" {
            assert_eq!(error["code"], "context_length_exceeded", "{path}");
        }
    }
    assert!(workers.iter().all(|worker| worker.seen().is_empty()));
    assert_eq!(router.chat(&"long ".repeat(9000)).await.status(), 200, "only a worker refuses a prompt that may fit");
}

/// A router's process, ended when the test is.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns an address that is free now.
fn free_address() -> String {
    let bound = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.expect("a port is free").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_written_loses_lines_and_nothing_else() {
    let worker = FakeWorker::start(1);
    for stderr in ["full", "closed", "stalled"] {
        let (address, admin) = (free_address(), free_address());
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath-router"));
        command.args(["--worker", &worker.url(), "--listen", &address, "--admin-listen", &admin, "--index-max", "16"]);
        command.env("RUST_LOG", "trace");
        command.stderr(match stderr {
            "full" => std::fs::File::options().write(true).open("/dev/full").expect("Linux has it").into(),
            _ => Stdio::piped(),
        });
        let mut child = command.spawn().expect("it starts");
        let pipe = child.stderr.take();
        // A pipe without a reader is full after 64 KiB.
        let _unread = pipe.filter(|_| stderr == "stalled");
        let _process = Process(child);
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        eventually("it is ready", || async {
            let answer = client.get(format!("http://{address}/readyz")).send().await;
            answer.is_ok_and(|answer| answer.status() == 200)
        })
        .await;
        let lost = async || {
            let answer = client.get(format!("http://{admin}/metrics")).send().await.expect("an answer");
            let text = answer.text().await.expect("text");
            let line = text.lines().find_map(|line| line.strip_prefix("warmpath_router_log_lines_lost_total "));
            line.expect("there is such a metric").parse::<f64>().expect("a number")
        };
        let asked = async || {
            let url = format!("http://{address}/v1/chat/completions");
            let answer = client.post(url).body(chat_body("hello", false)).send().await.expect("an answer");
            assert_eq!(answer.status(), 200, "{stderr}");
        };
        for _ in 0..200 {
            asked().await;
        }
        if stderr != "stalled" {
            eventually("lines are lost", || async {
                asked().await;
                lost().await > 0.0
            })
            .await;
        }
    }
}
