//! `warmpath-bench policies`: runs the same chats through a router under each of its policies, and compares them in one
//! table.
//!
//! The load itself is in `chat_load`. Every policy gets a fleet of its own, so that none reuses what another left
//! behind; all run on the same machine one after the other.

use anyhow::Context as _;
use clap::Args;
use comfy_table::{Table, presets};
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
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the load once under each policy and prints the results.
///
/// Errors: a process that does not start, a request that fails.
#[expect(clippy::print_stdout, reason = "the table is what the command is for")]
pub async fn run(args: &PoliciesArgs) -> anyhow::Result<()> {
    let mut outcomes = Vec::new();
    for policy in Policy::ALL {
        outcomes.push((policy, measure(args, policy).await.with_context(|| format!("under {policy}"))?));
    }
    if args.json {
        let named: serde_json::Map<_, _> = outcomes
            .iter()
            .map(|(policy, outcome)| Ok((policy.to_string(), serde_json::to_value(outcome)?)))
            .collect::<anyhow::Result<_>>()?;
        println!("{}", serde_json::to_string_pretty(&named)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["policy"].into_iter().chain(Outcome::HEADER));
    for (policy, outcome) in &outcomes {
        table.add_row([policy.to_string()].into_iter().chain(outcome.row()));
    }
    println!("{table}");
    Ok(())
}

async fn measure(args: &PoliciesArgs, policy: Policy) -> anyhow::Result<Outcome> {
    let router_args = ["--policy".to_owned(), policy.to_string()].to_vec();
    let fleet = Fleet::start(args.fleet.spec(router_args)?).await?;
    drive(&ChatClient::new(&fleet.router.base_url(), None)?, &args.shape).await
}
