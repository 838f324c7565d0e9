//! Summary streams: followed, ended when they are inconsistent, opened again, and workers that come and go.

use crate::support::worker::{FakeWorker, chat_keys, idle, model};
use crate::support::{TestRouter, error_of, eventually, fleet_of_one, fleet_of_two, header, long_text};
use serde_json::json;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::SlotId;
use warmpath_common::model::ModelInfo;
use warmpath_common::summary::{
    Change, Digest, FRAME_BYTES_MAX, Frame, FrameBody, Load, PROTOCOL_VERSION, Resume, Run, RunState, Stamp, Tier,
    with_length,
};

fn run(keys: Vec<BlockKey>, slot: u16) -> Run {
    Run { keys, tier: Tier::Resident, state: RunState::Ready, resume: Resume::EveryBlock, slot: Some(SlotId(slot)) }
}

/// Starts a worker and a router, lets `lie` corrupt the stream, and checks that the stream ends with `reason` and is
/// resynced.
async fn check_cut_off(reason: &str, lie: impl FnOnce(&FakeWorker)) {
    let (worker, router) = fleet_of_one().await;
    let text = long_text("bread");
    worker.hold(&text, None, 0);
    let n_blocks = chat_keys(&text, "").len();
    let knows = || async { router.fleet().await["workers"][0]["blocks"] == json!(n_blocks) };
    eventually("the blocks are known", knows).await;
    let n_streams = worker.n_streams();
    lie(&worker);
    router.wait_for_metric(&format!("warmpath_router_summary_stream_ends_total{{reason=\"{reason}\"}}"), 1.0).await;
    eventually("the stream is opened again", || async { worker.n_streams() > n_streams }).await;
    eventually("the worker is used again", || async { router.state_of(0).await == "ready" }).await;
    eventually("the view is the worker's", knows).await;
    assert_eq!(router.chat("hello").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_cut_off_and_resynced() {
    check_cut_off("gap", |worker| worker.send_seq(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_update_is_cut_off_and_resynced() {
    check_cut_off("duplicate", |worker| worker.send_seq(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_frame_are_cut_off_and_resynced() {
    let bytes = [&[PROTOCOL_VERSION], &b"nonsense"[..]].concat();
    check_cut_off("malformed", |worker| worker.send_raw(&with_length(&bytes))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_over_the_limit_is_cut_off_and_resynced() {
    let length = u32::try_from(FRAME_BYTES_MAX + 1).expect("a length").to_be_bytes();
    check_cut_off("frame_too_long", |worker| worker.send_raw(&length)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_worker_s_frame_is_cut_off_and_resynced() {
    let stamp = Stamp { worker_uid: warmpath_common::ids::WorkerUid(99), boot_epoch: 2, seq: 1 };
    let frame = Frame { stamp, body: FrameBody::Update { changes: Vec::new(), load: None, digest: None } };
    check_cut_off("identity", |worker| worker.send_raw(&with_length(&frame.encode()))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_not_there_is_cut_off_and_resynced() {
    check_cut_off("unknown_slot", |worker| {
        worker.update(vec![Change::Stored(run(vec![BlockKey(1)], 99))], None);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_cannot_be_is_cut_off_and_resynced() {
    check_cut_off("load", |worker| {
        let mut load = idle();
        load.rates.prefill_tokens_per_s = Some(f32::NAN);
        worker.update(Vec::new(), Some(load));
        worker.with(|script| script.summary.snapshot.load = idle());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_cut_off_and_resynced() {
    check_cut_off("flood", |worker| (0..20_000).for_each(|_| worker.update(Vec::new(), None))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_stops_in_the_middle_of_a_frame_is_cut_off() {
    let mut worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &[]).await;
    worker.send_raw(&[0, 0, 1, 0, 1, 2, 3]);
    worker.kill();
    eventually("the worker is down", || async { router.state_of(0).await == "down" }).await;
    assert_eq!(router.metric("warmpath_router_summary_stream_ends_total{reason=\"broken\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_summary_stream_is_resumed_where_it_ended() {
    let (worker, router) = fleet_of_one().await;
    let keys = |n: u64| (0..n).map(BlockKey).collect::<Vec<_>>();
    // The snapshot never has what only updates announced, so a router that has missed one does not know it.
    worker.update(vec![Change::Stored(run(keys(20), 0))], None);
    eventually("the blocks are known", || async { router.fleet().await["workers"][0]["blocks"] == 20 }).await;
    worker.cut();
    worker.update(vec![Change::Stored(run(keys(30), 0))], None);
    router.wait_for_metric("warmpath_router_summary_streams_total{start=\"resumed\"}", 1.0).await;
    eventually("the missed updates are known", || async {
        let worker = &router.fleet().await["workers"][0];
        worker["blocks"] == 30 && worker["blocks_current"] == json!(true) && worker["state"] == "ready"
    })
    .await;
    assert_eq!(router.metric("warmpath_router_summary_streams_total{start=\"snapshot\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_differ_from_the_worker_s_are_found_and_resynced() {
    let (worker, router) = fleet_of_one().await;
    let keys: Vec<BlockKey> = (0..20).map(BlockKey).collect();
    worker.update_with_digest(vec![Change::Stored(run(keys.clone(), 0))], Digest::of(&keys));
    eventually("the blocks are known", || async { router.fleet().await["workers"][0]["blocks"] == 20 }).await;
    assert_eq!(router.metric("warmpath_router_summary_stream_ends_total{reason=\"digest\"}").await, 0.0, "both agree");
    worker.with(|script| script.summary.snapshot.runs.push(run(keys[..5].to_vec(), 0)));
    worker.update_with_digest(Vec::new(), Digest::of(&keys[..5]));
    router.wait_for_metric("warmpath_router_summary_stream_ends_total{reason=\"digest\"}", 1.0).await;
    eventually("the view is the worker's", || async { router.fleet().await["workers"][0]["blocks"] == 5 }).await;
    worker.update_with_digest(Vec::new(), Digest::of(&keys[..5]));
    eventually("it is used again", || async { router.state_of(0).await == "ready" }).await;
    assert_eq!(router.metric("warmpath_router_summary_stream_ends_total{reason=\"digest\"}").await, 1.0);
    assert_eq!(router.metric("warmpath_router_summary_streams_total{start=\"snapshot\"}").await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_used_before_its_snapshot_arrives() {
    let worker = FakeWorker::start(1);
    let opening = worker.opening();
    worker.with(|script| script.raw_stream = Some(opening));
    let router = TestRouter::ready(&[&worker], &[]).await;
    assert_eq!(router.chat("hello").await.status(), 200);
    assert_eq!(router.fleet().await["workers"][0]["blocks_current"], json!(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_another_protocol_version_is_not_used_and_the_reason_is_shown() {
    let (newer, other) = (FakeWorker::start(1), FakeWorker::start(2));
    newer.with(|script| script.raw_stream = Some(with_length(&[PROTOCOL_VERSION + 1, 0])));
    let router = TestRouter::start(&[&newer, &other], &[]).await;
    eventually("the other one is used", || async { router.state_of(1).await == "ready" }).await;
    eventually("it is down", || async { router.state_of(0).await == "down" }).await;
    let trouble = router.fleet().await["workers"][0]["trouble"].clone();
    let reason = format!("protocol version {}, not {PROTOCOL_VERSION}", PROTOCOL_VERSION + 1);
    assert!(trouble.as_str().is_some_and(|trouble| trouble.contains(&reason)), "{trouble}");
    assert_eq!(router.chat("hello").await.status(), 200);
    assert!(newer.seen().is_empty(), "it gets no request");
    newer.with(|script| script.raw_stream = None);
    eventually("it is of this release again", || async { router.state_of(0).await == "ready" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_under_two_urls_is_used_once_and_two_processes_with_one_uid_both() {
    let workers = [FakeWorker::start(1), FakeWorker::start(1), FakeWorker::start(1)];
    workers[2].with(|script| {
        let stamp = Stamp { boot_epoch: 9, ..script.summary.snapshot.stamp };
        script.summary.set_stamp(stamp);
    });
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    eventually("the second is kept out", || async { router.state_of(1).await == "excluded" }).await;
    let reason = router.fleet().await["workers"][1]["excluded"].clone();
    assert_eq!(reason, format!("the same worker process is already in the fleet as {}", workers[0].url()));
    assert_eq!(router.metric("warmpath_router_workers_excluded{disagreement=\"duplicate_worker\"}").await, 1.0);
    assert_eq!(router.state_of(2).await, "ready");
    assert_eq!(router.metric("warmpath_router_workers_sharing_uid").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_worker_s_stream_is_closed_and_the_worker_gets_no_requests() {
    let (worker, router) = fleet_of_one().await;
    worker.with(|script| script.has_heartbeat = false);
    router.wait_for_metric("warmpath_router_summary_stream_ends_total{reason=\"idle\"}", 1.0).await;
    worker.with(|script| script.has_heartbeat = true);
    eventually("it is used again", || async { router.state_of(0).await == "ready" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_no_worker_is_down() {
    let worker = FakeWorker::start(1);
    worker.with(|script| script.raw_stream = Some(b"HTTP is not what you think".to_vec()));
    let router = TestRouter::start(&[&worker], &[]).await;
    router.wait_for_metric("warmpath_router_summary_stream_ends_total{reason=\"frame_too_long\"}", 2.0).await;
    assert_eq!(router.state_of(0).await, "down");
    assert_eq!(router.get("/readyz").await.0, 503);
    let other = FakeWorker::start(2);
    TestRouter::ready(&[&worker, &other], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_disagrees_is_excluded_loudly() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2), FakeWorker::start(3)];
    workers[1].with(|script| script.summary.snapshot.model = ModelInfo { block_size_tokens: 64, ..model() });
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    let worker = router.fleet().await["workers"][1].clone();
    assert_eq!(worker["state"], "excluded");
    assert_eq!(
        worker["excluded"], "the worker serves `tiny` with block_size_tokens = 64, the fleet with 16",
        "the page shows the difference"
    );
    assert_eq!(router.metric("warmpath_router_workers{state=\"excluded\"}").await, 1.0);
    assert_eq!(router.metric("warmpath_router_workers_excluded{disagreement=\"model\"}").await, 1.0);
    for _ in 0..6 {
        assert_eq!(router.chat("hello").await.status(), 200);
    }
    assert!(workers[1].seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_models_under_one_name_all_routers_take_the_older_worker_s_until_it_drains() {
    let (older, mut newer) = (FakeWorker::start(1), FakeWorker::start(2));
    newer.kill();
    newer.with(|script| script.summary.snapshot.model = ModelInfo { block_size_tokens: 64, ..model() });
    newer.revive();
    let one = TestRouter::ready(&[&older, &newer], &[]).await;
    let two = TestRouter::ready(&[&newer, &older], &[]).await;
    check_served(&one, ["ready", "excluded"], "0000000000000001").await;
    check_served(&two, ["excluded", "ready"], "0000000000000001").await;
    older.update(Vec::new(), Some(Load { draining: true, ..idle() }));
    check_served(&one, ["excluded", "ready"], "0000000000000002").await;
    check_served(&two, ["ready", "excluded"], "0000000000000002").await;
}

/// Waits until a router shows its two workers in these states, and checks which of them answers.
async fn check_served(router: &TestRouter, states: [&str; 2], worker: &str) {
    let has_states = || async { [router.state_of(0).await, router.state_of(1).await] == states };
    eventually("the model is known", has_states).await;
    assert_eq!(header(&router.chat("hello").await, "x-warmpath-worker"), worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vocabulary_that_is_not_the_declared_one_excludes_its_workers() {
    let worker = FakeWorker::start(1);
    worker.with(|script| script.summary.snapshot.model = ModelInfo { n_vocab: 5, ..model() });
    let router = TestRouter::start(&[&worker], &[]).await;
    eventually("it is excluded", || async { router.state_of(0).await == "excluded" }).await;
    let reason = router.fleet().await["workers"][0]["excluded"].clone();
    assert!(reason.as_str().is_some_and(|reason| reason.contains("n_vocab = 5")), "{reason}");
    assert_eq!(error_of(router.chat("hello").await, 503).await["code"], "no_worker");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_without_workers_reports_that() {
    let mut worker = FakeWorker::start(1);
    worker.kill();
    let router = TestRouter::start(&[&worker], &[]).await;
    eventually("it is tried", || async { router.state_of(0).await == "down" }).await;
    let (status, body) = router.get("/readyz").await;
    assert_eq!(status, 503);
    assert_eq!(body["reason"], "no worker can take requests: 1 down");
    let (status, body) = router.get("/health").await;
    assert_eq!((status, &body["error"]["message"]), (503, &json!("no worker can take requests: 1 down")));
    let expected = format!("no worker can take requests: {} is down", worker.url());
    for (path, field) in [("/readyz", "/reason"), ("/health", "/error/message")] {
        let url = format!("http://{}{path}", router.server.admin_address);
        let response = router.client.get(url).send().await.expect("the admin listener answers");
        let told: serde_json::Value = response.json().await.expect("JSON");
        assert_eq!(told.pointer(field), Some(&json!(expected)), "operators see the worker's URL: {told}");
    }
    assert_eq!(router.get("/livez").await.0, 200);
    let response = router.chat("hello").await;
    assert_eq!(header(&response, "retry-after"), "2");
    let error = error_of(response, 503).await;
    assert_eq!(error["code"], "no_worker");
    let expected = "no worker is ready: 1 known, 0 connected; a worker connects once its model is loaded";
    assert_eq!(error["message"], expected);
    assert_eq!(router.get("/v1/models").await, (200, json!({"object": "list", "data": []})));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_workers_load_clients_get_their_number_and_operators_their_names() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    workers.iter().for_each(|worker| worker.with(|script| script.is_loading = true));
    let router = TestRouter::start(&workers.each_ref(), &[]).await;
    eventually("both are tried", || async { router.state_of(0).await == "down" && router.state_of(1).await == "down" })
        .await;
    let message = error_of(router.chat("hello").await, 503).await["message"].clone();
    assert_eq!(message, "no worker is ready: 2 known, 0 connected; a worker connects once its model is loaded");
    assert_eq!(router.get("/readyz").await.1["reason"], "no worker can take requests: 2 down");
    for worker in router.fleet().await["workers"].as_array().expect("a list") {
        assert_eq!(
            worker["trouble"],
            "the worker answers 503: it is not ready, for example because it is loading its model"
        );
    }
    assert!(router.metric("warmpath_router_summary_stream_ends_total{reason=\"unready\"}").await >= 2.0);
    workers.iter().for_each(|worker| worker.with(|script| script.is_loading = false));
    eventually("they serve", || async { router.chat("hello").await.status() == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_is_replaced_at_once_and_back_within_seconds_of_its_return() {
    let mut workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    let text = long_text("bread");
    workers[0].hold(&text, None, 0);
    let n_blocks = chat_keys(&text, "").len();
    eventually("known", || async { router.fleet().await["workers"][0]["blocks"] == json!(n_blocks) }).await;
    assert_eq!(header(&router.chat(&text).await, "x-warmpath-worker"), "0000000000000001");

    workers[0].kill();
    for _ in 0..20 {
        let response = router.chat(&text).await;
        assert_eq!(response.status(), 200, "every request succeeds elsewhere");
        assert_eq!(header(&response, "x-warmpath-worker"), "0000000000000002");
    }
    eventually("it is down", || async { router.state_of(0).await == "down" }).await;
    eventually("its blocks are dropped", || async { router.fleet().await["index"]["blocks"] == 0 }).await;

    // The worker stays down until the pauses between attempts have reached their maximum.
    let connects = "warmpath_router_summary_stream_ends_total{reason=\"connect\"}";
    router.wait_for_metric(connects, router.metric(connects).await + 5.0).await;
    workers[0].revive();
    let returned = std::time::Instant::now();
    eventually("it is back", || async { router.state_of(0).await == "ready" }).await;
    assert!(returned.elapsed().as_secs_f64() < 3.0, "{:?}", returned.elapsed());
    assert_eq!(router.fleet().await["workers"][0]["blocks"], 0, "a restarted worker holds nothing");
    workers[1].kill();
    assert_eq!(header(&router.chat(&text).await, "x-warmpath-worker"), "0000000000000001");
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_requests_are_no_longer_counted_by_the_router() {
    let (worker, router) = fleet_of_one().await;
    worker.with(|script| script.behaviour = crate::support::worker::Behaviour::Hang);
    let response = router
        .client
        .post(router.url("/v1/chat/completions"))
        .header("x-request-id", "mine")
        .body(crate::support::chat_body("hello", true))
        .send()
        .await
        .expect("an answer");
    assert_eq!(header(&response, "x-request-id"), "mine");
    assert_eq!(worker.seen()[0].headers["x-request-id"], "mine");
    assert_eq!(router.fleet().await["workers"][0]["unreported"]["requests"], 1);
    let id = warmpath_common::ids::RequestId::new("mine").expect("an id");
    worker.update(vec![Change::Accepted(id)], None);
    eventually("it is counted by the worker", || async {
        router.fleet().await["workers"][0]["unreported"]["requests"] == 0
    })
    .await;
    assert_eq!(router.fleet().await["workers"][0]["in_flight"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_blocks_are_no_longer_counted_on() {
    let (workers, router) = fleet_of_two().await;
    let text = long_text("bread");
    let keys = chat_keys(&text, "");
    workers[1].hold(&text, None, 0);
    workers[1].update(vec![Change::Removed(keys[4..].to_vec())], Some(Load { free_cells: 1, ..idle() }));
    eventually("known", || async { router.fleet().await["workers"][1]["blocks"] == 4 }).await;
    let response = router.chat(&text).await;
    let predicted: usize = header(&response, "x-warmpath-predicted-cached-tokens").parse().expect("a number");
    assert!(predicted == 64 || predicted == 0, "{predicted}");
    assert_eq!(router.fleet().await["index"]["blocks"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_is_never_seen_without_the_blocks_that_it_was_announced_with() {
    let (worker, router) = fleet_of_one().await;
    let seen = || async {
        let seen = router.fleet().await["workers"][0].clone();
        assert_eq!(seen["blocks"], seen["load"]["n_queued"]);
        seen["blocks"].as_u64()
    };
    for n in 1..=50 {
        let stored = Change::Stored(run(vec![BlockKey(u64::from(n))], 0));
        worker.update(vec![stored], Some(Load { n_queued: n, ..idle() }));
        seen().await;
    }
    eventually("the last is seen", || async { seen().await == Some(50) }).await;
}
