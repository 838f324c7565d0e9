//! `warmpath-bench chat`: many users of several tenants chat at once with one OpenAI endpoint; what they felt, summed up.
//!
//! Not here: a request's measurement (`client`), the sums (`report`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use comfy_table::{Table, presets};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use indicatif::{ProgressBar, ProgressStyle};

use crate::client::{Answer, ChatClient, Message};
use crate::prompts::words;
use crate::report::Report;

/// Is what `chat` is told on the command line.
#[derive(Debug, Clone, Args)]
pub struct ChatArgs {
    /// Server to drive, as http://host:port.
    #[arg(long, value_name = "URL")]
    url: String,
    /// Model to ask for. The default is the only one there.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Tenants, each with a system prompt of its own.
    #[arg(long, default_value_t = 3)]
    tenants: usize,
    /// Conversations of each tenant.
    #[arg(long, default_value_t = 6)]
    users: usize,
    /// Turns of each conversation.
    #[arg(long, default_value_t = 4)]
    turns: usize,
    /// Words of a system prompt.
    #[arg(long, default_value_t = 600)]
    system_words: usize,
    /// Words of a user's message.
    #[arg(long, default_value_t = 30)]
    user_words: usize,
    /// Tokens of an answer.
    #[arg(long, default_value_t = 32)]
    answer_tokens: u32,
    /// Conversations that go on at the same time.
    #[arg(long, default_value_t = 6)]
    concurrency: usize,
    /// Seed of all texts; another one finds nothing of an earlier run in any cache.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the load and prints its report.
///
/// Errors: the first request that fails.
#[expect(clippy::print_stdout, reason = "the report is what the command is for")]
pub async fn run(args: &ChatArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let answers = drive(args).await?;
    let report = Report::of(&answers);
    let requests_per_s = answers.len() as f64 / started.elapsed().as_secs_f64();
    if args.json {
        let mut value = serde_json::to_value(&report)?;
        value["requests_per_s"] = requests_per_s.into();
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["requests/s", "prompt tokens", "prefix hit ratio", "TTFT ms p50", "p95", "p99", "TPOT ms p50"]);
    table.add_row([
        format!("{requests_per_s:.2}"),
        report.prompt_tokens.to_string(),
        format!("{:.1} %", report.prefix_hit_ratio * 100.0),
        format!("{:.0}", report.ttft_ms_p50),
        format!("{:.0}", report.ttft_ms_p95),
        format!("{:.0}", report.ttft_ms_p99),
        format!("{:.1}", report.tpot_ms_p50),
    ]);
    println!("{table}");
    Ok(())
}

/// Holds every conversation, `concurrency` at a time, and returns all answers.
///
/// Errors: the first request that fails; conversations under way are given up.
async fn drive(args: &ChatArgs) -> anyhow::Result<Vec<Answer>> {
    let client = ChatClient::new(&args.url, args.model.clone())?;
    let n_conversations = args.tenants * args.users;
    let bar = Arc::new(ProgressBar::new((n_conversations * args.turns) as u64));
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} requests, {elapsed}")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let answers = stream::iter(0..n_conversations)
        .map(|conversation_idx| converse(args, &client, conversation_idx, &bar))
        .buffer_unordered(args.concurrency.max(1))
        .try_collect::<Vec<_>>()
        .await?;
    bar.finish_and_clear();
    Ok(answers.into_iter().flatten().collect())
}

async fn converse(
    args: &ChatArgs,
    client: &ChatClient,
    conversation_idx: usize,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Answer>> {
    let (user, tenant) = (conversation_idx / args.tenants, conversation_idx % args.tenants);
    let seed = args.seed * 1_000_000_000 + tenant as u64 * 10_000_000;
    let mut messages = vec![Message::new("system", words(seed, args.system_words))];
    let mut answers = Vec::with_capacity(args.turns);
    for turn in 0..args.turns {
        let text = words(seed + 1 + (user * args.turns + turn) as u64, args.user_words);
        messages.push(Message::new("user", text));
        let answer = client
            .ask(&messages, args.answer_tokens)
            .await
            .with_context(|| format!("tenant {tenant}, user {user}, turn {turn}"))?;
        messages.push(Message::new("assistant", answer.text.clone()));
        answers.push(answer);
        bar.inc(1);
    }
    Ok(answers)
}
