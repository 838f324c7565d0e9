//! Invalid input and limits: every error is OpenAI's error object, with a fitting status.

use crate::support::fake_server::Seen;
use crate::support::keys::{KeyFile, key};
use crate::support::worker::{Behaviour, FakeWorker, model};
use crate::support::{TestRouter, chat_body, error_of, fleet_of_one, header};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use warmpath_common::model::{Fingerprint, ModelInfo};

#[tokio::test(flavor = "multi_thread")]
async fn bad_bodies_are_refused_with_the_field_s_name_and_no_worker_sees_them() {
    let (worker, router) = fleet_of_one().await;
    let cases = [
        ("chat/completions", "{", 400, None, Some("invalid_json")),
        ("chat/completions", "", 400, None, Some("invalid_json")),
        ("chat/completions", "[]", 400, None, None),
        ("chat/completions", "{}", 400, Some("messages"), None),
        ("chat/completions", r#"{"messages": []}"#, 400, Some("messages"), None),
        ("chat/completions", r#"{"messages": "hello"}"#, 400, Some("messages"), None),
        ("chat/completions", r#"{"messages": [1]}"#, 400, Some("messages[0]"), None),
        ("chat/completions", r#"{"messages": [{"role": 5, "content": "a"}]}"#, 400, Some("messages[0]"), None),
        (
            "chat/completions",
            r#"{"messages": [{"role": "user", "content": "a"}], "model": 5}"#,
            400,
            Some("model"),
            None,
        ),
        ("chat/completions", r#"{"messages": [{"role": "user", "content": "a"}]} x"#, 400, None, Some("invalid_json")),
        ("completions", "{}", 400, Some("prompt"), None),
        ("completions", r#"{"prompt": {"a": 1}}"#, 400, Some("prompt"), None),
        ("completions", r#"{"prompt": [1, null]}"#, 400, Some("prompt"), None),
    ];
    for (path, body, status, param, code) in cases {
        let error = error_of(router.post(&format!("/v1/{path}"), body).await, status).await;
        assert_eq!(error["param"], json!(param), "{body}: {error}");
        assert_eq!(error["code"], json!(code), "{body}: {error}");
        assert_eq!(error["type"], "invalid_request_error", "{body}");
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_numbers_may_be_written_as_floats() {
    let (_worker, router) = fleet_of_one().await;
    let user = r#""messages": [{"role": "user", "content": "a"}]"#;
    let gap = r#""input_prefix": "a", "input_suffix": "b""#;
    for (path, fields, name, value) in [
        ("/v1/chat/completions", user, "n", "2#"),
        ("/v1/chat/completions", user, "n_cmpl", "1#"),
        ("/v1/chat/completions", user, "max_tokens", "4#"),
        ("/v1/completions", r#""prompt": "a""#, "n", "2#"),
        ("/v1/completions", r#""max_tokens": 4e0"#, "prompt", "[1#]"),
        ("/v1/completions", r#""max_tokens": 4.0"#, "prompt", "[[1#], [2]]"),
        ("/infill", gap, "n_predict", "4#"),
        ("/infill", gap, "max_tokens", "4#"),
        ("/infill", gap, "max_completion_tokens", "4#"),
        ("/v1/messages", user, "max_tokens", "4#"),
        ("/v1/responses", r#""input": "a""#, "max_output_tokens", "4#"),
    ] {
        for form in [".0", "e0", "0e-1"] {
            let body = format!("{{{fields}, \"{name}\": {}}}", value.replace('#', form));
            // The scripted worker does not know every path.
            let expected = if path == "/infill" { 404 } else { 200 };
            assert_eq!(router.post(path, body.clone()).await.status(), expected, "{path} {body}");
        }
    }
    for (path, fields, name) in [("/v1/chat/completions", user, "n"), ("/infill", gap, "n_predict")] {
        let body = format!("{{{fields}, \"{name}\": 4.5}}");
        let error = error_of(router.post(path, body).await, 400).await;
        assert_eq!(error["param"], name, "{error}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains("expected a whole number")), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_model_is_not_found_and_the_known_ones_are_listed() {
    let (_worker, router) = fleet_of_one().await;
    let body = |model: &str| json!({"model": model, "messages": [{"role": "user", "content": "a"}]}).to_string();
    let error = error_of(router.post("/v1/chat/completions", body("other")).await, 404).await;
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    assert_eq!(error["message"], "the model `other` does not exist; available: `tiny`, `alias`");
    for model in ["tiny", "alias", ""] {
        assert_eq!(router.post("/v1/chat/completions", body(model)).await.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_model_name_means_the_only_model_in_every_dialect() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let router = TestRouter::ready(&workers.each_ref(), &["--any-model-name"]).await;
    let user = json!([{"role": "user", "content": "a"}]);
    // The second body is so long that it is read on another thread.
    for (path, field, content, n_padding) in [
        ("/v1/chat/completions", "messages", user.clone(), 1),
        ("/v1/chat/completions", "messages", user.clone(), 300 << 10),
        ("/v1/completions", "prompt", json!("a"), 1),
        ("/v1/messages", "messages", user.clone(), 1),
        ("/v1/responses", "input", json!("a"), 1),
    ] {
        let limit = if path.ends_with("responses") { "max_output_tokens" } else { "max_tokens" };
        let padding = "x".repeat(n_padding);
        let mut body = json!({"temperature": 0.3, "model": "gpt-4o", field: content, limit: 5, "padding": padding});
        let response = router.post(path, body.to_string()).await;
        assert_eq!(response.status(), 200, "{path}");
        let name = header(&response, "x-warmpath-worker");
        let seen = workers[usize::from(name.ends_with('2'))].seen();
        let seen: Value = serde_json::from_slice(&seen.last().expect("a request").body).expect("JSON");
        body["model"] = json!("tiny");
        assert_eq!(seen, body, "{path}: only the name differs");
        body["model"] = json!("alias");
        assert_eq!(router.post(path, body.to_string()).await.status(), 200, "{path}");
        let seen: Vec<_> = workers.iter().flat_map(|worker| worker.seen()).collect();
        let is_as_sent = |seen: &Seen| seen.target == path && seen.body == body.to_string();
        assert_eq!(seen.iter().filter(|seen| is_as_sent(seen)).count(), 1, "{path}: a known name is left alone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_model_name_means_nothing_where_several_models_are_served() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let other = ModelInfo { names: vec!["other".into()], fingerprint: Fingerprint([9; 32]), ..model() };
    workers[1].with(|script| script.summary.snapshot.model = other);
    let router = TestRouter::ready(&workers.each_ref(), &["--any-model-name"]).await;
    let body = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "a"}]}).to_string();
    let error = error_of(router.post("/v1/chat/completions", body).await, 404).await;
    assert_eq!(error["code"], "model_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_those_of_the_fleet() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let other = ModelInfo { names: vec!["org/other".into()], fingerprint: Fingerprint([9; 32]), ..model() };
    workers[1].with(|script| script.summary.snapshot.model = other);
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    let (_, list) = router.get("/v1/models").await;
    let names: Vec<_> = list["data"].as_array().expect("a list").iter().map(|model| model["id"].clone()).collect();
    assert_eq!(names, ["tiny", "alias", "org/other"]);
    assert_eq!(router.get("/v1/models/org/other").await.1["id"], "org/other");
    assert_eq!(router.get("/v1/models/nothing").await.0, 404);
    let error = error_of(router.chat("hello").await, 400).await;
    assert_eq!(error["code"], "model_required", "of several models one must be named");
    let body = json!({"model": "org/other", "messages": [{"role": "user", "content": "a"}]}).to_string();
    assert_eq!(header(&router.post("/v1/chat/completions", body).await, "x-warmpath-worker"), "0000000000000002");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_matches_a_pattern_is_routed_only_to_the_pattern_s_workers() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let other = ModelInfo { names: vec!["claude-haiku".into()], fingerprint: Fingerprint([9; 32]), ..model() };
    workers[0].with(|script| script.summary.snapshot.model.names.push("claude-*".into()));
    workers[1].with(|script| script.summary.snapshot.model = other);
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    let names = |list: &Value| {
        list["data"].as_array().expect("a list").iter().map(|model| model["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&router.get("/v1/models").await.1), ["tiny", "alias", "claude-haiku"], "a pattern is no name");
    for (name, worker) in [("claude-opus", 1), ("claude-haiku", 2)] {
        assert_eq!(router.get(&format!("/v1/models/{name}")).await.1["meta"]["n_workers"], 1, "{name}");
        let body = json!({"model": name, "messages": [{"role": "user", "content": "a"}]}).to_string();
        for _ in 0..4 {
            let answer = router.post("/v1/chat/completions", body.clone()).await;
            assert_eq!(header(&answer, "x-warmpath-worker"), format!("{worker:016}"), "{name}");
        }
    }
    assert_eq!(router.get("/v1/models/gpt").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropic_s_clients_see_models_in_their_own_shape() {
    let (_worker, router) = fleet_of_one().await;
    let get = async |path: &str| {
        let asked = router.client.get(router.url(path)).header("anthropic-version", "2023-06-01").send();
        let response = asked.await.expect("the router answers");
        (response.status().as_u16(), response.json::<Value>().await.expect("JSON"))
    };
    let (_, list) = get("/v1/models?limit=1").await;
    assert_eq!((&list["last_id"], &list["has_more"]), (&json!("tiny"), &json!(true)), "{list}");
    let (_, model) = get("/v1/models/alias").await;
    assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!("alias")), "{model}");
    for (path, status) in [("/v1/models/nothing", 404), ("/v1/models?limit=x", 400)] {
        let (found, error) = get(path).await;
        assert_eq!((found, &error["type"]), (status, &json!("error")), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_and_methods_are_refused() {
    let (_worker, router) = fleet_of_one().await;
    let error = error_of(router.post("/v1/nothing", "{}").await, 404).await;
    assert_eq!(error["message"], "the path /v1/nothing does not exist");
    let response = router.client.get(router.url("/v1/chat/completions")).send().await.expect("an answer");
    assert!(!header(&response, "x-request-id").is_empty());
    assert_eq!(error_of(response, 405).await["message"], "/v1/chat/completions does not support the method GET");
    for path in ["/v1/responses/compact", "/v1/files", "/v1/batches"] {
        let error = error_of(router.post(path, "{}").await, 404).await;
        assert_eq!(error["code"], "endpoint_not_offered", "{path}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains("not offer")), "{path}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_is_cleaned_before_it_is_routed_and_before_access_is_checked() {
    let worker = FakeWorker::start(1);
    let (good, entry) = key("a", "");
    let file = KeyFile::new(&entry);
    let router = TestRouter::ready(&[&worker], &file.flags()).await;
    let ask = async |path: &str, key: Option<&str>| {
        let request = router.client.post(router.url(path)).body(chat_body("hello", false));
        let request = key.into_iter().fold(request, |request, key| request.bearer_auth(key));
        request.send().await.expect("an answer").status().as_u16()
    };
    for path in ["/v1//chat/completions", "//v1/chat/completions", "/v1/chat/completions/", "/v1/v1/chat/completions"] {
        assert_eq!(ask(path, None).await, 401, "{path}");
        assert_eq!(ask(path, Some(&good)).await, 200, "{path}");
    }
    assert!(worker.seen().iter().all(|seen| seen.target == "/v1/chat/completions"), "workers get the cleaned path");
    assert_eq!(router.get("//health/").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_refused() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--body-max", "300"]).await;
    assert_eq!(router.chat(&"a".repeat(100)).await.status(), 200);
    let error = error_of(router.chat(&"a".repeat(300)).await, 413).await;
    assert_eq!(error["code"], "request_too_large");
    assert_eq!(error["message"], "the request body is longer than 300 bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_arrive_is_given_up() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--body-timeout", "0.2"]).await;
    let mut socket = tokio::net::TcpStream::connect(router.server.address).await.expect("a connection");
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 10\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.expect("it is sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_places_are_refused() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--requests-max", "1"]).await;
    worker.with(|script| script.behaviour = Behaviour::Hang);
    let held = router.chat_stream("hello").await;
    let response = router.chat("hello").await;
    assert_eq!(header(&response, "retry-after"), "1");
    let error = error_of(response, 429).await;
    assert_eq!((&error["code"], &error["type"]), (&json!("queue_full"), &json!("rate_limit_error")));
    drop(held);
    worker.with(|script| script.behaviour = Behaviour::Answer);
    crate::support::eventually("the place is free", || async { router.chat("hello").await.status() == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_set_the_router_s_headers() {
    let (worker, router) = fleet_of_one().await;
    let request = router.client.post(router.url("/v1/chat/completions")).body(chat_body("hello", false));
    let request = request
        .header("x-warmpath-slot", "3")
        .header("x-warmpath-expected-block", "00")
        .header("authorization", "Bearer key")
        .header("x-custom", "kept")
        .header("connection", "x-hop")
        .header("x-hop", "dropped")
        .header("x-request-id", "not visible: \u{e9}");
    assert_eq!(request.send().await.expect("an answer").status(), 200);
    let seen = worker.seen().remove(0).headers;
    for absent in ["x-warmpath-slot", "x-warmpath-expected-block", "x-hop", "authorization"] {
        assert!(!seen.contains_key(absent), "{absent}");
    }
    assert_eq!(seen["x-custom"], "kept");
    assert_eq!(seen["x-request-id"].len(), 36, "a fresh one");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_requests_by_endpoint_and_status() {
    let (_worker, router) = fleet_of_one().await;
    router.chat("hello").await;
    router.post("/v1/chat/completions", "{").await;
    let line =
        |status| format!("warmpath_router_requests_total{{endpoint=\"/v1/chat/completions\",status=\"{status}\"}}");
    assert_eq!(router.metric(&line(200)).await, 1.0);
    assert_eq!(router.metric(&line(400)).await, 1.0);
    for probe in ["/health", "/livez", "/readyz"] {
        assert_eq!(router.get(probe).await.0, 200, "{probe}");
    }
    assert_eq!(router.metric_of_all("warmpath_router_requests_total").await, 2.0, "a probe is no request");
    for phase in ["parse", "prompt", "hash", "match", "choose"] {
        let line = format!("warmpath_router_decision_seconds_count{{phase=\"{phase}\"}}");
        assert_eq!(router.metric(&line).await, 1.0, "{phase}");
    }
    assert_eq!(router.metric("warmpath_router_workers{state=\"ready\"}").await, 1.0);
}
