//! KV state that moves before requests need it: what a router tells workers when one joins and when one drains.

use crate::support::worker::{FakeWorker, chat_keys, chat_prefix, idle, model};
use crate::support::{TestRouter, eventually, long_text};
use warmpath_common::model::{Fingerprint, KvTransfer, ModelInfo};
use warmpath_common::prefetch::{HotPrefix, Prefetch, unpack};
use warmpath_common::summary::Load;

const LAYOUT: KvTransfer = KvTransfer { layout: Fingerprint([5; 32]), bytes_per_token: 23_040 };

/// Starts a worker that exchanges state and lists the prompts of chats, which it holds.
fn worker(uid: u64, texts: &[&str]) -> FakeWorker {
    let worker = FakeWorker::start(uid);
    worker.with(|script| {
        script.summary.snapshot.model = ModelInfo { kv_transfer: Some(LAYOUT), ..model() };
        script.hot = texts.iter().map(|text| chat_prefix(text, "")).collect();
    });
    texts.iter().for_each(|text| worker.hold(text, None, 0));
    worker
}

/// Returns the prefixes that a worker was told to fetch, each with its peer.
fn told(worker: &FakeWorker) -> Vec<(String, HotPrefix)> {
    let lists = worker.seen().into_iter().filter(|seen| seen.target == "/internal/v1/kv");
    let items = lists.flat_map(|seen| {
        let list: Prefetch = serde_json::from_slice(&seen.body).expect("a list");
        let prefixes = unpack(list.prefixes.iter().map(|item| &item.prefix)).expect("it can be unpacked");
        list.prefixes.into_iter().map(|item| item.peer).zip(prefixes).collect::<Vec<_>>()
    });
    items.collect()
}

fn draining() -> Option<Load> {
    Some(Load { draining: true, ..idle() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_joins_empty_fetches_what_the_others_used_last() {
    let texts = ["bread", "water", "stone"].map(long_text);
    let one = worker(1, &[&texts[0], &texts[1]]);
    let two = worker(2, &[&texts[2], &texts[0]]);
    let mut new = worker(3, &[]);
    new.kill();
    let router = TestRouter::start(&[&one, &two, &new], &[]).await;
    eventually("both are known", || async {
        let fleet = router.fleet().await;
        fleet["workers"][0]["blocks"] != 0 && fleet["workers"][1]["blocks"] != 0
    })
    .await;
    new.revive();
    router.wait_for_metric("warmpath_router_kv_prefetches_total{cause=\"join\"}", 3.0).await;
    let expected = [(&one, &texts[0]), (&two, &texts[2]), (&one, &texts[1])]
        .map(|(peer, text)| (peer.url(), chat_prefix(text, "")));
    let mut found = told(&new);
    // Which worker comes first is decided by their numbers of blocks.
    found.sort_by_key(|item| expected.iter().position(|expected| expected == item));
    assert_eq!(found, expected);
    assert!(told(&one).is_empty() && told(&two).is_empty(), "they hold state");
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixes_that_only_a_draining_worker_holds_are_divided_among_the_others() {
    let texts = ["bread", "water", "stone"].map(long_text);
    let leaving = worker(1, &[&texts[0], &texts[1], &texts[2]]);
    let stays = worker(2, &[&texts[0]]);
    let other = worker(3, &[]);
    // It holds the start of a prompt.
    other.hold(&texts[1], Some(3), 0);
    let foreign = worker(4, &[]);
    foreign.with(|script| script.summary.snapshot.model.kv_transfer.as_mut().expect("it exchanges").layout.0[0] ^= 1);
    let routers = [
        TestRouter::ready(&[&leaving, &stays, &other, &foreign], &[]).await,
        TestRouter::ready(&[&foreign, &other, &stays, &leaving], &[]).await,
    ];
    for router in &routers {
        eventually("all are known", || async {
            let fleet = router.fleet().await;
            let blocks = fleet["workers"].as_array().expect("workers").iter().map(|worker| worker["blocks"].as_u64());
            blocks.flatten().filter(|n_blocks| *n_blocks > 0).count() == 3
        })
        .await;
    }
    leaving.update(Vec::new(), draining());
    for router in &routers {
        router.wait_for_metric("warmpath_router_kv_prefetches_total{cause=\"drain\"}", 2.0).await;
    }
    let prefix = |text| (leaving.url(), chat_prefix(text, ""));
    // Both routers send the same lists, and the chat's start, which all workers hold, decides nothing.
    assert_eq!(told(&other), [prefix(&texts[1]), prefix(&texts[1])]);
    assert_eq!(told(&stays), [prefix(&texts[2]), prefix(&texts[2])]);
    assert!(told(&leaving).is_empty() && told(&foreign).is_empty());
    assert!(chat_keys(&texts[1], "").len() > 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_prefetched_from_a_worker_without_a_list() {
    let (leaving, stays) = (worker(1, &[&long_text("bread")]), worker(2, &[]));
    leaving.with(|script| script.hot.clear());
    let router = TestRouter::ready(&[&leaving, &stays], &[]).await;
    leaving.update(Vec::new(), draining());
    eventually("it is asked", || async { leaving.asked().iter().any(|(path, _)| path == "/internal/v1/kv") }).await;
    router.chat("hello").await;
    assert_eq!(told(&stays), Vec::new());
}
