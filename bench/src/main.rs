//! `warmpath-bench`: subcommands that make models, drive load and measure.

use clap::{Parser, Subcommand};
use warmpath_bench::{
    agents, busy, chaos, fleets, index_bench, load, model, models, overhead, report, sim, speculation, tokenize,
    worker_bench,
};

/// The router's allocator, so that its prefix index is measured as it is deployed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Makes models for tests, drives load, measures.
#[derive(Debug, Parser)]
#[command(name = "warmpath-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Writes a GGUF model with made weights.
    Model(model::ModelArgs),
    /// Measures the router's prefix index and checks its answers.
    Index(index_bench::IndexArgs),
    /// Runs a fleet in virtual time on a trace of prompts, under any routing policy.
    Sim(sim::SimArgs),
    /// Drives any OpenAI endpoint at a rate, at a trace's times or with requests one after the other, and reports
    /// latencies, goodput and errors.
    Load(load::LoadArgs),
    /// Measures the latency that the router adds to a request, compared with other gateways, in front of workers that
    /// answer at once.
    Overhead(overhead::OverheadArgs),
    /// Measures the speed of tokenizing real text, compared with llama.cpp's, and checks that the tokens are the same.
    Tokenize(tokenize::TokenizeArgs),
    /// Holds the same conversations with our fleet, under each policy and behind several routers, and with
    /// llama-servers behind other gateways; also while workers join or restart, and with transfers of KV state.
    Fleets(fleets::FleetsArgs),
    /// Measures models on demand, with room for one, compared with llama-server's router mode on the same files.
    Models(models::ModelsArgs),
    /// Measures the worker's prompt-state cache, compared with llama-server on the same model.
    Worker(worker_bench::WorkerArgs),
    /// Measures the speed of answers with and without drafts, compared with llama-server on the same model.
    Speculation(speculation::SpeculationArgs),
    /// Sends the requests of coding agents and shows the reuse of their prompts, compared with llama-server on the same
    /// model.
    Agents(agents::AgentsArgs),
    /// Measures prefill and decode on a machine that also does something else, compared with llama-server on the same
    /// model.
    Busy(busy::BusyArgs),
    /// Kills, freezes, restarts and cuts off workers and routers under load, and checks every answer.
    Chaos(chaos::ChaosArgs),
    /// Runs the benchmarks in turn and writes a page with every figure, its command and its spread, and plots.
    Report(report::ReportArgs),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Model(args) => model::run(&args),
        Command::Index(args) => index_bench::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Load(args) => load::run(&args).await,
        Command::Overhead(args) => overhead::run(&args).await,
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Fleets(args) => fleets::run(&args).await,
        Command::Models(args) => models::run(&args).await,
        Command::Worker(args) => worker_bench::run(&args).await,
        Command::Speculation(args) => speculation::run(&args).await,
        Command::Agents(args) => agents::run(&args).await,
        Command::Busy(args) => busy::run(&args).await,
        Command::Chaos(args) => chaos::run(&args).await,
        Command::Report(args) => report::run(&args).await,
    }
}
