//! `warmpath-bench speculation`: the speed of answers with and without drafts, compared with llama-server's.
//!
//! All servers run at the same time and are asked in turn, task by task and round by round, so that a noisy machine
//! affects all of them; one of them computes at a time. What is asked is in `tasks` and in `agents`.

mod mix;
mod rates;
mod sessions;
mod tasks;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::client::ChatClient;
use crate::fleet::{Server, bin_dir};
use crate::model::real::ModelChoice;
use crate::peers::{self, LOAD_TIMEOUT};
use crate::worker_bench::Peer;

/// Context of a slot. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 8192;
/// Longest answer. Units: tokens.
const ANSWER_TOKENS: u32 = 192;

/// Flags of `speculation`.
#[derive(Debug, Args)]
pub struct SpeculationArgs {
    /// Model that every server serves: a GGUF file, `smollm2` (SmolLM2-135M-Instruct, fetched once) or `made` (made by
    /// code).
    #[arg(long, value_name = "FILE|NAME")]
    model: ModelChoice,
    /// Draft model: a further worker drafts with it, and so does llama-server with the type draft-simple.
    #[arg(long, value_name = "FILE|NAME")]
    model_draft: Option<ModelChoice>,
    /// Server to compare with; it is built first if it is missing. The default is to measure only the worker.
    #[arg(long, value_name = "PEER")]
    against: Option<Peer>,
    /// llama-server's types of drafts, each a server of its own.
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "ngram-simple,ngram-mod")]
    against_types: Vec<String>,
    /// Scenario to measure; may be repeated. The default is mix.
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<Scenario>,
    /// Numbers of requests at a time, and of slots.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    streams: Vec<u16>,
    /// Rounds of each task; each has texts of its own, and the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Folder that holds warmpath-worker. The default is this program's folder.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Threads of each server.
    #[arg(long, default_value_t = 1)]
    threads: u16,
}

/// Scenario to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Twelve tasks, from answers that repeat their prompt to free ones.
    Mix,
    /// Sessions of coding agents, each held twice.
    Sessions,
}

/// A server that takes part.
struct Contender {
    name: String,
    server: Server,
    client: ChatClient,
}

/// Runs the scenarios and prints the tables.
///
/// Errors: a server that does not start or answer.
pub async fn run(args: &SpeculationArgs) -> anyhow::Result<()> {
    // An older result of the self-test may be from a busier machine.
    let self_test_cache = tempfile::tempdir()?;
    let n_rounds = args.rounds.max(1);
    for &n_streams in &args.streams {
        let n_streams = n_streams.max(1);
        let contenders = start(args, n_streams, self_test_cache.path()).await?;
        for scenario in args.scenarios() {
            match scenario {
                Scenario::Mix => mix::run(&contenders, (n_rounds, n_streams)).await?,
                Scenario::Sessions => sessions::run(&contenders, n_rounds).await?,
            }
        }
        for mut contender in contenders {
            contender.server.terminate(LOAD_TIMEOUT).await?;
        }
    }
    Ok(())
}

impl SpeculationArgs {
    fn scenarios(&self) -> &[Scenario] {
        if self.scenarios.is_empty() { &[Scenario::Mix] } else { &self.scenarios }
    }
}

/// Returns the names of servers, as tables have them.
fn names(contenders: &[Contender]) -> Vec<&str> {
    contenders.iter().map(|contender| contender.name.as_str()).collect()
}

async fn start(args: &SpeculationArgs, n_streams: u16, self_test_cache: &Path) -> anyhow::Result<Vec<Contender>> {
    let worker = bin_dir(args.bin_dir.as_deref())?.join("warmpath-worker");
    let common = [
        ("--model", args.model.file()?.display().to_string()),
        ("--threads", args.threads.to_string()),
        ("--parallel", n_streams.to_string()),
        ("--ctx-size", (u32::from(n_streams) * SLOT_CONTEXT_TOKENS).to_string()),
    ];
    let common: Vec<String> = common.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
    let mut contenders = Vec::new();
    let cache = self_test_cache.display().to_string();
    let draft = args.model_draft.as_ref().map(ModelChoice::file).transpose()?;
    let draft: Vec<String> =
        draft.into_iter().flat_map(|file| ["--model-draft".to_owned(), file.display().to_string()]).collect();
    let own = ["--listen", "127.0.0.1:0", "--self-test-cache", &cache, "--spec-type"].map(str::to_owned);
    let mut kinds: Vec<(&str, &str, &[String])> = vec![("none", "none", &[]), ("auto", "auto", &[])];
    if !draft.is_empty() {
        kinds.push(("draft model", "auto", &draft));
    }
    for (name, spec_type, draft) in kinds {
        let args = [&own[..], &[spec_type.to_owned()], draft, &common].concat();
        contenders.push(Contender::start(format!("worker, {name}"), &worker, &args).await?);
    }
    if let Some(Peer::LlamaServer) = args.against {
        let program = peers::llama_server()?;
        let chosen = peers::llama_server_chosen(&contenders[0].server.log())?;
        for spec_type in &args.against_types {
            let own = ["--host", "127.0.0.1", "--port", "0", "--spec-type", spec_type].map(str::to_owned);
            let draft = if spec_type.contains("draft-simple") { &draft[..] } else { &[] };
            let args = [&own[..], draft, &common, &chosen].concat();
            contenders.push(Contender::start(format!("llama-server, {spec_type}"), &program, &args).await?);
        }
    }
    Ok(contenders)
}

impl Contender {
    async fn start(name: String, program: &Path, args: &[String]) -> anyhow::Result<Self> {
        let (server, client) = peers::start_warm(&name, program, args).await?;
        Ok(Self { name, server, client })
    }
}
