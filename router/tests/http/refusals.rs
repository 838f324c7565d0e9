//! Servers that announce when they take requests again: they get none before, and clients get the time.

use std::time::{Duration, SystemTime};

use crate::support::stock::FakeStock;
use crate::support::worker::Behaviour;
use crate::support::{TestRouter, chat_body, error_of, fleet_of_two, header};
use serde_json::json;

async fn router_of(servers: &[&FakeStock]) -> TestRouter {
    let flags: Vec<_> = servers.iter().map(|server| server.flag()).collect();
    TestRouter::ready_for(&flags, &[]).await
}

fn refuse(server: &FakeStock, status: u16, after: &str) {
    server.with(|script| script.refusal = Some((status, Some(after.to_owned()))));
}

fn retry_after(response: &reqwest::Response) -> u64 {
    header(response, "retry-after").parse().expect("seconds")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_quota_is_asked_once_and_clients_get_the_remaining_time() {
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
    for after in ["3600".to_owned(), date] {
        let server = FakeStock::start("tiny");
        let router = router_of(&[&server]).await;
        refuse(&server, 429, &after);
        let first = router.chat("hello").await;
        assert_eq!(retry_after(&first), 120);
        let message = error_of(first, 429).await["message"].to_string();
        assert!(message.starts_with("\"scripted; try again in 3"), "the server's own words and the time: {message}");
        for _ in 0..20 {
            let response = router.chat("hello").await;
            assert_eq!(retry_after(&response), 120);
            let error = error_of(response, 429).await;
            assert_eq!((&error["code"], &error["type"]), (&json!("rate_limit_exceeded"), &json!("rate_limit_error")));
            let message = error["message"].to_string();
            let (_, seconds) = message.split_once("; try again in ").expect("the time is said");
            let seconds: u64 = seconds.trim_end_matches(" s\"").parse().expect("seconds");
            assert!((3000..=3600).contains(&seconds), "{message}");
        }
        assert_eq!(server.seen().len(), 1, "{after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_to_servers_that_have_quota() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("tiny")];
    let router = router_of(&servers.each_ref()).await;
    refuse(&servers[0], 429, "3600");
    for _ in 0..20 {
        assert_eq!(router.chat("hello").await.status(), 200);
    }
    assert!(servers[0].seen().len() <= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_of_one_model() {
    let server = FakeStock::start("tiny");
    server.with(|script| script.models = Some(json!({"data": [{"id": "tiny"}, {"id": "other"}]})));
    let router = router_of(&[&server]).await;
    let ask = async |model: &str| {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "hello"}]});
        router.post("/v1/chat/completions", body.to_string()).await.status().as_u16()
    };
    refuse(&server, 429, "3600");
    assert_eq!(ask("tiny").await, 429);
    server.with(|script| script.refusal = None);
    assert_eq!(ask("other").await, 200);
    assert_eq!(ask("tiny").await, 429, "the other model's response changes nothing");
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_of_a_client_s_own_key_is_of_that_key() {
    let server = FakeStock::start("tiny");
    let router = router_of(&[&server]).await;
    let ask = async |key: &str| {
        let request = router.client.post(router.url("/v1/chat/completions")).bearer_auth(key);
        request.body(chat_body("hello", false)).send().await.expect("an answer").status().as_u16()
    };
    refuse(&server, 429, "3600");
    assert_eq!(ask("spent").await, 429);
    server.with(|script| script.refusal = None);
    for _ in 0..5 {
        assert_eq!([ask("spent").await, ask("other").await], [429, 200]);
    }
    assert_eq!(server.seen().len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_announces_a_pause_gets_no_requests_until_its_end() {
    let server = FakeStock::start("tiny");
    let router = router_of(&[&server]).await;
    refuse(&server, 503, "600");
    assert_eq!(retry_after(&router.chat("hello").await), 120);
    for _ in 0..5 {
        let response = router.chat("hello").await;
        assert_eq!(retry_after(&response), 120);
        assert_eq!(error_of(response, 503).await["code"], "no_worker");
    }
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_a_short_pause() {
    let server = FakeStock::start("tiny");
    let router = router_of(&[&server]).await;
    refuse(&server, 429, "1");
    let request = router.client.post(router.url("/v1/chat/completions")).body(chat_body("hello", false));
    let waiting = tokio::spawn(request.send());
    crate::support::eventually("it is asked", || async { !server.seen().is_empty() }).await;
    server.with(|script| script.refusal = None);
    assert_eq!(waiting.await.expect("no panic").expect("an answer").status(), 200);
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_its_model_holds_up_no_other_model() {
    let server = FakeStock::start("tiny");
    server.with(|script| script.models = Some(json!({"data": [{"id": "tiny"}, {"id": "other"}]})));
    let router = router_of(&[&server]).await;
    let ask = |model: &str| {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "hello"}]});
        router.client.post(router.url("/v1/chat/completions")).body(body.to_string()).send()
    };
    refuse(&server, 429, "30");
    let waiting = tokio::spawn(ask("tiny"));
    crate::support::eventually("it is asked", || async { server.seen().len() == 1 }).await;
    server.with(|script| script.refusal = None);
    for _ in 0..5 {
        assert_eq!(ask("other").await.expect("an answer").status(), 200);
    }
    assert!(!waiting.is_finished(), "its model has 30 s to go");
    assert_eq!(server.seen().len(), 6);
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warmpath_worker_behind_a_gateway_with_a_quota_is_paused_too() {
    let (workers, router) = fleet_of_two().await;
    workers[0].with(|script| {
        script.behaviour = Behaviour::Refuse(429);
        script.retry_after = Some("120".to_owned());
    });
    for _ in 0..20 {
        assert_eq!(router.chat("hello").await.status(), 200);
    }
    assert!(workers[0].seen().len() <= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_s_refusal_gets_the_retry_after_that_it_lacks() {
    let server = FakeStock::start("tiny");
    let router = router_of(&[&server]).await;
    server.with(|script| script.refusal = Some((503, None)));
    let refused = router.chat("hello").await;
    assert_eq!((refused.status().as_u16(), retry_after(&refused)), (503, 2));
}
