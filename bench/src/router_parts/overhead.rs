//! `warmpath-bench overhead`: the latency that the router and other gateways add to a request, in front of workers that
//! answer immediately.
//!
//! Routing quality is measured in `sim` and `fleets`. wrk holds some connections and sends chats of a few sizes as fast
//! as they are answered. Each chat is new in its last message only (*seen*), like the turns of a conversation, or in
//! every message (*new*). With streamed answers the router is measured with and without what failover needs: the tokens
//! behind each event. All programs share one machine's processors, so only figures of one run can be compared with
//! each other.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde::Deserialize;
use serde_json::Value as Json;
use tokio::task::JoinSet;

use crate::fleet::{Server, bin_dir};
use crate::inputs::corpora::{Corpus, TextKind};
use crate::output::figures::{Figures, FiguresArgs, Measure, Row, Unit};
use crate::servers::fake_worker::{Answers, FakeWorker, Likeness};
use crate::servers::peers::{self, Gateway};

/// Number of fake workers.
const N_WORKERS: u64 = 3;
/// Approximate size of a conversation's message. Units: bytes.
const MESSAGE_BYTES: usize = 2048;
/// Flags of a router whose streams are not continued at another worker.
const WITHOUT_FAILOVER: [&str; 2] = ["--failover-max", "0"];
/// Placeholder in a body for the new text of each request.
const MARK: &str = "\u{1}";

/// Flags of `overhead`.
#[derive(Debug, Args)]
pub struct OverheadArgs {
    /// GGUF file whose vocabulary and template the router uses.
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Folder that holds warmpath-worker and warmpath-router. The default is this program's folder.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Gateways to compare with; they are fetched first where they are missing.
    #[arg(long, value_enum, value_delimiter = ',')]
    against: Vec<Gateway>,
    /// Sizes of a chat, in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32, 128])]
    sizes: Vec<usize>,
    /// Kind of the chats' text.
    #[arg(long, value_enum, default_value_t = TextKind::Rust)]
    text: TextKind,
    /// Tokens of each answer, which is then a stream. The default is whole answers.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    stream_tokens: u32,
    /// Connections of wrk.
    #[arg(long, default_value_t = 8)]
    connections: u16,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u16,
    /// Rounds: in each all are measured in turn, and the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    figures: FiguresArgs,
}

/// Part of a chat that is new in each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Freshness {
    /// The last message.
    Seen,
    /// Every message.
    New,
}

impl fmt::Display for Freshness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seen => "seen",
            Self::New => "new",
        })
    }
}

/// A server that is measured.
struct Target {
    name: String,
    url: String,
}

/// Figures that wrk reports.
#[derive(Debug, Deserialize)]
struct Measured {
    requests_per_s: f64,
    latency_us_p50: f64,
    latency_us_p99: f64,
    n_failed: u64,
}

/// Measures and prints.
///
/// Errors: a process that does not start; a gateway that does not respond to every request with 200.
pub async fn run(args: &OverheadArgs) -> anyhow::Result<()> {
    peers::fetch_wrk()?;
    peers::fetch(&args.against)?;
    let folder = tempfile::tempdir()?;
    let bin_dir = bin_dir(args.bin_dir.as_deref())?;
    let likeness = Likeness::of(&bin_dir, &args.model).await?;
    let mut tasks = JoinSet::new();
    let mut workers = Vec::new();
    let answers = if args.stream_tokens == 0 { Answers::Whole } else { Answers::Streamed(args.stream_tokens) };
    for uid in 1..=N_WORKERS {
        workers.push(FakeWorker::new(uid, answers.clone(), &likeness).serve(&mut tasks).await?);
    }
    let router = start_router(&bin_dir, &workers, &[]).await?;
    let without_failover = match args.stream_tokens {
        0 => None,
        _ => Some(start_router(&bin_dir, &workers, &WITHOUT_FAILOVER).await?),
    };
    let addresses = workers.iter().map(|url| address(url)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut gateways = Vec::new();
    for gateway in &args.against {
        gateways.push((*gateway, gateway.start(&addresses).await.with_context(|| format!("starting {gateway}"))?));
    }
    let target = |name: &str, url: String| Target { name: name.to_owned(), url };
    let mut targets = vec![target("nothing", workers[0].clone()), target("warmpath-router", router.base_url())];
    if let Some(router) = &without_failover {
        targets.push(target(&format!("warmpath-router {}", WITHOUT_FAILOVER.join(" ")), router.base_url()));
    }
    targets.extend(gateways.iter().map(|(gateway, running)| target(&gateway.to_string(), running.base_url())));
    let figures = measure_all(args, &targets, likeness.model_name(), folder.path()).await;
    for (_, running) in gateways {
        running.stop().await?;
    }
    args.figures.show(&figures?, "chat", "through")
}

fn address(url: &str) -> anyhow::Result<SocketAddr> {
    url.strip_prefix("http://").unwrap_or(url).parse().with_context(|| format!("reading the address of {url}"))
}

async fn start_router(bin_dir: &Path, workers: &[String], flags: &[&str]) -> anyhow::Result<Server> {
    let mut router_args: Vec<String> = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
        .iter()
        .chain(flags)
        .map(|&flag| flag.to_owned())
        .collect();
    router_args.extend(workers.iter().flat_map(|url| ["--worker".to_owned(), url.clone()]));
    let mut router = Server::start("router", &bin_dir.join("warmpath-router"), &router_args).await?;
    router.ready(std::time::Duration::from_secs(60)).await?;
    Ok(router)
}

async fn measure_all(args: &OverheadArgs, targets: &[Target], model: &str, folder: &Path) -> anyhow::Result<Figures> {
    let mut figures = Figures::default();
    let corpus = args.text.corpus()?;
    for &kib in &args.sizes {
        for history in [Freshness::Seen, Freshness::New] {
            let script = folder.join(format!("{kib}-{history}.lua"));
            std::fs::write(&script, lua_script(&body(model, args.stream_tokens, kib << 10, history, &corpus)))?;
            for _ in 0..args.rounds.max(1) {
                for Target { name, url } in targets {
                    let measurement = wrk(args, &script, url).await.with_context(|| format!("through {name}"))?;
                    anyhow::ensure!(
                        measurement.n_failed == 0,
                        "{} requests through {name} failed",
                        measurement.n_failed
                    );
                    let row = Row::new(format!("{kib} KiB, {history}"), name.as_str());
                    let samples = [
                        Measure::higher("requests/s", Unit::RequestsPerS).sample(measurement.requests_per_s),
                        Measure::lower("latency p50", Unit::Ms).sample(measurement.latency_us_p50 / 1e3),
                        Measure::lower("latency p99", Unit::Ms).sample(measurement.latency_us_p99 / 1e3),
                    ];
                    figures.add_samples(&row, samples);
                }
            }
        }
    }
    Ok(figures)
}

async fn wrk(args: &OverheadArgs, script: &Path, url: &str) -> anyhow::Result<Measured> {
    let mut command = tokio::process::Command::from(peers::wrk());
    command.args(["--threads", "1", "--connections", &args.connections.to_string()]);
    command.args(["--duration", &format!("{}s", args.seconds), "--timeout", "30s", "--script"]).arg(script).arg(url);
    let output = command.kill_on_drop(true).output().await.context("starting wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    anyhow::ensure!(output.status.success(), "wrk: {text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().rfind(|line| line.starts_with('{')).with_context(|| format!("wrk said: {text}"))?;
    Ok(serde_json::from_str(line)?)
}

/// Returns a chat of about `n_bytes`, with a placeholder where each request has new text; its answer is a stream of
/// `stream_tokens` unless that is 0.
fn body(model: &str, stream_tokens: u32, n_bytes: usize, history: Freshness, corpus: &Corpus) -> String {
    let n_messages = (n_bytes / MESSAGE_BYTES).max(2);
    let bytes_each = n_bytes / n_messages;
    let message = |n: usize| {
        let role = match n {
            0 => "system",
            n if n % 2 == 1 => "user",
            _ => "assistant",
        };
        let is_last = n + 1 == n_messages;
        let mark = if is_last || history == Freshness::New { MARK } else { "" };
        // The placeholder is no part of a text, and JSON's quotes are around both.
        let text = Json::String(corpus.sample(n as u64, bytes_each).replace(MARK, "")).to_string();
        format!(r#"{{"role":"{role}","content":"{mark} {}}}"#, &text[1..])
    };
    let messages: Vec<String> = (0..n_messages).map(message).collect();
    let (max_tokens, stream) = (stream_tokens.max(1), stream_tokens > 0);
    let options = format!(r#""max_tokens":{max_tokens},"temperature":0,"stream":{stream}"#);
    format!(r#"{{"model":"{model}","messages":[{}],{options}}}"#, messages.join(","))
}

/// Returns wrk's script: each request is the body with a new number in place of every placeholder; the last output is a
/// line of JSON.
fn lua_script(body: &str) -> String {
    // Lua's quotes have more equals signs than the text has in a row.
    let equals = "=".repeat(body.split(|c| c != '=').map(str::len).max().unwrap_or(0) + 1);
    let parts: Vec<String> = body.split(MARK).map(|part| format!("[{equals}[{part}]{equals}]")).collect();
    format!(
        r#"local parts = {{{parts}}}
local headers = {{["Content-Type"] = "application/json"}}
local n = math.floor((os.time() % 100000) * 1000000)
request = function()
  n = n + 1
  return wrk.format("POST", "/v1/chat/completions", headers, table.concat(parts, tostring(n)))
end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('{{"requests_per_s": %f, "latency_us_p50": %d, "latency_us_p99": %d, "n_failed": %d}}\n',
    summary.requests / summary.duration * 1e6, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"#,
        parts = parts.join(",")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_chat_is_json_of_about_its_size_and_new_where_it_says() {
        for (history, n_new) in [(Freshness::Seen, 1), (Freshness::New, 16)] {
            let made = TextKind::Made.corpus().expect("nothing is fetched");
            let body = body("m", 0, 32 << 10, history, &made);
            assert_eq!(body.matches(MARK).count(), n_new);
            assert!((24 << 10..36 << 10).contains(&body.len()), "{}", body.len());
            let body: Value = serde_json::from_str(&body.replace(MARK, "17")).expect("JSON");
            assert_eq!(body["messages"].as_array().map(Vec::len), Some(16));
            assert_eq!(body["messages"][15]["role"], "user");
        }
    }

    #[test]
    fn a_script_has_a_part_more_than_there_are_marks() {
        let script = lua_script(&format!("a{MARK}b{MARK}c==]"));
        assert!(script.starts_with("local parts = {[===[a]===],[===[b]===],[===[c==]]===]}"), "{script}");
    }
}
