//! `warmpath-bench models`: models on demand with room for one, compared with llama-server's router mode.
//!
//! A folder has the same model under two names, so both take as long to load. Loads are counted in the list of models,
//! which both servers give alike. Not here: several hosts, in virtual time (`simulated`).

mod simulated;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use futures::future::join_all;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::{Answer, ChatClient, Message};
use crate::fleet::{Server, bin_dir, free_addresses};
use crate::inputs::corpora::TextKind;
use crate::model::real::ModelChoice;
use crate::one_worker::worker_bench::contender::Peer;
use crate::output::figures::{Figures, FiguresArgs, Measure, Row, Unit};
use crate::output::names;
use crate::servers::peers::{self, LOAD_TIMEOUT};
use crate::summary::Distribution;

/// Names of the model.
const NAMES: [&str; 2] = ["a", "b"];
/// Slots of each server.
const N_SLOTS: u32 = 4;
/// Context of a slot. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 8192;
/// Length of an answer of a conversation. Units: tokens.
const ANSWER_TOKENS: u32 = 16;
/// Length of an answer while clients alternate. Units: tokens.
const SHORT_ANSWER_TOKENS: u32 = 8;
/// Pause between two looks at the list of models; a load takes longer.
const LIST_POLL: Duration = Duration::from_millis(20);

/// Command line of `models`.
#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Model that is served under two names: a GGUF file, `smollm2` (SmolLM2-135M-Instruct, fetched once) or `made`
    /// (made by code).
    #[arg(long, value_name = "FILE|NAME", default_value = "smollm2")]
    model: ModelChoice,
    /// Server to compare with; it is built first if it is missing. The default is to measure only Warmpath.
    #[arg(long, value_name = "PEER")]
    against: Option<Peer>,
    /// Length of the conversation's first prompt, in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 4000)]
    prompt_tokens: usize,
    /// Clients that ask one model and the other in turn.
    #[arg(long, value_name = "N", default_value_t = 8)]
    clients: usize,
    /// Requests of each of them.
    #[arg(long, value_name = "N", default_value_t = 6)]
    requests: usize,
    /// Kind of the prompts' text.
    #[arg(long, value_name = "KIND", default_value = "rust")]
    text: TextKind,
    /// Rounds of the conversation; the median counts.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u64,
    /// Simulates three hosts with room for four of six models instead, beside hosts that load in the order of arrival.
    #[arg(long, conflicts_with_all = ["model", "against", "bin_dir"])]
    simulated: bool,
    /// Seeds the requests of the simulation.
    #[arg(long, default_value_t = 1, requires = "simulated")]
    seed: u64,
    /// Folder that holds warmpath and its programs. The default is this program's folder.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    #[command(flatten)]
    figures: FiguresArgs,
}

/// Server to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Subject {
    Warmpath,
    LlamaServer,
}

/// Count of loads in a server's list of models, until it is asked for.
struct LoadCount {
    ends: CancellationToken,
    counting: JoinHandle<u64>,
}

/// Runs both scenarios with each server and prints the table.
///
/// Errors: a server that does not start, a conversation that fails.
pub async fn run(args: &ModelsArgs) -> anyhow::Result<()> {
    if args.simulated {
        return args.figures.show(&simulated::figures(args.seed), "scenario", "hosts");
    }
    let models = tempfile::tempdir()?;
    let file = args.model.file()?;
    for name in NAMES {
        std::fs::copy(&file, models.path().join(format!("{name}.gguf"))).context("copying the model")?;
    }
    let mut figures = Figures::default();
    let peer = args.against.map(|Peer::LlamaServer| Subject::LlamaServer);
    for subject in [Subject::Warmpath].into_iter().chain(peer) {
        let cache = tempfile::tempdir()?;
        let mut server = start(args, subject, models.path(), cache.path()).await?;
        let result = measure(args, subject, &server, &mut figures).await;
        result.with_context(|| format!("{subject:?}; the end of its log:\n{}", server.log()))?;
        server.terminate(LOAD_TIMEOUT).await?;
    }
    args.figures.show(&figures, "scenario", "server")
}

/// Starts a server with room for one model.
async fn start(args: &ModelsArgs, subject: Subject, models: &Path, cache: &Path) -> anyhow::Result<Server> {
    let [address, admin_address, host_address] = free_addresses()?;
    let (name, program, places) = match subject {
        Subject::Warmpath => {
            let places = vec![
                ("--listen", address.to_string()),
                ("--admin-listen", admin_address.to_string()),
                ("--host-listen", host_address.to_string()),
                ("--models-cache", cache.display().to_string()),
            ];
            ("warmpath serve", bin_dir(args.bin_dir.as_deref())?.join("warmpath"), places)
        }
        Subject::LlamaServer => {
            let places = vec![("--host", address.ip().to_string()), ("--port", address.port().to_string())];
            ("llama-server", peers::llama_server()?, places)
        }
    };
    let common = [
        ("--models-dir", models.display().to_string()),
        ("--models-max", "1".to_owned()),
        ("--parallel", N_SLOTS.to_string()),
        ("--ctx-size", (N_SLOTS * SLOT_CONTEXT_TOKENS).to_string()),
    ];
    let command = (subject == Subject::Warmpath).then(|| "serve".to_owned());
    let flags = common.into_iter().chain(places).flat_map(|(flag, value)| [flag.to_owned(), value]);
    let flags: Vec<String> = command.into_iter().chain(flags).collect();
    let mut server = Server::start_at(name, &program, &flags, address).await?;
    server.answers("/v1/models", LOAD_TIMEOUT).await?;
    Ok(server)
}

async fn measure(args: &ModelsArgs, subject: Subject, server: &Server, figures: &mut Figures) -> anyhow::Result<()> {
    let url = server.base_url();
    let subject = names::name(subject);

    // A conversation that another model interrupts.
    let (mut first, mut again, mut reused) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.rounds.max(1) {
        let [begun, resumed] = interrupted(args, &url, round).await?;
        first.push(begun.ttft_ms);
        again.push(resumed.ttft_ms);
        reused.push(resumed.cached_tokens as f64 / begun.prompt_tokens as f64);
    }
    let row = Row::new("A, B, A again", &subject);
    figures.add(&row, Measure::lower("TTFT of A's first turn", Unit::Ms), &first);
    figures.add(&row, Measure::lower("TTFT of A again", Unit::Ms), &again);
    figures.add(&row, Measure::higher("of A's first prompt reused", Unit::Share), &reused);

    // Clients that ask both models in turn.
    let loads = LoadCount::start(&url);
    let answers = join_all((0..args.clients).map(|client| alternate(args, &url, client))).await;
    let n_loads = loads.end().await?;
    let mut ttft = Distribution::default();
    let n_failed = answers.iter().flatten().filter(|answer| answer.is_err()).count();
    answers.iter().flatten().flatten().for_each(|answer| ttft.add_ms(answer.ttft_ms));
    let row = Row::new(format!("A B A B, {} clients", args.clients), &subject);
    figures.add(&row, Measure::lower("loads", Unit::Count), &[n_loads as f64]);
    figures.add(&row, Measure::lower("TTFT p50", Unit::Ms), &[ttft.quantile_ms(0.5)]);
    figures.add(&row, Measure::lower("TTFT p95", Unit::Ms), &[ttft.quantile_ms(0.95)]);
    figures.add(&row, Measure::lower("failed", Unit::Count), &[n_failed as f64]);
    Ok(())
}

/// Holds a conversation with one model, asks the other in between, and returns the answers of both turns.
async fn interrupted(args: &ModelsArgs, url: &str, round: u64) -> anyhow::Result<[Answer; 2]> {
    let [a, b] = NAMES.map(|name| ChatClient::new(url, Some(name.to_owned())));
    let (a, b) = (a?, b?);
    let text = args.text.corpus()?.tokens(round, args.prompt_tokens);
    let mut messages = vec![Message::new("user", text)];
    let first_turn = a.ask_exactly(&messages, ANSWER_TOKENS).await.context("A's first turn")?;
    let other = Message::new("user", format!("What comes after {round}?"));
    b.ask_exactly(&[other], ANSWER_TOKENS).await.context("B's turn")?;
    messages.push(Message::new("assistant", first_turn.text.clone()));
    messages.push(Message::new("user", "And then?"));
    let second_turn = a.ask_exactly(&messages, ANSWER_TOKENS).await.context("A's second turn")?;
    Ok([first_turn, second_turn])
}

/// Asks both models in turn; clients begin with one and the other.
async fn alternate(args: &ModelsArgs, url: &str, client: usize) -> Vec<anyhow::Result<Answer>> {
    let mut answers = Vec::new();
    for request in 0..args.requests {
        let name = NAMES[(client + request) % NAMES.len()].to_owned();
        let message = Message::new("user", format!("Count from {client} to {request}."));
        let answer = async { ChatClient::new(url, Some(name))?.ask_exactly(&[message], SHORT_ANSWER_TOKENS).await };
        answers.push(answer.await);
    }
    answers
}

impl LoadCount {
    fn start(url: &str) -> Self {
        let ends = CancellationToken::new();
        let counting = count_loads(format!("{url}/v1/models"), ends.clone());
        Self { counting: tokio::spawn(counting), ends }
    }

    /// Returns the number of models that became loaded since the start.
    async fn end(self) -> anyhow::Result<u64> {
        self.ends.cancel();
        Ok(self.counting.await?)
    }
}

async fn count_loads(url: String, ends: CancellationToken) -> u64 {
    let http = reqwest::Client::builder().no_proxy().build().unwrap_or_default();
    let (mut n_loads, mut loaded_before) = (0, loaded(&http, &url).await.unwrap_or_default());
    while !ends.is_cancelled() {
        tokio::time::sleep(LIST_POLL).await;
        // A server that is too busy to answer is asked again.
        let Ok(loaded_now) = loaded(&http, &url).await else { continue };
        n_loads += loaded_now.iter().filter(|name| !loaded_before.contains(name)).count() as u64;
        loaded_before = loaded_now;
    }
    n_loads
}

/// Returns the names of the models that are loaded.
async fn loaded(http: &reqwest::Client, url: &str) -> anyhow::Result<Vec<String>> {
    let list: Value = http.get(url).send().await?.error_for_status()?.json().await?;
    let models = list["data"].as_array().into_iter().flatten();
    let is_loaded = |model: &&Value| model["status"]["value"] == "loaded";
    Ok(models.filter(is_loaded).filter_map(|model| Some(model["id"].as_str()?.to_owned())).collect())
}
