//! `warmpath-bench resync`: how long a router takes to take in the whole view of a large worker, and what requests feel
//! meanwhile.
//!
//! Not here: the index by itself (`index_bench`). The idea: two fake workers that answer at once stand behind a real
//! router; one of them says that it holds a million blocks, breaks its stream off and shows half of its prompts new. Requests and
//! looks at `/readyz` go on all the time, and are counted apart while the view is being replaced.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use clap::Args;
use comfy_table::{Table, presets};
use futures::{StreamExt as _, stream};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::{SlotId, WorkerUid};
use warmpath_common::summary::{
    self, Body as FrameBody, Digest, Frame, Resume, Run, RunState, SNAPSHOT_PATH, STREAM_PATH, Snapshot, Stamp, Tier,
    VOCABULARY_PATH,
};

use crate::fleet::{Fleet, FleetSpec, Server, bin_dir};
use crate::prompts::words;

/// Is the number of blocks in a run of the fake worker: a prompt of some thousand tokens.
const BLOCKS_PER_RUN: usize = 100;
/// Is the pause between two frames of a fake worker that has nothing to say.
const HEARTBEAT: Duration = Duration::from_millis(200);
/// Is the pause between two looks at the router's page and at `/readyz`.
const POLL: Duration = Duration::from_millis(5);
/// Is how long requests are measured before each resync.
///
/// Source: longer than a stream must last for the router to open the next one after its shortest pause.
const QUIET: Duration = Duration::from_secs(6);
/// Is the longest time in which a resync has to be over.
const RESYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// Is what `resync` is told on the command line.
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

/// Is a fake worker: says what it holds, and answers every chat at once.
struct Fake {
    form: Snapshot,
    n_blocks: usize,
    vocabulary: Bytes,
    /// Counts the updates; a later stream never goes back.
    seq: AtomicU64,
    round: AtomicU64,
    n_streams: AtomicUsize,
    cut: Notify,
}

impl Fake {
    async fn serve(self: &Arc<Self>, tasks: &mut JoinSet<()>) -> anyhow::Result<String> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let routes = Router::new()
            .route(STREAM_PATH, get(summary_stream))
            .route(VOCABULARY_PATH, get(async |State(fake): State<Arc<Self>>| fake.vocabulary.clone()))
            .route("/v1/chat/completions", post(answer))
            .with_state(Arc::clone(self));
        tasks.spawn(async move {
            // It ends with the task.
            let _ = axum::serve(listener, routes).await;
        });
        Ok(url)
    }

    /// Returns the stamp of the next frame.
    fn stamp(&self) -> Stamp {
        Stamp { seq: self.seq.fetch_add(1, Ordering::SeqCst) + 1, ..self.form.stamp }
    }

    /// Returns what is held: every second prompt is another one in each round.
    fn runs(&self) -> Vec<Run> {
        let round = self.round.load(Ordering::SeqCst);
        // Keys spread over all 64 bits, as hashes do.
        let key = |idx: usize| {
            let salt = if (idx / BLOCKS_PER_RUN).is_multiple_of(2) { 0 } else { round << 40 };
            BlockKey((idx as u64 + 1 + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.form.stamp.worker_uid.0)
        };
        let run = |first: usize| Run {
            keys: (first..self.n_blocks.min(first + BLOCKS_PER_RUN)).map(key).collect(),
            tier: Tier::Resident,
            state: RunState::Ready,
            resume: Resume::EveryBlock,
            slot: Some(SlotId(0)),
        };
        (0..self.n_blocks).step_by(BLOCKS_PER_RUN).map(run).collect()
    }
}

async fn summary_stream(State(fake): State<Arc<Fake>>) -> Response {
    fake.n_streams.fetch_add(1, Ordering::SeqCst);
    let stamp = fake.stamp();
    let snapshot = Snapshot { stamp, runs: fake.runs(), ..fake.form.clone() };
    let digest = Digest::of(snapshot.runs.iter().flat_map(|run| &run.keys));
    let first: Vec<Frame> = snapshot.into_frames();
    let beats = stream::unfold(fake, move |fake| async move {
        tokio::select! {
            () = tokio::time::sleep(HEARTBEAT) => {
                let body = FrameBody::Update { changes: Vec::new(), load: None, digest: Some(digest) };
                Some((Frame { stamp: fake.stamp(), body }, fake))
            }
            () = fake.cut.notified() => None,
        }
    });
    let frames = stream::iter(first).chain(beats).map(|frame| {
        let bytes = frame.encode();
        let length = u32::try_from(bytes.len()).expect("a frame is below 1 MiB");
        Ok::<_, std::convert::Infallible>(Bytes::from([&length.to_be_bytes()[..], &bytes].concat()))
    });
    ([(CONTENT_TYPE, summary::CONTENT_TYPE)], Body::from_stream(frames)).into_response()
}

async fn answer() -> Response {
    ([(CONTENT_TYPE, "application/json")], r#"{"choices":[]}"#).into_response()
}

/// Is what requests felt, apart by whether a view was being replaced. The lock is held for one entry.
struct Felt {
    is_resyncing: AtomicBool,
    latencies_us: Mutex<[Histogram<u64>; 2]>,
    n_unready: AtomicUsize,
}

/// Measures and prints.
///
/// Errors: a process that does not start, a request that fails, a view that is not taken in.
#[expect(clippy::print_stdout, reason = "the table is what the command is for")]
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
    tasks.spawn(look_again_and_again(format!("{}/readyz", router.base_url()), Arc::clone(&felt)));
    let page = format!("{}/internal/v1/fleet", router.admin_url()?);
    let mut resync_ms = Vec::new();
    for _ in 0..args.rounds {
        tokio::time::sleep(QUIET).await;
        resync_ms.push(resync(&large, &page, &felt).await?.as_secs_f64() * 1e3);
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
    println!("looks at /readyz that were not answered with 200: {}", felt.n_unready.load(Ordering::SeqCst));
    Ok(())
}

/// Starts the fake workers and a router in front of them, and waits until the router knows all blocks.
async fn start(args: &ResyncArgs, tasks: &mut JoinSet<()>) -> anyhow::Result<(Arc<Fake>, Server)> {
    let bin_dir = bin_dir(args.bin_dir.as_deref())?;
    // What a real worker says of its model; it is not needed for more.
    let spec = FleetSpec {
        bin_dir: bin_dir.clone(),
        model: args.model.clone(),
        n_workers: 1,
        worker_args: ["--flash-attn", "off", "--kv-unified", "off", "--threads", "1"].map(str::to_owned).into(),
        router_args: Vec::new(),
    };
    let real = Fleet::start(spec).await?;
    let url = real.workers[0].base_url();
    let http = reqwest::Client::builder().no_proxy().build()?;
    let form: Snapshot = http.get(format!("{url}{SNAPSHOT_PATH}")).send().await?.json().await?;
    let vocabulary = http.get(format!("{url}{VOCABULARY_PATH}")).send().await?.bytes().await?;
    drop(real);

    let fake = |uid: u64, n_blocks| {
        Arc::new(Fake {
            form: Snapshot { stamp: Stamp { worker_uid: WorkerUid(uid), ..form.stamp }, ..form.clone() },
            n_blocks,
            vocabulary: vocabulary.clone(),
            seq: AtomicU64::new(0),
            round: AtomicU64::new(0),
            n_streams: AtomicUsize::new(0),
            cut: Notify::new(),
        })
    };
    let (large, small) = (fake(1, args.blocks), fake(2, 0));
    let mut router_args: Vec<String> =
        ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"].map(str::to_owned).into();
    for fake in [&large, &small] {
        router_args.extend(["--worker".to_owned(), fake.serve(tasks).await?]);
    }
    let mut router = Server::start("router", &bin_dir.join("warmpath-router"), &router_args).await?;
    router.ready(RESYNC_TIMEOUT).await?;
    known(&format!("{}/internal/v1/fleet", router.admin_url()?)).await?;
    Ok((large, router))
}

/// Breaks the large worker's stream off and returns how long the router takes until it knows the new view.
async fn resync(large: &Fake, page: &str, felt: &Felt) -> anyhow::Result<Duration> {
    let n_streams = large.n_streams.load(Ordering::SeqCst);
    large.round.fetch_add(1, Ordering::SeqCst);
    felt.is_resyncing.store(true, Ordering::SeqCst);
    let started = Instant::now();
    large.cut.notify_waiters();
    while large.n_streams.load(Ordering::SeqCst) == n_streams {
        ensure!(started.elapsed() < RESYNC_TIMEOUT, "the router has not come back");
        tokio::time::sleep(POLL).await;
    }
    known(page).await?;
    let took = started.elapsed();
    felt.is_resyncing.store(false, Ordering::SeqCst);
    Ok(took)
}

/// Waits until the router's page says that the first worker's blocks are what that worker says.
async fn known(page: &str) -> anyhow::Result<()> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    let started = Instant::now();
    loop {
        let fleet: Value = http.get(page).send().await?.json().await?;
        if fleet["workers"][0]["blocks_current"] == json!(true) {
            return Ok(());
        }
        ensure!(started.elapsed() < RESYNC_TIMEOUT, "the view is not known after {RESYNC_TIMEOUT:?}: {fleet}");
        tokio::time::sleep(POLL).await;
    }
}

async fn ask_again_and_again(router: String, seed: u64, felt: Arc<Felt>) {
    let http = reqwest::Client::builder().no_proxy().build().expect("a client without TLS has nothing to fail on");
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

async fn look_again_and_again(url: String, felt: Arc<Felt>) {
    let http = reqwest::Client::builder().no_proxy().build().expect("a client without TLS has nothing to fail on");
    loop {
        let is_ready = http.get(&url).send().await.is_ok_and(|answer| answer.status() == 200);
        felt.n_unready.fetch_add(usize::from(!is_ready), Ordering::SeqCst);
        tokio::time::sleep(POLL).await;
    }
}
