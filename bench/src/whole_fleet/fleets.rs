//! `warmpath-bench fleets`: runs the same conversations with our fleet, under each policy and behind several routers,
//! and with llama-servers behind other gateways.
//!
//! The load itself is in `chat_load`; scenarios of our fleet alone are in `changes` and `transfer`. Every fleet has
//! the same number of servers, slots and threads, on the same machine, one fleet after the other. llama-server runs
//! with the setting that our worker's self-test chooses for the model and the machine. A round runs all fleets once,
//! with texts of its own.

mod changes;
mod transfer;

use std::fmt;
use std::path::Path;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde_json::Value;
use warmpath_router_core::routing::choose::Policy;

use crate::client::ChatClient;
use crate::fleet::{Fleet, FleetArgs};
use crate::output::figures::{Figures, FiguresArgs};
use crate::servers::peers::{self, Gateway};
use crate::whole_fleet::chat_load::{Answers, Shape, drive};

/// Flags of `fleets`.
#[derive(Debug, Args)]
pub struct FleetsArgs {
    /// Scenario to measure.
    #[arg(long, value_enum, default_value_t = Scenario::Load)]
    scenario: Scenario,
    #[command(flatten)]
    fleet: FleetArgs,
    /// Policies of our router; each is a fleet of its own.
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_values_t = [Policy::default()])]
    policies: Vec<Policy>,
    /// Numbers of routers in front of our fleet, which share no state; each number is a fleet of its own.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1])]
    routers: Vec<usize>,
    /// Gateways to put before llama-servers; these and llama-server are fetched or built first where they are missing.
    /// Without a value only our fleets run.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0.., default_values_t = Gateway::ALL)]
    against: Vec<Gateway>,
    #[command(flatten)]
    shape: Shape,
    /// Rounds, each with other texts.
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Bandwidth of the network between the workers in Gbit/s (`--kv-gbits` of the router), for transfer.
    #[arg(long, value_name = "GBITS", default_value_t = 10.0)]
    kv_gbits: f64,
    /// Seconds of load before each change.
    #[arg(long, default_value_t = 60)]
    before: u64,
    /// Seconds of load after a worker has joined, and after the last restart.
    #[arg(long, default_value_t = 30)]
    after: u64,
    #[command(flatten)]
    figures: FiguresArgs,
}

/// Scenario to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// The same conversations with every fleet.
    Load,
    /// Conversations with our fleet while a worker joins and while all restart, with and without transfers of KV state.
    Changes,
    /// TTFT of prompts whose prefix a busy worker of our fleet holds, and of prompts that no worker has seen.
    Transfer,
}

/// A fleet that takes part.
#[derive(Debug, Clone, Copy)]
enum Contender {
    /// Our workers and routers.
    Warmpath { policy: Policy, n_routers: usize },
    /// llama-servers behind a gateway.
    LlamaServers(Gateway),
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Warmpath { policy, n_routers } => {
                f.write_str("Warmpath")?;
                if policy != Policy::default() {
                    write!(f, ", {policy}")?;
                }
                if n_routers > 1 { write!(f, ", {n_routers} routers") } else { Ok(()) }
            }
            Self::LlamaServers(gateway) => write!(f, "llama-server behind {gateway}"),
        }
    }
}

impl FleetsArgs {
    /// Returns the router's flags with which workers fetch KV state from each other.
    fn transfer_flags(&self) -> Vec<String> {
        vec!["--kv-gbits".to_owned(), self.kv_gbits.to_string()]
    }

    /// Returns the fleets in the order in which they run; ours are first, since their workers choose the setting.
    fn contenders(&self) -> Vec<Contender> {
        let of_policy = |&policy| self.routers.iter().map(move |&n_routers| Contender::Warmpath { policy, n_routers });
        let theirs = self.against.iter().map(|&gateway| Contender::LlamaServers(gateway));
        self.policies.iter().flat_map(of_policy).chain(theirs).collect()
    }
}

/// Runs the scenario and prints the results.
///
/// Errors: a process that does not start, a request that fails.
pub async fn run(args: &FleetsArgs) -> anyhow::Result<()> {
    match args.scenario {
        Scenario::Load => compare(args).await,
        Scenario::Changes => changes::run(args).await,
        Scenario::Transfer => transfer::run(args).await,
    }
}

/// Runs the load with every fleet and prints the results.
async fn compare(args: &FleetsArgs) -> anyhow::Result<()> {
    peers::fetch(&args.against)?;
    let llama_server = (!args.against.is_empty()).then(peers::llama_server).transpose()?;
    let (mut figures, mut chosen) = (Figures::default(), None);
    for round in 0..args.rounds.max(1) {
        let shape = Shape { seed: args.shape.seed + round, ..args.shape.clone() };
        for contender in args.contenders() {
            let answers = match contender {
                Contender::Warmpath { policy, n_routers } => ours(args, &shape, policy, n_routers, &mut chosen).await,
                Contender::LlamaServers(gateway) => {
                    let (llama_server, chosen) =
                        llama_server.as_ref().zip(chosen.as_ref()).context("ours ran first")?;
                    theirs(args, &shape, gateway, llama_server, chosen).await
                }
            };
            answers.with_context(|| contender.to_string())?.record(&contender.to_string(), &mut figures);
        }
    }
    if let (Some(chosen), Some(_)) = (chosen, llama_server) {
        figures.notes.push(format!("llama-server gets {}", chosen.join(" ")));
    }
    args.figures.show(&figures, "", "fleet")
}

/// Returns the answers of our fleet, each turn through the next router, and stores the setting that its workers'
/// self-test chose for llama-server.
async fn ours(
    args: &FleetsArgs,
    shape: &Shape,
    policy: Policy,
    n_routers: usize,
    llama_server_args: &mut Option<[String; 3]>,
) -> anyhow::Result<Answers> {
    let fleet = Fleet::start(args.fleet.spec(vec!["--policy".to_owned(), policy.to_string()])?).await?;
    let mut replicas = Vec::new();
    while replicas.len() + 1 < n_routers {
        replicas.push(fleet.replica().await?);
    }
    let routers = std::iter::once(&fleet.router).chain(&replicas);
    let clients: Vec<_> =
        routers.map(|router| ChatClient::new(&router.base_url(), None)).collect::<anyhow::Result<_>>()?;
    *llama_server_args = Some(peers::llama_server_chosen(&fleet.workers[0].log())?);
    drive(&clients, shape).await
}

async fn theirs(
    args: &FleetsArgs,
    shape: &Shape,
    gateway: Gateway,
    llama_server: &Path,
    llama_server_args: &[String],
) -> anyhow::Result<Answers> {
    let spec = args.fleet.spec(Vec::new())?;
    let flags = [&args.fleet.flags(), llama_server_args].concat();
    let mut servers = Vec::new();
    for _ in 0..spec.n_workers {
        servers.push(peers::start_llama_server(llama_server, &spec.model, &flags).await?);
    }
    let addresses: Vec<_> = servers.iter().map(crate::fleet::Server::address).collect();
    let model = model_name(&servers[0].base_url()).await?;
    let running = gateway.start(&addresses).await?;
    let answers = drive(&[ChatClient::new(&running.base_url(), Some(model))?], shape).await;
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

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: FleetsArgs,
    }

    #[test]
    fn each_policy_number_of_routers_and_gateway_is_a_fleet() {
        let names = |flags: &[&str]| {
            let flags = ["fleets", "--model", "made"].iter().chain(flags);
            let contenders = Cli::try_parse_from(flags).expect("the flags are valid").args.contenders();
            contenders.iter().map(Contender::to_string).collect::<Vec<_>>().join("; ")
        };
        let behind = Gateway::ALL.map(|gateway| format!("llama-server behind {gateway}"));
        assert_eq!(names(&[]), format!("Warmpath; {}", behind.join("; ")));
        assert_eq!(names(&["--against", "smg", "--slots", "2"]), "Warmpath; llama-server behind SMG, cache_aware");
        assert_eq!(names(&["--against", "--slots", "2"]), "Warmpath");
        let ours = names(&["--against", "--policies", "predicted-ttft,least-loaded", "--routers", "8,1"]);
        assert_eq!(ours, "Warmpath, 8 routers; Warmpath; Warmpath, least-loaded, 8 routers; Warmpath, least-loaded");
    }
}
