//! The fleet page from outside: its files, and the last decisions and the history that it reads.
//!
//! Not here: the page as a reader sees it (`tests/tests/system/fleet_page.rs`, in Chromium).

use crate::support::worker::{Behaviour, FakeWorker};
use crate::support::{TestRouter, chat_body, eventually, fleet_of_one, fleet_of_two, long_text};
use serde_json::{Value, json};
use warmpath_router::config::DECISIONS_KEPT;

/// Returns the admin listener's response.
async fn look(router: &TestRouter, path: &str) -> reqwest::Response {
    let url = format!("http://{}{path}", router.server.admin_address);
    router.client.get(url).send().await.expect("the admin listener answers")
}

async fn decisions(router: &TestRouter) -> Vec<Value> {
    let page: Value = look(router, "/internal/v1/decisions").await.json().await.expect("JSON");
    page["decisions"].as_array().expect("a list").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_served_only_to_operators_and_may_load_nothing_from_elsewhere() {
    let (_worker, router) = fleet_of_one().await;
    for (path, kind) in
        [("/", "text/html"), ("/fleet", "text/html"), ("/fleet.css", "text/css"), ("/fleet.js", "text/javascript")]
    {
        let response = look(&router, path).await;
        assert_eq!(response.status(), 200, "{path}");
        let policy = crate::support::header(&response, "content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"),
            "{policy}"
        );
        assert!(crate::support::header(&response, "content-type").starts_with(kind), "{path}");
        assert_eq!(crate::support::header(&response, "x-content-type-options"), "nosniff", "{path}");
        assert_eq!(router.get(path).await.0, 404, "clients see nothing of {path}");
    }
    assert_eq!(router.get("/internal/v1/decisions").await.0, 404);
    assert_eq!(router.get("/internal/v1/history").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_show_worker_and_reason_and_none_of_the_text() {
    let (workers, router) = fleet_of_two().await;
    let text = long_text("confidential matters");
    workers[0].hold(&text, None, 2);
    router.wait_for_metric("warmpath_router_index_blocks", 1.0).await;
    let request = router.client.post(router.url("/v1/chat/completions")).header("x-request-id", "first");
    let response = request.body(chat_body(&text, false)).send().await.expect("an answer");
    let predicted: u64 =
        crate::support::header(&response, "x-warmpath-predicted-cached-tokens").parse().expect("a number");
    assert!(predicted > 16);

    let listed = decisions(&router).await;
    let first = &listed[0];
    let expected = json!({
        "request_id": "first", "model": "tiny", "worker": workers[0].url(), "reason": "prefix", "outcome": "answered",
        "status": 200, "failure": null, "predicted_cached_tokens": predicted, "cached_tokens": 32,
    });
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(first[name], *value, "{name} of {first}");
    }
    assert!(first["prompt_tokens"].as_u64() > Some(predicted) && first["ttft_ms"].as_f64() > Some(0.0), "{first}");
    assert!(first["at_ms"].as_u64() > Some(1_700_000_000_000), "{first}");
    assert_eq!(listed.len(), 1);
    let said = look(&router, "/internal/v1/decisions").await.text().await.expect("text");
    assert!(!said.contains("confidential"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_result_of_a_decision_is_shown_even_if_no_response_came() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--attempts-max", "1"]).await;
    worker.with(|script| script.behaviour = Behaviour::BreakAtOnce);
    assert_eq!(router.chat("hello").await.status(), 502);
    let failed = &decisions(&router).await[0];
    assert_eq!((&failed["outcome"], &failed["failure"]), (&json!("failed"), &json!("broken")), "{failed}");

    worker.with(|script| script.behaviour = Behaviour::Silent);
    let body = chat_body("hello", false);
    let asking = tokio::spawn(router.client.post(router.url("/v1/chat/completions")).body(body).send());
    eventually("the request is open", || async { decisions(&router).await[0]["outcome"] == "open" }).await;
    asking.abort();
    eventually("its client has left", || async { decisions(&router).await[0]["outcome"] == "left" }).await;
    assert_eq!(decisions(&router).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_last_decisions_are_kept() {
    let (_worker, router) = fleet_of_one().await;
    for n in 0..DECISIONS_KEPT + 5 {
        let request = router.client.post(router.url("/v1/chat/completions")).header("x-request-id", format!("r{n}"));
        assert_eq!(request.body(chat_body("hello", false)).send().await.expect("an answer").status(), 200);
    }
    let listed = decisions(&router).await;
    assert_eq!(listed.len(), DECISIONS_KEPT);
    let ids: Vec<&str> = listed.iter().filter_map(|decision| decision["request_id"].as_str()).collect();
    assert_eq!((ids[0], ids[DECISIONS_KEPT - 1]), (format!("r{}", DECISIONS_KEPT + 4).as_str(), "r5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_counts_what_the_metrics_count() {
    let (_worker, router) = fleet_of_one().await;
    for _ in 0..3 {
        assert_eq!(router.chat(&long_text("a")).await.status(), 200);
    }
    assert_eq!(router.get("/readyz").await.0, 200);
    let history: Value = look(&router, "/internal/v1/history?window_s=3600").await.json().await.expect("JSON");
    let sum = &history["sum"];
    assert_eq!(
        (&sum["requests"], &sum["failures"], &sum["cached_tokens"]),
        (&json!(3), &json!(0), &json!(96)),
        "{sum}"
    );
    assert_eq!(sum["held_tokens"], 96, "no worker was known to hold it, so the actual reuse is the upper bound");
    assert_eq!(sum["prompt_tokens"].as_f64(), Some(router.metric("warmpath_router_prompt_tokens_total").await));
    assert!(
        sum["ttft_p50_s"].as_f64() > Some(0.0) && sum["ttft_p95_s"].as_f64() >= sum["ttft_p50_s"].as_f64(),
        "{sum}"
    );
    let points = history["points"].as_array().expect("a list");
    assert!(!points.is_empty() && points.iter().all(|point| point["end_ms"].is_u64()), "{history}");
    let refused = look(&router, "/internal/v1/history?window_s=-1").await;
    assert_eq!(crate::support::error_of(refused, 400).await["param"], "window_s");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_s_own_name_is_shown_beside_its_url() {
    let worker = FakeWorker::start(7);
    let router = TestRouter::ready(&[&worker], &[]).await;
    let name = crate::support::header(&router.chat("hello").await, "x-warmpath-worker");
    let fleet: Value = look(&router, "/internal/v1/fleet").await.json().await.expect("JSON");
    let listed = &fleet["workers"][0];
    assert_eq!((&listed["name"], &listed["url"]), (&json!(name), &json!(worker.url())), "{listed}");
    let metrics = look(&router, "/metrics").await.text().await.expect("text");
    let line = format!("warmpath_router_worker_info{{name=\"{name}\",worker=\"{}\"}} 1", worker.url());
    assert!(metrics.contains(&line), "{line} is not in {metrics}");
}
