//! `warmpath-bench busy`: prefill and decode of the worker on a machine that also does something else, compared with
//! llama-server on the same model.
//!
//! A server's fair share is its share of the processors if the system divides them equally: with busy loops, that of a
//! thread on each processor beside the loops; in a group with a limit, the limit; beside other servers, one share each.
//! Each measurement follows a short request in the same situation, because a worker first measures the machine, too.
//! All servers of a situation run at the same time and are asked in turn, round by round, so that a noisy machine
//! affects all of them. Not here: quiet machines (`worker_bench`).

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use futures::future::try_join_all;

use crate::client::{ChatClient, Message};
use crate::fleet::Server;
use crate::inputs::prompts::words;
use crate::one_worker::worker_bench::contender::{self, Programs, ServerArgs, Setup};
use crate::output::figures::{Figures, FiguresArgs, Measure, Row, Unit};
use crate::servers::cgroup::{Cgroup, Controller};
use crate::servers::peers::{self, LOAD_TIMEOUT};
use crate::summary::median;

/// Context of a slot. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 2048;
/// Number of slots of each server.
const N_SLOTS: u16 = 4;
/// Length of each prompt. Units: words.
const PROMPT_WORDS: usize = 256;
/// Length of each response while decode is measured. Units: tokens.
const DECODE_TOKENS: u32 = 128;
/// Length of a response before that.
const WARM_UP_TOKENS: u32 = 32;

/// Flags of `busy`.
#[derive(Debug, Args)]
pub struct BusyArgs {
    #[command(flatten)]
    servers: ServerArgs,
    /// Situation to measure; may be repeated. The default is all; a limit needs root.
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<Scenario>,
    /// Number of busy loops.
    #[arg(long, value_name = "N", default_value_t = 4)]
    loops: usize,
    /// Processors of the group with a limit.
    #[arg(long, value_name = "N", default_value_t = 1.5)]
    limit: f64,
    /// Numbers of requests at a time.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    streams: Vec<u32>,
    /// Rounds of each measurement; the median counts.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    figures: FiguresArgs,
}

/// What the machine does besides serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Busy loops, as a compiler would be.
    Loops,
    /// A limit of processor time, as containers have it.
    Limit,
    /// A second server of the same kind that computes.
    TwoServers,
    /// Two further servers of the same kind that compute.
    ThreeServers,
}

impl Scenario {
    fn n_servers(self) -> usize {
        match self {
            Self::Loops | Self::Limit => 1,
            Self::TwoServers => 2,
            Self::ThreeServers => 3,
        }
    }
}

/// Kind of server with its number of threads.
struct Contender {
    name: &'static str,
    kind: contender::Contender,
    programs: Programs,
}

/// Servers of one kind.
struct Running {
    name: &'static str,
    servers: Vec<Server>,
    clients: Vec<ChatClient>,
}

/// Rates of one kind of server, by round. Units: tokens a second.
#[derive(Debug, Clone, Default)]
struct Rates {
    prefill: Vec<f64>,
    decode: Vec<f64>,
}

/// Busy loops, which end when this is dropped.
struct Loops(Vec<Child>);

/// Runs the scenarios and prints the table.
///
/// Errors: a server that does not start or answer; a limit that cannot be set.
pub async fn run(args: &BusyArgs) -> anyhow::Result<()> {
    let contenders = contenders(args).await?;
    let mut figures = Figures::default();
    let scenarios = if args.scenarios.is_empty() { Scenario::value_variants() } else { &args.scenarios };
    for &scenario in scenarios {
        let cgroup = (scenario == Scenario::Limit).then(|| Cgroup::make(Controller::Processors)).transpose()?;
        for &n_streams in &args.streams {
            measure(args, scenario, n_streams, &contenders, cgroup.as_ref(), &mut figures).await?;
        }
    }
    args.figures.show(&figures, "situation", "server")
}

/// Returns the servers to compare, with all threads and with one. The first start of a worker decides about attention
/// and buffers, on the quiet machine.
async fn contenders(args: &BusyArgs) -> anyhow::Result<Vec<Contender>> {
    let mut programs = args.servers.programs()?;
    let worker = programs.start(contender::Contender::Worker, &setup()).await?;
    programs.peer_chosen = peers::llama_server_chosen(&worker.log())?.to_vec();
    worker.stop().await?;
    let mut contenders = Vec::new();
    for (names, kind) in [
        (["worker", "worker, 1 thread"], contender::Contender::Worker),
        (["llama-server", "llama-server, 1 thread"], contender::Contender::PeerChosen),
    ] {
        if !kind.is_peer() || programs.peer.is_some() {
            for (name, threads) in names.into_iter().zip([programs.threads, 1]) {
                contenders.push(Contender { name, kind, programs: Programs { threads, ..programs.clone() } });
            }
        }
    }
    Ok(contenders)
}

fn setup() -> Setup {
    let worker_flags = ["--spec-type", "none"].map(str::to_owned).to_vec();
    Setup { n_slots: N_SLOTS, slot_context_tokens: SLOT_CONTEXT_TOKENS, worker_flags, ..Setup::default() }
}

impl Contender {
    async fn start(&self, cgroup: Option<&Cgroup>) -> anyhow::Result<(Server, ChatClient)> {
        let (mut program, mut args) = self.programs.command(self.kind, &setup())?;
        if let Some(cgroup) = cgroup {
            let (outer, outer_args) = cgroup.command(&program);
            (program, args) = (outer, outer_args.into_iter().chain(args).collect());
        }
        peers::start_warm(self.name, &program, &args).await
    }
}

/// Measures all contenders alone and in a scenario.
async fn measure(
    args: &BusyArgs,
    scenario: Scenario,
    n_streams: u32,
    contenders: &[Contender],
    cgroup: Option<&Cgroup>,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let n_processors = std::thread::available_parallelism()?.get() as f64;
    let (title, share) = match scenario {
        Scenario::Loops => {
            (format!("beside {} busy loops", args.loops), n_processors / (n_processors + args.loops as f64))
        }
        Scenario::Limit => (format!("in a group with {} processors", args.limit), (args.limit / n_processors).min(1.0)),
        _ => (format!("{} servers that compute", scenario.n_servers()), 1.0 / scenario.n_servers() as f64),
    };
    let mut running = Vec::new();
    for contender in contenders {
        let mut kind = Running { name: contender.name, servers: Vec::new(), clients: Vec::new() };
        for _ in 0..scenario.n_servers() {
            let (server, client) = contender.start(cgroup).await?;
            kind.servers.push(server);
            kind.clients.push(client);
        }
        running.push(kind);
    }
    let (mut alone, mut busy) = (vec![Rates::default(); running.len()], vec![Rates::default(); running.len()]);
    for round in 0..args.rounds.max(1) {
        for (kind, rates) in running.iter().zip(&mut alone) {
            rates.measure(&kind.clients[..1], 2 * round, n_streams).await?;
        }
        let loops = Loops::start(if scenario == Scenario::Loops { args.loops } else { 0 })?;
        if let Some(cgroup) = cgroup {
            cgroup.limit_processors(args.limit)?;
        }
        for (kind, rates) in running.iter().zip(&mut busy) {
            rates.measure(&kind.clients, 2 * round + 1, n_streams).await?;
        }
        cgroup.map_or(Ok(()), Cgroup::lift_limit)?;
        drop(loops);
    }
    let fair = |rates: &dyn Fn(&Rates) -> f64| alone.iter().take(2).map(rates).fold(0.0, f64::max) * share;
    eprintln!("{n_streams} streams, {title}: the fair share is {share:.2}");
    for ((kind, alone), busy) in running.iter().zip(&alone).zip(&busy) {
        let row = |case: &str| Row::new(format!("{n_streams} streams, {case}"), kind.name);
        for (row, rates) in [(row("alone"), alone), (row(&title), busy)] {
            figures.add(&row, Measure::higher("prefill", Unit::TokensPerS), &rates.prefill);
            figures.add(&row, Measure::higher("decode", Unit::TokensPerS), &rates.decode);
        }
        let shares = [
            ("prefill of the fair share", busy.prefill() / fair(&Rates::prefill)),
            ("decode of the fair share", busy.decode() / fair(&Rates::decode)),
        ];
        for (name, share) in shares {
            figures.add(&row(&title), Measure::higher(name, Unit::Share), &[share]);
        }
    }
    for mut server in running.into_iter().flat_map(|kind| kind.servers) {
        server.terminate(LOAD_TIMEOUT).await?;
    }
    Ok(())
}

impl Rates {
    fn prefill(&self) -> f64 {
        median(&self.prefill).unwrap_or_default()
    }

    fn decode(&self) -> f64 {
        median(&self.decode).unwrap_or_default()
    }

    /// Adds the rates of a server while all others of its kind compute the same. The prompts of each round are new.
    async fn measure(&mut self, clients: &[ChatClient], round: usize, n_streams: u32) -> anyhow::Result<()> {
        let ask = async |client: &ChatClient, n_tokens, other_text| {
            let requests = (0..n_streams).map(|stream| async move {
                let text = words(round as u64 * 1000 + other_text + u64::from(stream), PROMPT_WORDS);
                client.ask_exactly(&[Message::new("user", text)], n_tokens).await
            });
            let start = Instant::now();
            let answers = try_join_all(requests).await?;
            anyhow::Ok((start.elapsed().as_secs_f64(), answers))
        };
        try_join_all(clients.iter().map(|client| ask(client, WARM_UP_TOKENS, 500))).await?;
        let prefills = try_join_all(clients.iter().map(|client| ask(client, 1, 0))).await?;
        let rates = prefills.iter().map(|(took_s, answers)| {
            let computed_tokens: u64 = answers.iter().map(|answer| answer.prompt_tokens - answer.cached_tokens).sum();
            computed_tokens as f64 / took_s
        });
        self.prefill.push(rates.sum::<f64>() / clients.len() as f64);
        let answers = try_join_all(clients.iter().map(|client| ask(client, DECODE_TOKENS, 0))).await?;
        let rates = answers.iter().flat_map(|(_, answers)| answers).filter_map(|answer| Some(1e3 / answer.tpot_ms?));
        self.decode.push(rates.sum::<f64>() / clients.len() as f64);
        Ok(())
    }
}

impl Loops {
    /// Starts `n` busy loops.
    ///
    /// Errors: there is no shell.
    fn start(n: usize) -> anyhow::Result<Self> {
        let mut loops = Self(Vec::new());
        for _ in 0..n {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            loops.0.push(shell.spawn().context("starting a busy loop")?);
        }
        Ok(loops)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
