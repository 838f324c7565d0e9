//! `warmpath-bench demo`: runs a router and three workers on loopback, sends conversations, shows what was reused.
//!
//! Processes are started in `fleet`, responses measured in `client`. The same traffic runs twice, once with cache-aware
//! routing and once round-robin; each run has system prompts of its own, so that the second cannot reuse anything of
//! the first.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};

use crate::client::{Answer, ChatClient, Message};
use crate::fleet::{Fleet, FleetSpec, bin_dir};
use crate::prompts::words;
use crate::report::Report;

/// Flags of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// GGUF file that the workers serve.
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Folder that holds warmpath-worker and warmpath-router. The default is this program's folder.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Leave the fleet up afterwards, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Print the results as JSON.
    #[arg(long, conflicts_with = "keep")]
    json: bool,
}

/// Number of workers.
const N_WORKERS: usize = 3;
/// Number of tenants, each with a system prompt of its own.
const N_TENANTS: usize = 2;
/// Number of turns of each user's conversation.
const N_TURNS: usize = 3;
/// Number of users of each tenant.
const N_USERS: usize = 2;
/// Length of a system prompt. Units: words.
const SYSTEM_WORDS: usize = 250;
/// Length of a user's message. Units: words.
const USER_WORDS: usize = 25;
/// Length of a response. Units: tokens.
const ANSWER_TOKENS: u32 = 24;

/// One request of the script and its response.
struct Turn {
    tenant: usize,
    user: usize,
    turn: usize,
    answer: Answer,
}

/// Runs the demo.
///
/// Errors: a process that does not start, a request that fails.
pub async fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let bin_dir = bin_dir(args.bin_dir.as_deref())?;
    let worker_args = ["--slots", "4", "--threads", "1", "--ctx-size", "16384"].map(str::to_owned).to_vec();
    let model = args.model.clone();
    eprintln!("Starting {N_WORKERS} workers with {} and one router ...", model.display());
    let spec = FleetSpec { bin_dir, model, n_workers: N_WORKERS, worker_args, router_args: Vec::new() };
    let mut fleet = Fleet::start(spec).await?;

    eprintln!(
        "{N_TENANTS} tenants with {N_USERS} users each, {N_TURNS} turns, sent to the worker that answers soonest:"
    );
    let warm = hold_conversations(&fleet, 1).await?;
    if !args.json {
        print_turns(&warm);
    }
    let warm = Report::of(warm.iter().map(|turn| &turn.answer));

    fleet.restart_router(["--policy", "round-robin"].map(str::to_owned).to_vec()).await?;
    eprintln!("The same traffic again, sent round-robin ...");
    let round_robin = hold_conversations(&fleet, 2).await?;
    let round_robin = Report::of(round_robin.iter().map(|turn| &turn.answer));
    print_reports(args, &warm, &round_robin)?;
    if args.keep {
        fleet.restart_router(Vec::new()).await?;
        keep(&fleet).await?;
    }
    Ok(())
}

/// Runs every user's conversation, turn by turn, one request after the other; all texts depend on `seed`.
async fn hold_conversations(fleet: &Fleet, seed: u64) -> anyhow::Result<Vec<Turn>> {
    let client = ChatClient::new(&fleet.router.base_url(), None)?;
    let seed_of = |tenant: usize, user: usize, turn: usize| {
        seed * 1_000_000 + (tenant as u64) * 10_000 + (user as u64) * 100 + turn as u64
    };
    let mut conversations = vec![Vec::new(); N_TENANTS * N_USERS];
    let mut turns = Vec::new();
    for turn in 0..N_TURNS {
        for (conversation_idx, messages) in conversations.iter_mut().enumerate() {
            let (user, tenant) = (conversation_idx / N_TENANTS, conversation_idx % N_TENANTS);
            if turn == 0 {
                messages.push(Message::new("system", words(seed_of(tenant, 99, 99), SYSTEM_WORDS)));
            }
            messages.push(Message::new("user", words(seed_of(tenant, user, turn), USER_WORDS)));
            let answer = client.ask(messages, ANSWER_TOKENS).await?;
            messages.push(Message::new("assistant", answer.text.clone()));
            turns.push(Turn { tenant, user, turn, answer });
        }
    }
    Ok(turns)
}

#[expect(clippy::print_stdout, reason = "the table is what the command is for")]
fn print_turns(turns: &[Turn]) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let columns = ["tenant", "user", "turn", "worker", "slot", "route", "prompt", "predicted", "cached", "TTFT ms"];
    table.set_header(columns);
    for Turn { tenant, user, turn, answer } in turns {
        let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        table.add_row([
            char::from(b'A' + *tenant as u8).to_string(),
            (user + 1).to_string(),
            (turn + 1).to_string(),
            or_dash(&answer.worker),
            or_dash(&answer.slot),
            or_dash(&answer.route),
            answer.prompt_tokens.to_string(),
            or_dash(&answer.predicted_cached_tokens.map(|n| n.to_string())),
            answer.cached_tokens.to_string(),
            format!("{:.0}", answer.ttft_ms),
        ]);
    }
    for column_idx in 6..columns.len() {
        if let Some(column) = table.column_mut(column_idx) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}\n");
}

#[expect(clippy::print_stdout, reason = "the result is what the command is for")]
fn print_reports(args: &DemoArgs, warm: &Report, round_robin: &Report) -> anyhow::Result<()> {
    if args.json {
        let results = serde_json::json!({"predicted-ttft": warm, "round-robin": round_robin});
        println!("{}", serde_json::to_string_pretty(&results)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["policy", "prompt tokens", "cached", "prefix hit ratio", "TTFT ms p50", "TTFT ms p95"]);
    for (policy, report) in [("predicted-ttft (Warmpath)", warm), ("round-robin", round_robin)] {
        table.add_row([
            policy.to_owned(),
            report.prompt_tokens.to_string(),
            report.cached_tokens.to_string(),
            format!("{:.1} %", report.prefix_hit_ratio * 100.0),
            format!("{:.0}", report.ttft_ms_p50),
            format!("{:.0}", report.ttft_ms_p95),
        ]);
    }
    println!("{table}");
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the lines are there to be copied")]
async fn keep(fleet: &Fleet) -> anyhow::Result<()> {
    let base_url = fleet.router.base_url();
    let admin_url = fleet.router.admin_url()?;
    println!("\nThe fleet stays up until Ctrl-C. Try:\n");
    println!("curl {base_url}/v1/models");
    println!(
        "curl -i {base_url}/v1/chat/completions -H 'Content-Type: application/json' \\\n  \
         -d '{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hello!\"}}],\"max_tokens\":32}}'"
    );
    println!("curl {admin_url}/metrics");
    println!("{admin_url}/fleet in a browser");
    for worker in &fleet.workers {
        println!("curl {}/slots", worker.base_url());
    }
    tokio::signal::ctrl_c().await.context("waiting for Ctrl-C")
}
