//! `warmpath-bench fleets`: runs the same conversations with our fleet and with llama-servers behind other gateways.
//!
//! The load itself is in `chat_load`; our own policies are compared in `policies`. Every fleet has the same number of
//! servers, slots and threads, on the same machine, one fleet after the other. llama-server runs with the setting that
//! our worker's self-test chooses for the model and the machine. A round runs all fleets once, with texts of its own;
//! the rounds are shown one by one.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::Value;

use crate::chat_load::{Answers, Outcome, Shape, drive_spread};
use crate::client::ChatClient;
use crate::figures::{self, Answered, Figures, FiguresArgs};
use crate::fleet::{Fleet, FleetArgs};
use crate::peers::{self, Gateway};

/// Flags of `fleets`.
#[derive(Debug, Args)]
pub struct FleetsArgs {
    #[command(flatten)]
    fleet: FleetArgs,
    /// Gateways to put before llama-servers; these and llama-server are fetched or built first where they are missing.
    /// Without a value only our fleet runs.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0.., default_values_t = Gateway::ALL)]
    against: Vec<Gateway>,
    #[command(flatten)]
    shape: Shape,
    /// Rounds, each with other texts.
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    figures: FiguresArgs,
}

/// Result of one fleet in one round.
#[derive(Debug, Serialize)]
struct Row {
    round: u64,
    fleet: String,
    #[serde(flatten)]
    outcome: Outcome,
    #[serde(skip)]
    answered: Vec<Answered>,
}

impl Row {
    fn new(round: u64, fleet: String, answers: &Answers) -> Self {
        let (outcome, answered) = (answers.outcome(), answers.answered(&fleet));
        Self { round, fleet, outcome, answered }
    }
}

/// Runs the load with every fleet and prints the results.
///
/// Errors: a process that does not start, a request that fails.
#[expect(clippy::print_stdout, reason = "the table is the command's output")]
pub async fn run(args: &FleetsArgs) -> anyhow::Result<()> {
    peers::fetch(&args.against)?;
    let llama_server = (!args.against.is_empty()).then(peers::llama_server).transpose()?;
    let (mut rows, mut settings) = (Vec::new(), None);
    for round in 0..args.rounds.max(1) {
        let shape = Shape { seed: args.shape.seed + round, ..args.shape.clone() };
        let (answers, chosen) = ours(args, &shape).await.context("our fleet")?;
        rows.push(Row::new(round, "Warmpath".to_owned(), &answers));
        let Some(llama_server) = &llama_server else { continue };
        let chosen_text = format!("llama-server gets {}", chosen.join(" "));
        eprintln!("round {round}: {chosen_text}");
        settings = Some(chosen_text);
        for &gateway in &args.against {
            let answers = theirs(args, &shape, (gateway, llama_server, &chosen)).await;
            let answers = answers.with_context(|| format!("llama-servers behind {gateway}"))?;
            rows.push(Row::new(round, format!("llama-server behind {gateway}"), &answers));
        }
    }
    args.figures.write(&collect(&rows, settings))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["round", "fleet"].into_iter().chain(Outcome::HEADER));
    for Row { round, fleet, outcome, .. } in &rows {
        table.add_row([round.to_string(), fleet.clone()].into_iter().chain(outcome.row()));
    }
    println!("{table}");
    Ok(())
}

/// Returns the figures of all rounds, and the answers for the plots.
fn collect(rows: &[Row], settings: Option<String>) -> Figures {
    let mut figures = Figures { notes: settings.into_iter().collect(), ..Figures::default() };
    for row in rows {
        for (measure, value) in row.outcome.measures() {
            figures.add(&figures::Row::new("", row.fleet.as_str()), measure, &[value]);
        }
        figures.answers.extend(row.answered.iter().cloned());
    }
    figures
}

/// Returns the answers of our fleet, and the setting that its workers' self-test chose for llama-server.
async fn ours(args: &FleetsArgs, shape: &Shape) -> anyhow::Result<(Answers, [String; 3])> {
    let fleet = Fleet::start(args.fleet.spec(Vec::new())?).await?;
    let answers = drive_spread(&[ChatClient::new(&fleet.router.base_url(), None)?], shape).await?;
    Ok((answers, peers::llama_server_chosen(&fleet.workers[0].log())?))
}

async fn theirs(
    args: &FleetsArgs,
    shape: &Shape,
    (gateway, llama_server, chosen): (Gateway, &PathBuf, &[String]),
) -> anyhow::Result<Answers> {
    let spec = args.fleet.spec(Vec::new())?;
    let flags = [&args.fleet.flags(), chosen].concat();
    let mut servers = Vec::new();
    for _ in 0..spec.n_workers {
        servers.push(peers::start_llama_server(llama_server, &spec.model, &flags).await?);
    }
    let addresses: Vec<_> = servers.iter().map(crate::fleet::Server::address).collect();
    let model = model_name(&servers[0].base_url()).await?;
    let running = gateway.start(&addresses).await?;
    let answers = drive_spread(&[ChatClient::new(&running.base_url(), Some(model))?], shape).await;
    running.stop().await?;
    answers
}

/// Returns the name of a server's model; SMG rejects requests that name none.
async fn model_name(base_url: &str) -> anyhow::Result<String> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    let models: Value = http.get(format!("{base_url}/v1/models")).send().await?.error_for_status()?.json().await?;
    let name = models.pointer("/data/0/id").and_then(Value::as_str);
    Ok(name.with_context(|| format!("{base_url} names no model: {models}"))?.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::summary::Summary;
    use crate::testing::answer;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: FleetsArgs,
    }

    #[test]
    fn gateways_are_all_the_given_ones_or_none() {
        let against = |flags: &[&str]| {
            let flags = ["fleets", "--model", "made"].iter().chain(flags);
            Cli::try_parse_from(flags).expect("the flags are valid").args.against
        };
        assert_eq!(against(&[]), Gateway::ALL);
        assert_eq!(
            against(&["--against", "smg,nginx-least-conn", "--slots", "2"]),
            [Gateway::Smg, Gateway::NginxLeastConn]
        );
        assert_eq!(against(&["--against", "--slots", "2"]), []);
    }

    #[test]
    fn each_fleet_has_a_sample_of_each_figure_for_each_round() {
        let row = |round, ttft_ms| {
            let summary = Summary::of(&[answer(100, 50, ttft_ms)]);
            Row {
                round,
                fleet: "Warmpath".to_owned(),
                outcome: Outcome { summary, requests_per_s: 2.0 },
                answered: Vec::new(),
            }
        };
        let figures = collect(&[row(0, 10.0), row(1, 30.0)], Some("llama-server gets x".to_owned()));
        let found: Vec<_> =
            figures.figures.iter().map(|figure| (figure.measure.name.as_str(), figure.samples.len())).collect();
        let names = ["requests/s", "prefix hit ratio", "TTFT p50", "TTFT p95", "TTFT p99", "TPOT p50"];
        assert_eq!(found, names.map(|name| (name, 2)));
        assert!((figures.figures[2].median - 20.0).abs() < 0.1, "{figures:?}");
        assert_eq!(figures.notes, ["llama-server gets x"]);
    }
}
