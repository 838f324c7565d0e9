//! Requests that only fill a worker's cache: routed like any other, and counted apart.

use crate::support::worker::{Behaviour, FakeWorker};
use crate::support::{TestRouter, eventually, fleet_of_one, header, long_text};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn the_request_that_follows_a_prewarm_goes_to_its_worker_even_before_it_ends() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2), FakeWorker::start(3)];
    for worker in &workers {
        worker.with(|script| script.poison = Some(("\"max_tokens\":0", Behaviour::Silent)));
    }
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    for topic in ["bread", "trains", "clouds", "rivers"] {
        let message = json!({"role": "user", "content": long_text(topic)});
        let body = |tokens: u32| json!({"messages": [message], "max_tokens": tokens}).to_string();
        let n_seen = || workers.each_ref().map(|worker| worker.seen().len());
        let before = n_seen();
        let request = router.client.post(router.url("/v1/messages")).body(body(0));
        let prewarm = tokio::spawn(request.send());
        eventually("a worker has it", || async { n_seen() != before }).await;
        let place = (0..3).find(|idx| n_seen()[*idx] != before[*idx]).expect("a worker has it");
        let response = router.post("/v1/messages", body(5)).await;
        assert_eq!(header(&response, "x-warmpath-worker"), format!("{:016x}", place + 1), "{topic}");
        assert!(!prewarm.is_finished());
        prewarm.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prewarms_are_no_part_of_the_figures_of_reuse_and_time() {
    let (_worker, router) = fleet_of_one().await;
    let messages = json!([{"role": "user", "content": "hello"}]);
    let prewarm = json!({"prewarm": true});
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": messages, "max_completion_tokens": 0})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 0})),
        ("/v1/responses", json!({"input": "hello", "prompt_cache_options": prewarm})),
        ("/v1/completions", json!({"prompt": "hello", "max_tokens": 0})),
        ("/completion", json!({"prompt": "hello", "n_predict": 0})),
    ] {
        assert_eq!(router.post(path, body.to_string()).await.status(), 200, "{path}");
    }
    assert_eq!(router.metric("warmpath_router_prewarms_total").await, 5.0);
    assert_eq!(router.metric("warmpath_router_prompt_tokens_total").await, 0.0);
    assert_eq!(router.metric("warmpath_router_cached_tokens_total").await, 0.0);
    assert_eq!(router.metric("warmpath_router_ttfb_seconds_count{cached=\"unknown\"}").await, 0.0);
    let counted = router.metric_of_all("warmpath_router_requests_total").await;
    assert!(counted >= 5.0, "{counted}");
    router.chat("hello").await;
    assert_eq!(router.metric("warmpath_router_prewarms_total").await, 5.0);
    assert!(router.metric("warmpath_router_prompt_tokens_total").await > 0.0);
}
