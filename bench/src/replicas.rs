//! `warmpath-bench replicas`: the reuse that is lost when many routers, which share no state, serve one fleet.
//!
//! The load itself is in `chat_load`, the same question in virtual time in `sim`. The same conversations run through
//! many routers, each turn through another one, and through a single router. Then come bursts of siblings: requests
//! with one new prefix that arrive within 50 ms, before any worker can have computed it. The slowest of a few requests
//! is mostly chance, so several rounds, each with a new fleet, can be combined.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use comfy_table::{Table, presets};
use futures::future::try_join_all;
use serde::Serialize;

use crate::chat_load::{Answers, Outcome, Shape, drive_spread};
use crate::client::{Answer, ChatClient, Message};
use crate::fleet::{Fleet, FleetArgs};
use crate::prompts::words;

/// Number of requests in a burst of siblings.
///
/// Source: the goal for several routers (`docs/benchmarks.md`).
pub const SIBLINGS: usize = 16;
/// Time within which the requests of a burst arrive. Source: as [`SIBLINGS`].
pub const BURST: Duration = Duration::from_millis(50);

/// Length of a measured burst's shared prefix: some 1,000 tokens. Units: words.
const BURST_WORDS: usize = 600;

/// Flags of `replicas`.
#[derive(Debug, Args)]
pub struct ReplicasArgs {
    #[command(flatten)]
    fleet: FleetArgs,
    /// Routers in front of it; each number is a run with a fleet of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 1])]
    routers: Vec<usize>,
    /// Runs of each number of routers, in turn with the others and with texts of their own; their results are combined.
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Bursts of siblings in each run.
    #[arg(long, default_value_t = 20)]
    bursts: usize,
    #[command(flatten)]
    shape: Shape,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// Result of one number of routers.
#[derive(Debug, Serialize)]
struct Row {
    n_routers: usize,
    chats: Outcome,
    /// Largest number of workers that one burst was routed to.
    workers_per_burst_max: usize,
    workers_per_burst_mean: f64,
    /// Prefix hit ratio of the bursts.
    burst_hit_ratio: f64,
}

/// Responses of one number of routers, over all rounds.
#[derive(Default)]
struct Runs {
    chats: Answers,
    bursts: Vec<Vec<Answer>>,
}

/// Runs the load for each number of routers and prints the results.
///
/// Errors: a process that does not start, a request that fails.
#[expect(clippy::print_stdout, reason = "the table is the command's output")]
pub async fn run(args: &ReplicasArgs) -> anyhow::Result<()> {
    let mut runs: Vec<Runs> = args.routers.iter().map(|_| Runs::default()).collect();
    for round in 0..args.rounds.max(1) {
        for (runs, &n_routers) in runs.iter_mut().zip(&args.routers) {
            measure(args, (n_routers, round), runs).await.with_context(|| format!("with {n_routers} routers"))?;
        }
    }
    let rows: Vec<Row> = args.routers.iter().zip(&runs).map(|(&n_routers, runs)| runs.row(n_routers)).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let of_bursts = ["workers a burst, mean", "most", "hit ratio in bursts"];
    table.set_header(["routers"].into_iter().chain(Outcome::HEADER).chain(of_bursts));
    for row in &rows {
        let of_bursts = [
            format!("{:.2}", row.workers_per_burst_mean),
            row.workers_per_burst_max.to_string(),
            format!("{:.1} %", row.burst_hit_ratio * 100.0),
        ];
        table.add_row([row.n_routers.to_string()].into_iter().chain(row.chats.row()).chain(of_bursts));
    }
    println!("{table}");
    Ok(())
}

impl Runs {
    fn row(&self, n_routers: usize) -> Row {
        let n_workers: Vec<usize> = self.bursts.iter().map(|burst| n_workers_of(burst)).collect();
        let sum = |of: fn(&Answer) -> u64| self.bursts.iter().flatten().map(of).sum::<u64>() as f64;
        Row {
            n_routers,
            chats: self.chats.outcome(),
            workers_per_burst_max: n_workers.iter().copied().max().unwrap_or(0),
            workers_per_burst_mean: n_workers.iter().sum::<usize>() as f64 / n_workers.len().max(1) as f64,
            burst_hit_ratio: sum(|answer| answer.cached_tokens) / sum(|answer| answer.prompt_tokens).max(1.0),
        }
    }
}

/// Runs the load once and adds the responses to `runs`.
async fn measure(args: &ReplicasArgs, (n_routers, round): (usize, u64), runs: &mut Runs) -> anyhow::Result<()> {
    let fleet = Fleet::start(args.fleet.spec(Vec::new())?).await?;
    let mut replicas = Vec::new();
    while replicas.len() + 1 < n_routers {
        replicas.push(fleet.replica().await?);
    }
    let routers = std::iter::once(&fleet.router).chain(&replicas);
    let clients =
        routers.map(|router| ChatClient::new(&router.base_url(), None)).collect::<anyhow::Result<Vec<_>>>()?;
    let shape = Shape { seed: args.shape.seed + round, ..args.shape.clone() };
    runs.chats.add(drive_spread(&clients, &shape).await?);
    for seed in 0..args.bursts as u64 {
        runs.bursts.push(burst(&clients, 7_000_000 + seed, BURST_WORDS).await?);
    }
    Ok(())
}

/// Sends [`SIBLINGS`] requests with one new prefix of `n_words` within [`BURST`], through `clients` in turn.
///
/// Errors: the first request that fails.
async fn burst(clients: &[ChatClient], seed: u64, n_words: usize) -> anyhow::Result<Vec<Answer>> {
    let prefix = Message::new("system", words(seed, n_words));
    let sibling = async |idx: usize| {
        tokio::time::sleep(BURST.mul_f64(idx as f64 / SIBLINGS as f64)).await;
        let own = Message::new("user", words(seed * 1_000 + idx as u64, 20));
        clients[idx % clients.len()].ask(&[prefix.clone(), own], 8).await
    };
    try_join_all((0..SIBLINGS).map(sibling)).await
}

/// Returns the number of workers that generated `answers`.
pub fn n_workers_of(answers: &[Answer]) -> usize {
    answers.iter().map(|answer| &answer.worker).collect::<BTreeSet<_>>().len()
}
