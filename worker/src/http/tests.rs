//! Tests of the phases before and after a model is loaded.

use std::sync::Arc;

use axum::http::HeaderValue;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use warmpath_shell::body::{BodyLimits, BodyRoom};
use warmpath_shell::descriptors::ADMIN_CONNECTIONS_MAX;
use warmpath_shell::hosts::AllowedHosts;
use warmpath_shell::listen::Connections;
use warmpath_shell::trace::Tracer;

use super::*;
use crate::app::Phase;
use crate::config::BODY_TIMEOUT;
use crate::metrics::Metrics;

/// Serves a worker whose model is still loading; returns its address and the sender of its phase.
async fn loading(percent: u8) -> (String, watch::Sender<Phase>) {
    let (phase, seen) = watch::channel(Phase::Loading { percent });
    let worker = HeaderValue::from_static("w");
    let app = App {
        phase: seen,
        worker,
        started_s: 0,
        names: ["m".to_owned(), "m:a".to_owned()].into(),
        bodies: Arc::new(BodyLimits { bytes_max: 1000, timeout: BODY_TIMEOUT, room: BodyRoom::new(10_000) }),
        connections: Connections::new(ADMIN_CONNECTIONS_MAX),
        allowed_hosts: Arc::new(AllowedHosts::Any),
        admin_allowed_hosts: Arc::new(AllowedHosts::Any),
        slot_save_path: None,
        tokens: None,
        transfers: None,
        image_urls: None,
        tracer: Tracer::default(),
        metrics: Arc::new(Metrics::new()),
        left_out_logged: Arc::default(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let base = format!("http://{}", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move { axum::serve(listener, router(app)).await });
    (base, phase)
}

#[tokio::test]
async fn a_loading_worker_is_live_and_not_ready_and_shows_its_progress() {
    let (base, phase) = loading(42).await;
    let get = async |path: &str| {
        let response = reqwest::get(format!("{base}{path}")).await.expect("a response");
        (response.status().as_u16(), response.json::<Value>().await.expect("JSON"))
    };
    assert_eq!(get("/livez").await, (200, json!({"status": "ok"})));
    assert_eq!(get("/readyz").await, (503, json!({"status": "loading", "progress": 0.42})));
    phase.send_replace(Phase::Downloading { percent: 7 });
    assert_eq!(get("/readyz").await, (503, json!({"status": "downloading", "progress": 0.07})));
    let (_, body) = get(STREAM_PATH).await;
    assert_eq!(body["error"]["message"], "the model is downloading (7 %)");
    assert_eq!(body["loading"], json!({"names": ["m", "m:a"], "percent": 7}));
    phase.send_replace(Phase::Loading { percent: 90 });
    assert_eq!(get("/readyz").await.1["progress"], 0.9);
    let shown = ["/health", "/v1/models", "/props", "/slots", "/cache", "/cache/pin"];
    for path in shown.into_iter().chain([SNAPSHOT_PATH, STREAM_PATH, VOCABULARY_PATH]) {
        let (status, body) = get(path).await;
        assert_eq!((status, &body["error"]["code"]), (503, &json!("model_loading")), "{path}");
        let expected = if path == STREAM_PATH { json!({"names": ["m", "m:a"], "percent": 90}) } else { Value::Null };
        assert_eq!(body["loading"], expected, "{path}");
    }
}

#[tokio::test]
async fn a_request_to_a_loading_worker_gets_retry_after() {
    let (base, _phase) = loading(10).await;
    let body = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
    let request = reqwest::Client::new().post(format!("{base}/v1/chat/completions")).body(body);
    let response = request.header("x-request-id", "early").send().await.expect("a response");
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].as_bytes()), (503, &b"5"[..]));
    assert_eq!(
        (response.headers()["x-request-id"].as_bytes(), &response.headers()["x-warmpath-worker"]),
        (&b"early"[..], &HeaderValue::from_static("w"))
    );
    let error: Value = response.json().await.expect("JSON");
    assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains("10 %")), "{error}");
}
