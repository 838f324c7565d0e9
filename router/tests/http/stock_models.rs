//! The models of stock servers: lists that change, several models of one server, more than the limit.

use crate::support::logged::Logged;
use crate::support::stock::FakeStock;
use crate::support::{TestRouter, error_of, eventually, header, long_text};
use serde_json::{Value, json};
use warmpath_router::config::STOCK_MODELS_MAX;

fn chat(model: &str, text: &str) -> String {
    json!({"model": model, "messages": [{"role": "user", "content": text}]}).to_string()
}

fn listing(names: &[&str]) -> Option<Value> {
    let models: Vec<_> = names.iter().map(|name| json!({"id": name, "object": "model"})).collect();
    Some(json!({"object": "list", "data": models}))
}

async fn start(names: &[&str]) -> (FakeStock, TestRouter) {
    let server = FakeStock::start("tiny");
    server.with(|script| script.models = listing(names));
    let router = TestRouter::ready_for(&[server.flag()], &[]).await;
    (server, router)
}

async fn names(router: &TestRouter) -> Vec<String> {
    let (status, list) = router.get("/v1/models").await;
    assert_eq!(status, 200);
    let models = list["data"].as_array().expect("a list");
    models.iter().map(|model| model["id"].as_str().expect("a name").to_owned()).collect()
}

async fn wait_for_names(router: &TestRouter, expected: &[&str]) {
    eventually(&format!("{expected:?}"), || async { names(router).await == expected }).await;
}

async fn status_of(router: &TestRouter, model: &str) -> u16 {
    router.post("/v1/chat/completions", chat(model, "hello")).await.status().as_u16()
}

async fn n_blocks(router: &TestRouter) -> u64 {
    router.fleet().await["workers"][0]["blocks"].as_u64().expect("a number")
}

/// Chats with a model; returns the tokens that the router expected to be cached.
async fn predicted(router: &TestRouter, model: &str, text: &str) -> u32 {
    let response = router.post("/v1/chat/completions", chat(model, text)).await;
    assert_eq!(response.status(), 200);
    header(&response, "x-warmpath-predicted-cached-tokens").parse().expect("a number")
}

/// Chats with a model until the router expects the cached tokens.
async fn remembered(router: &TestRouter, model: &str, text: &str) {
    eventually("the prompt is remembered", || async { predicted(router, model, text).await > 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_listed_later_is_served_and_one_that_is_listed_no_longer_is_not() {
    let (server, router) = start(&["alpha"]).await;
    assert_eq!((status_of(&router, "alpha").await, status_of(&router, "beta").await), (200, 404));
    let text = long_text("bread");
    remembered(&router, "alpha", &text).await;
    server.with(|script| script.models = listing(&["alpha", "beta"]));
    wait_for_names(&router, &["alpha", "beta"]).await;
    assert_eq!((status_of(&router, "alpha").await, status_of(&router, "beta").await), (200, 200));
    assert!(predicted(&router, "alpha", &text).await > 0, "what is known of the first model stays");
    server.with(|script| script.models = listing(&["beta"]));
    wait_for_names(&router, &["beta"]).await;
    assert_eq!((status_of(&router, "alpha").await, status_of(&router, "beta").await), (404, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swapped_model_has_its_new_name_and_no_remembered_blocks_of_the_old_one() {
    let (server, router) = start(&["alpha"]).await;
    let text = long_text("bread");
    remembered(&router, "alpha", &text).await;
    server.with(|script| script.models = listing(&["gamma"]));
    wait_for_names(&router, &["gamma"]).await;
    eventually("the old model's blocks are forgotten", || async { n_blocks(&router).await == 0 }).await;
    assert_eq!(status_of(&router, "alpha").await, 404);
    assert_eq!(predicted(&router, "gamma", &text).await, 0);

    // Another model under the same name.
    remembered(&router, "gamma", &text).await;
    server.with(|script| script.models = Some(json!({"data": [{"id": "gamma", "meta": {"n_params": 9}}]})));
    eventually("its blocks are forgotten", || async { n_blocks(&router).await == 0 }).await;
    assert_eq!(status_of(&router, "gamma").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_of_one_server_share_no_assumed_cache_with_and_without_a_vocabulary() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), &**crate::support::VOCABULARY).expect("it takes the vocabulary");
    let path = file.path().display().to_string();
    for flags in [&[][..], &["--vocab", &path]] {
        let server = FakeStock::start("tiny");
        server.with(|script| script.models = listing(&["alpha", "beta", "gamma"]));
        let router = TestRouter::ready_for(&[server.flag()], flags).await;
        let text = long_text("bread");
        for model in ["beta", "alpha"] {
            assert_eq!(predicted(&router, model, &text).await, 0, "{model} {flags:?}");
            remembered(&router, model, &text).await;
        }
        assert_eq!(predicted(&router, "gamma", &text).await, 0, "{flags:?}");
        assert!(predicted(&router, "beta", &text).await > 0, "{flags:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_names_none_of_several_models_is_refused_in_every_dialect() {
    let (server, router) = start(&["alpha", "beta"]).await;
    let messages = json!([{"role": "user", "content": "hello"}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/completions", json!({"prompt": "hello"})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 5})),
        ("/v1/responses", json!({"input": "hello"})),
        ("/v1/embeddings", json!({"input": "hello"})),
        ("/tokenize", json!({"content": "hello"})),
    ] {
        let response = router.post(path, body.to_string()).await;
        assert_eq!(response.status(), 400, "{path}");
        let text = response.text().await.expect("text");
        assert!(text.contains("`alpha`") && text.contains("`beta`"), "{path}: {text}");
    }
    assert_eq!(server.seen().len(), 0);
    let error = error_of(router.post("/v1/chat/completions", json!({"messages": messages}).to_string()).await, 400);
    assert_eq!(error.await["code"], "model_required");

    // One model under several names does not count.
    server.with(|script| script.models = Some(json!({"data": [{"id": "alpha", "aliases": ["beta"]}]})));
    eventually("there is one model", || async { router.chat("hello").await.status() == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_models_are_served_and_the_excess_is_shown() {
    let many: Vec<_> = (0..200).map(|nth| format!("m{nth}")).collect();
    let (server, router) = start(&many.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(names(&router).await, many);
    assert_eq!((status_of(&router, "m0").await, status_of(&router, "m199").await), (200, 200));
    let left_out = format!("warmpath_router_stock_models_left_out{{worker=\"{}\"}}", server.url());
    assert_eq!(router.metric(&left_out).await, 0.0);
    let too_many: Vec<_> = (0..STOCK_MODELS_MAX + 2).map(|nth| format!("m{nth}")).collect();
    server.with(|script| script.models = listing(&too_many.iter().map(String::as_str).collect::<Vec<_>>()));
    router.wait_for_metric(&left_out, 2.0).await;
    eventually("the others are listed", || async { names(&router).await.len() == STOCK_MODELS_MAX }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_model_list_changes_nothing_and_an_empty_one_removes_all() {
    let (server, router) = start(&["alpha"]).await;
    server.with(|script| script.models = Some(json!({"error": "busy"})));
    let n_lists = || server.asked().iter().filter(|(path, _)| path == "/v1/models").count();
    // The second poll shows that the first one is over.
    let n_before = n_lists();
    eventually("the router looks again", || async { n_lists() >= n_before + 2 }).await;
    assert_eq!(status_of(&router, "alpha").await, 200);
    let losses = "warmpath_router_stock_losses_total{reason=\"no_model\"}";
    for empty in [listing(&[]), Some(json!({"object": "list", "data": null})), Some(json!({"object": "list"}))] {
        let n_losses = router.metric(losses).await;
        server.with(|script| script.models = empty.clone());
        wait_for_names(&router, &[]).await;
        assert_eq!(status_of(&router, "alpha").await, 503, "{empty:?}");
        router.wait_for_metric(losses, n_losses + 1.0).await;
        server.with(|script| script.models = listing(&["alpha"]));
        eventually("it serves again", || async { status_of(&router, "alpha").await == 200 }).await;
    }
}

#[tokio::test]
async fn a_server_that_lists_no_model_is_logged_once_per_change() {
    let log = Logged::start();
    let (server, router) = start(&["alpha"]).await;
    let n_lists = || server.asked().iter().filter(|(path, _)| path == "/v1/models").count();
    for nth in 1..=2 {
        server.with(|script| script.models = listing(&[]));
        wait_for_names(&router, &[]).await;
        let n_before = n_lists();
        eventually("the router looks again", || async { n_lists() >= n_before + 3 }).await;
        assert_eq!(log.n("stock server cannot be used"), nth);
        assert_eq!(status_of(&router, "alpha").await, 503);
        server.with(|script| script.models = listing(&["alpha"]));
        eventually("it serves again", || async { status_of(&router, "alpha").await == 200 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_share_a_name_of_several_are_both_used_for_it() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("tiny")];
    let entry = |id: &str, aliases: &[&str]| json!({"data": [{"id": id, "aliases": aliases}]});
    servers[0].with(|script| script.models = Some(entry("alpha", &["beta"])));
    servers[1].with(|script| script.models = Some(entry("beta", &["delta"])));
    let flags: Vec<_> = servers.iter().map(FakeStock::flag).collect();
    let router = TestRouter::ready_for(&flags, &["--policy", "round-robin"]).await;
    eventually("both are there", || async {
        let fleet = router.fleet().await;
        fleet["workers"].as_array().is_some_and(|workers| workers.iter().all(|worker| worker["state"] == "ready"))
    })
    .await;
    for _ in 0..4 {
        assert_eq!(status_of(&router, "beta").await, 200);
    }
    let seen = servers.each_ref().map(|server| server.seen().len());
    assert!(seen.iter().all(|&n| n > 0), "{seen:?}");
}
