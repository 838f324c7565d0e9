//! `warmpath-bench resync`: the time in which a router receives the whole view of a large worker, and its effect on
//! requests.
//!
//! The index alone is measured in `index_bench`; the workers are in `fake_worker`. Two fake workers that answer
//! immediately stand behind a real router. One of them announces a million blocks, breaks its stream and replaces half
//! of its runs. Requests and checks of `/readyz` continue all the time, and are counted separately while the view is
//! being replaced.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::fake_worker::{FakeWorker, Likeness};
use crate::fleet::{Server, bin_dir};
use crate::prompts::words;

/// Time between two checks of the router's view, and between two of `/readyz`.
const POLL: Duration = Duration::from_millis(5);
/// Time for which requests are measured before each resync.
///
/// Source: longer than a stream must last for the router to open the next one after its shortest pause.
const QUIET: Duration = Duration::from_secs(6);
/// Longest time that a resync may take.
const RESYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// Flags of `resync`.
#[derive(Debug, Args)]
pub struct ResyncArgs {
    /// GGUF file whose vocabulary the fake workers serve.
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Folder that holds warmpath-worker and warmpath-router. The default is this program's folder.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Blocks that the large worker holds.
    #[arg(long, default_value_t = 1_000_000)]
    blocks: usize,
    /// Resyncs.
    #[arg(long, default_value_t = 10)]
    rounds: u64,
    /// Requests that are under way at any time.
    #[arg(long, default_value_t = 2)]
    concurrency: usize,
}

/// Measurements of requests, split by whether a view was being replaced. The lock is held to add one entry.
struct Felt {
    is_resyncing: AtomicBool,
    latencies_us: Mutex<[Histogram<u64>; 2]>,
    n_unready: AtomicUsize,
}

/// Measures and prints.
///
/// Errors: a process that does not start, a request that fails, a view that is not taken in.
#[expect(clippy::print_stdout, reason = "the table is the command's output")]
pub async fn run(args: &ResyncArgs) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    let (large, router) = start(args, &mut tasks).await?;
    let histogram = || Histogram::<u64>::new_with_bounds(1, 60_000_000, 3).expect("the bounds are valid");
    let felt = Arc::new(Felt {
        is_resyncing: AtomicBool::new(false),
        latencies_us: Mutex::new([histogram(), histogram()]),
        n_unready: AtomicUsize::new(0),
    });
    for seed in 0..args.concurrency as u64 {
        tasks.spawn(ask_again_and_again(router.base_url(), seed, Arc::clone(&felt)));
    }
    tasks.spawn(poll_repeatedly(format!("{}/readyz", router.base_url()), Arc::clone(&felt)));
    let mut resync_ms = Vec::new();
    for _ in 0..args.rounds {
        tokio::time::sleep(QUIET).await;
        resync_ms.push(resync(&large, &router, &felt).await?.as_secs_f64() * 1e3);
    }
    resync_ms.sort_by(f64::total_cmp);
    println!(
        "{} blocks, from the end of the stream until all are known again: median {:.0} ms, longest {:.0} ms",
        args.blocks,
        resync_ms[resync_ms.len() / 2],
        resync_ms[resync_ms.len() - 1]
    );
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["requests", "number", "p50 ms", "p99 ms", "longest ms"]);
    for (name, felt) in ["while nothing happens", "during a resync"].iter().zip(&*felt.latencies_us.lock().await) {
        let ms = |us: u64| format!("{:.2}", us as f64 / 1e3);
        let figures = [ms(felt.value_at_quantile(0.5)), ms(felt.value_at_quantile(0.99)), ms(felt.max())];
        table.add_row([(*name).to_owned(), felt.len().to_string()].into_iter().chain(figures));
    }
    println!("{table}");
    println!("requests of /readyz that got another status than 200: {}", felt.n_unready.load(Ordering::SeqCst));
    Ok(())
}

/// Starts the fake workers and a router in front of them, and waits until the router knows all blocks.
async fn start(args: &ResyncArgs, tasks: &mut JoinSet<()>) -> anyhow::Result<(Arc<FakeWorker>, Server)> {
    let bin_dir = bin_dir(args.bin_dir.as_deref())?;
    let likeness = Likeness::of(&bin_dir, &args.model).await?;
    let (large, small) = (FakeWorker::new(1, (args.blocks, 0), &likeness), FakeWorker::new(2, (0, 0), &likeness));
    let mut router_args: Vec<String> =
        ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"].map(str::to_owned).into();
    for fake in [&large, &small] {
        router_args.extend(["--worker".to_owned(), fake.serve(tasks).await?]);
    }
    let mut router = Server::start("router", &bin_dir.join("warmpath-router"), &router_args).await?;
    router.ready(RESYNC_TIMEOUT).await?;
    await_current_view(&router).await?;
    Ok((large, router))
}

/// Breaks the large worker's stream, and returns the time until the router knows the new view.
async fn resync(large: &FakeWorker, router: &Server, felt: &Felt) -> anyhow::Result<Duration> {
    let n_streams = large.n_streams();
    felt.is_resyncing.store(true, Ordering::SeqCst);
    let started = Instant::now();
    large.renew();
    while large.n_streams() == n_streams {
        ensure!(started.elapsed() < RESYNC_TIMEOUT, "the router has not opened another stream");
        tokio::time::sleep(POLL).await;
    }
    await_current_view(router).await?;
    let took = started.elapsed();
    felt.is_resyncing.store(false, Ordering::SeqCst);
    Ok(took)
}

/// Waits until the router reports the first worker's blocks as current.
async fn await_current_view(router: &Server) -> anyhow::Result<()> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    let started = Instant::now();
    loop {
        let fleet = router.fleet_state(&http).await?;
        if fleet["workers"][0]["blocks_current"] == json!(true) {
            return Ok(());
        }
        ensure!(started.elapsed() < RESYNC_TIMEOUT, "the view is not known after {RESYNC_TIMEOUT:?}: {fleet}");
        tokio::time::sleep(POLL).await;
    }
}

async fn ask_again_and_again(router: String, seed: u64, felt: Arc<Felt>) {
    let http = reqwest::Client::builder().no_proxy().build().expect("a client without TLS can always be built");
    let body = json!({"messages": [{"role": "user", "content": words(seed, 1_000)}]}).to_string();
    loop {
        let is_resyncing = felt.is_resyncing.load(Ordering::SeqCst);
        let started = Instant::now();
        let answered = async {
            let answer = http.post(format!("{router}/v1/chat/completions")).body(body.clone()).send().await?;
            answer.error_for_status()?.bytes().await
        };
        answered.await.context("a request failed").expect("the fake workers answer every request");
        let took_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        felt.latencies_us.lock().await[usize::from(is_resyncing)].saturating_record(took_us);
    }
}

async fn poll_repeatedly(url: String, felt: Arc<Felt>) {
    let http = reqwest::Client::builder().no_proxy().build().expect("a client without TLS can always be built");
    loop {
        let is_ready = http.get(&url).send().await.is_ok_and(|answer| answer.status() == 200);
        felt.n_unready.fetch_add(usize::from(!is_ready), Ordering::SeqCst);
        tokio::time::sleep(POLL).await;
    }
}
