//! Ollama's API at the router: answered by workers and stock servers that do not know it, on the way of every request.

use std::time::Duration;

use serde_json::{Value, json};
use warmpath_common::host::{HostModel, UNLOAD_PATH};

use crate::support::fake_server::Seen;
use crate::support::host::{FakeHost, loadable, loaded};
use crate::support::keys::{KeyFile, key};
use crate::support::opening::Opening;
use crate::support::real_worker::RealWorker;
use crate::support::stock::{FakeStock, Says};
use crate::support::worker::answers::{End, N_TOKENS};
use crate::support::worker::{Behaviour, FakeWorker};
use crate::support::{TestRouter, config, eventually, fleet_of_one, fleet_of_two, header, long_text};

const CHAT: &str = "/api/chat";

fn chat_of(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "options": {"temperature": 0, "num_predict": 5}})
}

fn whole(mut body: Value) -> String {
    body["stream"] = json!(false);
    body.to_string()
}

fn header_of<'s>(seen: &'s Seen, name: &str) -> &'s str {
    seen.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn numbers(vector: &Value) -> Vec<f64> {
    vector.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// Returns the lines of a stream.
async fn lines(response: reqwest::Response) -> Vec<Value> {
    assert_eq!((response.status().as_u16(), header(&response, "content-type").as_str()), (200, "application/x-ndjson"));
    let text = response.text().await.expect("the stream ends well");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

/// Asserts that a response is Ollama's error with this status; returns its text.
async fn error_of(response: reqwest::Response, status: u16) -> String {
    let actual = response.status().as_u16();
    let body: Value = response.json().await.expect("an error is JSON");
    assert_eq!((actual, body.as_object().map(serde_json::Map::len)), (status, Some(1)), "{body}");
    body["error"].as_str().expect("a text").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_goes_to_the_worker_that_holds_it_and_is_answered_as_in_openai_s_api() {
    let (workers, router) = fleet_of_two().await;
    let text = long_text("blocks");
    workers[1].hold(&text, None, 3);
    let body = json!({"model": "tiny:latest", "messages": [{"role": "user", "content": text}]}).to_string();
    let predicted =
        async || header(&router.post(CHAT, body.clone()).await, "x-warmpath-predicted-cached-tokens") == "32";
    eventually("the router knows the blocks and the reuse", predicted).await;
    let seen = workers[1].seen().pop().expect("the worker was asked");
    assert_eq!(seen.target, "/v1/chat/completions");
    let asked: Value = serde_json::from_slice(&seen.body).expect("JSON");
    let messages = json!([{"role": "user", "content": text}]);
    let options = json!({"include_usage": true});
    let chat = json!({"messages": messages, "stream": true, "stream_options": options, "model": "tiny"});
    assert_eq!((asked, header_of(&seen, "content-type")), (chat, "application/json"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_s_answers_have_ollama_s_fields() {
    check_answers("http").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answers_of_a_server_that_is_known_for_openai_s_api_only_have_them_too() {
    check_answers("openai+http").await;
}

/// Checks the answers of a real server under a URL with this scheme.
async fn check_answers(scheme: &str) {
    let worker = RealWorker::start(&[]).await;
    let router = TestRouter::ready_for(&[worker.url(scheme)], &[]).await;
    let answer: Value = router.post(CHAT, whole(chat_of("hello"))).await.json().await.expect("JSON");
    let said = answer["message"]["content"].as_str().expect("a text");
    assert_eq!(
        (&answer["done"], &answer["done_reason"], &answer["eval_count"]),
        (&json!(true), &json!("length"), &json!(5))
    );
    for name in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "prompt_eval_count"] {
        assert!(answer[name].is_u64(), "{name}: {answer}");
    }
    assert!(answer["total_duration"].as_u64() >= answer["eval_duration"].as_u64(), "{answer}");

    let mut found = lines(router.post(CHAT, chat_of("hello").to_string()).await).await;
    let end = found.pop().expect("a last line");
    let texts: String = found.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    assert_eq!((texts.as_str(), &end["eval_count"], &end["model"]), (said, &json!(5), &json!("tiny")));
    assert_eq!(end["prompt_eval_count"], answer["prompt_eval_count"], "cached tokens are counted");

    let prompt = json!({"prompt": "hello", "options": {"temperature": 0, "num_predict": 5}});
    let generated: Value = router.post("/api/generate", whole(prompt)).await.json().await.expect("JSON");
    assert_eq!(generated["response"], said, "a prompt is the question of a chat");
    let raw = json!({"prompt": "hello", "raw": true, "logprobs": true, "options": {"num_predict": 3}});
    let raw: Value = router.post("/api/generate", whole(raw)).await.json().await.expect("JSON");
    assert_eq!((raw["logprobs"].as_array().map(Vec::len), &raw["eval_count"]), (Some(3), &json!(3)), "{raw}");
    let loaded: Value = router.post("/api/generate", "{\"model\": \"tiny\"}").await.json().await.expect("JSON");
    assert_eq!((&loaded["done_reason"], &loaded["response"]), (&json!("load"), &json!("")));

    let hot = json!({"messages": [{"role": "user", "content": "a"}], "options": {"temperature": 1000}});
    assert!(error_of(router.post(CHAT, whole(hot)).await, 400).await.contains("`options.temperature`"));
    let schema = json!({"messages": [{"role": "user", "content": "a"}], "format": {"type": 5}});
    assert!(error_of(router.post(CHAT, whole(schema)).await, 400).await.contains("format"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedder_s_vectors_are_given_in_both_forms() {
    let worker = RealWorker::start_embedder(&[]).await;
    let router = TestRouter::ready_for(&[worker.url("http")], &[]).await;
    let texts = json!({"model": "embed", "input": ["one", "two"]}).to_string();
    let answer: Value = router.post("/api/embed", texts).await.json().await.expect("JSON");
    let vectors = answer["embeddings"].as_array().expect("vectors");
    assert_eq!((vectors.len(), answer["prompt_eval_count"].is_u64(), &answer["model"]), (2, true, &json!("embed")));
    let text = json!({"model": "embed", "prompt": "one"}).to_string();
    let answer: Value = router.post("/api/embeddings", text).await.json().await.expect("JSON");
    // The same text alone is computed in a batch of another size.
    let pairs = numbers(&answer["embedding"]).into_iter().zip(numbers(&vectors[0]));
    assert!(pairs.clone().count() > 10 && pairs.into_iter().all(|(one, other)| (one - other).abs() < 1e-4), "{answer}");
    let cut = json!({"model": "embed", "input": "a", "dimensions": 2}).to_string();
    let answer: Value = router.post("/api/embed", cut).await.json().await.expect("JSON");
    assert_eq!(answer["embeddings"][0].as_array().map(Vec::len), Some(2));
    let nothing: Value = router.post("/api/embed", "{\"input\": []}").await.json().await.expect("JSON");
    assert_eq!(nothing["embeddings"], json!([]));
    assert!(error_of(router.post(CHAT, whole(chat_of("a"))).await, 501).await.contains("completion"));
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_servers_answer_too() {
    let server = FakeStock::start("tiny");
    server.with(|script| script.says = Says::Timings);
    let router = TestRouter::ready_for(&[server.flag()], &[]).await;
    let found = lines(router.post(CHAT, chat_of(&long_text("bread")).to_string()).await).await;
    let end = found.last().expect("a last line");
    assert_eq!((&end["done"], &end["eval_count"]), (&json!(true), &json!(3)), "{end}");
    assert!(end["prompt_eval_count"].as_u64() > Some(100) && end["prompt_eval_duration"].is_u64(), "{end}");
    // Its whole answers have no choices.
    assert!(error_of(router.post(CHAT, whole(chat_of("a"))).await, 502).await.contains("cannot be passed on"));
    server.with(|script| script.refusal = Some((400, None)));
    assert_eq!(error_of(router.post(CHAT, whole(chat_of("a"))).await, 400).await, "scripted");
    // It has no endpoint for tokens.
    server.with(|script| script.refusal = None);
    let answer: Value = router.post(CHAT, "{}").await.json().await.expect("JSON");
    assert_eq!(answer["done_reason"], "load");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_bodies_get_a_text_and_no_worker_sees_them() {
    let (worker, router) = fleet_of_one().await;
    for (path, body, says) in [
        (CHAT, "{".to_owned(), "not valid JSON"),
        (CHAT, "[]".to_owned(), "must be a JSON object"),
        (CHAT, json!({"messages": "hi"}).to_string(), "`messages` must be an array"),
        (CHAT, json!({"messages": [{"content": "hi"}]}).to_string(), "`messages[0].role` is missing"),
        (CHAT, json!({"messages": [{"role": "user", "content": []}]}).to_string(), "`messages[0].content` must be"),
        (CHAT, json!({"messages": [{"role": "user"}], "keep_alive": "soon"}).to_string(), "`keep_alive` must be"),
        (CHAT, format!("{{\"messages\": {}", "[".repeat(10_000)), "not valid JSON"),
        ("/api/generate", json!({"prompt": "a", "template": "{{ .Prompt }}"}).to_string(), "`template`"),
        ("/api/generate", json!({"prompt": "a", "context": [1, 2]}).to_string(), "`context`"),
        ("/api/embed", json!({"input": [1]}).to_string(), "`input[0]` must be a string"),
        ("/api/show", json!({"model": 5}).to_string(), "`model` must be a string"),
    ] {
        let text = error_of(router.post(path, body).await, 400).await;
        assert!(text.contains(says), "{path}: {text}");
    }
    let unknown = json!({"model": "llama3:latest", "messages": [{"role": "user", "content": "a"}]}).to_string();
    assert!(error_of(router.post(CHAT, unknown).await, 404).await.contains("`llama3`"));
    assert!(error_of(router.post("/api/show", "{\"name\": \"x\"}").await, 404).await.contains("`x`"));
    assert!(worker.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_bodies_cost_no_other_client_its_answer() {
    let worker = RealWorker::start(&[]).await;
    let router = TestRouter::ready_for(&[worker.url("http")], &[]).await;
    let mut body = chat_of("hello");
    body["options"]["num_predict"] = json!(200);
    let expected = lines(router.post(CHAT, body.to_string()).await).await;
    let running = router.post(CHAT, body.to_string()).await;
    let many = format!("{{\"messages\": [{}]}}", vec!["{\"a\":1}"; 100_000].join(","));
    let deep = format!("{{\"format\": {}{}}}", "{\"a\":".repeat(10_000), "}".repeat(10_000));
    let long = whole(chat_of(&"word ".repeat(100_000)));
    for hostile in [many, deep, long, "\u{0}".repeat(1000)] {
        let posts = (0..8).map(|_| router.post(CHAT, hostile.clone()));
        for response in futures::future::join_all(posts).await {
            assert!(!error_of(response, 400).await.is_empty());
        }
    }
    let texts =
        |lines: &[Value]| -> String { lines.iter().filter_map(|line| line["message"]["content"].as_str()).collect() };
    assert_eq!(texts(&lines(running).await), texts(&expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_router_does_not_do_is_named_and_every_error_is_a_text() {
    let (_worker, router) = fleet_of_one().await;
    for path in ["pull", "push", "create", "copy", "blobs/sha256:1"] {
        let text = error_of(router.post(&format!("/api/{path}"), "{}").await, 404).await;
        assert!(text.contains("docs/ollama.md"), "{path}: {text}");
    }
    let delete = router.client.delete(router.url("/api/delete")).send().await.expect("an answer");
    assert!(error_of(delete, 404).await.contains("/api/delete"));
    assert!(error_of(router.post("/api/nothing", "{}").await, 404).await.contains("does not exist"));
    let get = router.client.get(router.url(CHAT)).send().await.expect("an answer");
    assert!(error_of(get, 405).await.contains("GET"));

    let (key, entry) = key("team", "");
    let (keys, worker) = (KeyFile::new(&entry), FakeWorker::start(1));
    let router = TestRouter::ready(&[&worker], &[&keys.flags()[..], &["--body-max", "1000"]].concat()).await;
    assert!(error_of(router.post(CHAT, chat_of("a").to_string()).await, 401).await.contains("API key"));
    let post = |body: String| router.client.post(router.url(CHAT)).bearer_auth(&key).body(body).send();
    let long = post(chat_of(&"a".repeat(1000)).to_string()).await.expect("an answer");
    assert!(error_of(long, 413).await.contains("1000"));
    assert_eq!(lines(post(chat_of("a").to_string()).await.expect("an answer")).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sees_and_uses_the_models_that_it_may_use() {
    let (key, entry) = key("limited", "models = [\"alias\"]");
    let (keys, worker) = (KeyFile::new(&entry), FakeWorker::start(1));
    let router = TestRouter::ready(&[&worker], &keys.flags()).await;
    for path in ["/api/tags", "/api/ps"] {
        let response = router.client.get(router.url(path)).bearer_auth(&key).send().await.expect("an answer");
        let list: Value = response.json().await.expect("JSON");
        let models = list["models"].as_array().expect("a list");
        assert_eq!((models.len(), &models[0]["name"]), (1, &json!("alias")), "{path}: {list}");
    }
    let post = async |path: &str, body: Value| {
        let request = router.client.post(router.url(path)).bearer_auth(&key).body(body.to_string());
        request.send().await.expect("an answer")
    };
    let of = |name: &str| json!({"model": name, "messages": [{"role": "user", "content": "a"}]});
    assert_eq!(post(CHAT, of("alias:latest")).await.status(), 200);
    assert!(error_of(post(CHAT, of("tiny:latest")).await, 403).await.contains("`tiny`"));
    for (path, body) in
        [("/api/show", json!({"model": "tiny"})), ("/api/generate", json!({"model": "tiny", "keep_alive": 0}))]
    {
        assert!(error_of(post(path, body).await, 403).await.contains("`tiny`"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_off_ends_with_an_error() {
    let (worker, router) = fleet_of_one().await;
    worker.with(|script| script.behaviour = Behaviour::BreakMidway);
    let found = lines(router.post(CHAT, chat_of("a").to_string()).await).await;
    assert_eq!(found, [json!({"error": "the worker 0000000000000001 ended its response early"})]);
    worker.with(|script| script.behaviour = Behaviour::Refuse(400));
    assert_eq!(error_of(router.post(CHAT, chat_of("a").to_string()).await, 400).await, "scripted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_at_another_worker() {
    let (workers, router) = fleet_of_two().await;
    for worker in &workers {
        worker.with(|script| script.behaviour = Behaviour::Journaled(N_TOKENS / 2, End::Break));
    }
    let found = lines(router.post(CHAT, chat_of("a").to_string()).await).await;
    let end = found.last().expect("a last line");
    assert_eq!((&end["done"], end.get("error")), (&json!(true), None), "{found:?}");
    assert_eq!(workers.iter().map(|worker| worker.seen().len()).sum::<usize>(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_gets_empty_parts() {
    let worker = FakeWorker::start(1);
    worker.with(|script| script.opening = Opening::Loading(&["tiny"]));
    let router = TestRouter::start(&[&worker], &["--wait", "600"]).await;
    eventually("it loads", || async { router.state_of(0).await == "loading" }).await;
    let mut response = router.post(CHAT, chat_of("a").to_string()).await;
    let first = response.chunk().await.expect("the stream goes on").expect("it has not ended");
    let first: Value = serde_json::from_slice(&first).expect("a line");
    assert_eq!((&first["message"]["content"], &first["done"]), (&json!(""), &json!(false)));
    worker.with(|script| script.opening = Opening::AtOnce);
    let found = lines(response).await;
    let end = found.last().expect("a last line");
    assert_eq!(end["done"], true);
    assert!(end["load_duration"].as_u64().map(Duration::from_nanos) > Some(Duration::from_secs(1)), "{end}");
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_listed_shown_and_unloaded_at_their_hosts() {
    let worker = FakeWorker::start(1);
    let host = FakeHost::start(vec![HostModel::new("tiny", loaded(worker.url())), HostModel::new("a", loadable())]);
    let router = TestRouter::start_with(config(&[], &["--host", &host.url()])).await.wait_until_ready().await;
    eventually("it serves", || async { router.state_of(0).await == "ready" }).await;
    let names = |list: &Value| -> Vec<String> {
        let models = list["models"].as_array().expect("a list").iter();
        models.map(|model| model["name"].as_str().expect("a name").to_owned()).collect()
    };
    let (status, tags) = router.get("/api/tags").await;
    assert_eq!((status, names(&tags)), (200, vec!["tiny".to_owned(), "a".to_owned(), "alias".to_owned()]));
    assert_eq!(tags["models"][0]["details"]["format"], "gguf");
    let running = router.get("/api/ps").await.1;
    assert!(!names(&running).contains(&"a".to_owned()) && running["models"][0]["context_length"] == 8192, "{running}");
    let shown: Value = router.post("/api/show", "{\"model\": \"tiny:latest\"}").await.json().await.expect("JSON");
    assert_eq!(shown["capabilities"], json!(["completion", "insert"]));
    assert_eq!(shown["model_info"]["llama.context_length"], 8192, "{shown}");
    let unloaded: Value = router.post("/api/show", "{\"model\": \"a\"}").await.json().await.expect("JSON");
    assert_eq!(unloaded["capabilities"], json!([]));
    assert!(router.get("/api/version").await.1["version"].is_string());

    let unload = |name: &str| json!({"model": name, "keep_alive": 0}).to_string();
    for name in ["tiny", "a"] {
        let answer: Value = router.post("/api/generate", unload(name)).await.json().await.expect("JSON");
        assert_eq!(answer["done_reason"], "unload");
    }
    assert_eq!(host.orders(), [(UNLOAD_PATH.to_owned(), json!({"model": "tiny"}).to_string())]);
    let fixed = fleet_of_one().await.1;
    assert!(error_of(fixed.post(CHAT, unload("tiny")).await, 400).await.contains("stays loaded"));
    assert!(error_of(fixed.post(CHAT, unload("x")).await, 404).await.contains("`x`"));
}
