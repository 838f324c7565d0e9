//! `warmpath-bench speculation`: the speed of answers with and without drafts, compared with llama-server's.
//!
//! All servers run at the same time and are asked in turn, task by task and round by round, so that a noisy machine
//! affects all of them; one of them computes at a time. What is asked is in `tasks`.

mod tasks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use futures::future::try_join_all;

use self::tasks::Task;
use crate::client::{Answer, ChatClient, Message};
use crate::fleet::{Server, bin_dir};
use crate::model::real::ModelChoice;
use crate::peers;
use crate::summary::median;
use crate::worker_bench::Peer;

/// Time in which a model must be loaded.
const LOAD_TIMEOUT: Duration = Duration::from_secs(300);
/// Context of a slot. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 4096;
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
    /// Numbers of requests at a time.
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

/// A server that takes part.
struct Contender {
    name: String,
    server: Server,
    client: ChatClient,
}

/// Rates of one server: for each task, one of each round. Units: tokens a second of all requests together.
type Rates = BTreeMap<Task, Vec<f64>>;

/// Runs every task on every server and prints the tables.
///
/// Errors: a server that does not start or answer.
pub async fn run(args: &SpeculationArgs) -> anyhow::Result<()> {
    // An older result of the self-test may be from a busier machine.
    let self_test_cache = tempfile::tempdir()?;
    for &n_streams in &args.streams {
        let contenders = start(args, n_streams.max(1), self_test_cache.path()).await?;
        let mut rates: Vec<Rates> = contenders.iter().map(|_| Rates::new()).collect();
        for round in 0..args.rounds.max(1) {
            for task in Task::ALL {
                for (contender, rates) in contenders.iter().zip(&mut rates) {
                    let rate = measure(contender, task, (round, n_streams.max(1))).await?;
                    rates.entry(task).or_default().push(rate);
                }
            }
            eprintln!("{n_streams} at a time: round {} of {}", round + 1, args.rounds.max(1));
        }
        print_table(n_streams, &contenders, &rates);
        for mut contender in contenders {
            contender.server.terminate(LOAD_TIMEOUT).await?;
        }
    }
    Ok(())
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
        let best = peers::llama_server_best(&contenders[0].server.log())?;
        for spec_type in &args.against_types {
            let own = ["--host", "127.0.0.1", "--port", "0", "--spec-type", spec_type].map(str::to_owned);
            let draft = if spec_type.contains("draft-simple") { &draft[..] } else { &[] };
            let args = [&own[..], draft, &common, &best].concat();
            contenders.push(Contender::start(format!("llama-server, {spec_type}"), &program, &args).await?);
        }
    }
    Ok(contenders)
}

impl Contender {
    async fn start(name: String, program: &Path, args: &[String]) -> anyhow::Result<Self> {
        let mut server = Server::start(&name, program, args).await?;
        server.answers("/health", LOAD_TIMEOUT).await?;
        let client = ChatClient::new(&server.base_url(), None)?;
        client.ask_exactly(&[Message::new("user", "ready?")], 2).await.context("asking for a first word")?;
        Ok(Self { name, server, client })
    }
}

/// Asks for the answers of a round at the same time and returns their rate.
async fn measure(contender: &Contender, task: Task, (round, n_streams): (usize, u16)) -> anyhow::Result<f64> {
    let asked = (0..usize::from(n_streams)).map(|stream| {
        let messages = task.messages(round * usize::from(n_streams) + stream);
        async move { contender.client.ask(&messages, ANSWER_TOKENS).await }
    });
    let answers = try_join_all(asked).await.with_context(|| format!("{}, {}", contender.name, task.name()))?;
    Ok(rate(&answers))
}

/// Returns the tokens a second of answers that ran at the same time.
fn rate(answers: &[Answer]) -> f64 {
    answers.iter().filter_map(|answer| answer.tpot_ms).filter(|ms| *ms > 0.0).map(|ms| 1e3 / ms).sum()
}

/// Returns the rates of the tasks, and last their mean as that of one run of all: a token of each takes its time.
fn column(rates: &Rates) -> Vec<f64> {
    let mut medians: Vec<f64> = rates.values().map(|rates| median(rates).unwrap_or(0.0)).collect();
    let time: f64 = medians.iter().filter(|rate| **rate > 0.0).map(|rate| 1.0 / rate).sum();
    medians.push(if time > 0.0 { medians.len() as f64 / time } else { 0.0 });
    medians
}

#[expect(clippy::print_stdout, reason = "the tables are the command's output")]
fn print_table(n_streams: u16, contenders: &[Contender], rates: &[Rates]) {
    let columns: Vec<Vec<f64>> = rates.iter().map(column).collect();
    println!("\n{n_streams} at a time; tokens/s, and in brackets the ratio to the worker without drafts:\n");
    println!("| task | {} |", contenders.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(" | "));
    println!("|---|{}", "---|".repeat(contenders.len()));
    let names = Task::ALL.iter().map(|task| task.name()).chain(["all"]);
    for (idx, name) in names.enumerate() {
        let plain = columns[0][idx];
        let cell =
            |column: &Vec<f64>| format!("{:.1} ({:.2})", column[idx], column[idx] / plain.max(f64::MIN_POSITIVE));
        println!("| {name} | {} |", columns.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_that_of_the_times_of_the_medians() {
        let rates: Rates = [(Task::Rewrite, vec![10.0, 90.0, 20.0]), (Task::Chat, vec![60.0])].into();
        assert_eq!(column(&rates), [20.0, 60.0, 30.0]);
        assert_eq!(column(&Rates::new()), [0.0]);
    }

    #[test]
    fn rates_of_requests_at_the_same_time_add_up() {
        let answer = crate::summary::tests::answer(10, 0, 5.0);
        let answers = [Some(10.0), Some(20.0), None].map(|tpot_ms| Answer { tpot_ms, ..answer.clone() });
        assert_eq!(rate(&answers), 150.0);
    }
}
