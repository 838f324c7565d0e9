//! `warmpath status`: the state of a fleet that its router reports, for a terminal or as JSON.

use std::io::Write as _;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use reqwest::Url;
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::host::{FetchedBytes, HostMemory, HostModel, ModelState};
use warmpath_host_core::memory::Bytes;

/// Default admin address of a router.
pub const ADMIN_DEFAULT: &str = "http://127.0.0.1:9090";
/// Number of decisions that are shown. Source: own choice: they fit on a terminal together with the workers.
const DECISIONS_SHOWN: usize = 10;
/// Longest time for a router's response. Source: own choice: a router answers within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Clears a terminal and moves the cursor to its first corner. Source: ECMA-48, ED and CUP.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Flags of `warmpath status`.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Admin address of the router (its --admin-listen)
    #[arg(long, value_name = "URL", default_value = ADMIN_DEFAULT)]
    admin: String,
    /// Print the router's report as JSON
    #[arg(long)]
    json: bool,
    /// Print again every SECONDS seconds, or every 2 if no number is given
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    watch: Option<f64>,
}

/// A fleet as its router sees it.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Fleet {
    ready: bool,
    unready_reason: Option<String>,
    version: String,
    in_flight: i64,
    waiting: i64,
    workers: Vec<Worker>,
    #[serde(default)]
    hosts: Vec<Host>,
}

/// A host as a router sees it.
#[derive(Debug, Clone, Deserialize)]
struct Host {
    url: String,
    state: String,
    trouble: Option<String>,
    /// Absent until its first summary, like its models.
    memory: Option<Vec<HostMemory>>,
    models: Option<Vec<HostModel>>,
}

/// A worker as a router sees it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Worker {
    name: String,
    url: String,
    state: String,
    trouble: Option<String>,
    excluded: Option<String>,
    pub(crate) model: Option<Model>,
    pub(crate) load: Load,
    blocks: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Model {
    names: Vec<String>,
    pub(crate) n_slots: u16,
    block_size_tokens: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Load {
    busy_slots: Vec<Value>,
    n_queued: u32,
    pub(crate) rates: Rates,
}

/// Speed that a worker has measured; see `warmpath_common::summary::Rates`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Rates {
    pub(crate) prefill_tokens_per_s: Option<f64>,
    pub(crate) decode_step_ms: Option<f64>,
    pub(crate) answer_tokens: Option<f64>,
    processor_wait: Option<f64>,
}

impl Fleet {
    /// Returns whether the router accepts requests and the worker at each of `urls` is ready; it may have others.
    pub fn has_ready(&self, urls: &[String]) -> bool {
        // A router's spelling may differ: it omits the default port.
        let ready: Vec<_> = self.ready_workers().filter_map(|worker| Url::parse(&worker.url).ok()).collect();
        self.ready && urls.iter().all(|url| Url::parse(url).is_ok_and(|url| ready.contains(&url)))
    }

    /// Returns the workers that are ready.
    pub(crate) fn ready_workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|worker| worker.state == "ready")
    }

    /// Returns the names of the models that its workers serve, each once.
    pub fn model_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.workers.iter().filter_map(|worker| worker.model.as_ref()?.names.first()).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Counters of a router over the last minutes.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Counters {
    pub(crate) seconds: f64,
    pub(crate) requests: f64,
    pub(crate) failures: f64,
    pub(crate) prompt_tokens: f64,
    cached_tokens: f64,
    ttft_p50_s: Option<f64>,
    ttft_p95_s: Option<f64>,
}

impl Counters {
    /// Returns the reused share of the prompt tokens; `None` if there are none.
    pub(crate) fn hit_ratio(&self) -> Option<f64> {
        (self.prompt_tokens > 0.0).then(|| self.cached_tokens / self.prompt_tokens)
    }
}

/// One decision of a router, and its result.
#[derive(Debug, Clone, Deserialize)]
struct Decision {
    at_ms: f64,
    worker: String,
    reason: String,
    prompt_tokens: u64,
    predicted_cached_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    outcome: String,
    status: Option<u16>,
    failure: Option<String>,
    ttft_ms: Option<f64>,
}

/// A router's admin listener.
#[derive(Debug, Clone)]
pub struct Admin {
    url: String,
    http: reqwest::Client,
}

impl Admin {
    /// Returns the listener at a URL.
    pub fn at(url: &str) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build().unwrap_or_default();
        Self { url: url.trim_end_matches('/').to_owned(), http }
    }

    /// Returns the fleet.
    ///
    /// Errors: no response, or one that is not a router's.
    pub async fn fleet(&self) -> anyhow::Result<Fleet> {
        read(self.get("fleet").await?)
    }

    /// Returns the router's counters over the last seconds.
    ///
    /// Errors: no response, or one that is not a router's.
    pub(crate) async fn counters(&self, seconds: u32) -> anyhow::Result<Counters> {
        let history = self.get(&format!("history?window_s={seconds}")).await?;
        read(history["sum"].clone())
    }

    async fn get(&self, what: &str) -> anyhow::Result<Value> {
        let url = format!("{}/internal/v1/{what}", self.url);
        let response = self.http.get(&url).send().await;
        let response =
            response.with_context(|| format!("no router responds at {}: --admin names its address", self.url))?;
        let status = response.status();
        ensure!(status.is_success(), "{url} responds with {status}: is it a router's --admin-listen?");
        response.json().await.with_context(|| format!("{url} is not a router's admin listener"))
    }
}

fn read<T: for<'de> Deserialize<'de>>(value: Value) -> anyhow::Result<T> {
    serde_json::from_value(value).context("the router has another version")
}

/// Prints the state of a fleet, once or repeatedly.
///
/// Errors: no router responds; with `--watch` only the first time.
pub async fn run(settings: &Settings) -> anyhow::Result<()> {
    let admin = Admin::at(&settings.admin);
    let form = if settings.json { Form::Json } else { Form::Text };
    let mut text = show(&admin, form).await?;
    let Some(seconds) = settings.watch else { return print(&text) };
    let pause = Duration::try_from_secs_f64(seconds).context("--watch takes seconds")?;
    loop {
        print(&if form == Form::Json { text } else { format!("{CLEAR}{text}") })?;
        tokio::time::sleep(pause).await;
        text = show(&admin, form).await.unwrap_or_else(|error| format!("{error:#}"));
    }
}

/// Prints a line, unless the pipe that it goes to has been closed.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        // A closed pipe, as in `warmpath status | head`, is not an error.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("writing to stdout"),
        _ => Ok(()),
    }
}

/// Returns an empty table with these titles.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header);
    table
}

/// Aligns columns of numbers.
pub(crate) fn align_right(table: &mut Table, columns: Range<usize>) {
    for number in columns {
        if let Some(column) = table.column_mut(number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Tables for people.
    Text,
    /// The router's report.
    Json,
}

async fn show(admin: &Admin, form: Form) -> anyhow::Result<String> {
    let (fleet, history, decisions) =
        tokio::try_join!(admin.get("fleet"), admin.get("history?window_s=300"), admin.get("decisions"))?;
    if form == Form::Json {
        return Ok(json!({"fleet": fleet, "history": history, "decisions": decisions["decisions"]}).to_string());
    }
    let fleet: Fleet = read(fleet)?;
    let counters: Counters = read(history["sum"].clone())?;
    let mut decisions: Vec<Decision> = read(decisions["decisions"].clone())?;
    decisions.truncate(DECISIONS_SHOWN);
    let parts = [head(&fleet, &counters), workers(&fleet).to_string(), hosts(&fleet), latest(&decisions)];
    Ok(parts.join("\n"))
}

fn head(fleet: &Fleet, counters: &Counters) -> String {
    let state = match &fleet.unready_reason {
        None if fleet.ready => "ready".to_owned(),
        reason => format!("not ready: {}", reason.as_deref().unwrap_or("no reason is reported")),
    };
    let minutes = (counters.seconds / 60.0).ceil();
    let ratio = counters.hit_ratio().map_or("-".to_owned(), |ratio| format!("{:.1} %", 100.0 * ratio));
    let ms = |seconds: Option<f64>| seconds.map_or("-".to_owned(), |seconds| format!("{:.0} ms", seconds * 1e3));
    format!(
        "Router {}, {state}; {} requests in flight, {} waiting.\nLast {minutes} min: {} requests, {} failed attempts; \
         prefix hit ratio {ratio} of {} prompt tokens; TTFT p50 {}, p95 {}.\n",
        fleet.version,
        fleet.in_flight,
        fleet.waiting,
        counters.requests,
        counters.failures,
        counters.prompt_tokens,
        ms(counters.ttft_p50_s),
        ms(counters.ttft_p95_s),
    )
}

fn workers(fleet: &Fleet) -> Table {
    let mut table = table(&[
        "worker",
        "state",
        "model",
        "slots busy",
        "queued",
        "cached tokens",
        "prefill tok/s",
        "ms a step",
        "waits for CPU",
    ]);
    for worker in &fleet.workers {
        let why = worker.excluded.as_ref().or(worker.trouble.as_ref());
        let model = worker.model.as_ref();
        let number = |rate: Option<f64>, digits: usize| rate.map_or("-".to_owned(), |rate| format!("{rate:.digits$}"));
        table.add_row([
            if worker.name == worker.url { worker.url.clone() } else { format!("{} {}", worker.name, worker.url) },
            why.map_or(worker.state.clone(), |why| format!("{}: {why}", worker.state)),
            model.and_then(|model| model.names.first().cloned()).unwrap_or_else(|| "-".to_owned()),
            format!("{}/{}", worker.load.busy_slots.len(), model.map_or(0, |model| model.n_slots)),
            worker.load.n_queued.to_string(),
            (worker.blocks * model.map_or(0, |model| model.block_size_tokens)).to_string(),
            number(worker.load.rates.prefill_tokens_per_s, 0),
            number(worker.load.rates.decode_step_ms, 1),
            worker.load.rates.processor_wait.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
        ]);
    }
    align_right(&mut table, 3..9);
    table
}

/// Returns the models of the hosts, with the hosts and their memory above; nothing if there are no hosts.
fn hosts(fleet: &Fleet) -> String {
    let mut text = String::new();
    for host in &fleet.hosts {
        let state = host.trouble.as_ref().map_or(host.state.clone(), |why| format!("{}: {why}", host.state));
        text += &format!("\nHost {}, {state}", host.url);
        for HostMemory { device, budget_bytes, free_bytes } in host.memory.iter().flatten() {
            text += &format!("; {device}: {} of {} free", Bytes(*free_bytes), Bytes(*budget_bytes));
        }
        let mut table = table(&["model", "state", "pinned"]);
        for model in host.models.iter().flatten() {
            let pinned_text = if model.is_pinned { "yes" } else { "" };
            table.add_row([model.name.clone(), describe(&model.state), pinned_text.to_owned()]);
        }
        text += &format!(".\n{table}\n");
    }
    text
}

/// Returns a model's state for people.
fn describe(state: &ModelState) -> String {
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1e3);
    match state {
        ModelState::Loaded { n_running: 0, idle_ms, .. } => format!("loaded, idle for {}", seconds(*idle_ms)),
        ModelState::Loaded { n_running, .. } => format!("loaded, {n_running} requests"),
        ModelState::Loading { worker_url: None, progress: 0.0, .. } => "waits for memory".to_owned(),
        ModelState::Loading { worker_url: None, progress, .. } => format!("downloading, {:.0} %", 100.0 * progress),
        ModelState::Downloading(FetchedBytes { done_bytes, total_bytes }) => {
            format!("downloading, {} of {}", Bytes(*done_bytes), Bytes(*total_bytes))
        }
        ModelState::Loading { progress, remaining_ms, .. } => {
            format!("loading, {:.0} %, {} left", 100.0 * progress, seconds(*remaining_ms))
        }
        ModelState::Unloading { .. } => "unloading".to_owned(),
        ModelState::Loadable { is_local: false, .. } => "not loaded, must be downloaded".to_owned(),
        ModelState::Loadable { memory_bytes, load_ms, wait_ms, .. } => {
            format!("not loaded, takes {} and {}", Bytes(*memory_bytes), seconds(wait_ms.saturating_add(*load_ms)))
        }
        ModelState::Impossible { reason, retry_ms: None } => format!("cannot be loaded: {reason}"),
        ModelState::Impossible { reason, retry_ms: Some(retry_ms) } => {
            format!("cannot be loaded: {reason}; tried again in {}", seconds(*retry_ms))
        }
    }
}

fn latest(decisions: &[Decision]) -> String {
    if decisions.is_empty() {
        return "\nNo request yet.".to_owned();
    }
    let mut table = table(&["at", "worker", "route", "prompt", "predicted", "cached", "TTFT ms", "outcome"]);
    let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
    for decision in decisions {
        let came = decision.failure.clone().or(decision.status.map(|status| status.to_string()));
        table.add_row([
            clock(decision.at_ms),
            decision.worker.clone(),
            decision.reason.clone(),
            decision.prompt_tokens.to_string(),
            number(decision.predicted_cached_tokens),
            number(decision.cached_tokens),
            decision.ttft_ms.map_or("-".to_owned(), |ms| format!("{ms:.0}")),
            came.unwrap_or_else(|| decision.outcome.clone()),
        ]);
    }
    format!("\n{table}")
}

/// Returns the local time of day.
fn clock(at_ms: f64) -> String {
    let at = jiff::Timestamp::from_millisecond(at_ms as i64);
    at.map_or_else(|_| "-".to_owned(), |at| at.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M:%S").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a router's report of workers with these URLs and states.
    fn report(workers: &[(&str, &str)]) -> Value {
        let worker = |(url, state): &(&str, &str)| {
            let load = json!({"busy_slots": [], "n_queued": 0, "rates": {}});
            json!({"name": url, "url": url, "state": state, "load": load, "blocks": 0})
        };
        let workers: Vec<_> = workers.iter().map(worker).collect();
        json!({"ready": true, "version": "1", "in_flight": 0, "waiting": 0, "workers": workers})
    }

    #[test]
    fn each_host_is_shown_with_its_memory_and_the_state_of_its_models() {
        let mut fleet = report(&[]);
        let model = |name: &str, state: Value| {
            let mut model = json!({"name": name, "is_autoloaded": true, "is_pinned": name == "a"});
            let fields = model.as_object_mut().expect("an object");
            fields.extend(state.as_object().expect("an object").clone());
            model
        };
        fleet["hosts"] = json!([{
            "url": "http://127.0.0.1:9190",
            "state": "live",
            "memory": [{"device": "ram", "budget_bytes": 3_u64 << 30, "free_bytes": 512 << 20}],
            "models": [
                model("a", json!({"state": "loaded", "worker_url": "u", "n_running": 2, "idle_ms": 0, "load_ms": 9})),
                model("b", json!({"state": "loading", "worker_url": "u", "progress": 0.4, "remaining_ms": 1500})),
                model("c", json!({"state": "loadable", "memory_bytes": 1 << 20, "load_ms": 2000, "is_local": true})),
                model("d", json!({"state": "impossible", "reason": "no file", "retry_ms": null})),
                model("e", json!({"state": "downloading", "done_bytes": 1 << 20, "total_bytes": 3 << 20})),
            ],
        }, {"url": "http://127.0.0.1:9191", "state": "lost", "trouble": "refused"}]);
        let text = hosts(&read(fleet).expect("a fleet"));
        for expected in [
            "Host http://127.0.0.1:9190, live; ram: 512 MiB of 3.0 GiB free.",
            "| a     | loaded, 2 requests",
            "| yes ",
            "loading, 40 %, 1.5 s left",
            "not loaded, takes 1 MiB and 2.0 s",
            "cannot be loaded: no file",
            "downloading, 1 MiB of 3 MiB",
            "Host http://127.0.0.1:9191, lost: refused.",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }

    #[test]
    fn a_fleet_is_ready_once_its_own_workers_are_whatever_others_its_router_has() {
        let check = |workers: &[(&str, &str)], expected: bool| {
            let own = ["http://127.0.0.1:80".to_owned(), "http://127.0.0.1:81".to_owned()];
            let ready: Fleet = read(report(workers)).expect("a fleet");
            let unready = Fleet { ready: false, ..ready.clone() };
            assert_eq!((ready.has_ready(&own), unready.has_ready(&own)), (expected, false), "{workers:?}");
        };
        let (first, second) = (("http://127.0.0.1", "ready"), ("http://127.0.0.1:81", "ready"));
        check(&[first, second], true);
        check(&[("http://10.0.0.1:81", "ready"), second, first], true);
        check(&[first, ("http://10.0.0.1:81", "down"), second], true);
        check(&[first, ("http://10.0.0.1:81", "ready")], false);
        check(&[first, ("http://127.0.0.1:81", "loading")], false);
        check(&[first, ("https://127.0.0.1:81", "ready")], false);
        check(&[], false);
    }
}
