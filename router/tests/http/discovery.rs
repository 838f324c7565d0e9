//! Workers that come and go while the router runs: from a file, by DNS, and among a Kubernetes service's endpoints.
//!
//! Not here: the indexes of workers and when they leave (the core's `membership`), a real API server (`make test-k8s`).

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::support::fake_server::serve_apart;
use crate::support::worker::FakeWorker;
use crate::support::{TestRouter, config_of, eventually, header};
use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use warmpath_router::config::Config;
use warmpath_router::server::Server;

async fn start(config: Config) -> TestRouter {
    let server = Server::start(config).await.expect("port 0 is free");
    TestRouter { server, client: reqwest::Client::builder().no_proxy().build().expect("a client") }
}

fn write(path: &Path, workers: &[&FakeWorker]) {
    let lines: String = workers.iter().map(|worker| format!("{}\n", worker.url())).collect();
    let text = if workers.is_empty() { "none\n".to_owned() } else { lines };
    std::fs::write(path, text).expect("the file can be written");
}

async fn states(router: &TestRouter) -> Vec<(String, String)> {
    let fleet = router.fleet().await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let workers = fleet["workers"].as_array().expect("a list");
    workers.iter().map(|worker| (text(&worker["url"]), text(&worker["state"]))).collect()
}

/// Waits until exactly these workers are there, in these states; workers that join at the same time have no order.
async fn wait_for_states(router: &TestRouter, expected: &[(&FakeWorker, &str)]) {
    let mut expected: Vec<_> = expected.iter().map(|(worker, state)| (worker.url(), (*state).to_owned())).collect();
    expected.sort();
    eventually(&format!("{expected:?}"), || async {
        let mut found = states(router).await;
        found.sort();
        found == expected
    })
    .await;
}

/// Returns how many blocks the router has of a worker.
async fn n_blocks_of(router: &TestRouter, worker: &FakeWorker) -> Value {
    let fleet = router.fleet().await;
    let workers = fleet["workers"].as_array().expect("a list");
    workers.iter().find(|found| found["url"] == worker.url()).expect("it is there")["blocks"].clone()
}

/// Returns the name of the `n`-th worker of a test in its responses.
fn uid(n: u64) -> String {
    format!("{n:016x}")
}

async fn answering_worker(router: &TestRouter) -> String {
    let response = router.chat("hello").await;
    assert_eq!(response.status(), 200);
    header(&response, "x-warmpath-worker")
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_a_file_join_leave_and_return_while_it_changes() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2), FakeWorker::start(3)];
    let [first, second, third] = &workers;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("workers");
    write(&path, &[]);
    let flags = ["--workers-file", path.to_str().expect("UTF-8"), "--policy", "round-robin"];
    let router = start(config_of(&[], &flags)).await;
    assert_eq!(router.get("/readyz").await.1["reason"], "no worker has been found");

    write(&path, &[first, second]);
    wait_for_states(&router, &[(first, "ready"), (second, "ready")]).await;
    eventually("it is ready", || async { router.get("/readyz").await.0 == 200 }).await;

    // The removed worker gets no more requests at once; its blocks stay in the index.
    first.hold("hello", None, 0);
    eventually("its blocks are known", || async { n_blocks_of(&router, first).await != 0 }).await;
    let n_blocks = n_blocks_of(&router, first).await;
    write(&path, &[second, third]);
    wait_for_states(&router, &[(first, "leaving"), (second, "ready"), (third, "ready")]).await;
    let n_seen = first.seen().len();
    for _ in 0..6 {
        answering_worker(&router).await;
    }
    assert_eq!(first.seen().len(), n_seen);
    assert_eq!(router.get("/readyz").await.0, 200);

    // An invalid or missing file changes nothing.
    std::fs::write(&path, "no URL").expect("the file can be written");
    router.wait_for_metric("warmpath_router_discovery_failures_total{source=\"file\"}", 1.0).await;
    std::fs::remove_file(&path).expect("it is there");
    router.wait_for_metric("warmpath_router_discovery_failures_total{source=\"file\"}", 3.0).await;
    assert_eq!(states(&router).await.len(), 3);

    write(&path, &[first, second, third]);
    wait_for_states(&router, &[(first, "ready"), (second, "ready"), (third, "ready")]).await;
    assert_eq!(n_blocks_of(&router, first).await, n_blocks);
}

#[tokio::test(flavor = "multi_thread")]
async fn emptied_and_truncated_files_are_ignored_and_one_with_none_is_followed() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let [first, second] = &workers;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("workers");
    write(&path, &[first, second]);
    let router = start(config_of(&[], &["--workers-file", path.to_str().expect("UTF-8")])).await;
    wait_for_states(&router, &[(first, "ready"), (second, "ready")]).await;
    let failures = "warmpath_router_discovery_failures_total{source=\"file\"}";
    let whole = std::fs::read_to_string(&path).expect("it is there");
    for text in ["", "# nothing\n", "\n", &whole[..whole.len() - 3], &whole[..whole.len() / 2 - 2]] {
        let n_before = router.metric(failures).await;
        std::fs::write(&path, text).expect("the file can be written");
        router.wait_for_metric(failures, n_before + 3.0).await;
        assert_eq!(router.chat("hello").await.status(), 200, "{text:?}");
        wait_for_states(&router, &[(first, "ready"), (second, "ready")]).await;
    }
    write(&path, &[]);
    wait_for_states(&router, &[(first, "leaving"), (second, "leaving")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_left_is_removed_and_its_place_is_reused() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2), FakeWorker::start(3)];
    let [first, second, third] = &workers;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("workers");
    write(&path, &[first, second]);
    let mut config = config_of(&[], &["--workers-file", path.to_str().expect("UTF-8")]);
    (config.fleet.membership.linger, config.fleet.membership.vacancy) = (Duration::ZERO, Duration::ZERO);
    let router = start(config).await;
    wait_for_states(&router, &[(first, "ready"), (second, "ready")]).await;
    first.hold("hello", None, 0);
    eventually("its blocks are known", || async { router.fleet().await["index"]["blocks"] != 0 }).await;

    write(&path, &[second]);
    wait_for_states(&router, &[(second, "ready")]).await;
    eventually("its blocks are forgotten", || async { router.fleet().await["index"]["blocks"] == 0 }).await;
    assert_eq!(answering_worker(&router).await, uid(2));
    let name = first.url();
    let line = format!("warmpath_router_worker_breaker_state{{worker=\"{name}\"}}");
    let metrics = format!("http://{}/metrics", router.server.admin_address);
    let text = router.client.get(metrics).send().await.expect("an answer").text().await.expect("text");
    assert!(!text.contains(&line), "the metrics of a worker that has left stay");

    // The free index comes first in the order of workers.
    write(&path, &[second, third]);
    wait_for_states(&router, &[(third, "ready"), (second, "ready")]).await;
    assert_eq!(states(&router).await[0].0, third.url());
    third.hold("hello", None, 0);
    eventually("its blocks are known", || async { n_blocks_of(&router, third).await != 0 }).await;
    eventually("it is chosen for them", || async { answering_worker(&router).await == uid(3) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_runs_keeps_its_worker_s_place() {
    let worker = FakeWorker::start(1);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("workers");
    write(&path, &[&worker]);
    let mut config = config_of(&[], &["--workers-file", path.to_str().expect("UTF-8")]);
    (config.fleet.membership.linger, config.fleet.membership.vacancy) = (Duration::ZERO, Duration::ZERO);
    let router = start(config).await;
    wait_for_states(&router, &[(&worker, "ready")]).await;
    worker.with(|script| script.behaviour = crate::support::worker::Behaviour::Hang);
    let mut answer = router.chat_stream("hello").await;
    assert!(answer.chunk().await.expect("it runs").is_some());
    write(&path, &[]);
    wait_for_states(&router, &[(&worker, "leaving")]).await;
    // After several polls of the fleet it is still there.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(states(&router).await, [(worker.url(), "leaving".to_owned())]);
    drop(answer);
    wait_for_states(&router, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_addresses_of_a_name_are_workers() {
    let worker = FakeWorker::start(1);
    let port = worker.url().rsplit_once(':').expect("a port").1.trim_end_matches('/').to_owned();
    let name = format!("localhost:{port}");
    let flags = ["--worker-dns", &name, "--worker-dns", "nowhere.invalid:1"];
    let mut config = config_of(&[], &flags);
    config.discovery.dns_pause = Duration::from_millis(100);
    let router = start(config).await;
    let expected = (worker.url(), "ready".to_owned());
    eventually("it is found", || async { states(&router).await.contains(&expected) }).await;
    assert_eq!(answering_worker(&router).await, uid(1));
    router.wait_for_metric("warmpath_router_discovery_failures_total{source=\"dns\"}", 2.0).await;
}

/// State of a Kubernetes API server: the slices of one service, and their version.
#[derive(Clone)]
struct Cluster {
    slices: watch::Sender<(u64, Vec<Value>)>,
}

#[derive(Deserialize)]
struct Asked {
    #[serde(default)]
    watch: bool,
    #[serde(rename = "labelSelector")]
    selector: String,
    /// Version after which the watch reports changes.
    #[serde(default, rename = "resourceVersion")]
    seen: String,
    /// Seconds after which the watch ends.
    #[serde(default, rename = "timeoutSeconds")]
    lasts_s: u32,
}

impl Cluster {
    fn new() -> Self {
        Self { slices: watch::Sender::new((1, Vec::new())) }
    }

    /// Sets the endpoints, each in a slice of its own, because each has a port of its own.
    fn set(&self, endpoints: &[(&FakeWorker, Value)]) {
        self.slices.send_modify(|(version, slices)| {
            *version += 1;
            *slices = endpoints.iter().map(|(worker, conditions)| slice(*version, worker, conditions)).collect();
        });
    }

    fn serve(&self, address: SocketAddr) -> (SocketAddr, Runtime) {
        let path = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices";
        serve_apart(address, Router::new().route(path, axum::routing::get(slices)).with_state(self.clone()))
    }
}

fn slice(version: u64, worker: &FakeWorker, conditions: &Value) -> Value {
    let url = url::Url::parse(&worker.url()).expect("a URL");
    let port = url.port().expect("a port");
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("chat-{port}"), "namespace": "llm", "uid": port.to_string(),
            "resourceVersion": version.to_string(), "labels": {"kubernetes.io/service-name": "chat"},
        },
        "ports": [{"name": "metrics", "port": 1}, {"name": "http", "port": port}],
        "endpoints": [{"addresses": [url.host_str().expect("a host")], "conditions": conditions}],
    })
}

async fn slices(State(cluster): State<Cluster>, Query(asked): Query<Asked>) -> Response {
    assert_eq!(asked.selector, "kubernetes.io/service-name=chat");
    let mut changes = cluster.slices.subscribe();
    let (version, known) = changes.borrow_and_update().clone();
    if !asked.watch {
        let (kind, metadata) = ("EndpointSliceList", json!({"resourceVersion": version.to_string()}));
        let list = json!({"apiVersion": "discovery.k8s.io/v1", "kind": kind, "metadata": metadata, "items": known});
        return axum::Json(list).into_response();
    }
    // Short, because a server that vanishes is noticed only at the end of a watch.
    assert_eq!(asked.lasts_s, 30);
    if asked.seen != version.to_string() {
        // Changes since then are lost, as after a restart: the client lists again.
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410});
        return axum::Json(json!({"type": "ERROR", "object": status})).into_response();
    }
    let events = futures::stream::unfold((changes, known), |(mut changes, known)| async move {
        changes.changed().await.ok()?;
        let now = changes.borrow_and_update().1.clone();
        let name = |slice: &Value| slice["metadata"]["name"].clone();
        let gone = known.iter().filter(|was| !now.iter().any(|slice| name(slice) == name(was)));
        let event = |kind: &str, slice: &Value| format!("{}\n", json!({"type": kind, "object": slice}));
        let lines: String =
            now.iter().map(|slice| event("MODIFIED", slice)).chain(gone.map(|slice| event("DELETED", slice))).collect();
        Some((Ok::<_, std::io::Error>(lines), (changes, now)))
    });
    Body::from_stream(events).into_response()
}

/// Writes the file by which a client finds the API server at `address`.
fn kubeconfig(path: &Path, address: SocketAddr) {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    std::fs::write(path, config.to_string()).expect("the file can be written");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoints_of_a_kubernetes_service_are_workers_also_while_its_api_server_is_away() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2), FakeWorker::start(3)];
    let [first, second, third] = &workers;
    let cluster = Cluster::new();
    let (address, api_server) = cluster.serve("127.0.0.1:0".parse().expect("an address"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kubeconfig");
    kubeconfig(&path, address);
    let flags = ["--kubernetes-service", "llm/chat:http", "--kubeconfig", path.to_str().expect("UTF-8")];
    let router = start(config_of(&[], &flags)).await;
    let (ready, unready) = (json!({"ready": true}), json!({"ready": false}));
    cluster.set(&[(first, ready.clone()), (second, unready.clone())]);
    wait_for_states(&router, &[(first, "ready"), (second, "ready")]).await;

    // Readiness flaps change nothing; a terminating endpoint gets no more requests.
    first.hold("hello", None, 0);
    eventually("its blocks are known", || async { n_blocks_of(&router, first).await != 0 }).await;
    let terminating = json!({"ready": false, "serving": true, "terminating": true});
    cluster.set(&[(first, unready), (second, terminating), (third, ready.clone())]);
    wait_for_states(&router, &[(first, "ready"), (second, "leaving"), (third, "ready")]).await;
    assert_ne!(n_blocks_of(&router, first).await, 0);

    // While the API server is down, all stays as it is; changes made meanwhile are seen when it is back.
    tokio::task::block_in_place(|| drop(api_server));
    router.wait_for_metric("warmpath_router_discovery_failures_total{source=\"kubernetes\"}", 1.0).await;
    wait_for_states(&router, &[(first, "ready"), (second, "leaving"), (third, "ready")]).await;
    assert_ne!(answering_worker(&router).await, uid(2));
    cluster.set(&[(first, ready)]);
    let (_, api_server) = cluster.serve(address);
    wait_for_states(&router, &[(first, "ready"), (second, "leaving"), (third, "leaving")]).await;
    tokio::task::block_in_place(|| drop(api_server));
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_discovery_settings_are_reported_at_the_start() {
    for (flags, expected) in [
        (["--workers-file", "/nonexistent/workers"], "--workers-file /nonexistent/workers"),
        (["--kubernetes-service", "a/b:1"], "--kubernetes-service needs a cluster"),
    ] {
        let flags = [&flags[..], &["--kubeconfig", "/nonexistent/kubeconfig"]].concat();
        let error = Server::start(config_of(&[], &flags)).await.err().expect("it does not start");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}
