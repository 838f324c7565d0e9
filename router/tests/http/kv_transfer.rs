//! KV state from other workers: which worker gets a hint to which peer, and what the router learns from the responses.

use crate::support::worker::answers::{End, N_TOKENS};
use crate::support::worker::{Behaviour, FakeWorker, chat_keys, full, model};
use crate::support::{TestRouter, chat_body, eventually, header, long_text};
use serde_json::{Value, json};
use warmpath_common::block_hash::BlockKey;
use warmpath_common::model::{Fingerprint, KvTransfer, ModelInfo};

const LAYOUT: KvTransfer = KvTransfer { layout: Fingerprint([5; 32]), bytes_per_token: 23_040 };
const NETWORK: [&str; 2] = ["--kv-gbits", "10"];
const HINT: &str = "x-warmpath-kv-peer";
const N_HINTS: &str = "warmpath_router_kv_transfer_hints_total";

/// Starts a worker that exchanges state of a layout.
fn worker(uid: u64, kv_transfer: Option<KvTransfer>) -> FakeWorker {
    let worker = FakeWorker::start(uid);
    worker.with(|script| script.summary.snapshot.model = ModelInfo { kv_transfer, ..model() });
    worker
}

/// Returns the router of an idle worker and of a busy one that holds all of `text`.
async fn beside_a_busy_holder(idle: &FakeWorker, holder: &FakeWorker, text: &str, flags: &[&str]) -> TestRouter {
    beside_a_holder_of(chat_keys(text, ""), idle, holder, flags).await
}

/// Returns the router of an idle worker and of a busy one that holds these blocks.
async fn beside_a_holder_of(keys: Vec<BlockKey>, idle: &FakeWorker, holder: &FakeWorker, flags: &[&str]) -> TestRouter {
    let router = TestRouter::ready(&[idle, holder], flags).await;
    let n_blocks = keys.len();
    holder.hold_keys(keys, 2);
    holder.update(Vec::new(), Some(full(100_000)));
    eventually("the router knows", || async {
        let fleet = router.fleet().await;
        let holder = &fleet["workers"][1];
        holder["blocks"] == json!(n_blocks) && holder["load"]["queued_prefill_tokens"] == json!(100_000)
    })
    .await;
    router
}

/// Sends a chat as a client that sends a hint of its own.
async fn ask(router: &TestRouter, text: &str, salt: &str) -> reqwest::Response {
    let mut body = json!({"messages": [{"role": "user", "content": text}]});
    if !salt.is_empty() {
        body["cache_salt"] = json!(salt);
    }
    let request = router.client.post(router.url("/v1/chat/completions")).header(HINT, "http://10.0.0.1;blocks=9");
    let response = request.body(body.to_string()).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    response
}

/// Returns the hints of the last request at a worker.
fn hints(worker: &FakeWorker) -> Vec<String> {
    let seen = worker.seen().pop().expect("it was asked");
    seen.headers.get_all(HINT).iter().map(|value| value.to_str().expect("text").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_gets_a_hint_to_the_busy_one_that_holds_the_prompt() {
    let [idle, holder] = [worker(1, Some(LAYOUT)), worker(2, Some(LAYOUT))];
    idle.with(|script| script.headers = vec![("x-warmpath-kv-fetched", "1000000;1")]);
    let text = long_text("bread");
    let router = beside_a_busy_holder(&idle, &holder, &text, &NETWORK).await;
    let n_blocks = chat_keys(&text, "").len();
    let url = format!("http://{}/internal/v1/route", router.server.admin_address);
    let explained = router.client.post(url).body(chat_body(&text, false)).send().await.expect("it answers");
    let explained: Value = explained.json().await.expect("JSON");
    assert_eq!(explained["choice"], json!({"worker": idle.url(), "reason": "transfer"}), "{explained}");
    let transfer = &explained["workers"][0]["transfer"];
    assert_eq!(transfer, &json!({"peer": holder.url(), "tokens": n_blocks * 16}));
    assert!(explained["workers"][0]["cost_ms"]["transfer"].as_f64() > Some(0.0), "{explained}");
    assert_eq!(explained["workers"][1]["transfer"], Value::Null, "it has it");
    assert_eq!(router.metric(N_HINTS).await, 0.0, "a dry run sends nothing");

    let response = ask(&router, &text, "").await;
    assert_eq!(header(&response, "x-warmpath-route"), "transfer");
    assert_eq!(header(&response, "x-warmpath-predicted-cached-tokens"), (n_blocks * 16).to_string());
    assert_eq!(header(&response, "x-warmpath-kv-fetched"), "", "clients do not get the report");
    assert_eq!(hints(&idle), [format!("{};blocks={n_blocks}", holder.url())]);
    assert_eq!(router.metric(N_HINTS).await, 1.0);
    let url = format!("http://{}/internal/v1/decisions", router.server.admin_address);
    let decisions: Value = router.client.get(url).send().await.expect("it answers").json().await.expect("JSON");
    assert_eq!(decisions["decisions"][0]["kv_peer"], json!(holder.url()), "{decisions}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_worker_gets_a_hint_to_unusable_state_or_from_a_client() {
    let other = KvTransfer { layout: Fingerprint([6; 32]), ..LAYOUT };
    let text = long_text("bread");
    for (what, idle, holder, salt, flags) in [
        ("another layout", Some(LAYOUT), Some(other), "", &NETWORK[..]),
        ("an idle worker without transfers", None, Some(LAYOUT), "", &NETWORK[..]),
        ("a holder without transfers", Some(LAYOUT), None, "", &NETWORK[..]),
        ("another tenant's state", Some(LAYOUT), Some(LAYOUT), "another", &NETWORK[..]),
        ("a router without transfers", Some(LAYOUT), Some(LAYOUT), "", &[][..]),
        ("a network that is too slow", Some(LAYOUT), Some(LAYOUT), "", &["--kv-gbits", "0.01"][..]),
    ] {
        let [idle, holder] = [worker(1, idle), worker(2, holder)];
        let router = beside_a_busy_holder(&idle, &holder, &text, flags).await;
        let response = ask(&router, &text, salt).await;
        assert_ne!(header(&response, "x-warmpath-route"), "transfer", "{what}");
        assert_eq!(hints(&idle), [""; 0], "{what}");
        assert_eq!(router.metric(N_HINTS).await, 0.0, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_sends_nothing_is_not_hinted_again_and_no_blocks_become_stale() {
    let [idle, holder] = [worker(1, Some(LAYOUT)), worker(2, Some(LAYOUT))];
    let text = long_text("bread");
    let router = beside_a_busy_holder(&idle, &holder, &text, &NETWORK).await;
    assert_eq!(header(&ask(&router, &text, "").await, "x-warmpath-route"), "transfer");
    // The script reuses 32 tokens and reports no transfer.
    assert_eq!(router.metric("warmpath_router_predictions_total{outcome=\"unfetched\"}").await, 1.0);
    assert_eq!(router.metric("warmpath_router_stale_blocks").await, 0.0);
    assert_ne!(header(&ask(&router, &text, "").await, "x-warmpath-route"), "transfer");
    assert_eq!((hints(&idle), router.metric(N_HINTS).await), (Vec::new(), 1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_of_workers_is_as_fast_as_its_transfers_were() {
    for (report, is_told_again) in [("10000000;20", true), ("1000;2000", false)] {
        let [idle, holder] = [worker(1, Some(LAYOUT)), worker(2, Some(LAYOUT))];
        idle.with(|script| script.headers = vec![("x-warmpath-kv-fetched", report)]);
        let text = long_text("bread");
        // The script reuses 32 tokens: two blocks.
        let router = beside_a_holder_of(chat_keys(&text, "")[..2].to_vec(), &idle, &holder, &NETWORK).await;
        for n_hints in [1.0, 1.0 + f64::from(u8::from(is_told_again))] {
            ask(&router, &text, "").await;
            assert_eq!(router.metric(N_HINTS).await, n_hints, "{report}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transfer_of_a_stream_s_second_worker_counts_too() {
    for (report, is_told_again) in [("10000000;20", true), ("1000;2000", false)] {
        let [mut first, second, holder] =
            [(1, None), (2, Some(LAYOUT)), (3, Some(LAYOUT))].map(|(uid, kv)| worker(uid, kv));
        first.with(|script| script.behaviour = Behaviour::Journaled(2, End::Break));
        second.with(|script| {
            script.behaviour = Behaviour::Journaled(N_TOKENS, End::Close);
            script.headers = vec![("x-warmpath-kv-fetched", report)];
        });
        let text = long_text("bread");
        // The script reuses 32 tokens: two blocks.
        let keys = chat_keys(&text, "")[..2].to_vec();
        let router = TestRouter::ready(&[&first, &second, &holder], &NETWORK).await;
        for worker in [&first, &holder] {
            worker.hold_keys(keys.clone(), 2);
        }
        holder.update(Vec::new(), Some(full(100_000)));
        eventually("the router knows", || async {
            let workers = &router.fleet().await["workers"];
            let is_full = workers[2]["load"]["queued_prefill_tokens"] == json!(100_000);
            workers[0]["blocks"] == json!(2) && workers[2]["blocks"] == json!(2) && is_full
        })
        .await;
        let stream = router.chat_stream(&text).await.text().await.expect("the stream ends in order");
        assert!(stream.contains("x-warmpath-failovers: 1"), "{stream}");
        assert_eq!(hints(&second).len(), 1, "{report}");
        first.kill();
        eventually("it is lost", || async { router.state_of(0).await == "down" }).await;
        second.with(|script| script.behaviour = Behaviour::Answer);
        ask(&router, &text, "").await;
        assert_eq!(router.metric(N_HINTS).await, 1.0 + f64::from(u8::from(is_told_again)), "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_lost_is_no_peer() {
    let (idle, mut holder) = (worker(1, Some(LAYOUT)), worker(2, Some(LAYOUT)));
    let text = long_text("bread");
    let router = beside_a_busy_holder(&idle, &holder, &text, &NETWORK).await;
    holder.kill();
    eventually("it is lost", || async { router.state_of(1).await == "down" }).await;
    ask(&router, &text, "").await;
    assert_eq!((hints(&idle), router.metric(N_HINTS).await), (Vec::new(), 0.0));
}
