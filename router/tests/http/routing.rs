//! Where requests go: to the worker with their prefix, by load if nothing is known, elsewhere when a worker fails.

use crate::refused::declared;
use crate::support::worker::{Behaviour, FakeWorker, chat_keys, idle};
use crate::support::{TestRouter, chat_body, error_of, eventually, fleet_of_one, fleet_of_two, header, long_text};
use serde_json::json;
use warmpath_common::ids::SlotId;
use warmpath_common::summary::Load;

/// Waits until the router knows this many blocks of a worker.
async fn knows_blocks(router: &TestRouter, idx: usize, n: usize) {
    eventually("the router knows the blocks", || async { router.fleet().await["workers"][idx]["blocks"] == json!(n) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_goes_to_the_worker_that_holds_its_prefix_with_hints() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2), FakeWorker::start(3)];
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    let text = long_text("bread");
    let keys = chat_keys(&text, "");
    workers[1].hold(&text, None, 2);
    knows_blocks(&router, 1, keys.len()).await;

    let response = router.chat(&text).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "x-warmpath-worker"), "0000000000000002");
    assert_eq!(header(&response, "x-warmpath-route"), "prefix");
    let predicted = keys.len() * 16;
    assert_eq!(header(&response, "x-warmpath-predicted-cached-tokens"), predicted.to_string());
    assert_eq!(header(&response, "x-warmpath-cached-tokens"), "32");
    assert!(!header(&response, "x-request-id").is_empty());
    assert_eq!(response.text().await.expect("text"), "{\"answer\": 42}");

    let seen = workers[1].seen();
    assert_eq!(seen[0].body, chat_body(&text, false), "the body is unchanged");
    assert_eq!(seen[0].headers["x-warmpath-slot"], "2");
    assert_eq!(seen[0].headers["x-warmpath-expected-block"], keys[keys.len() - 1].to_string());
    assert_eq!(seen[0].headers["x-warmpath-model-fingerprint"], "07".repeat(32), "its model's");
    assert_eq!(router.metric("warmpath_router_routes_total{reason=\"prefix\"}").await, 1.0);
    assert_eq!(router.metric("warmpath_router_cached_tokens_total").await, 32.0);
    assert_eq!(router.metric("warmpath_router_predicted_cached_tokens_total").await, predicted as f64);
    assert_eq!(router.metric("warmpath_router_prediction_error_blocks_count").await, 1.0);
    assert!(predicted > 64, "32 tokens are less than half of it");
    assert_eq!(router.metric("warmpath_router_ttfb_seconds_count{cached=\"some\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_were_not_reused_twice_are_ignored_until_they_are_announced_again() {
    let (workers, router) = fleet_of_two().await;
    let text = long_text("bread");
    let n_blocks = chat_keys(&text, "").len();
    workers[1].hold(&text, None, 2);
    knows_blocks(&router, 1, n_blocks).await;
    let outcomes = |outcome| format!("warmpath_router_predictions_total{{outcome=\"{outcome}\"}}");
    // The script always reuses 32 tokens: two blocks.
    for (predicted, n_stale) in [(n_blocks * 16, 0.0), (n_blocks * 16, 1.0), (32, 1.0)] {
        let response = router.chat(&text).await;
        assert_eq!(header(&response, "x-warmpath-predicted-cached-tokens"), predicted.to_string());
        assert_eq!(router.metric("warmpath_router_stale_blocks").await, n_stale);
    }
    assert_eq!((router.metric(&outcomes("less")).await, router.metric(&outcomes("exact")).await), (2.0, 1.0));
    workers[1].hold(&text, None, 2);
    eventually("no block is stale", || async { router.metric("warmpath_router_stale_blocks").await == 0.0 }).await;
    let response = router.chat(&text).await;
    assert_eq!(header(&response, "x-warmpath-predicted-cached-tokens"), (n_blocks * 16).to_string());
}

/// Returns a document that is too long to be tokenized at once, and a question about it.
fn question_on_document(question: &str) -> String {
    format!("{}{question}", long_text("bread").repeat(4))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_is_not_held_back_where_all_of_it_is_held() {
    let (workers, router) = fleet_of_two().await;
    // No router has been seen yet, so there may be others, and the prompt takes three seconds.
    let texts = ["Why?", "Where?"].map(|question| format!("{}{question}", long_text("bread").repeat(8)));
    let n_listened = "warmpath_router_backoff_seconds_count";
    let keys = chat_keys(&texts[0], "");
    workers[1].hold(&texts[0], None, 2);
    knows_blocks(&router, 1, keys.len()).await;
    let response = router.chat(&texts[0]).await;
    assert_eq!(header(&response, "x-warmpath-predicted-cached-tokens"), (keys.len() * 16).to_string());
    assert_eq!(router.metric(n_listened).await, 0.0);
    let body = json!({"messages": [{"role": "user", "content": texts[1]}], "cache_salt": "another"});
    assert_eq!(router.post("/v1/chat/completions", body.to_string()).await.status(), 200);
    assert_eq!(router.metric(n_listened).await, 1.0, "no worker holds this one");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_common_prefix_of_simultaneous_long_prompts_is_known() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    workers.iter().for_each(|worker| worker.with(|script| script.behaviour = Behaviour::Silent));
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    let texts = ["What is it? ", "Who wrote it, and when? "].map(|words| question_on_document(&words.repeat(10)));
    let [first, second] = texts.each_ref().map(|text| chat_keys(text, ""));
    let n_shared = first.iter().zip(&second).take_while(|(first, second)| first == second).count();
    assert!(n_shared > 64 && n_shared < second.len());
    let n_seen = || workers.iter().map(|worker| worker.seen().len()).sum::<usize>();
    let ask = |text: &str| {
        let body = chat_body(text, false);
        let request = router.client.post(router.url("/v1/chat/completions")).body(body);
        tokio::spawn(request.send())
    };
    let asked = [ask(&texts[0])];
    eventually("the first has come", || async { n_seen() == 1 }).await;
    let asked = asked.into_iter().chain([ask(&texts[1])]);
    eventually("the second has come", || async { n_seen() == 2 }).await;
    let seen = workers.iter().map(FakeWorker::seen).find(|seen| !seen.is_empty()).expect("one was asked");
    let predicted: Vec<&str> =
        seen.iter().filter_map(|seen| seen.headers.get("x-warmpath-predicted-cached-tokens")?.to_str().ok()).collect();
    assert_eq!(predicted, ["0", &(n_shared * 16).to_string()], "both go to the worker that computes the first");
    asked.for_each(|asked| asked.abort());
}

#[tokio::test(flavor = "multi_thread")]
async fn long_prompts_with_a_common_prefix_go_to_one_worker_even_if_placed_at_once() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    workers.iter().for_each(|worker| worker.with(|script| script.behaviour = Behaviour::Silent));
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    let n_seen = || workers.each_ref().map(|worker| worker.seen().len());
    for round in 0..100 {
        let before = n_seen();
        let document = question_on_document(&format!("{round}")).replace("bread", &format!("bread{round}"));
        let asked = ["Why?", "Where?"].map(|question| {
            let body = chat_body(&format!("{document}{question}"), false);
            tokio::spawn(router.client.post(router.url("/v1/chat/completions")).body(body).send())
        });
        eventually("both have come", || async { n_seen().iter().sum::<usize>() == before.iter().sum::<usize>() + 2 })
            .await;
        assert!(
            n_seen().iter().zip(before).any(|(now, before)| now - before == 2),
            "round {round}: the requests are at different workers"
        );
        asked.iter().for_each(tokio::task::JoinHandle::abort);
        eventually("the router sees them leave", || async {
            router.metric("warmpath_router_requests_in_flight").await == 0.0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_salt_keeps_prefixes_apart() {
    let (workers, router) = fleet_of_two().await;
    let text = long_text("bread");
    workers[1].hold(&text, None, 0);
    knows_blocks(&router, 1, chat_keys(&text, "").len()).await;
    let salted = |body_salt: Option<&str>, header_salt: Option<&str>| {
        let mut body = json!({"messages": [{"role": "user", "content": text}]});
        if let Some(salt) = body_salt {
            body["cache_salt"] = json!(salt);
        }
        let request = router.client.post(router.url("/v1/chat/completions")).body(body.to_string());
        header_salt.into_iter().fold(request, |request, salt| request.header("x-warmpath-cache-salt", salt)).send()
    };
    for (body_salt, header_salt, expected) in
        [(None, None, "prefix"), (Some("a"), None, "cold"), (None, Some("a"), "cold")]
    {
        let response = salted(body_salt, header_salt).await.expect("an answer");
        assert_eq!(header(&response, "x-warmpath-route"), expected, "{body_salt:?} {header_salt:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_reuse_is_predicted_for_a_request_that_forbids_it() {
    let (workers, router) = fleet_of_two().await;
    let text = long_text("bread");
    workers[1].hold(&text, None, 0);
    knows_blocks(&router, 1, chat_keys(&text, "").len()).await;
    let body = json!({"messages": [{"role": "user", "content": text}], "cache_prompt": false});
    let response = router.post("/v1/chat/completions", body.to_string()).await;
    assert_eq!(header(&response, "x-warmpath-route"), "cold");
    assert_eq!(header(&response, "x-warmpath-predicted-cached-tokens"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vocabulary_that_declares_itself_gives_the_block_keys_of_its_worker() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    workers.iter().for_each(|worker| worker.with(|script| script.vocabulary = declared()));
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    let text = long_text("bread");
    workers[1].hold(&text, None, 0);
    knows_blocks(&router, 1, chat_keys(&text, "").len()).await;
    let response = router.chat(&text).await;
    assert_eq!(header(&response, "x-warmpath-worker"), "0000000000000002");
    assert_eq!(header(&response, "x-warmpath-route"), "prefix");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_routed_by_load_until_the_vocabulary_is_available() {
    let worker = FakeWorker::start(1);
    let other = FakeWorker::start(2);
    for worker in [&worker, &other] {
        worker.with(|script| script.has_vocabulary = false);
    }
    let router = TestRouter::ready(&[&worker, &other], &[]).await;
    let response = router.chat("hello").await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "x-warmpath-route"), "load");
    assert_eq!(header(&response, "x-warmpath-predicted-cached-tokens"), "");
    assert_eq!(router.fleet().await["vocabularies"][0]["state"], "failed");
    assert_eq!(router.metric("warmpath_router_untokenized_prompts_total{cause=\"no_vocabulary\"}").await, 1.0);
    for worker in [&worker, &other] {
        worker.with(|script| script.has_vocabulary = true);
    }
    eventually("the vocabulary is there", || async { router.fleet().await["vocabularies"][0]["state"] == "ready" })
        .await;
    assert_eq!(header(&router.chat("hello").await, "x-warmpath-predicted-cached-tokens"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_refuses_leaves_the_answer_to_the_worker() {
    let worker = FakeWorker::start(1);
    let other = FakeWorker::start(2);
    let router = TestRouter::ready(&[&worker, &other], &[]).await;
    worker.with(|script| script.behaviour = Behaviour::Refuse(400));
    other.with(|script| script.behaviour = Behaviour::Refuse(400));
    let body = json!({"messages": [{"role": "villain", "content": "a"}]});
    let response = router.post("/v1/chat/completions", body.to_string()).await;
    assert_eq!(router.metric("warmpath_router_untokenized_prompts_total{cause=\"refused\"}").await, 1.0);
    assert_eq!(error_of(response, 400).await["message"], "scripted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_is_repeated_elsewhere_before_the_first_byte() {
    for (behaviour, failure) in [
        (Behaviour::Refuse(503), "unready"),
        (Behaviour::Refuse(429), "full"),
        (Behaviour::BreakAtOnce, "broken"),
        (Behaviour::BreakMidway, "broken"),
    ] {
        let (workers, router) = fleet_of_two().await;
        let text = long_text("bread");
        workers[0].hold(&text, None, 0);
        knows_blocks(&router, 0, chat_keys(&text, "").len()).await;
        workers[0].with(|script| script.behaviour = behaviour);
        let response = router.chat(&text).await;
        assert_eq!(response.status(), 200, "{behaviour:?}");
        assert_eq!(header(&response, "x-warmpath-route"), "retry");
        assert_eq!(header(&response, "x-warmpath-worker"), "0000000000000002");
        assert_eq!(
            response.text().await.expect("text"),
            "{\"answer\": 42}",
            "the client sees nothing of the first attempt"
        );
        assert_eq!((workers[0].seen().len(), workers[1].seen().len()), (1, 1));
        let line = format!("warmpath_router_failed_attempts_total{{failure=\"{failure}\"}}");
        assert_eq!(router.metric(&line).await, 1.0, "{behaviour:?}");
        assert_eq!(router.metric("warmpath_router_retries_total").await, 1.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comment_reaches_the_client_and_the_request_can_still_go_elsewhere() {
    let (workers, router) = fleet_of_two().await;
    let text = long_text("bread");
    workers[0].hold(&text, None, 0);
    knows_blocks(&router, 0, chat_keys(&text, "").len()).await;
    workers[0].with(|script| script.behaviour = Behaviour::BreakBehindComment);
    workers[1].with(|script| script.behaviour = Behaviour::CommentFirst);
    let response = router.chat_stream(&text).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "content-type"), "text/event-stream");
    let told = response.text().await.expect("the stream ends in order");
    let events = told.trim_start_matches(": the answer goes on\n\n");
    assert!(events.len() < told.len(), "a comment comes first: {told}");
    assert_eq!(events, "data: {\"n\": 1}\n\ndata: {\"n\": 2}\n\ndata: [DONE]\n\n");
    assert_eq!((workers[0].seen().len(), workers[1].seen().len()), (1, 1));
    assert_eq!(router.metric("warmpath_router_retries_total").await, 1.0);
    assert_eq!(router.metric("warmpath_router_broken_responses_total").await, 0.0);
    assert_eq!(router.metric_of_all("warmpath_router_ttfb_seconds_count").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_errors_of_a_worker_pass_through() {
    let (workers, router) = fleet_of_two().await;
    workers.iter().for_each(|worker| worker.with(|script| script.behaviour = Behaviour::Refuse(400)));
    let error = error_of(router.chat("hello").await, 400).await;
    assert_eq!(error["message"], "scripted");
    assert_eq!(workers[0].seen().len() + workers[1].seen().len(), 1, "it is not repeated");
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_bounded() {
    let workers: Vec<_> = (0..4).map(FakeWorker::start).collect();
    let router = TestRouter::ready(&workers.iter().collect::<Vec<_>>(), &["--attempts-max", "2"]).await;
    workers.iter().for_each(|worker| worker.with(|script| script.behaviour = Behaviour::BreakAtOnce));
    let error = error_of(router.chat("hello").await, 502).await;
    assert_eq!(error["code"], "worker_failed");
    assert!(error["message"].as_str().is_some_and(|text| text.starts_with("2 attempts failed")), "{error}");
    assert_eq!(workers.iter().map(|worker| worker.seen().len()).sum::<usize>(), 2);
    let router = TestRouter::ready(&workers.iter().collect::<Vec<_>>(), &["--attempts-max", "1"]).await;
    let error = error_of(router.chat("hello").await, 502).await;
    assert_eq!(
        error["message"],
        "the attempt failed: the worker ended its response early, or sent one that cannot be passed on"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn load_and_draining_are_honoured() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2), FakeWorker::start(3)];
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    let busy_slots = (0..4).map(SlotId).collect();
    let busy = Load { queued_prefill_tokens: 100_000, n_queued: 9, n_decoding: 4, busy_slots, ..idle() };
    workers[0].update(Vec::new(), Some(busy));
    workers[1].update(Vec::new(), Some(Load { draining: true, ..idle() }));
    eventually("the load is known", || async {
        let fleet = router.fleet().await;
        fleet["workers"][0]["load"]["n_queued"] == 9 && fleet["workers"][1]["state"] == "draining"
    })
    .await;
    for _ in 0..4 {
        assert_eq!(header(&router.chat("hello").await, "x-warmpath-worker"), "0000000000000003");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn round_robin_takes_turns() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2), FakeWorker::start(3)];
    let router = TestRouter::ready(&workers.each_ref(), &["--policy", "round-robin"]).await;
    for _ in 0..6 {
        let response = router.chat("hello").await;
        assert_eq!(header(&response, "x-warmpath-route"), "policy:round-robin");
    }
    assert!(workers.iter().all(|worker| worker.seen().len() == 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_of_several_prompts_decides() {
    let (_workers, router) = fleet_of_two().await;
    let tokens: Vec<u32> = (0..64).collect();
    for (body, has_comparison) in [
        (json!({"prompt": [[1, 2, 3], tokens]}), false),
        (json!({"prompt": tokens}), true),
        (json!({"prompt": ["a", "b"]}), false),
        (json!({"prompt": "a"}), true),
    ] {
        let before = router.metric("warmpath_router_prediction_error_blocks_count").await;
        let response = router.post("/v1/completions", body.to_string()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "x-warmpath-predicted-cached-tokens"), "0");
        let compared = router.metric("warmpath_router_prediction_error_blocks_count").await - before;
        assert_eq!(compared > 0.0, has_comparison, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn small_endpoints_are_passed_on() {
    let (worker, router) = fleet_of_one().await;
    let response = router.post("/tokenize", "{\"content\": \"hello\"}").await;
    assert_eq!(response.status(), 200);
    assert_eq!(worker.seen()[0].body, "{\"content\": \"hello\"}");
}
