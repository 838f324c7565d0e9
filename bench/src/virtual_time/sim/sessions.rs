//! `sim --sessions`: recorded sessions of coding agents in a closed loop, on machines with published speeds.
//!
//! A session's next request comes its pause after the response in the simulation. So many sessions are active at once;
//! when one ends, the next begins. Sub-agents' requests come between those of their parent, in the recorded order.
//!
//! Assumption: sessions with the same sizes of tools and system text have the same tools and system text, the head of
//! their prompts, although the recorded ids are local to each session.

mod outcome;
mod reader;

use std::ops::Range;
use std::path::{Path, PathBuf};

use self::outcome::SessionsOutcome;
use super::machine::Machine;
use super::policy::Policy;
use super::trace::Trace;
use super::{SimArgs, worker, world};
use crate::output::names;
use crate::virtual_time::simulated::kv::Eviction;

/// Time between the beginnings of the first sessions. Units: seconds.
///
/// Source: people begin their work in different minutes; a cold start of all at once is a queue that no day has.
const FIRST_SESSIONS_EVERY_S: f64 = 60.0;

/// Flags of `sim --sessions`.
#[derive(Debug, Clone, clap::Args)]
pub struct SessionsArgs {
    /// Sessions to run in a closed loop: one JSON object a line with tools, system, block and requests.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "trace", "shape", "requests", "spread", "bursts", "block_tokens", "cache_share", "load", "prefill_rate",
        "speeds", "slots", "decode_step_ms", "kv_token_bytes", "ttft_limit_ms", "ablation",
    ])]
    pub sessions: Option<PathBuf>,
    /// Sessions that are active at once.
    #[arg(long, default_value_t = 32, requires = "sessions")]
    pub active: usize,
    /// Machine of each worker.
    #[arg(long, default_value = "gpu-8b", requires = "sessions")]
    pub machine: Machine,
    /// RAM of all workers together, as a share of the active sessions' state: the mean of their longest prompts.
    #[arg(long, default_value_t = 0.3, requires = "sessions")]
    pub ram_share: f64,
    /// Disk of all workers together, as a share of the same state; 0 for none.
    #[arg(long, default_value_t = 0.0, requires = "sessions")]
    pub disk_share: f64,
    /// Size of a checkpoint of a model that resumes only at checkpoints, as the number of tokens whose KV state is as
    /// large; none for full attention.
    #[arg(long, value_name = "TOKENS", requires = "sessions")]
    pub checkpoint_tokens: Option<u32>,
    /// Orders in which workers evict; every policy runs with each.
    #[arg(long, value_delimiter = ',', default_value = "arc", requires = "sessions")]
    pub eviction: Vec<Eviction>,
}

/// Recorded sessions as a trace in a closed loop.
#[derive(Debug, Clone, PartialEq)]
pub struct Sessions {
    /// Requests of all sessions.
    pub trace: Trace,
    /// Requests of each session.
    pub ranges: Vec<Range<usize>>,
    /// Prompt tokens of each request that no request before it has, in the order of the trace.
    pub new_tokens: Vec<u32>,
}

impl Sessions {
    /// Returns the mean of the sessions' longest prompts. Units: blocks.
    pub fn state_blocks(&self) -> f64 {
        let longest = |range: &Range<usize>| self.trace.requests[range.clone()].iter().map(|r| r.ids().len()).max();
        let n_blocks: usize = self.ranges.iter().filter_map(longest).sum();
        n_blocks as f64 / self.ranges.len() as f64
    }
}

/// Runs the sessions of a file under each policy with each order of eviction, and prints the results.
///
/// Errors: a file that has no sessions in this format; numbers that do not describe a fleet.
pub(super) fn run(args: &SimArgs, path: &Path) -> anyhow::Result<()> {
    let SessionsArgs { active, eviction, .. } = &args.sessions;
    let sessions = reader::read(path, *active, args.seed)?;
    let cases = args.policies().into_iter().flat_map(|policy| eviction.iter().map(move |order| (policy, *order)));
    let outcomes = cases.map(|(policy, order)| simulate(args, &sessions, policy, order));
    let outcomes = outcomes.collect::<anyhow::Result<Vec<_>>>()?;
    args.figures.show(&outcome::figures(&outcomes, args.routers.max(1)), "routers", "policy, eviction")
}

/// Runs sessions once.
///
/// Errors: numbers that do not describe a fleet.
pub(super) fn simulate(
    args: &SimArgs,
    sessions: &Sessions,
    policy: Policy,
    eviction: Eviction,
) -> anyhow::Result<SessionsOutcome> {
    let SessionsArgs { active, machine, ram_share, disk_share, checkpoint_tokens, .. } = args.sessions;
    anyhow::ensure!(args.workers > 0 && active > 0, "a fleet has workers, and sessions are active");
    let is_share = |share: f64| share.is_finite() && share >= 0.0;
    anyhow::ensure!(is_share(ram_share) && is_share(disk_share), "a share of the state is 0 or more");
    let blocks_max = [ram_share, disk_share].map(|share| {
        let n_blocks = share * active as f64 * sessions.state_blocks() / args.workers as f64;
        n_blocks.round() as u64
    });
    let block_tokens = sessions.trace.block_tokens;
    let checkpoint_blocks = checkpoint_tokens.map(|n_tokens| u64::from(n_tokens.div_ceil(block_tokens)));
    let worker = worker::Shape { checkpoint_blocks, ..machine.worker(blocks_max, block_tokens, eviction) };
    let scene = args.scene(policy, vec![worker; args.workers], machine.kv_token_bytes())?;
    let history = world::run(&sessions.trace, &scene);
    let name = format!("{policy}, {}", names::name(eviction));
    Ok(outcome::outcome(name, sessions, &worker, machine.kv_token_bytes(), &history))
}

#[cfg(test)]
mod tests;
