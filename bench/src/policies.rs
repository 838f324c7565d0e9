//! `warmpath-bench policies`: the same chats through a router under each of its policies, compared in one table.
//!
//! Not here: the load itself (`chat_load`). The idea: every policy gets a fleet of its own, so that none finds what another
//! left behind, and all run on the same machine one after the other.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use comfy_table::{Table, presets};
use warmpath_router_core::choose::Policy;

use crate::chat_load::{Outcome, Shape, drive};
use crate::client::ChatClient;
use crate::fleet::{Fleet, FleetSpec, bin_dir};

/// Is what `policies` is told on the command line.
#[derive(Debug, Args)]
pub struct PoliciesArgs {
    /// GGUF file that the workers serve.
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Folder that holds warmpath-worker and warmpath-router. The default is this program's folder.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Workers of the fleet.
    #[arg(long, default_value_t = 3)]
    workers: usize,
    /// Slots of each worker.
    #[arg(long, default_value_t = 3)]
    slots: u16,
    #[command(flatten)]
    shape: Shape,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// Is the context of a slot. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 4096;

/// Runs the load once under each policy and prints what came of each.
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
    let bin_dir = bin_dir(args.bin_dir.as_deref())?;
    let ctx_size = u32::from(args.slots) * SLOT_CONTEXT_TOKENS;
    let worker_flags = [("--slots", u32::from(args.slots)), ("--ctx-size", ctx_size), ("--threads", 1)];
    let worker_args = worker_flags.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.to_string()]).collect();
    let router_args = ["--policy".to_owned(), policy.to_string()].to_vec();
    let spec = FleetSpec { bin_dir, model: args.model.clone(), n_workers: args.workers, worker_args, router_args };
    let fleet = Fleet::start(spec).await?;
    drive(&ChatClient::new(&fleet.router.base_url(), None)?, &args.shape).await
}
