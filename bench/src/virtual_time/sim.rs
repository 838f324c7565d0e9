//! `warmpath-bench sim`: runs a fleet in virtual time on a trace, under any routing policy.
//!
//! Real processes are measured in `fleets`. The production decisions, `router/core` and `worker/core`, run
//! on a trace of prompts in Mooncake's format; only time is modelled. Results are compared with a single cache of the
//! whole fleet's size. `load` is the number of prompt tokens that arrive in a second, divided by the number that all
//! workers could compute if nothing were cached; the trace's times are stretched to reach it.
//! Agents' sessions run in a closed loop (`sessions`).

pub mod machine;
pub mod network;
pub mod outcome;
pub mod policy;
pub mod router;
pub mod sessions;
pub mod trace;
pub mod worker;
pub mod world;

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use self::network::Network;
use self::outcome::Outcome;
use self::policy::Policy;
use self::sessions::SessionsArgs;
use self::trace::shapes::TraceShape;
use self::trace::{Trace, lru, siblings};
use self::world::{FleetChange, FleetEvent, Scene};
use crate::output::figures::FiguresArgs;
use crate::virtual_time::simulated::kv::Eviction;

/// Flags of `sim`.
#[derive(Debug, Clone, clap::Args)]
pub struct SimArgs {
    /// Trace to run: one JSON object a line with timestamp (ms), input_length, output_length, hash_ids.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["shape", "sessions"])]
    pub trace: Option<PathBuf>,
    /// Made trace to run instead of a file.
    #[arg(long, value_name = "NAME", conflicts_with = "trace")]
    pub shape: Option<TraceShape>,
    /// Sessions that run in place of a trace.
    #[command(flatten)]
    pub sessions: SessionsArgs,
    /// Requests of a made trace.
    #[arg(long, default_value_t = 4000)]
    pub requests: usize,
    /// Dialogues of a made trace that begin in a second, for `--seconds`; the trace is not stretched to a load.
    #[arg(long, value_name = "RATE", requires = "seconds", conflicts_with_all = ["trace", "requests", "load"])]
    pub sessions_per_s: Option<f64>,
    /// Length of such a trace.
    #[arg(long, requires = "sessions_per_s")]
    pub seconds: Option<f64>,
    /// Tick of the trace's clock in seconds: each arrival is moved by a random part of it. Mooncake's traces tick every
    /// 3 s.
    #[arg(long, default_value_t = 0.0)]
    pub spread: f64,
    /// Bursts of 16 siblings, within 50 ms each, that come on top of the trace.
    #[arg(long, default_value_t = 0)]
    pub bursts: usize,
    /// Tokens in a block of the trace.
    #[arg(long, default_value_t = 512)]
    pub block_tokens: u32,
    /// Workers of the fleet.
    #[arg(long, default_value_t = 8)]
    pub workers: usize,
    /// Capacity of all workers' caches together, as a share of the trace's different blocks.
    #[arg(long, default_value_t = 0.2)]
    pub cache_share: f64,
    /// Prompt tokens that come, over those that the workers could compute without any cache.
    #[arg(long, default_value_t = 0.7)]
    pub load: f64,
    /// Policies by which workers are chosen, each in a run of its own.
    #[arg(long, value_delimiter = ',', default_value = "predicted-ttft")]
    pub policy: Vec<Policy>,
    /// Runs every policy and compares them.
    #[arg(long, conflicts_with_all = ["policy", "ablation"])]
    pub all_policies: bool,
    /// Runs our policy whole and without each of its terms.
    #[arg(long, conflicts_with = "policy")]
    pub ablation: bool,
    /// Routers, which share nothing but what workers announce.
    #[arg(long, default_value_t = 1)]
    pub routers: usize,
    /// Age at which a router learns what a worker holds, in seconds.
    #[arg(long, default_value_t = 0.005)]
    pub view_age: f64,
    /// Age at which a router learns how busy a worker is, in seconds.
    #[arg(long, default_value_t = 0.005)]
    pub load_age: f64,
    /// Seeds everything that is random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Prompt tokens that a worker computes in a second.
    #[arg(long, default_value_t = 10_000.0)]
    pub prefill_rate: f64,
    /// Speeds of the workers as multiples of the rate, in turn: `1,1,0.5` makes every third half as fast.
    #[arg(long, value_delimiter = ',', default_values_t = [1.0])]
    pub speeds: Vec<f64>,
    /// Slots of a worker.
    #[arg(long, default_value_t = 32)]
    pub slots: u16,
    /// Time of a step that decodes, in milliseconds.
    #[arg(long, default_value_t = 10.0)]
    pub decode_step_ms: f64,
    /// Lets workers come, empty: `WORKER@SECOND` or `FIRST-LAST@SECOND`, in the stretched trace's time.
    #[arg(long, value_name = "W@S", value_parser = workers_at)]
    pub join: Vec<(RangeInclusive<usize>, f64)>,
    /// Lets workers die with all that they have: `WORKER@SECOND` or `FIRST-LAST@SECOND`.
    #[arg(long, value_name = "W@S", value_parser = workers_at)]
    pub die: Vec<(RangeInclusive<usize>, f64)>,
    /// Lets workers become ten times slower: `WORKER@SECOND` or `FIRST-LAST@SECOND`.
    #[arg(long, value_name = "W@S", value_parser = workers_at)]
    pub slow: Vec<(RangeInclusive<usize>, f64)>,
    /// Bandwidth of the network over which workers fetch KV state from each other, in Gbit/s; none for no transfers.
    #[arg(long, value_name = "GBITS")]
    pub kv_gbits: Option<f64>,
    /// KV state of a token, in bytes; the default is that of an 8B model with 8 KV heads at f16.
    #[arg(long, default_value_t = 131_072)]
    pub kv_token_bytes: u64,
    /// Time to first token within which an answer counts as good, in milliseconds.
    #[arg(long, default_value_t = 5000.0)]
    pub ttft_limit_ms: f64,
    /// File for the figures.
    #[command(flatten)]
    pub figures: FiguresArgs,
}

/// Runs `warmpath-bench sim` and prints the results.
///
/// Errors: a trace that cannot be read; numbers that do not describe a fleet.
pub fn run(args: &SimArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.sessions.sessions {
        return sessions::run(args, path);
    }
    let outcomes = simulate(args, &args.policies())?;
    args.figures.show(&outcome::figures(&outcomes, args.routers.max(1)), "routers", "policy")
}

/// Runs the trace once under each policy.
///
/// Errors: a trace that cannot be read; numbers that do not describe a fleet.
pub fn simulate(args: &SimArgs, policies: &[Policy]) -> anyhow::Result<Vec<Outcome>> {
    let mut trace = read(args)?;
    anyhow::ensure!(args.spread.is_finite() && args.spread >= 0.0, "a tick is a time");
    trace.spread(args.spread, args.seed);
    let workers = fleet(args, &trace)?;
    if args.sessions_per_s.is_none() {
        stretch(&mut trace, args.load, &workers);
    }
    siblings::add(&mut trace, args.bursts)?;
    let n_blocks: u64 = workers.iter().map(|worker| worker.n_blocks_max).sum();
    let lru = lru::hits(&trace, usize::try_from(n_blocks)?);
    let limit = Duration::try_from_secs_f64(args.ttft_limit_ms / 1e3)?;
    let outcome = |policy: &Policy| -> anyhow::Result<Outcome> {
        let scene = args.scene(*policy, workers.clone(), args.kv_token_bytes)?;
        let history = world::run(&trace, &scene);
        Ok(outcome::outcome(&trace, &scene, &history, lru, limit))
    };
    policies.iter().map(outcome).collect()
}

impl SimArgs {
    /// Returns the policies to run.
    fn policies(&self) -> Vec<Policy> {
        match (self.all_policies, self.ablation) {
            (true, _) => Policy::COMPARED.to_vec(),
            (_, true) => Policy::ablated(),
            _ => self.policy.clone(),
        }
    }

    /// Returns the scene of these workers under a policy; a token's state has `kv_token_bytes`.
    fn scene(&self, policy: Policy, workers: Vec<worker::Shape>, kv_token_bytes: u64) -> anyhow::Result<Scene> {
        Ok(Scene {
            policy,
            workers,
            n_routers: self.routers.max(1),
            view_age: Duration::try_from_secs_f64(self.view_age)?,
            load_age: Duration::try_from_secs_f64(self.load_age)?,
            changes: changes(self)?,
            network: network(self.kv_gbits, kv_token_bytes)?,
            seed: self.seed,
        })
    }
}

/// Stretches the times of a trace so that it is this load for the workers.
fn stretch(trace: &mut Trace, load: f64, workers: &[worker::Shape]) {
    let capacity_per_s: f64 = workers.iter().map(|worker| worker.prefill_tokens_per_s).sum();
    let duration_s = trace.duration_s();
    if duration_s > 0.0 {
        trace.stretch(trace.prompt_tokens() as f64 / (load * capacity_per_s) / duration_s);
    }
}

fn read(args: &SimArgs) -> anyhow::Result<Trace> {
    match (&args.trace, args.shape, args.sessions_per_s.zip(args.seconds)) {
        (Some(path), ..) => Trace::read(path, args.block_tokens),
        (None, Some(shape), None) => shape.trace(args.requests, args.seed),
        (None, Some(shape), Some((sessions_per_s, seconds))) => {
            let are_positive = sessions_per_s.is_finite() && sessions_per_s > 0.0 && seconds.is_finite();
            anyhow::ensure!(are_positive && seconds > 0.0, "a rate and a time are more than 0");
            shape.trace_of_sessions(sessions_per_s, seconds, args.seed)
        }
        (None, None, _) => anyhow::bail!("--trace, --shape or --sessions says what to run"),
    }
}

fn fleet(args: &SimArgs, trace: &Trace) -> anyhow::Result<Vec<worker::Shape>> {
    anyhow::ensure!(args.workers > 0 && args.slots > 0, "a fleet has workers, a worker has slots");
    anyhow::ensure!(args.load > 0.0 && args.prefill_rate > 0.0, "load and rate are more than 0");
    anyhow::ensure!(args.speeds.iter().all(|speed| *speed > 0.0), "a speed is more than 0");
    let n_blocks = args.cache_share * trace.n_unique_blocks() as f64 / args.workers as f64;
    let shape = |(_, speed): (usize, &f64)| worker::Shape {
        n_slots: args.slots,
        n_blocks_max: (n_blocks.round() as u64).max(1),
        disk: None,
        eviction: Eviction::Arc,
        prefill_tokens_per_s: args.prefill_rate * speed,
        half_speed_tokens: f64::INFINITY,
        decode_step_ms: args.decode_step_ms / speed,
        restore_ms_per_token: worker::RESTORE_MS_PER_TOKEN,
        checkpoint_blocks: None,
    };
    Ok((0..args.workers).zip(args.speeds.iter().cycle()).map(shape).collect())
}

fn network(kv_gbits: Option<f64>, bytes_per_token: u64) -> anyhow::Result<Option<Network>> {
    let Some(gbits) = kv_gbits else { return Ok(None) };
    anyhow::ensure!(gbits.is_finite() && gbits > 0.0, "a bandwidth is more than 0");
    Ok(Some(Network { bytes_per_ms: gbits * 1e9 / 8.0 / 1e3, bytes_per_token }))
}

fn changes(args: &SimArgs) -> anyhow::Result<Vec<FleetChange>> {
    let joins = args.join.iter().map(|change| (change, FleetEvent::Joins));
    let dies = args.die.iter().map(|change| (change, FleetEvent::Dies));
    let slows = args.slow.iter().map(|change| (change, FleetEvent::Slows));
    let mut changes = Vec::new();
    for ((workers, at_s), what) in joins.chain(dies).chain(slows) {
        anyhow::ensure!(*workers.end() < args.workers, "there is no worker {}", workers.end());
        let at = Duration::try_from_secs_f64(*at_s)?;
        changes.extend(workers.clone().map(|worker| FleetChange { worker, at, what }));
    }
    changes.sort_by_key(|change| change.at);
    Ok(changes)
}

fn workers_at(text: &str) -> anyhow::Result<(RangeInclusive<usize>, f64)> {
    let (workers, second) = text.split_once('@').context("expected WORKER@SECOND or FIRST-LAST@SECOND")?;
    let (first, last) = workers.split_once('-').unwrap_or((workers, workers));
    let workers = first.parse()?..=last.parse()?;
    anyhow::ensure!(!workers.is_empty(), "the first worker is behind the last");
    Ok((workers, second.parse()?))
}

#[cfg(test)]
mod tests;
