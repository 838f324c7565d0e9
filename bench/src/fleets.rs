//! `warmpath-bench fleets`: runs the same conversations with our fleet and with llama-servers behind other gateways.
//!
//! The load itself is in `chat_load`; our own policies are compared in `policies`. Every fleet has the same number of
//! servers, slots and threads, on the same machine, one fleet after the other. llama-server runs with the settings that
//! are best for it on this machine, as our worker's self-test finds them. A round runs all fleets once, with texts of
//! its own; the rounds are shown one by one.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::Value;

use crate::chat_load::{Outcome, Shape, drive};
use crate::client::ChatClient;
use crate::fleet::{Fleet, FleetArgs};
use crate::peers::{self, Gateway};

/// Flags of `fleets`.
#[derive(Debug, Args)]
pub struct FleetsArgs {
    #[command(flatten)]
    fleet: FleetArgs,
    /// Gateways to put before llama-servers; these and llama-server are fetched or built first where they are missing.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Gateway::NginxRoundRobin, Gateway::NginxLeastConn, Gateway::Smg])]
    against: Vec<Gateway>,
    #[command(flatten)]
    shape: Shape,
    /// Rounds, each with other texts.
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// Result of one fleet in one round.
#[derive(Debug, Serialize)]
struct Row {
    round: u64,
    fleet: String,
    #[serde(flatten)]
    outcome: Outcome,
}

/// Runs the load with every fleet and prints the results.
///
/// Errors: a process that does not start, a request that fails.
#[expect(clippy::print_stdout, reason = "the table is the command's output")]
pub async fn run(args: &FleetsArgs) -> anyhow::Result<()> {
    peers::fetch()?;
    let llama_server = peers::llama_server()?;
    let mut rows = Vec::new();
    for round in 0..args.rounds.max(1) {
        let shape = Shape { seed: args.shape.seed + round, ..args.shape.clone() };
        let (outcome, best) = ours(args, &shape).await.context("our fleet")?;
        eprintln!("round {round}: llama-server gets {}", best.join(" "));
        rows.push(Row { round, fleet: "Warmpath".to_owned(), outcome });
        for &gateway in &args.against {
            let outcome = theirs(args, &shape, (gateway, &llama_server, &best)).await;
            let outcome = outcome.with_context(|| format!("llama-servers behind {gateway}"))?;
            rows.push(Row { round, fleet: format!("llama-server behind {gateway}"), outcome });
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["round", "fleet"].into_iter().chain(Outcome::HEADER));
    for Row { round, fleet, outcome } in &rows {
        table.add_row([round.to_string(), fleet.clone()].into_iter().chain(outcome.row()));
    }
    println!("{table}");
    Ok(())
}

/// Returns the result of our fleet, and the settings that are best for llama-server.
async fn ours(args: &FleetsArgs, shape: &Shape) -> anyhow::Result<(Outcome, [String; 3])> {
    let fleet = Fleet::start(args.fleet.spec(Vec::new())?).await?;
    let outcome = drive(&ChatClient::new(&fleet.router.base_url(), None)?, shape).await?;
    Ok((outcome, peers::llama_server_best(&fleet.workers[0].log())?))
}

async fn theirs(
    args: &FleetsArgs,
    shape: &Shape,
    (gateway, llama_server, best): (Gateway, &PathBuf, &[String]),
) -> anyhow::Result<Outcome> {
    let spec = args.fleet.spec(Vec::new())?;
    let flags = [&args.fleet.flags(), best].concat();
    let mut servers = Vec::new();
    for _ in 0..spec.n_workers {
        servers.push(peers::start_llama_server(llama_server, &spec.model, &flags).await?);
    }
    let addresses: Vec<_> = servers.iter().map(crate::fleet::Server::address).collect();
    let model = model_name(&servers[0].base_url()).await?;
    let running = gateway.start(&addresses).await?;
    let outcome = drive(&ChatClient::new(&running.base_url(), Some(model))?, shape).await;
    running.stop().await?;
    outcome
}

/// Returns the name of a server's model; SMG rejects requests that name none.
async fn model_name(base_url: &str) -> anyhow::Result<String> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    let models: Value = http.get(format!("{base_url}/v1/models")).send().await?.error_for_status()?.json().await?;
    let name = models.pointer("/data/0/id").and_then(Value::as_str);
    Ok(name.with_context(|| format!("{base_url} names no model: {models}"))?.to_owned())
}
