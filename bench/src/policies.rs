//! `warmpath-bench policies`: runs the same chats through a router under each of its policies, and compares them in one
//! table.
//!
//! The load itself is in `chat_load`. Every policy gets a new fleet, so that none reuses another one's state; all run
//! on the same machine one after the other. A round runs all policies once; the rounds are shown one by one.

use anyhow::Context as _;
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use warmpath_router_core::routing::choose::Policy;

use crate::chat_load::{Outcome, Shape, drive};
use crate::client::ChatClient;
use crate::fleet::{Fleet, FleetArgs};

/// Flags of `policies`.
#[derive(Debug, Args)]
pub struct PoliciesArgs {
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    shape: Shape,
    /// Policies to compare.
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_values_t = Policy::ALL)]
    policies: Vec<Policy>,
    /// Rounds, each with other texts and with the policies in the opposite order.
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// Result of one policy in one round.
#[derive(Debug, Serialize)]
struct Row {
    round: u64,
    policy: String,
    #[serde(flatten)]
    outcome: Outcome,
}

/// Runs the load under each policy, once a round, and prints the results.
///
/// Errors: a process that does not start, a request that fails.
#[expect(clippy::print_stdout, reason = "the table is the command's output")]
pub async fn run(args: &PoliciesArgs) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let mut policies = args.policies.clone();
    for round in 0..args.rounds.max(1) {
        let shape = Shape { seed: args.shape.seed + round, ..args.shape.clone() };
        for policy in &policies {
            let outcome = measure(args, (*policy, &shape)).await.with_context(|| format!("under {policy}"))?;
            rows.push(Row { round, policy: policy.to_string(), outcome });
        }
        policies.reverse();
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["round", "policy"].into_iter().chain(Outcome::HEADER));
    for Row { round, policy, outcome } in &rows {
        table.add_row([round.to_string(), policy.clone()].into_iter().chain(outcome.row()));
    }
    println!("{table}");
    Ok(())
}

async fn measure(args: &PoliciesArgs, (policy, shape): (Policy, &Shape)) -> anyhow::Result<Outcome> {
    let router_args = ["--policy".to_owned(), policy.to_string()].to_vec();
    let fleet = Fleet::start(args.fleet.spec(router_args)?).await?;
    drive(&ChatClient::new(&fleet.router.base_url(), None)?, shape).await
}
