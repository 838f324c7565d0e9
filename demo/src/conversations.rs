//! `warmpath-demo`: a router and three workers on loopback, some conversations, and the reuse of their prefixes.
//!
//! The same conversations run twice, with prefix-aware and with round-robin routing. The system prompts of each run
//! begin with a different day, so that the second run reuses no state of the first.

mod script;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use comfy_table::{Table, presets};

use self::script::{N_TURNS, N_USERS, TENANTS};
use crate::client::{Answer, ChatClient, Message};
use crate::fleet::{Fleet, FleetSpec, bin_dir};
use crate::model::real::ModelChoice;
use crate::models_on_demand::{self, JsonOutput};
use crate::summary::Summary;

/// Starts a router and three workers, holds conversations through them and shows the reuse.
#[derive(Debug, Parser)]
#[command(name = "warmpath-demo", version)]
pub struct DemoArgs {
    /// Model that the workers serve: a GGUF file, `smollm2` (SmolLM2-135M-Instruct, fetched once) or `made` (made by
    /// code: its answers are noise). The default is smollm2, or made if smollm2 cannot be fetched.
    #[arg(long, value_name = "FILE|NAME")]
    model: Option<ModelChoice>,
    /// Folder that holds warmpath-worker and warmpath-router. The default is this program's folder.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Keep the fleet running afterwards, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Print the results as JSON.
    #[arg(long, conflicts_with = "keep")]
    json: bool,
    /// Instead, load one of two models made by code at a time, and continue a conversation after a swap.
    #[arg(long, conflicts_with_all = ["model", "keep"])]
    models: bool,
}

/// Workers of the demo.
const N_WORKERS: usize = 3;
/// Most tokens of an answer.
const ANSWER_TOKENS: u32 = 32;
/// Most characters of an answer that are shown.
const SHOWN_CHARS: usize = 90;

/// Function that shows an answer.
type Show = fn(&Turn);

/// One answered question.
struct Turn {
    tenant: &'static str,
    user: usize,
    turn: usize,
    question: &'static str,
    answer: Answer,
}

/// Runs the demo.
///
/// Errors: a process that does not start, a request that fails.
pub async fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let bin_dir = bin_dir(args.bin_dir.as_deref())?;
    if args.models {
        return models_on_demand::run(&bin_dir, if args.json { JsonOutput::Yes } else { JsonOutput::No }).await;
    }
    let worker_args = ["--slots", "4", "--threads", "1", "--ctx-size", "16384"].map(str::to_owned).to_vec();
    let (name, model) = model(args.model.as_ref())?;
    eprintln!("Starting {N_WORKERS} workers with {name} and one router ...");
    let spec = FleetSpec { bin_dir, model, n_workers: N_WORKERS, worker_args, router_args: Vec::new() };
    let mut fleet = Fleet::start(spec).await?;

    eprintln!(
        "{} tenants with a system prompt each, {N_USERS} users of each, {N_TURNS} turns. Each request goes to the worker that answers soonest:\n",
        TENANTS.len()
    );
    let warm = hold_conversations(&fleet, "Tuesday", if args.json { |_| {} } else { print_turn }).await?;

    fleet.restart_router(["--policy", "round-robin"].map(str::to_owned).to_vec()).await?;
    eprintln!("The same conversations again, each request sent to the next worker in turn ...\n");
    let round_robin = hold_conversations(&fleet, "Thursday", |_| {}).await?;
    print_reports(args, &warm, &round_robin)?;
    if args.keep {
        fleet.restart_router(Vec::new()).await?;
        keep(&fleet).await?;
    }
    Ok(())
}

/// Returns the model to serve: its name and its file.
fn model(choice: Option<&ModelChoice>) -> anyhow::Result<(String, PathBuf)> {
    if let Some(choice) = choice {
        return Ok((choice.to_string(), choice.file()?));
    }
    match ModelChoice::Smollm2.file() {
        Ok(file) => Ok((ModelChoice::Smollm2.to_string(), file)),
        Err(error) => {
            eprintln!("No SmolLM2 ({error}): serving a model made by code, whose answers are noise.");
            Ok((ModelChoice::Made.to_string(), ModelChoice::Made.file()?))
        }
    }
}

/// Runs every user's conversation, turn by turn and one request at a time; returns the summary of all answers.
async fn hold_conversations(fleet: &Fleet, day: &str, show: Show) -> anyhow::Result<Summary> {
    let client = ChatClient::new(&fleet.router.base_url(), None)?;
    let users = (0..N_USERS).flat_map(|user| TENANTS.iter().map(move |tenant| (tenant, user)));
    let mut conversations: Vec<_> =
        users.map(|(tenant, user)| (tenant, user, vec![Message::new("system", tenant.system(day))])).collect();
    let mut answers = Vec::new();
    for turn in 0..N_TURNS {
        for (tenant, user, messages) in &mut conversations {
            let question = tenant.users[*user][turn];
            messages.push(Message::new("user", question));
            let answer = client.ask(messages, ANSWER_TOKENS).await?;
            messages.push(Message::new("assistant", answer.text.clone()));
            let turn = Turn { tenant: tenant.name, user: *user, turn, question, answer };
            show(&turn);
            answers.push(turn.answer);
        }
    }
    Ok(Summary::of(&answers))
}

#[expect(clippy::print_stdout, reason = "the conversation is the command's output")]
fn print_turn(Turn { tenant, user, turn, question, answer }: &Turn) {
    let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    println!("{tenant}, user {}, turn {}: {question}", user + 1, turn + 1);
    println!("    {}", shown(&answer.text));
    println!(
        "    {}, slot {}, {}: {} of {} prompt tokens cached ({} predicted), TTFT {:.0} ms\n",
        or_dash(&answer.worker),
        or_dash(&answer.slot),
        or_dash(&answer.route),
        answer.cached_tokens,
        answer.prompt_tokens,
        or_dash(&answer.predicted_cached_tokens.map(|n| n.to_string())),
        answer.ttft_ms
    );
}

/// Returns an answer's first sentence, or as many of its words as fit on a line.
fn shown(answer: &str) -> String {
    let line = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = line.find(". ").map_or(line.as_str(), |end| &line[..=end]);
    match sentence.char_indices().nth(SHOWN_CHARS) {
        None => sentence.to_owned(),
        Some((end, _)) => {
            let words = &sentence[..end];
            format!("{} ...", words.rsplit_once(' ').map_or(words, |(whole, _)| whole))
        }
    }
}

#[expect(clippy::print_stdout, reason = "the result is the command's output")]
fn print_reports(args: &DemoArgs, warm: &Summary, round_robin: &Summary) -> anyhow::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_shown_by_its_first_sentence_or_the_words_that_fit() {
        assert_eq!(shown("We open\n at 9.  Not on Sunday."), "We open at 9.");
        assert_eq!(shown("At 9"), "At 9");
        assert_eq!(shown(&"words ".repeat(40)), format!("{} ...", ["words"; 15].join(" ")));
        assert_eq!(shown(&"é".repeat(200)), format!("{} ...", "é".repeat(SHOWN_CHARS)));
    }

    #[test]
    fn system_prompts_of_different_days_differ_from_the_first_words_on() {
        for tenant in &TENANTS {
            assert!(tenant.system("Monday").starts_with("Today is Monday. You are"));
            assert!(tenant.system("Monday").split_whitespace().count() > 300);
        }
    }
}
