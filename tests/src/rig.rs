//! The rig of the whole-system tests: a fleet of real processes with the tiny model, and requests to it.
//!
//! Processes are started and ended by `warmpath_bench::fleet`.
//!
//! Tests wait for a state that the fleet reports, never for time to pass; every wait has a deadline.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use warmpath_bench::client::{Answer, ChatClient, Message};
use warmpath_bench::fleet::{Fleet, FleetSpec, Server};
use warmpath_bench::model::Preset;
use warmpath_bench::model::cache::{cached_model, cached_projector};
use warmpath_bench::model::projector::Reads;
use warmpath_common::summary::{Digest, SNAPSHOT_PATH, Snapshot};

/// Longest time until the fleet reports the state for which a test waits.
const DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two requests of a wait.
const POLL: Duration = Duration::from_millis(10);
/// Seed of the model that the tests run.
const MODEL_SEED: u64 = 1;

/// Number of tokens of a block, for every worker here.
pub const BLOCK_SIZE_TOKENS: u64 = warmpath_common::block_hash::BLOCK_SIZE_TOKENS_DEFAULT as u64;
/// Name under which every worker here serves its model.
pub const MODEL_NAME: &str = "tiny";
/// Number of slots of every worker here.
pub const N_SLOTS: usize = 3;
/// Context of each slot here. Units: tokens.
pub const SLOT_CONTEXT_TOKENS: usize = 4096;

/// Returns the root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/")).to_owned()
}

/// Returns the folder of the binaries: that of this test, without `deps`.
///
/// Errors: a binary is missing; `cargo build --workspace` builds it.
pub fn bin_dir() -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let dir = test.parent().and_then(Path::parent).context("the test lies in no target folder")?.to_owned();
    for name in ["warmpath-worker", "warmpath-router", "warmpath-demo", "warmpath-bench", "warmpath"] {
        ensure!(dir.join(name).exists(), "{} has no {name}: run `cargo build --workspace`", dir.display());
    }
    Ok(dir)
}

/// Returns the path of the tiny model, which is generated if it does not exist.
///
/// Errors: the file cannot be written.
pub fn tiny_model() -> anyhow::Result<PathBuf> {
    made_model(Preset::Tiny, MODEL_SEED)
}

/// Returns the path of a generated model, which is generated if it does not exist.
///
/// Errors: the file cannot be written.
pub fn made_model(preset: Preset, seed: u64) -> anyhow::Result<PathBuf> {
    made(|folder| cached_model(preset, seed, folder))
}

/// Returns the path of the tiny model's projector of images and audio, which is generated if it does not exist.
///
/// Errors: the file cannot be written.
pub fn tiny_projector() -> anyhow::Result<PathBuf> {
    made(|folder| cached_projector(Preset::Tiny, MODEL_SEED, Reads::Both, folder))
}

fn made(make: impl FnOnce(&Path) -> anyhow::Result<PathBuf>) -> anyhow::Result<PathBuf> {
    // Lets one test at a time check and generate; held while a file of some megabytes is written.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = root().join("target/models");
    std::fs::create_dir_all(&folder)?;
    make(&folder)
}

/// An API key and the entry that permits it.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The key.
    pub key: String,
    /// Its entry for `--api-keys-file`.
    pub entry: String,
}

/// Returns a new key of the router.
///
/// Errors: the router refuses the name.
pub fn new_key(name: &str) -> anyhow::Result<NewKey> {
    let output = Command::new(bin_dir()?.join("warmpath-router")).args(["new-key", name]).output()?;
    let text = String::from_utf8(output.stdout)?;
    let (first, entry) = text.split_once('\n').context("two parts")?;
    let (_, key) = first.rsplit_once(' ').context("the key ends the first line")?;
    Ok(NewKey { key: key.to_owned(), entry: entry.to_owned() })
}

/// Calls `question` again and again until it returns a value; `None` if it returns none within `deadline`.
pub async fn poll_until<T>(deadline: Duration, mut question: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let answer = question().await;
        if answer.is_some() || start.elapsed() > deadline {
            return answer;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// An HTTP response, read to its end.
#[derive(Debug)]
pub struct Reply {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: reqwest::header::HeaderMap,
    /// Body as text.
    pub text: String,
}

impl Reply {
    /// Returns the body as JSON; `Null` if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Returns the value of a header, empty if it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// Worker of a fleet of several models: its name, the model's kind and seed, its flags.
pub type WorkerLine<'a> = (&'a str, Preset, u64, &'a str);

/// Longest time for a worker to load a generated model.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);

/// A running fleet and a client of it.
#[derive(Debug)]
pub struct Rig {
    /// Processes.
    pub fleet: Fleet,
    /// Plain HTTP client that never uses a proxy.
    pub http: reqwest::Client,
}

impl Rig {
    /// Starts `n_workers` workers with the tiny model and a router with these additional flags.
    ///
    /// Errors: a process does not start or does not become ready; its log is in the message.
    pub async fn start(n_workers: usize, router_args: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(n_workers, &[], router_args).await
    }

    /// Starts a worker for each line, of several models, and a router.
    ///
    /// Errors: as [`Self::start_with`].
    pub async fn start_models(lines: &[WorkerLine<'_>]) -> anyhow::Result<Self> {
        let bin_dir = bin_dir()?;
        let mut workers = Vec::new();
        for (name, preset, seed, flags) in lines {
            let model = made_model(*preset, *seed)?;
            let fixed_flags = "--listen 127.0.0.1:0 --threads 1 --flash-attn off --kv-unified off --cache-ram 16";
            let args = format!("--name {name} --model {} {fixed_flags} {flags}", model.display());
            let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
            workers.push(Server::start(name, &bin_dir.join("warmpath-worker"), &args).await?);
        }
        for worker in &mut workers {
            worker.ready(LOAD_TIMEOUT).await?;
        }
        let (model, n_workers) = (tiny_model()?, workers.len());
        let spec = FleetSpec { bin_dir, model, n_workers, worker_args: Vec::new(), router_args: Vec::new() };
        Self::of(Fleet::of(spec, workers).await?).await
    }

    /// Starts workers and a router, each with additional flags.
    ///
    /// Errors: a process does not start or does not become ready; its log is in the message.
    pub async fn start_with(n_workers: usize, worker_args: &[&str], router_args: &[&str]) -> anyhow::Result<Self> {
        Self::start_file(tiny_model()?, n_workers, worker_args, router_args).await
    }

    /// Starts workers as [`Self::start_with`] does, with the model of a file.
    ///
    /// Errors: as [`Self::start_with`].
    pub async fn start_file(
        model: PathBuf,
        n_workers: usize,
        worker_args: &[&str],
        router_args: &[&str],
    ) -> anyhow::Result<Self> {
        let context_tokens = (N_SLOTS * SLOT_CONTEXT_TOKENS).to_string();
        let slots = N_SLOTS.to_string();
        // Without flash attention reuse is bit-exact, and nothing has to be measured at the start.
        let common = ["--alias", MODEL_NAME, "--slots", &slots, "--ctx-size", &context_tokens, "--threads", "1"];
        let exact = ["--flash-attn", "off", "--kv-unified", "off"];
        let spec = FleetSpec {
            bin_dir: bin_dir()?,
            model,
            n_workers,
            worker_args: common.iter().chain(&exact).chain(worker_args).map(|&arg| arg.to_owned()).collect(),
            router_args: router_args.iter().map(|&arg| arg.to_owned()).collect(),
        };
        Self::of(Fleet::start(spec).await?).await
    }

    /// Returns the rig of a fleet once its router knows every worker.
    ///
    /// Errors: the deadline passes.
    pub async fn of(fleet: Fleet) -> anyhow::Result<Self> {
        let rig = Self { fleet, http: reqwest::Client::builder().no_proxy().build()? };
        rig.all_known().await?;
        Ok(rig)
    }

    /// Returns the router's URL.
    pub fn router_url(&self) -> String {
        self.fleet.router.base_url()
    }

    /// Sends JSON and reads the whole response.
    ///
    /// Errors: the connection fails or breaks.
    pub async fn post(&self, url: &str, body: &Value) -> anyhow::Result<Reply> {
        read(self.http.post(url).json(body).send().await?).await
    }

    /// Returns the response to a GET request for `url`.
    ///
    /// Errors: the connection fails or breaks.
    pub async fn get(&self, url: &str) -> anyhow::Result<Reply> {
        read(self.http.get(url).send().await?).await
    }

    /// Sends a chat request to the router.
    ///
    /// Errors: the connection fails or breaks.
    pub async fn chat(&self, body: &Value) -> anyhow::Result<Reply> {
        self.post(&format!("{}/v1/chat/completions", self.router_url()), body).await
    }

    /// Requests one answer of a conversation through the router, greedily and streaming.
    ///
    /// Errors: any failure that keeps the answer from being complete.
    pub async fn ask(&self, messages: &[Message], max_tokens: u32) -> anyhow::Result<Answer> {
        ChatClient::new(&self.router_url(), None)?.ask(messages, max_tokens).await
    }

    /// Calls `question` again and again until it returns a value.
    ///
    /// Errors: it returns none within the deadline; `what` and the router's log are in the message.
    pub async fn wait_for<T, F>(&self, what: &str, mut question: impl FnMut() -> F) -> anyhow::Result<T>
    where
        F: Future<Output = Option<T>>,
    {
        poll_until(DEADLINE, async || question().await).await.with_context(|| {
            format!("after {DEADLINE:?} still not true: {what}; the router's log:\n{}", self.fleet.router.log())
        })
    }

    /// Waits until the router knows every worker and its vocabulary.
    ///
    /// Errors: the deadline passes.
    pub async fn all_known(&self) -> anyhow::Result<()> {
        self.wait_for("the router knows every worker", || async {
            let page = self.fleet_page().await.ok()?;
            let workers = page["workers"].as_array()?;
            let all_ready = workers.iter().all(|worker| worker["state"] == "ready");
            let vocabularies = page["vocabularies"].as_array()?;
            let tokenizes = vocabularies.iter().any(|vocabulary| vocabulary["state"] == "ready");
            (all_ready && tokenizes).then_some(())
        })
        .await
    }

    /// Waits until the router knows the blocks of every worker, and no request is running.
    ///
    /// Errors: the deadline passes.
    pub async fn settled(&self) -> anyhow::Result<()> {
        self.wait_for("the router knows every worker's blocks", || async {
            let page = self.fleet_page().await.ok()?;
            for worker in page["workers"].as_array()? {
                let snapshot = self.snapshot(worker["url"].as_str()?).await.ok()?;
                let held_keys: BTreeSet<_> = snapshot.runs.iter().flat_map(|run| &run.keys).collect();
                let is_idle = snapshot.load.busy_slots.is_empty()
                    && snapshot.load.n_queued == 0
                    && worker["load"]["busy_slots"].as_array()?.is_empty()
                    && worker["in_flight"] == 0
                    && worker["unreported"]["requests"] == 0;
                // Equal numbers are not enough: the blocks may be those of another prompt.
                let digest = Digest::of(held_keys).hex();
                if !is_idle || worker["blocks_digest"].as_str()? != digest {
                    return None;
                }
            }
            Some(())
        })
        .await
    }

    /// Returns the router's view of the fleet.
    ///
    /// Errors: the router does not answer.
    pub async fn fleet_page(&self) -> anyhow::Result<Value> {
        self.fleet.router.fleet_state(&self.http).await
    }

    /// Returns the snapshot of the worker at `url`.
    ///
    /// Errors: the worker does not answer, or not with a snapshot.
    pub async fn snapshot(&self, url: &str) -> anyhow::Result<Snapshot> {
        let reply = self.get(&format!("{}{SNAPSHOT_PATH}", url.trim_end_matches('/'))).await?;
        serde_json::from_str(&reply.text).context("reading a snapshot")
    }

    /// Returns the value of one line of the router's metrics, given its name with labels.
    ///
    /// Errors: the router does not answer or has no such line.
    pub async fn router_metric(&self, line: &str) -> anyhow::Result<f64> {
        let text = self.get(&format!("{}/metrics", self.fleet.router.admin_url()?)).await?.text;
        let value = text.lines().find_map(|text_line| text_line.strip_prefix(line)?.strip_prefix(' '));
        value.with_context(|| format!("no line `{line}` in\n{text}"))?.parse().context("reading a metric")
    }

    /// Returns the index of the worker that a response header names.
    pub fn worker_idx(&self, name: &str) -> Option<usize> {
        self.fleet.worker_idx(name)
    }
}

async fn read(response: reqwest::Response) -> anyhow::Result<Reply> {
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Ok(Reply { status, headers, text: response.text().await? })
}
