//! `warmpath-demo --models`: two models made by code, of which one is loaded at a time, and a conversation that
//! continues after a swap.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use comfy_table::{Table, presets};
use serde::Serialize;
use warmpath_common::host::{HostSummary, ModelState, SUMMARY_PATH};

use crate::client::{ChatClient, Message};
use crate::fleet::{Server, free_addresses};
use crate::model::Preset;
use crate::model::cache::cached_model;

/// Longest time until the router and the host listen.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Sentences of the first message, of about 4,000 tokens together.
const N_SENTENCES: usize = 290;
/// Most tokens of an answer.
const ANSWER_TOKENS: u32 = 16;

/// A turn of the demo.
#[derive(Debug, Serialize)]
struct Turn {
    model: &'static str,
    prompt_tokens: u64,
    reused_tokens: u64,
    ttft_ms: f64,
    /// Time that loading the model took, within `ttft_ms`.
    load_ms: u64,
}

/// Holds a conversation with model A, one with model B, and continues the first one; prints a line for each turn.
///
/// Errors: a process that does not start, a request that fails.
#[expect(clippy::print_stdout, reason = "the result is the command's output")]
pub async fn run(bin_dir: &Path, is_json: JsonOutput) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    eprintln!("Making two models, and starting a router and a host that loads one of them at a time ...");
    let mut preset = "[*]\nctx-size = 8192\nparallel = 1\ncache-ram = 256\n".to_owned();
    for (name, seed) in [("a", 1), ("b", 2)] {
        preset += &format!("[{name}]\nmodel = {}\n", cached_model(Preset::Bench, seed, dir.path())?.display());
    }
    let preset_file = dir.path().join("models.ini");
    std::fs::write(&preset_file, preset)?;
    let [listen, admin, host] = free_addresses()?;
    let flags = format!("serve --models-max 1 --listen {listen} --admin-listen {admin} --host-listen {host}");
    let mut args: Vec<String> = flags.split(' ').map(str::to_owned).collect();
    for (flag, path) in [("--models-preset", preset_file), ("--models-cache", dir.path().join("kv"))] {
        args.extend([flag.to_owned(), path.to_str().context("a path")?.to_owned()]);
    }
    let mut serving = Server::start_at("warmpath", &bin_dir.join("warmpath"), &args, listen).await?;
    serving.answers("/livez", START_TIMEOUT).await?;
    let turns = turns(&serving.base_url(), &format!("http://{host}")).await?;
    serving.terminate(START_TIMEOUT).await?;
    if is_json == JsonOutput::Yes {
        println!("{}", serde_json::to_string_pretty(&turns)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["turn", "model", "prompt tokens", "reused", "TTFT ms", "of which load ms"]);
    for (turn, Turn { model, prompt_tokens, reused_tokens, ttft_ms, load_ms }) in (1..).zip(&turns) {
        let (ttft_ms, load_ms) = (format!("{ttft_ms:.0}"), load_ms.to_string());
        let (prompt_tokens, reused_tokens) = (prompt_tokens.to_string(), reused_tokens.to_string());
        table.add_row([turn.to_string(), (*model).to_owned(), prompt_tokens, reused_tokens, ttft_ms, load_ms]);
    }
    println!("{table}");
    Ok(())
}

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonOutput {
    /// JSON.
    Yes,
    /// A table.
    No,
}

async fn turns(base_url: &str, host_url: &str) -> anyhow::Result<Vec<Turn>> {
    let mut conversation = vec![Message::new("user", text("Bicycle"))];
    let other = [Message::new("user", text("Library"))];
    let (mut turns, http) = (Vec::new(), reqwest::Client::builder().no_proxy().build()?);
    for model in ["a", "b", "a"] {
        let client = ChatClient::new(base_url, Some(model.to_owned()))?;
        let messages = if model == "a" { &conversation[..] } else { &other };
        let answer = client.ask(messages, ANSWER_TOKENS).await?;
        let summary: HostSummary = http.get(format!("{host_url}{SUMMARY_PATH}")).send().await?.json().await?;
        let load_ms = match summary.model(model).map(|model| &model.state) {
            Some(ModelState::Loaded { load_ms, .. }) => *load_ms,
            state => anyhow::bail!("model {model} has answered and is {state:?}"),
        };
        turns.push(Turn {
            model,
            prompt_tokens: answer.prompt_tokens,
            reused_tokens: answer.cached_tokens,
            ttft_ms: answer.ttft_ms,
            load_ms,
        });
        if model == "a" {
            conversation.push(Message::new("assistant", answer.text));
            conversation.push(Message::new("user", "And the last one?"));
        }
    }
    Ok(turns)
}

fn text(topic: &str) -> String {
    (0..N_SENTENCES).map(|n| format!("{topic} number {n} is one of many. ")).collect()
}
