//! `warmpath-bench chaos`: a fleet of real processes under load and repeated faults.
//!
//! Every answer is compared with that of an undisturbed worker that reuses nothing. No stream may break, no request may
//! be lost while another worker could take it, every error must be one that a client can read, and the processes must
//! not grow. Not here: a fleet in virtual time (`sim`).

mod cases;
mod faults;
mod gauges;
mod liar;
mod load;
mod network;
pub mod reply;
mod site;
mod tables;
mod verdict;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum as _};
use indicatif::{ProgressBar, ProgressStyle};
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use serde::Serialize;

use self::faults::Fault;
use self::load::{Load, Tally};
use self::network::Network;
use self::site::{Fleet, Site};
use self::verdict::{Happened, Observed, Verdict};
use crate::fleet::bin_dir;
use crate::output::figures::FiguresArgs;
use crate::output::table::OutputArgs;

/// Flags of `chaos`.
#[derive(Debug, Clone, Args, Serialize)]
pub struct ChaosArgs {
    /// Minutes with faults, without the calm times before and after them.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Seconds from the start of one fault to that of the next.
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    every: f64,
    /// Kinds of faults. The default is every kind that is possible on this machine.
    #[arg(long, value_enum, value_delimiter = ',')]
    #[serde(skip)]
    faults: Vec<Fault>,
    /// Workers of the fleet.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=50))]
    workers: u8,
    /// Routers in front of them.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=50))]
    routers: u8,
    /// Requests at a time.
    #[arg(long, default_value_t = 8)]
    streams: usize,
    /// Tokens of an answer; turns of a conversation have a quarter.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(8..=1000))]
    answer_tokens: u32,
    /// Seed of the requests and of the order of faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Network of the processes; namespaces need root and iproute2.
    #[arg(long, value_enum, default_value_t = network::Choice::Auto)]
    #[serde(skip)]
    network: network::Choice,
    /// Folder that holds warmpath-worker and warmpath-router. The default is this program's folder.
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    bin_dir: Option<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    output: OutputArgs,
    #[command(flatten)]
    #[serde(skip)]
    figures: FiguresArgs,
}

/// Length of each calm time as a share of the faulty time, and its bounds. Units: seconds.
const CALM: (f64, f64, f64) = (0.1, 6.0, 30.0);

/// Runs the fleet, prints the result.
///
/// Errors: a broken invariant; a process that does not start; an interrupt.
pub async fn run(args: &ChaosArgs) -> anyhow::Result<()> {
    let bin_dir = bin_dir(args.bin_dir.as_deref())?;
    let network = Network::of(args.network, args.workers.into(), args.routers.into())?;
    let site = Site::prepare(network, bin_dir)?;
    let setting = tables::Setting::of(args, &site);
    let drive_args = args.clone();
    // Threads inherit the network of the one that starts them, so the clients have a runtime of their own.
    let drive = move || {
        let driving = std::thread::spawn(move || {
            site.network.enter()?;
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(async {
                tokio::select! {
                    verdict = drive(&drive_args, site) => verdict,
                    ended = ended() => Err(ended.err().map_or_else(|| anyhow::anyhow!("interrupted"), Into::into)),
                }
            })
        });
        driving.join()
    };
    let verdict = tokio::task::spawn_blocking(drive).await?;
    let verdict = verdict.map_err(|_| anyhow::anyhow!("the thread of the clients has panicked"))??;
    args.figures.write(&tables::figures(&setting, &verdict))?;
    let report = tables::Report { setting: &setting, verdict: &verdict };
    args.output.print(&report, &tables::text(&setting, &verdict))?;
    match verdict.broken.len() {
        0 => Ok(()),
        n => bail!("{n} invariants are broken"),
    }
}

/// Waits for a signal that ends the program, so that the run can clean up.
async fn ended() -> std::io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

/// Returns the possible faults, and those that are impossible on this machine, with the reasons.
fn available(args: &ChaosArgs, network: &Network) -> (Vec<Fault>, Vec<(Fault, &'static str)>) {
    let faults = if args.faults.is_empty() { Fault::value_variants() } else { args.faults.as_slice() };
    let (mut possible, mut impossible) = (Vec::new(), Vec::new());
    for fault in faults {
        match fault.obstacle(network, args.routers.into()) {
            None => possible.push(*fault),
            Some(reason) => impossible.push((*fault, reason)),
        }
    }
    (possible, impossible)
}

async fn drive(args: &ChaosArgs, site: Site) -> anyhow::Result<Verdict> {
    let (faults, _) = available(args, &site.network);
    ensure!(!faults.is_empty(), "no such fault is possible on this machine");
    let faulty_s = args.minutes * 60.0;
    let calm = Duration::from_secs_f64((faulty_s * CALM.0).clamp(CALM.1, CALM.2));
    let bar = ProgressBar::new(0);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.set_style(ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} answers")?);
    bar.set_message("reference");
    // The expected answers come first, from a worker that reuses nothing and that no fault disturbs.
    let began = Instant::now();
    let reference = site.start_reference().await?;
    let scripts = cases::make(&reference, args.seed, args.answer_tokens, &bar).await?;
    drop(reference);
    let mut fleet = Fleet::start(site, args.workers.into(), args.routers.into()).await?;
    let (n_cases, prepared_s) = (cases::n_cases(), began.elapsed().as_secs_f64());
    bar.suspend(|| eprintln!("{n_cases} reference answers, and a fleet, in {prepared_s:.0} s"));

    // The clients run from the first calm time to the end of the last one, and learn of no fault.
    let start = Instant::now();
    let load = Arc::new(Load {
        scripts,
        state: Arc::clone(&fleet.state),
        tally: Arc::new(Tally::default()),
        is_over: AtomicBool::new(false),
        start,
        bar: bar.clone(),
    });
    let total = calm * 2 + Duration::from_secs_f64(faulty_s);
    let showing = tokio::spawn(show(Arc::clone(&load), bar.clone(), total));
    let clients: Vec<_> =
        (0..args.streams).map(|number| tokio::spawn(Arc::clone(&load).client(args.seed, number))).collect();
    let watching = tokio::spawn(gauges::watch(Arc::clone(&load)));

    // A calm time, the faults, and a calm time in which hits and latency must come back.
    tokio::time::sleep(calm).await;
    let from = Instant::now();
    let mut fault_events = Vec::new();
    let until = from + Duration::from_secs_f64(faulty_s);
    let mut striking = Striking { args, fleet: &mut fleet, load: &load };
    let failure = striking.until(until, faults, &mut fault_events).await.err().map(|error| format!("{error:#}"));
    let to = Instant::now();
    tokio::time::sleep(calm).await;
    let end = Instant::now();

    // Each client ends its script, so that every answer is judged. A process that ended by itself breaks an invariant.
    load.is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await??;
    }
    showing.abort();
    bar.finish_and_clear();
    let samples = watching.await?;
    let failure = failure.or_else(|| fleet.ensure_alive().err().map(|error| format!("{error:#}")));
    let records = load.tally.records();
    let observations = Observed { start, faulty: (from, to), end, records, faults: fault_events, samples, failure };
    Ok(Verdict::of(&observations))
}

/// Shows the time and the counts until it is aborted.
async fn show(load: Arc<Load>, bar: ProgressBar, total: Duration) {
    let start = Instant::now();
    bar.set_style(
        ProgressStyle::with_template("{bar:30} {elapsed}/{msg}").unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.set_length(total.as_secs());
    bar.reset();
    loop {
        let (n, n_bad) = load.tally.counts();
        bar.set_position(start.elapsed().as_secs());
        bar.set_message(format!("{} s, {n} requests, {n_bad} bad", total.as_secs()));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The faults of one run.
struct Striking<'a> {
    args: &'a ChaosArgs,
    fleet: &'a mut Fleet,
    load: &'a Load,
}

impl Striking<'_> {
    /// Causes one fault after the other, each kind as often as the others, in random order.
    ///
    /// Errors: a process ended by itself, or did not end or restart when it should.
    async fn until(
        &mut self,
        until: Instant,
        faults: Vec<Fault>,
        fault_events: &mut Vec<Happened>,
    ) -> anyhow::Result<()> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.args.seed);
        let every = Duration::from_secs_f64(self.args.every);
        let mut deck: Vec<Fault> = Vec::new();
        while Instant::now() < until {
            if deck.is_empty() {
                deck.clone_from(&faults);
                deck.shuffle(&mut rng);
            }
            let began = Instant::now();
            if let Some(fault) = deck.pop() {
                let target = fault.strike(self.fleet, &mut rng).await.with_context(|| fault.name())?;
                self.fleet.ensure_alive()?;
                let at_s = began.duration_since(self.load.start).as_secs_f64();
                let (n, n_bad) = self.load.tally.counts();
                let took_s = began.elapsed().as_secs_f64();
                let line =
                    format!("{at_s:6.1} s  {}: {target}, {took_s:.1} s; {n} requests, {n_bad} bad", fault.name());
                self.load.bar.suspend(|| eprintln!("{line}"));
                fault_events.push(Happened { fault, target, at_s, took_s });
            }
            tokio::time::sleep_until((began + every).min(until).into()).await;
        }
        Ok(())
    }
}
