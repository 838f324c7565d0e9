//! TLS between real workers that exchange KV state: the right certificates, and every wrong one.
//!
//! Not here: TLS between router and worker (`worker_tls`), the exchange itself (the worker's tests).

use crate::support::authority::{Authority, text};
use crate::support::real_worker::RealWorker;
use crate::support::{TestRouter, config_of, eventually, long_text};
use serde_json::{Value, json};
use warmpath_router::server::Server;

/// Returns a chat with an answer of eight tokens.
fn chat(reuse: bool) -> Value {
    let messages = json!([{"role": "user", "content": long_text("chestnuts")}]);
    json!({"messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": true, "cache_prompt": reuse})
}

/// Sends a chat to a worker; returns the answer's text and the number of reused tokens.
async fn ask(worker: &RealWorker, body: &Value, peer: Option<&str>) -> (Value, u64) {
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let request = client.post(format!("{}/v1/chat/completions", worker.url("http"))).body(body.to_string());
    let hints = peer.map(|peer| ("x-warmpath-kv-peer", format!("{peer};blocks=10")));
    let request = hints.into_iter().fold(request, |request, (name, value)| request.header(name, value));
    let answer: Value = request.send().await.expect("an answer").json().await.expect("JSON");
    let n_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    (answer["choices"][0]["message"]["content"].clone(), n_cached)
}

/// Returns a worker that is ready.
async fn worker(flags: &[&str]) -> RealWorker {
    let worker = RealWorker::start(flags).await;
    let ready = format!("{}/readyz", worker.url("http"));
    eventually("the worker is ready", || async {
        reqwest::get(&ready).await.is_ok_and(|response| response.status() == 200)
    })
    .await;
    worker
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_exchange_state_by_tls_with_certificates_of_both_sides_and_compute_with_any_other() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (of_holder, of_worker, root) = (authority.sign("holder"), authority.sign("worker"), authority.root_file());
    let (foreign, foreign_root) = (other.sign("foreign"), other.root_file());
    let tls = ["--tls-cert", text(&of_holder.0), "--tls-key", text(&of_holder.1), "--tls-client-ca", text(&root)];
    let holder = RealWorker::start(&tls).await;
    let shown = ["--worker-ca", text(&root), "--worker-cert", text(&of_worker.0), "--worker-key", text(&of_worker.1)];
    let server = Server::start(config_of(&[holder.url("https")], &shown)).await.expect("port 0 is free");
    let router = TestRouter { server, client: reqwest::Client::builder().no_proxy().build().expect("a client") };
    eventually("the holder is ready", || async { router.state_of(0).await == "ready" }).await;
    let first = router.post("/v1/chat/completions", chat(true).to_string()).await;
    assert_eq!(first.status(), 200);
    let expected: Value = first.json().await.expect("JSON");
    let expected = &expected["choices"][0]["message"]["content"];

    let by_address = format!("https://{}", holder.address);
    let (by_name, root) = (holder.url("https"), ["--peer-ca", text(&root)]);
    let own = ["--peer-cert", text(&of_worker.0), "--peer-key", text(&of_worker.1)];
    for (what, flags, peer, is_fetched) in [
        ("the right certificates", [&root[..], &own].concat(), &by_name, true),
        ("a name for addresses", [&root[..], &own, &["--peer-name", "localhost"]].concat(), &by_address, true),
        ("an address", [&root[..], &own].concat(), &by_address, false),
        ("another name", [&root[..], &own, &["--peer-name", "other.example"]].concat(), &by_name, false),
        ("another authority", [&["--peer-ca", text(&foreign_root)][..], &own].concat(), &by_name, false),
        ("no certificate", root.to_vec(), &by_name, false),
        (
            "a certificate of another authority",
            [&root[..], &["--peer-cert", text(&foreign.0), "--peer-key", text(&foreign.1)]].concat(),
            &by_name,
            false,
        ),
    ] {
        let worker = worker(&flags).await;
        let (answer, n_cached) = ask(&worker, &chat(true), Some(peer)).await;
        assert_eq!((&answer, n_cached > 0), (expected, is_fetched), "{what}: {n_cached} tokens");
        assert_eq!(ask(&worker, &chat(false), None).await.0, *expected, "{what}");
    }
}
