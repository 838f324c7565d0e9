//! TLS between a router and real workers: certificates of both sides, renewed, wrong, or missing.
//!
//! Not here: TLS with clients (`tls`), the token with scripted workers (`tokens`).

use std::time::Duration;

use crate::support::authority::{Authority, get, text};
use crate::support::real_worker::{RealWorker, bound};
use crate::support::{TestRouter, config_of, eventually, long_text};
use warmpath_router::server::Server;

async fn router(url: String, flags: &[&str]) -> TestRouter {
    let server = Server::start(config_of(&[url], flags)).await.expect("port 0 is free");
    TestRouter { server, client: reqwest::Client::builder().no_proxy().build().expect("a client") }
}

async fn is_in_trouble(router: &TestRouter, state: &str, said: &str) {
    eventually(&format!("{state}: {said}"), || async {
        let worker = router.fleet().await["workers"][0].clone();
        worker["state"] == state && worker["trouble"].as_str().is_some_and(|trouble| trouble.contains(said))
    })
    .await;
}

async fn is_well(router: &TestRouter) {
    eventually("the worker is ready", || async { router.state_of(0).await == "ready" }).await;
    assert_eq!(router.chat("hello").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn router_and_worker_use_mutual_tls_and_a_token() {
    let authority = Authority::new();
    let ((cert, key), own, root) = (authority.sign("worker"), authority.sign("router"), authority.root_file());
    let token = authority.root_file().with_file_name("token");
    std::fs::write(&token, "f".repeat(64)).expect("it can be written");
    let (root, token) = (text(&root), ["--fleet-token-file", text(&token)]);
    let tls = ["--tls-cert", text(&cert), "--tls-key", text(&key), "--tls-client-ca", root];
    let worker = RealWorker::start(&[&tls[..], &token].concat()).await;
    let shown = ["--worker-ca", root, "--worker-cert", text(&own.0), "--worker-key", text(&own.1)];

    let good = router(worker.url("https"), &[&shown[..], &token].concat()).await;
    is_well(&good).await;
    assert_eq!(good.chat(&long_text("chestnuts")).await.status(), 200);
    eventually("summaries flow", || async { good.fleet().await["workers"][0]["blocks"] != 0 }).await;
    let is_had = || async { good.fleet().await["vocabularies"][0]["state"] == "ready" };
    eventually("the vocabulary has been tried and loaded", is_had).await;

    let tokenless = router(worker.url("https"), &shown).await;
    is_in_trouble(&tokenless, "refused", "--fleet-token-file").await;
    let nameless = router(worker.url("https"), &[&shown[..2], &token].concat()).await;
    is_in_trouble(&nameless, "down", "CertificateRequired").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_scrapers_need_no_certificate_at_the_admin_address_and_reach_nothing_else() {
    let authority = Authority::new();
    let ((cert, key), root) = (authority.sign("worker"), authority.root_file());
    let token = root.with_file_name("token");
    std::fs::write(&token, "f".repeat(64)).expect("it can be written");
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let admin = free.expect("a port is free").to_string();
    let flags =
        ["--tls-cert", text(&cert), "--tls-key", text(&key), "--tls-client-ca", text(&root), "--admin-listen", &admin];
    let _worker = RealWorker::start(&[&flags[..], &["--fleet-token-file", text(&token)]].concat()).await;

    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let status =
        async |path: &str| client.get(format!("http://{admin}{path}")).send().await.expect("it answers").status();
    eventually("the worker is ready", || async { status("/readyz").await == 200 }).await;
    for path in ["/livez", "/health", "/metrics"] {
        assert_eq!(status(path).await, 200, "{path}");
    }
    for path in ["/v1/models", "/slots", "/cache", "/internal/v1/summary", "/openapi.json"] {
        assert_eq!(status(path).await, 404, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_and_roots_are_renewed_while_both_run() {
    let (authority, other) = (Authority::new(), Authority::new());
    let ((cert, key), root) = (authority.sign("worker"), authority.root_file());
    let worker = RealWorker::start(&["--tls-cert", text(&cert), "--tls-key", text(&key)]).await;
    let router_root = other.root_file();
    let followed = router(worker.url("https"), &["--worker-ca", text(&router_root)]).await;
    is_in_trouble(&followed, "down", "TLS with it failed").await;
    assert!(followed.metric("warmpath_router_summary_stream_ends_total{reason=\"tls\"}").await >= 1.0);
    std::fs::copy(&root, &router_root).expect("it can be written");
    is_well(&followed).await;

    let client = authority.client(None);
    let (first, _) = get(worker.address, &client).await.expect("it answers");
    authority.sign("worker");
    eventually("the new certificate is shown", || async {
        get(worker.address, &client).await.is_ok_and(|(shown, _)| shown != first)
    })
    .await;
    is_well(&followed).await;
    is_well(&router(worker.url("https"), &["--worker-ca", text(&root)]).await).await;

    std::fs::write(&router_root, "no certificate").expect("it can be written");
    followed.wait_for_metric("warmpath_router_tls_failures_total", 1.0).await;
    is_well(&followed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_must_bear_the_name_by_which_the_worker_is_found() {
    let authority = Authority::new();
    let ((cert, key), root) = (authority.sign("worker"), authority.root_file());
    let worker = RealWorker::start(&["--tls-cert", text(&cert), "--tls-key", text(&key)]).await;
    let by_address = router(format!("https://{}", worker.address), &["--worker-ca", text(&root)]).await;
    is_in_trouble(&by_address, "down", "not valid for name").await;
    let name = worker.url("https");
    let flags = ["--worker-ca", text(&root), "--worker-dns", &name];
    let mut config = config_of(&[], &flags);
    config.discovery.dns_pause = Duration::from_millis(100);
    let server = Server::start(config).await.expect("port 0 is free");
    let by_name = TestRouter { server, client: reqwest::Client::builder().no_proxy().build().expect("a client") };
    let url = format!("https://{}", worker.address);
    eventually("its address is ready", || async {
        let page = by_name.fleet().await;
        page["workers"]
            .as_array()
            .expect("a list")
            .iter()
            .any(|worker| worker["url"] == url && worker["state"] == "ready")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_tls_is_reported_as_such() {
    let authority = Authority::new();
    let worker = RealWorker::start(&[]).await;
    let asked = router(worker.url("https"), &["--worker-ca", text(&authority.root_file())]).await;
    is_in_trouble(&asked, "down", "it speaks no TLS, and its URL says https").await;
    is_well(&router(worker.url("http"), &[]).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_cannot_be_used_end_the_start_of_router_and_worker() {
    let authority = Authority::new();
    let ((cert, key), (_, other_key)) = (authority.sign("worker"), authority.sign("other"));
    let url = "https://localhost:1".to_owned();
    for flags in [
        ["--worker-ca", "/nonexistent", "--worker-cert", text(&cert), "--worker-key", text(&key)],
        ["--worker-ca", text(&key), "--worker-cert", text(&cert), "--worker-key", text(&key)],
        ["--worker-ca", text(&cert), "--worker-cert", text(&cert), "--worker-key", text(&other_key)],
    ] {
        let error =
            Server::start(config_of(std::slice::from_ref(&url), &flags)).await.err().expect("it does not start");
        assert!(error.to_string().starts_with("--worker-ca"), "{error}");
    }
    let error = bound(&["--tls-cert", text(&cert), "--tls-key", text(&other_key)]).await.err().expect("no start");
    assert!(error.to_string().starts_with("--tls-cert"), "{error}");
    let error = bound(&["--fleet-token-file", text(&cert)]).await.err().expect("no start");
    assert!(error.to_string().starts_with("--fleet-token-file"), "{error}");
}
