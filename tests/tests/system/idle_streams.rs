//! A thousand streams that wait for their next token take little memory of a router.
//!
//! Streams that break are in `failures`.
//!
//! A scripted worker announces a real worker's model, sends one event on each stream and then nothing until the test
//! ends it. The router is a real process whose memory is read from the kernel.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use futures::stream::{self, StreamExt as _};
use serde_json::json;
use tokio::sync::watch;
use warmpath_bench::fleet::Server;
use warmpath_bench::prompts::words;
use warmpath_common::summary::{self, Frame, FrameBody, STREAM_PATH, Snapshot, VOCABULARY_PATH};
use warmpath_tests::rig::{Rig, bin_dir};

/// Number of streams.
const N_STREAMS: usize = 1_000;
/// Most memory that the router may take for the streams, beyond its initial memory. Units: MiB.
///
/// Source: measured 2026-11 at about a third of this; a leak or a buffer of a megabyte for each stream would exceed it.
const GROWTH_MIB_MAX: f64 = 150.0;
/// Number of files that the test and the router need: each stream has a socket on each side of each.
const FILES: u64 = 4 * N_STREAMS as u64;
/// Pause between two heartbeats of the scripted worker.
const HEARTBEAT: Duration = Duration::from_millis(300);

/// Worker that answers each request with one event and then waits.
#[derive(Clone)]
struct Scripted {
    snapshot: Arc<Snapshot>,
    vocabulary: Bytes,
    released: watch::Receiver<bool>,
}

impl Scripted {
    async fn serve(self) -> anyhow::Result<SocketAddr> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let routes = Router::new()
            .route(STREAM_PATH, get(summary_stream))
            .route(VOCABULARY_PATH, get(async |State(worker): State<Self>| worker.vocabulary))
            .route("/v1/chat/completions", post(chat))
            .with_state(self);
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(address)
    }
}

fn framed(frame: &Frame) -> Bytes {
    let bytes = frame.encode();
    let length = u32::try_from(bytes.len()).expect("a short frame");
    [&length.to_be_bytes()[..], &bytes].concat().into()
}

async fn summary_stream(State(worker): State<Scripted>) -> Response {
    let first: Vec<Frame> = (*worker.snapshot).clone().into_frames();
    let stamp = worker.snapshot.stamp;
    let beats = stream::unfold(stamp, async |mut stamp| {
        tokio::time::sleep(HEARTBEAT).await;
        stamp.seq += 1;
        Some((Frame { stamp, body: FrameBody::Update { changes: Vec::new(), load: None, digest: None } }, stamp))
    });
    let frames = stream::iter(first).chain(beats).map(|frame| Ok::<_, Infallible>(framed(&frame)));
    ([(CONTENT_TYPE, summary::CONTENT_TYPE)], Body::from_stream(frames)).into_response()
}

async fn chat(State(mut worker): State<Scripted>) -> Response {
    let first = stream::iter([Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"well\"}}]}\n\n")]);
    let rest = stream::once(async move {
        // The end of the test drops the sender, which ends the stream too.
        let _ = worker.released.wait_for(|released| *released).await;
        Bytes::from_static(b"data: [DONE]\n\n")
    });
    let events = first.chain(rest).map(Ok::<_, Infallible>);
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

/// Returns the resident memory of a process. Units: MiB.
fn memory_mib(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the kernel reports no memory")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

#[tokio::test]
async fn a_thousand_idle_streams_fit_in_little_memory() -> anyhow::Result<()> {
    ensure!(rlimit::increase_nofile_limit(FILES)? >= FILES, "this needs {FILES} open files");
    let mut rig = Rig::start(1, &[]).await?;
    let real = rig.fleet.workers[0].base_url();
    let vocabulary = rig.http.get(format!("{real}{VOCABULARY_PATH}")).send().await?.bytes().await?;
    let mut snapshot = rig.snapshot(&real).await?;
    // Enough slots, so that no request waits.
    snapshot.model.n_slots = u16::try_from(N_STREAMS)?;
    let snapshot = Arc::new(snapshot);
    let (release, released) = watch::channel(false);
    let worker = Scripted { snapshot, vocabulary, released }.serve().await?;

    // A separate router in front of the scripted worker replaces the rig's.
    let worker = format!("http://{worker}");
    let args = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--worker", &worker];
    let program = bin_dir()?.join("warmpath-router");
    rig.fleet.router = Server::start("router", &program, &args.map(str::to_owned)).await?;
    rig.all_known().await?;
    let pid = rig.fleet.router.pid().context("the router runs")?;

    let url = format!("{}/v1/chat/completions", rig.router_url());
    let open = async |seed: u64| -> anyhow::Result<reqwest::Response> {
        let body = json!({"messages": [{"role": "user", "content": words(seed, 200)}], "stream": true});
        let mut response = rig.http.post(&url).json(&body).send().await?;
        ensure!(response.status() == 200, "{}", response.text().await?);
        ensure!(response.chunk().await?.is_some_and(|event| event.starts_with(b"data: ")));
        Ok(response)
    };
    let before = memory_mib(pid)?;
    let mut streams = Vec::new();
    for hundred in 0..N_STREAMS as u64 / 100 {
        streams.extend(try_join_all((0..100).map(|n| open(hundred * 100 + n))).await?);
    }
    assert_eq!(rig.router_metric("warmpath_router_requests_in_flight").await?, N_STREAMS as f64);
    let during = memory_mib(pid)?;
    println!(
        "{N_STREAMS} idle streams: the router takes {during:.1} MiB, {before:.1} MiB before: {:.1} KiB a stream",
        (during - before) * 1024.0 / N_STREAMS as f64
    );
    assert!(during - before < GROWTH_MIB_MAX, "{during} MiB, {before} before");

    release.send(true)?;
    let ends = join_all(streams.into_iter().map(async |stream| stream.text().await)).await;
    for end in ends {
        assert_eq!(end?, "data: [DONE]\n\n");
    }
    rig.wait_for("all streams have ended", || async {
        let n = rig.router_metric("warmpath_router_requests_in_flight").await.ok()?;
        (n == 0.0).then_some(())
    })
    .await
}
