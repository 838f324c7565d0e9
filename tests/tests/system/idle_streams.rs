//! A thousand streams that wait for their next token take little memory of a router.
//!
//! Streams that break are in `failures`.
//!
//! A fake worker announces a real worker's model, sends one event on each stream and then nothing until the test
//! ends it. The router is a real process whose memory is read from the kernel.

use anyhow::{Context as _, ensure};
use futures::future::{join_all, try_join_all};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use warmpath_bench::fake_worker::{Answers, FakeWorker, Likeness};
use warmpath_bench::fleet::Server;
use warmpath_bench::prompts::words;
use warmpath_tests::rig::{Rig, bin_dir};

/// Number of streams.
const N_STREAMS: usize = 1_000;
/// Most memory that the router may take for the streams, beyond its initial memory. Units: MiB.
///
/// Source: measured 2026-11 at about a third of this; a leak or a buffer of a megabyte for each stream would exceed it.
const GROWTH_MIB_MAX: f64 = 150.0;
/// Number of files that the test and the router need: each stream has a socket on each side of each.
const FILES: u64 = 4 * N_STREAMS as u64;
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
    let mut likeness = Likeness::of_worker(&rig.fleet.workers[0].base_url()).await?;
    // Enough slots, so that no request waits.
    likeness.snapshot.model.n_slots = u16::try_from(N_STREAMS)?;
    let (release, is_released) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let worker = FakeWorker::new(1, Answers::Held(is_released), &likeness).serve(&mut tasks).await?;

    // A separate router in front of the fake worker replaces the rig's.
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
