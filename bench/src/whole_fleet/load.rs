//! `warmpath-bench load`: drives any OpenAI endpoint at a given rate, at the times of a trace or with a given number of
//! requests at a time, and reports latencies, goodput and errors.
//!
//! Not here: conversations that contain the model's answers (`chat_load`). A request is made in `requests`, started in
//! `drive`, measured in `client` and counted in `outcome`.

pub mod drive;
pub mod outcome;
pub mod requests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use self::drive::{Limits, drive};
use self::outcome::{Outcome, Slo, Tally};
use self::requests::{Pace, Prompt, Requests};
use crate::client::{ChatClient, Endpoint, Message};
use crate::inputs::corpora::TextKind;
use crate::output::names;
use crate::virtual_time::sim::trace::Trace;
use crate::virtual_time::sim::trace::shapes::TraceShape;

/// Flags of `load`.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Base URL of the endpoint, such as http://127.0.0.1:8080, with or without /v1.
    #[arg(long, value_name = "URL")]
    base: String,
    /// Model to request. The default is the endpoint's only model.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// API key, if the endpoint needs one.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Requests per second, at random times (Poisson arrivals), however fast the endpoint is (open loop). The default
    /// is the times of the trace.
    #[arg(long, value_name = "PER_SECOND", value_parser = rate, conflicts_with = "concurrency")]
    rate: Option<f64>,
    /// Requests at a time, each started when another one ends (closed loop).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(IN_FLIGHT_MAX)))]
    concurrency: Option<u32>,
    /// Factor by which the times of the trace are shortened.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor,
        conflicts_with_all = ["rate", "concurrency"])]
    speedup: f64,
    /// Trace to replay: one JSON object a line with timestamp (ms), input_length, output_length, hash_ids.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Tokens in a block of that file.
    #[arg(long, value_name = "TOKENS", default_value_t = 512, requires = "trace")]
    block_tokens: u32,
    /// Made trace to replay instead of a file.
    #[arg(long, value_name = "NAME", default_value = "chat", conflicts_with = "trace")]
    shape: TraceShape,
    /// Length of prompts and answers as a share of the trace's lengths; use less than 1 for a small model.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share)]
    scale: f64,
    /// Kind of the prompts' text, of about as many tokens as the trace's prompts.
    #[arg(long, value_enum, default_value_t = TextKind::Made)]
    text: TextKind,
    /// Requests to send; when the trace ends, it begins again with other texts. The default is the file once, or 200,
    /// and no limit with --duration.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Seconds after which no request is sent.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Longest time for a whole answer, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    timeout: Duration,
    /// Send `ignore_eos`, so that each answer has its full length: vLLM, SGLang and llama-server know it.
    #[arg(long)]
    ignore_eos: bool,
    /// Longest TTFT of a good answer, in milliseconds.
    #[arg(long, value_name = "MS")]
    slo_ttft: Option<f64>,
    /// Longest TPOT of a good answer, in milliseconds.
    #[arg(long, value_name = "MS")]
    slo_tpot: Option<f64>,
    /// Seed of texts and times; with a new seed, no cache has state from an earlier run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File to which the result is written as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Maximum number of requests that run at once; more wait for a place, and their latency counts.
///
/// Source: each has a connection, and most systems give a process 1,024 descriptors by default; without any left,
/// errors of this machine would count as the endpoint's.
const IN_FLIGHT_MAX: u32 = 1000;
/// Requests of a made trace, and of a load without a number of requests.
const MADE_REQUESTS: usize = 200;

/// Result of a load and its setting.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this program.
    version: &'static str,
    base: String,
    model: String,
    /// `open`, or `closed` where a request waits for another one to end.
    r#loop: &'static str,
    /// Mean rate of Poisson arrivals; absent if requests start otherwise. Units: requests per second.
    rate: Option<f64>,
    /// Requests at a time; absent in an open loop.
    concurrency: Option<u32>,
    /// Factor by which the trace's times were shortened; absent if requests start otherwise.
    speedup: Option<f64>,
    /// File or shape of the trace.
    trace: String,
    scale: f64,
    /// Kind of the prompts' text.
    text: String,
    seed: u64,
    /// Result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Runs the load, prints the result, writes it to the file of `--json`.
///
/// Errors: the endpoint cannot be asked for its models; no request is answered; a file cannot be read or written.
#[expect(clippy::print_stdout, reason = "the report is the command's output")]
pub async fn run(args: &LoadArgs) -> anyhow::Result<()> {
    let report = measure(args).await?;
    for table in report.outcome.tables() {
        println!("{table}\n");
    }
    println!("{}", explanation(args));
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    }
    ensure!(report.outcome.n_answers > 0, "no request was answered");
    Ok(())
}

/// Returns an explanation of the latencies' start.
fn explanation(args: &LoadArgs) -> &'static str {
    match args.concurrency {
        None => "Open loop: latencies count from the time at which a request should have started.",
        Some(_) => {
            "Closed loop: latencies count from the start of a request. A slow endpoint gets fewer requests, so a rate \
             (--rate) shows better how long users would wait."
        }
    }
}

/// Runs the load; an interrupt ends it early, without the requests that are running.
///
/// Errors: the endpoint cannot be asked for its models; the trace cannot be read; the flags contradict each other.
pub async fn measure(args: &LoadArgs) -> anyhow::Result<Report> {
    ensure!(args.base.starts_with("http://"), "{}: only http:// is supported", args.base);
    let trace = match &args.trace {
        Some(path) => Trace::read(path, args.block_tokens)?,
        None => args.shape.trace(MADE_REQUESTS, args.seed)?,
    };
    let requests = Requests::new(trace, args.text.corpus()?, args.scale, args.seed)?;
    let n_requests = match (args.requests, args.duration) {
        (Some(n), _) => Some(usize::try_from(n)?),
        (None, Some(_)) => None,
        (None, None) => Some(requests.n_of_trace()),
    };
    let endpoint = Endpoint { base_url: args.base.clone(), api_key: args.api_key.clone(), timeout: args.timeout };
    let client = ChatClient::of_endpoint(&endpoint, args.model.clone()).await?;
    let model = client.model().unwrap_or_default().to_owned();
    let load = Arc::new(Load {
        client,
        ignore_eos: args.ignore_eos,
        tally: Mutex::new(Tally::new(Slo { ttft_ms: args.slo_ttft, tpot_ms: args.slo_tpot })),
        n_running: AtomicU64::new(0),
        bar: bar(n_requests)?,
    });
    let limits = Limits {
        places: args.concurrency.unwrap_or(IN_FLIGHT_MAX) as usize,
        duration: args.duration.unwrap_or(Duration::MAX),
    };
    let planned_requests = requests.planned(args.pace()).take(n_requests.unwrap_or(usize::MAX));
    let start = Instant::now();
    tokio::select! {
        ended = drive(planned_requests, limits, |prompt, intended_start| Arc::clone(&load).ask(prompt, intended_start)) => ended?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    let took = start.elapsed();
    load.bar.finish_and_clear();
    let outcome = load.tally().outcome(took);
    Ok(args.report(model, outcome))
}

impl LoadArgs {
    fn pace(&self) -> Pace {
        match (self.rate, self.concurrency) {
            (Some(rate), _) => Pace::Poisson(rate),
            (None, Some(_)) => Pace::Closed,
            (None, None) => Pace::Trace(self.speedup),
        }
    }

    fn report(&self, model: String, outcome: Outcome) -> Report {
        let name = |path: &PathBuf| path.display().to_string();
        Report {
            version: env!("CARGO_PKG_VERSION"),
            base: self.base.clone(),
            model,
            r#loop: if self.pace() == Pace::Closed { "closed" } else { "open" },
            rate: self.rate,
            concurrency: self.concurrency,
            speedup: matches!(self.pace(), Pace::Trace(_)).then_some(self.speedup),
            trace: self.trace.as_ref().map_or_else(|| names::name(self.shape), name),
            scale: self.scale,
            text: self.text.to_string(),
            seed: self.seed,
            outcome,
        }
    }
}

/// State that the requests of a load share.
struct Load {
    client: ChatClient,
    ignore_eos: bool,
    /// The lock is held for one entry.
    tally: Mutex<Tally>,
    n_running: AtomicU64,
    bar: ProgressBar,
}

impl Load {
    async fn ask(self: Arc<Self>, Prompt { text, answer_tokens }: Prompt, intended_start: Instant) {
        self.n_running.fetch_add(1, Ordering::Relaxed);
        let mut body = self.client.body(&[Message::new("user", text)], answer_tokens);
        if self.ignore_eos {
            body["ignore_eos"] = json!(true);
        }
        let start_delay = intended_start.elapsed();
        let outcome = self.client.send(&body, intended_start.into_std()).await;
        let n_failed = {
            let mut tally = self.tally();
            tally.add(start_delay, outcome);
            tally.n_failed()
        };
        let n_running = self.n_running.fetch_sub(1, Ordering::Relaxed) - 1;
        self.bar.set_message(format!("{n_running} running, {n_failed} failed"));
        self.bar.inc(1);
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the bar of a load; without an end if the number of requests is not known.
fn bar(n_requests: Option<usize>) -> anyhow::Result<ProgressBar> {
    let (bar, template) = match n_requests {
        Some(n) => (ProgressBar::new(n as u64), "{bar:40} {pos}/{len} requests, {elapsed}, {msg}"),
        None => (ProgressBar::no_length(), "{spinner} {pos} requests, {elapsed}, {msg}"),
    };
    bar.set_style(ProgressStyle::with_template(template)?);
    bar.enable_steady_tick(Duration::from_millis(200));
    Ok(bar)
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, 0.001, 100_000.0)
}

fn factor(text: &str) -> Result<f64, String> {
    number(text, 0.0001, 10_000.0)
}

fn share(text: &str) -> Result<f64, String> {
    number(text, 0.0001, 1.0)
}

fn seconds(text: &str) -> Result<Duration, String> {
    number(text, 0.001, 1e7).map(Duration::from_secs_f64)
}

fn number(text: &str, min: f64, max: f64) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (min..=max).contains(&number) { Ok(number) } else { Err(format!("it must be from {min} to {max}")) }
}
