//! Failures and whose fault they are: servers that respond with errors, requests that break every server.

use crate::support::stock::FakeStock;
use crate::support::worker::{Behaviour, FakeWorker};
use crate::support::{TestRouter, chat_body, error_of, eventually, fleet_of_two, header, long_text};

/// Returns the state of each worker's breaker.
async fn breakers(router: &TestRouter) -> Vec<String> {
    let fleet = router.fleet().await;
    let workers = fleet["workers"].as_array().expect("workers").iter();
    workers.map(|worker| worker["breaker"].as_str().expect("a state").to_owned()).collect()
}

/// Lets a worker announce the blocks of a chat.
async fn hold(router: &TestRouter, worker: &FakeWorker, text: &str) {
    worker.hold(text, None, 0);
    eventually("the router knows the blocks", || async {
        let fleet = router.fleet().await;
        fleet["workers"].as_array().expect("workers").iter().any(|worker| worker["blocks"] != 0)
    })
    .await;
}

fn failed(failure: &str) -> String {
    format!("warmpath_router_failed_attempts_total{{failure=\"{failure}\"}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_leaves_a_worker_that_answers_with_errors() {
    for status in [500, 502, 504, 507, 599] {
        let (workers, router) = fleet_of_two().await;
        let text = long_text("bread");
        hold(&router, &workers[0], &text).await;
        workers[0].with(|script| script.behaviour = Behaviour::Refuse(status));
        for nth in 0..3 {
            let response = router.chat(&text).await;
            assert_eq!(response.status(), 200, "{status}");
            assert_eq!(header(&response, "x-warmpath-worker"), "0000000000000002");
            assert_eq!(
                header(&response, "x-warmpath-route") == "retry",
                nth == 0,
                "only the first comes to the holder"
            );
        }
        assert_eq!(workers[0].seen().len(), 1, "{status}");
        assert_eq!(router.metric(&failed("error")).await, 1.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_requests_succeed_elsewhere_in_every_dialect_and_in_streams() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let router = TestRouter::ready(&workers.each_ref(), &["--policy", "round-robin"]).await;
    workers[0].with(|script| script.behaviour = Behaviour::Refuse(500));
    let chat = r#"{"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}"#;
    for (path, body) in [
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", r#"{"stream": true, "messages": [{"role": "user", "content": "a"}]}"#),
        ("/v1/completions", r#"{"prompt": "a"}"#),
        ("/v1/messages", chat),
        ("/v1/responses", r#"{"model": "tiny", "input": "a"}"#),
        ("/v1/messages/count_tokens", chat),
        ("/tokenize", r#"{"content": "a"}"#),
    ] {
        for _ in 0..2 {
            assert_eq!(router.post(path, body).await.status(), 200, "{path}");
        }
    }
    assert!(router.metric(&failed("error")).await > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_every_worker_is_the_request_s_fault_and_is_passed_on() {
    let (workers, router) = fleet_of_two().await;
    workers.iter().for_each(|worker| worker.with(|script| script.poison = Some(("poison", Behaviour::Refuse(500)))));
    for _ in 0..10 {
        assert_eq!(error_of(router.chat("poison").await, 500).await["message"], "scripted");
        assert_eq!(router.chat("hello").await.status(), 200);
    }
    assert_eq!(breakers(&router).await, ["closed", "closed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsupported_request_is_no_failure_of_its_worker() {
    let (workers, router) = fleet_of_two().await;
    workers.iter().for_each(|worker| worker.with(|script| script.behaviour = Behaviour::Refuse(501)));
    assert_eq!(error_of(router.chat("hello").await, 501).await["message"], "scripted");
    assert_eq!(workers[0].seen().len() + workers[1].seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_server_that_answers_with_errors_loses_its_conversations_to_others() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("tiny"), FakeStock::start("tiny")];
    let flags: Vec<_> = servers.iter().map(FakeStock::flag).collect();
    let router = TestRouter::ready_for(&flags, &[]).await;
    assert_eq!(router.chat(&long_text("bread")).await.status(), 200);
    let has_answered = |server: &&FakeStock| server.asked().iter().any(|(path, _)| path == "/v1/chat/completions");
    let home = servers.iter().find(has_answered).expect("one has answered");
    home.with(|script| script.refusal = Some((502, None)));
    for _ in 0..12 {
        assert_eq!(router.chat(&long_text("bread")).await.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_embeddings_and_rankings_of_stock_servers_succeed_elsewhere() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("tiny")];
    let flags: Vec<_> = servers.iter().map(FakeStock::flag).collect();
    let router = TestRouter::ready_for(&flags, &["--policy", "round-robin"]).await;
    servers[0].with(|script| script.refusal = Some((500, None)));
    for (path, body) in [
        ("/v1/embeddings", r#"{"model": "tiny", "input": "a"}"#),
        ("/v1/rerank", r#"{"model": "tiny", "query": "a", "documents": ["b"]}"#),
        ("/v2/rerank", r#"{"model": "tiny", "query": "a", "documents": ["b"]}"#),
    ] {
        for _ in 0..4 {
            assert_eq!(router.post(path, body).await.status(), 200, "{path}");
        }
    }
    assert!(router.metric(&failed("error")).await > 0.0);
}

/// Sends a request that breaks every worker, again and again, and others between.
async fn others_are_served_beside_poison(router: &TestRouter, n_workers: usize) {
    for _ in 0..40 {
        let broken = router.chat("poison").await.status().as_u16();
        assert!(broken >= 500, "{broken}");
        assert_eq!(router.chat("hello").await.status(), 200);
    }
    assert_eq!(breakers(router).await, vec!["closed"; n_workers]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_breaks_every_worker_affects_no_other_request() {
    for n_workers in [1, 2, 4] {
        let workers: Vec<_> = (0..n_workers as u64).map(FakeWorker::start).collect();
        let router = TestRouter::ready(&workers.iter().collect::<Vec<_>>(), &[]).await;
        workers
            .iter()
            .for_each(|worker| worker.with(|script| script.poison = Some(("poison", Behaviour::BreakAtOnce))));
        others_are_served_beside_poison(&router, n_workers).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_breaks_every_stock_server_affects_no_other_request() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("tiny")];
    let flags: Vec<_> = servers.iter().map(FakeStock::flag).collect();
    let router = TestRouter::ready_for(&flags, &[]).await;
    servers.iter().for_each(|server| server.with(|script| script.poison = Some("poison")));
    others_are_served_beside_poison(&router, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_whose_answers_break_off_or_take_too_long_affect_no_other_request() {
    for behaviour in [Behaviour::BreakMidway, Behaviour::Silent] {
        let workers = [FakeWorker::start(1), FakeWorker::start(2)];
        let flags = ["--response-timeout", "0.2", "--attempts-max", "2"];
        let router = TestRouter::ready(&workers.each_ref(), &flags).await;
        workers.iter().for_each(|worker| worker.with(|script| script.poison = Some(("poison", behaviour))));
        for _ in 0..6 {
            let poison = router.client.post(router.url("/v1/chat/completions")).body(chat_body("poison", true));
            let _ = poison.send().await.expect("an answer").bytes().await;
            assert_eq!(router.chat("hello").await.status(), 200);
        }
        assert_eq!(breakers(&router).await, ["closed", "closed"], "{behaviour:?}");
    }
}
