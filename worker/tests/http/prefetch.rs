//! Prefixes that one worker lists for a router, and that another worker fetches before requests need them.
//!
//! Not here: whether the tokens are correct in every layout (the engine's tests), the choice (the router's tests).

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::Uri;
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use warmpath_common::prefetch::{HotList, HotPrefix, Prefetch, PrefetchItem, pack, unpack};

use crate::cache::{compute, prompt};
use crate::harness::{TestWorker, tiny};
use crate::kv_transfer::{answer, question, slow_worker, slow_worker_changed, uncached};

const PATH: &str = "/internal/v1/kv";

/// Time between the bytes of a breaking peer's response and its end.
const BREAK_AFTER: Duration = Duration::from_millis(100);

/// Returns the prefixes that a worker lists.
async fn listed(worker: &TestWorker) -> Vec<HotPrefix> {
    let list: HotList =
        serde_json::from_value(worker.get_json(&format!("{PATH}?tokens=100000")).await).expect("a list");
    assert_eq!(list.block_size_tokens, 32);
    unpack(&list.prefixes).expect("it can be unpacked")
}

/// Returns the request to fetch prefixes from a worker.
fn wanted(peer: &str, prefixes: &[HotPrefix]) -> Value {
    let items = pack(prefixes, 32).into_iter().map(|prefix| PrefetchItem { peer: peer.to_owned(), prefix });
    serde_json::to_value(Prefetch { prefixes: items.collect() }).expect("JSON")
}

async fn fetched(worker: &TestWorker, result: &str) -> f64 {
    let name = format!("kv_transfers_total{{direction=\"prefetched\",result=\"{result}\"}}");
    worker.try_metric(&name).await.unwrap_or(0.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_fetches_listed_prefixes_once_and_later_answers_are_the_uncached_ones() {
    let (holder, other) = (slow_worker(100.0, "").await, slow_worker(100.0, "").await);
    let prompts: Vec<Value> = (1..=5).map(|seed| prompt(seed, 320)).collect();
    for prompt in &prompts {
        compute(&holder, prompt).await;
    }
    let prefixes = listed(&holder).await;
    assert_eq!(prefixes.len(), 5);
    let _beside = other.begin_long().await;
    // Two routers send the same list.
    for _ in 0..2 {
        assert_eq!(other.ask(PATH, wanted(holder.base(), &prefixes)).await, json!({"prefixes": 5}));
    }
    other.until("all are fetched", async |other| fetched(other, "ok").await == 5.0).await;
    for prompt in &prompts {
        let moved = answer(question(&other, prompt)).await;
        assert_eq!((moved.n_cached, moved.fetched), (319, None));
        assert_eq!(moved.text, uncached(&other, prompt).await);
    }
    let marker = prompt(9, 320);
    compute(&holder, &marker).await;
    let prefixes = listed(&holder).await;
    other.ask(PATH, wanted(holder.base(), &prefixes)).await;
    other.until("the last list is fetched", async |other| fetched(other, "ok").await == 6.0).await;
    assert_eq!(other.try_metric("kv_transfer_blocks_total{direction=\"prefetched\"}").await, Some(60.0));
}

/// Returns the base URL of a peer that sends the first half of a worker's state and then ends the response, and the
/// times of its requests.
async fn breaking_peer(holder: &TestWorker) -> (String, Arc<Mutex<Vec<Instant>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (base, seen) = (holder.base().to_owned(), Arc::clone(&requests));
    let respond = async move |uri: Uri| {
        seen.lock().expect("no test panics here").push(Instant::now());
        let good = reqwest::get(format!("{base}{uri}")).await.expect("the holder responds");
        let good = good.bytes().await.expect("the whole run");
        let half = stream::iter([good.slice(..good.len() / 2)]);
        let end = stream::once(async {
            tokio::time::sleep(BREAK_AFTER).await;
            Bytes::new()
        });
        Body::from_stream(half.chain(end).map(Ok::<_, Infallible>))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(respond)).await });
    (format!("http://{address}"), requests)
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_prefixes_count_for_the_room_of_a_list_and_are_followed_by_pauses() {
    let holder = slow_worker(100.0, "").await;
    for seed in 1..=8 {
        compute(&holder, &prompt(seed, 640)).await;
    }
    let prefixes = listed(&holder).await;
    assert_eq!(prefixes.len(), 8);
    let resident = holder.get_json("/cache?entries=0").await["tiers"]["resident"].clone();
    let [bytes, tokens] = ["bytes", "tokens"].map(|name| resident[name].as_u64().expect("a number"));
    // There is room for two prefixes. A chunk of 256 tokens arrives of each.
    let ram_bytes = bytes / tokens * 2 * 640;
    let other = slow_worker_changed(100.0, "", |config| config.engine.store.ram_bytes = ram_bytes).await;
    let (peer, requests) = breaking_peer(&holder).await;
    other.ask(PATH, wanted(&peer, &prefixes)).await;
    // Lists are fetched one after the other.
    let marker = HotPrefix { tokens: prefixes[0].tokens[..320].to_vec(), ..prefixes[0].clone() };
    other.ask(PATH, wanted(holder.base(), &[marker])).await;
    other.until("the last list is fetched", async |other| fetched(other, "ok").await == 1.0).await;
    assert_eq!(fetched(&other, "cut_off").await, 3.0);
    let requests = requests.lock().expect("no test panics here");
    let gaps: Vec<Duration> = requests.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() == 2 && gaps.iter().all(|gap| *gap >= 2 * BREAK_AFTER), "{gaps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_peer_or_one_with_less_state_affects_only_its_own_list() {
    let (holder, other) = (slow_worker(100.0, "").await, slow_worker(100.0, "").await);
    compute(&holder, &prompt(1, 320)).await;
    let known = listed(&holder).await;
    let lost = HotPrefix { tokens: vec![7; 64], ..known[0].clone() };
    // There is no worker at this address.
    let mut list = wanted("http://127.0.0.1:1", &[lost.clone(), lost.clone()]);
    let behind = wanted(holder.base(), &[lost, known[0].clone()]);
    list["prefixes"].as_array_mut().expect("a list").extend(behind["prefixes"].as_array().expect("a list").clone());
    // The indices in the list have changed.
    list["prefixes"].as_array_mut().expect("a list")[3]["like"] = Value::Null;
    other.ask(PATH, list).await;
    other.until("the rest is fetched", async |other| fetched(other, "ok").await == 1.0).await;
    assert_eq!((fetched(&other, "unreachable").await, fetched(&other, "missing").await), (1.0, 1.0));
    assert_eq!(answer(question(&other, &prompt(1, 320))).await.n_cached, 319);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_lists_are_refused_and_so_are_all_without_a_token_or_with_transfers_off() {
    let worker = slow_worker(100.0, "").await;
    let root = "ab".repeat(32);
    let item = |change: Value| {
        let mut item = json!({"peer": "http://127.0.0.1:1", "root": root, "tokens": vec![1; 32]});
        change.as_object().expect("fields").iter().for_each(|(name, value)| item[name] = value.clone());
        json!({"prefixes": [item]})
    };
    for (body, param) in [
        (json!({}), Value::Null),
        (item(json!({"root": "ab"})), Value::Null),
        (item(json!({"tokens": [-1]})), Value::Null),
        (item(json!({"tokens": [1]})), json!("prefixes")),
        (item(json!({"peer": "file:///etc/passwd"})), json!("prefixes")),
        (item(json!({"peer": "nonsense"})), json!("prefixes")),
        (item(json!({"like": [0, 32]})), json!("prefixes")),
    ] {
        let (status, object) = worker.try_ask(PATH, &body).await;
        let found = &object["error"]["param"];
        assert!(status == 400 && (param.is_null() || *found == param), "{body}: {status} {object}");
    }
    for path in [PATH.to_owned(), format!("{PATH}?tokens=-1")] {
        assert_eq!(worker.get(&path).await.status(), 400, "{path}");
    }
    // A prefix that is longer than any prompt is not fetched.
    let long = item(json!({"tokens": vec![1; 1 << 17]}));
    assert_eq!(worker.ask(PATH, long).await, json!({"prefixes": 0}));
    // Without a token, the worker sends no requests to other machines.
    worker.ask(PATH, item(json!({"peer": "http://192.0.2.1:1"}))).await;

    let open = |config: &mut warmpath_worker::config::Config| {
        config.http.listen = "0.0.0.0:0".parse().expect("an address");
    };
    let open = TestWorker::start_changed(tiny(), "--cache-ram 16", open).await;
    let off = slow_worker(100.0, "--no-kv-transfer").await;
    for (worker, status, code) in [(&open, 501, "not_enabled"), (&off, 404, "kv_transfer_off")] {
        let list = worker.get(&format!("{PATH}?tokens=1")).await;
        assert_eq!(list.status(), status, "{code}");
        let (found, object) = worker.try_ask(PATH, &item(json!({}))).await;
        assert_eq!((found, &object["error"]["code"]), (status, &json!(code)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_worker_hands_its_state_over_before_it_ends() {
    let (holder, other) = (slow_worker(100.0, "").await, slow_worker(100.0, "").await);
    let first = prompt(1, 320);
    compute(&holder, &first).await;
    // A router is subscribed, so the worker waits for it.
    let stream = holder.get("/internal/v1/summary/stream").await;
    holder.ask_to_stop();
    holder.until("it drains", async |holder| holder.get("/readyz").await.status() == 503).await;
    let prefixes = listed(&holder).await;
    other.ask(PATH, wanted(holder.base(), &prefixes)).await;
    other.until("it is fetched", async |other| fetched(other, "ok").await == 1.0).await;
    let (status, object) = holder.try_ask(PATH, &wanted(other.base(), &prefixes)).await;
    assert_eq!((status, &object["error"]["code"]), (503, &json!("draining")), "a worker that leaves fetches nothing");
    holder.stop().await.expect("a good end");
    drop(stream);
    let moved = answer(question(&other, &first)).await;
    assert_eq!((moved.n_cached, moved.text), (319, uncached(&other, &first).await));
}
