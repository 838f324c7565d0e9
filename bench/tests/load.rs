//! Tests of the load generator against a scripted server on loopback: which requests it sends when, and how it counts
//! what comes back.
#![allow(missing_docs, clippy::unwrap_used)]

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use clap::Parser;
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::sync::{Barrier, mpsc};
use warmpath_bench::load::{self, LoadArgs, Report};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    load: LoadArgs,
}

fn args(base: &str, flags: &[&str]) -> LoadArgs {
    Cli::parse_from(["load", "--base", base].iter().chain(flags)).load
}

async fn measure(base: &str, flags: &[&str]) -> Report {
    load::measure(&args(base, flags)).await.unwrap()
}

async fn serve(routes: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    base
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

fn token() -> String {
    event(&json!({"choices": [{"index": 0, "delta": {"content": "yes "}, "finish_reason": null}]}))
}

fn usage(n_tokens: usize) -> String {
    let details = json!({"cached_tokens": 4});
    let usage = json!({"prompt_tokens": 10, "completion_tokens": n_tokens, "prompt_tokens_details": details});
    event(&json!({"choices": [], "usage": usage}))
}

/// Returns the events of a whole answer.
fn answer(n_tokens: usize) -> Vec<String> {
    let role = event(&json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}));
    let end = event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
    let mut events = vec![role];
    events.extend((0..n_tokens).map(|_| token()));
    events.extend([end, usage(n_tokens), "data: [DONE]\n\n".to_owned()]);
    events
}

fn streamed(events: Vec<String>) -> Response {
    Body::from_stream(stream::iter(events.into_iter().map(Ok::<_, Infallible>))).into_response()
}

#[tokio::test]
async fn an_open_loop_continues_to_send_while_the_server_stalls() {
    // No request is answered before the third has arrived, so a loop that waits would never end.
    let all_here = Arc::new(Barrier::new(3));
    let stall = async |State(all_here): State<Arc<Barrier>>| {
        all_here.wait().await;
        streamed(answer(2))
    };
    let base = serve(Router::new().route("/v1/chat/completions", post(stall)).with_state(all_here)).await;
    let report = measure(&base, &["--model", "m", "--rate", "1000", "--requests", "3"]).await;
    assert_eq!((report.outcome.n_answers, report.outcome.n_failed), (3, 0));
}

#[tokio::test]
async fn a_closed_loop_has_a_fixed_number_of_requests_at_a_time() {
    #[derive(Default)]
    struct Seen {
        now: AtomicUsize,
        most: AtomicUsize,
    }
    let both_here = Arc::new(Barrier::new(2));
    let seen = Arc::new(Seen::default());
    let pairs = async |State((both_here, seen)): State<(Arc<Barrier>, Arc<Seen>)>| {
        let now = seen.now.fetch_add(1, Ordering::SeqCst) + 1;
        seen.most.fetch_max(now, Ordering::SeqCst);
        both_here.wait().await;
        seen.now.fetch_sub(1, Ordering::SeqCst);
        streamed(answer(1))
    };
    let routes = Router::new().route("/v1/chat/completions", post(pairs)).with_state((both_here, Arc::clone(&seen)));
    let report = measure(&serve(routes).await, &["--model", "m", "--concurrency", "2", "--requests", "6"]).await;
    assert_eq!((report.outcome.n_answers, seen.most.load(Ordering::SeqCst)), (6, 2));
}

/// Answers of a server, by the number of the request.
async fn scripted(State(n): State<Arc<AtomicUsize>>) -> Response {
    let mut events = answer(3);
    match n.fetch_add(1, Ordering::SeqCst) {
        0 => {}
        1 => return (StatusCode::TOO_MANY_REQUESTS, "{\"error\": {\"message\": \"too many\"}}").into_response(),
        2 => {
            // The pause lets the server write its output.
            let lost = stream::once(async {
                tokio::task::yield_now().await;
                Err(io::Error::other("lost"))
            });
            return Body::from_stream(stream::iter([Ok(Bytes::from(token()))]).chain(lost)).into_response();
        }
        3 => events = vec![token(), event(&json!({"error": {"message": "the worker is gone"}}))],
        4 => events.retain(|event| !event.contains("usage")),
        5 => events = vec!["data: {\n\n".to_owned()],
        6 => events.truncate(2),
        _ => return std::future::pending().await,
    }
    streamed(events)
}

#[tokio::test]
async fn answers_and_each_kind_of_error_are_counted() {
    let n = Arc::new(AtomicUsize::new(0));
    let routes = Router::new().route("/v1/chat/completions", post(scripted)).with_state(Arc::clone(&n));
    let base = serve(routes).await;
    let flags = ["--model", "m", "--concurrency", "1", "--slo-ttft", "600000"];
    let outcome = measure(&base, &[&flags[..], &["--requests", "7"]].concat()).await.outcome;
    let kinds: Vec<_> = outcome.failures.iter().map(|(kind, failures)| (kind.as_str(), failures.n)).collect();
    let expected = [("broken stream", 2), ("error event", 1), ("invalid event", 1), ("no usage", 1), ("status 429", 1)];
    assert_eq!(kinds, expected);
    assert!(outcome.failures["status 429"].first.contains("too many"));
    assert_eq!((outcome.n_answers, outcome.n_failed), (1, 6));
    assert_eq!((outcome.prompt_tokens, outcome.cached_tokens, outcome.completion_tokens), (10, 4, 3));
    // Three pieces have two gaps; the end and the usage do not count as pieces.
    assert_eq!((outcome.itl_ms.unwrap().n, outcome.tpot_ms.unwrap().n, outcome.ttft_ms.unwrap().n), (2, 1, 1));
    assert_eq!(outcome.goodput.unwrap().share, 1.0 / 7.0);

    // The next request is never answered.
    let outcome = measure(&base, &[&flags[..], &["--requests", "1", "--timeout", "0.1"]].concat()).await.outcome;
    assert_eq!((outcome.n_answers, outcome.failures["timeout"].n), (0, 1));
    let nobody = measure("http://127.0.0.1:1", &[&flags[..], &["--requests", "1"]].concat()).await.outcome;
    assert_eq!(nobody.failures["connection"].n, 1);
}

#[tokio::test]
async fn requests_name_the_only_model_and_carry_the_key_and_the_report_is_written() {
    let (sent, mut bodies) = mpsc::unbounded_channel();
    let has_key = |headers: &HeaderMap| headers.get(AUTHORIZATION).is_some_and(|key| key == "Bearer secret");
    let models = async move |headers: HeaderMap| match has_key(&headers) {
        true => axum::Json(json!({"data": [{"id": "tiny"}]})).into_response(),
        false => StatusCode::UNAUTHORIZED.into_response(),
    };
    let chat = async move |headers: HeaderMap, axum::Json(body): axum::Json<Value>| {
        sent.send((has_key(&headers), body)).unwrap();
        streamed(answer(2))
    };
    let base = serve(Router::new().route("/v1/models", get(models)).route("/v1/chat/completions", post(chat))).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("load.json");
    let (base, file) = (format!("{base}/v1/"), path.display().to_string());
    let flags = ["--api-key", "secret", "--concurrency", "1", "--requests", "2", "--shape", "shared-prefix"];
    let more = ["--scale", "0.1", "--ignore-eos", "--json", &file];
    load::run(&args(&base, &[&flags[..], &more].concat())).await.unwrap();
    for _ in 0..2 {
        let (has_key, body) = bodies.recv().await.unwrap();
        assert!(has_key);
        assert_eq!(
            (&body["model"], &body["stream"], &body["ignore_eos"]),
            (&json!("tiny"), &json!(true), &json!(true))
        );
        // 2,176 prompt tokens and 256 of an answer, a tenth of each.
        assert_eq!(body["messages"][0]["content"].as_str().unwrap().split(' ').count(), 217);
        assert_eq!(body["max_tokens"], 25);
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(
        (&report["model"], &report["loop"], &report["concurrency"]),
        (&json!("tiny"), &json!("closed"), &json!(1))
    );
    assert_eq!((&report["n_answers"], &report["completion_tokens"]), (&json!(2), &json!(4)));
    assert!(report["e2e_ms"]["p99"].is_number() && !report.to_string().contains("secret"), "{report}");
}

#[tokio::test]
async fn an_endpoint_of_several_models_needs_a_name() {
    let models = async || axum::Json(json!({"data": [{"id": "a"}, {"id": "b"}]}));
    let base = serve(Router::new().route("/v1/models", get(models))).await;
    let error = load::run(&args(&base, &["--requests", "1"])).await.unwrap_err().to_string();
    assert!(error.contains("lists 2 models (a, b): name one with --model"), "{error}");
    let error = load::run(&args("https://127.0.0.1", &["--requests", "1"])).await.unwrap_err().to_string();
    assert!(error.contains("only http:// is supported"), "{error}");
}
