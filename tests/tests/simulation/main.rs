//! Deterministic simulation of the protocol between workers and routers: thousands of runs in virtual time, each from
//! its seed.
//!
//! Production code: the worker's cache, early announcements and summary writer, the encoding of the frames, and the
//! router's stream reader, tracker, index, membership, ledger and retries. Simulated: clients, engine steps, processes
//! that end and start again with other models, workers that announce wrong blocks, and a network that delays, damages
//! and loses bytes. The invariants are in `checks`, the faults in `faults`.
//!
//! `make simulate SEEDS=10000` runs more seeds. A seed that fails is added to `seeds.txt`, whose seeds run first;
//! `make simulate SEED=7` runs one and prints its log. Time as a user sees it is simulated in `warmpath-bench sim`, and
//! real processes run in `warmpath-bench chaos`.

mod boot;
mod checks;
mod connection;
mod faults;
mod model;
mod processes;
mod requests;
mod rng;
mod router;
mod streams;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use warmpath_router::fleet::client::Clients;
use warmpath_shell::tls::ClientFiles;

use self::world::{Log, World};

/// Seeds that run by default.
const SEEDS: u64 = 300;
/// Environment variable with the number of seeds.
const SEEDS_VARIABLE: &str = "WARMPATH_SIMULATION_SEEDS";
/// Environment variable with the only seed to run.
const SEED_VARIABLE: &str = "WARMPATH_SIMULATION_SEED";
/// File of the seeds that have failed once.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation/seeds.txt");

/// Events that must happen in a run of the default seeds; without them the invariants were not tested.
const REACHED: [&str; 29] = [
    "snapshot",
    "resumed",
    "ended",
    "idle",
    "loading",
    "gap",
    "duplicate",
    "identity",
    "old_life",
    "out_of_place",
    "torn_snapshot",
    "too_many_blocks",
    "load",
    "digest",
    "malformed",
    "frame_too_long",
    "protocol_version",
    "flood",
    "connect",
    "unready",
    "broken",
    "lost",
    "timeout",
    "unlisted",
    "router ended",
    "drained",
    "wrong blocks",
    "tied models",
    "answered with reuse",
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

fn clients() -> Clients {
    Clients::new(Duration::from_secs(1), ClientFiles::default().open().expect("no file is given"), None)
}

/// Runs a seed and returns the number of events of each kind.
///
/// Errors: the broken invariant.
fn run(seed: u64, clients: &Clients, log: Log) -> Result<BTreeMap<&'static str, u64>, String> {
    let mut world = World::new(seed, clients.clone(), log);
    let run = catch_unwind(AssertUnwindSafe(|| world.run()));
    run.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panics");
        format!("seed {seed}, after {} ms: {text}", world.elapsed_ms())
    })?;
    Ok(world.counts)
}

/// Returns the seeds that have failed once.
fn kept() -> Vec<u64> {
    let text = std::fs::read_to_string(KEPT).expect("the file of the kept seeds can be read");
    let lines = text.lines().filter_map(|line| line.split('#').next()).map(str::trim);
    lines.filter(|line| !line.is_empty()).map(|line| line.parse().expect("a line is a seed")).collect()
}

fn keep(seed: u64) {
    let mut file = std::fs::OpenOptions::new().append(true).open(KEPT).expect("the file of the kept seeds is there");
    writeln!(file, "{seed}").expect("a seed can be kept");
}

#[test]
fn every_seed_keeps_the_invariants() {
    let clients = clients();
    if let Some(seed) = number(SEED_VARIABLE) {
        run(seed, &clients, Log::Print).unwrap_or_else(|why| panic!("{why}"));
        return;
    }
    let kept_seeds = kept();
    let n_seeds = number(SEEDS_VARIABLE).unwrap_or(SEEDS);
    let seeds: Vec<u64> = kept_seeds.iter().copied().chain(0..n_seeds).collect();
    let (next, counts, failures) = (AtomicU64::new(0), Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    let work = || {
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            match run(*seed, &clients, Log::Ignore) {
                Ok(run) => {
                    let mut counts = counts.lock().expect("no run holds it");
                    run.into_iter().for_each(|(what, n)| *counts.entry(what).or_insert(0_u64) += n);
                }
                Err(why) => failures.lock().expect("no run holds it").push((*seed, why)),
            }
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(work)));
    });
    let (counts, mut failures) =
        (counts.into_inner().expect("no run is left"), failures.into_inner().expect("as above"));
    failures.sort();
    failures.iter().filter(|(seed, _)| !kept_seeds.contains(seed)).for_each(|(seed, _)| keep(*seed));
    let first: Vec<&str> = failures.iter().take(5).map(|(_, why)| why.as_str()).collect();
    let how = "to replay one: make simulate SEED=<seed>";
    assert!(failures.is_empty(), "{} of {} seeds fail; {how}\n{}", failures.len(), seeds.len(), first.join("\n"));
    let missing: Vec<_> = REACHED.into_iter().filter(|what| !counts.contains_key(what)).collect();
    assert!(missing.is_empty() || n_seeds < SEEDS, "never happened: {missing:?}; happened: {counts:?}");
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    let clients = clients();
    for seed in 0..3 {
        assert_eq!(run(seed, &clients, Log::Ignore), run(seed, &clients, Log::Ignore));
    }
    assert_ne!(run(0, &clients, Log::Ignore), run(1, &clients, Log::Ignore));
}
