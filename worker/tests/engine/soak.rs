//! A long random run that measures memory.
//!
//! Not here: whether responses are correct (`property`, `tiers`); here they only must not fail.

use std::time::{Duration, Instant};

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};
use warmpath_bench::model::Preset;
use warmpath_worker::engine::{EngineConfig, EntryPage, Switch};

use super::support::{ask, config, start, stop, tokens};
use super::tiers::store;

const MIB: u64 = 1 << 20;

/// Interval at which memory is measured.
const SAMPLE: Duration = Duration::from_secs(5);

/// Returns the memory of this process that is in RAM. Units: bytes.
fn resident_bytes(system: &mut System) -> u64 {
    let pid = Pid::from_u32(std::process::id());
    let what = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, what);
    system.process(pid).unwrap().memory()
}

/// Runs for `WARMPATH_SOAK_S` seconds, 300 unless set:
/// `cargo test --release -p warmpath-worker --test engine soak -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "runs for minutes"]
async fn memory_does_not_grow_over_a_long_random_run() {
    let seconds = std::env::var("WARMPATH_SOAK_S").map_or(300, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let config = EngineConfig {
        n_slots: 3,
        context_tokens_total: 3 * 1024,
        kv_unified: Switch::On,
        store: store(4 * MIB, Some(&folder)),
        ..config(Preset::TinySwa)
    };
    let (engine, mut updates) = start(config);
    let mut system = System::new().unwrap();
    let mut samples = Vec::new();
    let (began, mut n) = (Instant::now(), 0_u32);
    while began.elapsed() < Duration::from_secs(seconds) {
        // The requests are of a few conversations, with new ones among them, and some clients disconnect early.
        let kind = n.wrapping_mul(2_654_435_761) >> 24;
        let prompt = [tokens(kind % 7, 300), tokens(1000 + n / 3, 40 + kind as usize)].concat();
        let mut answering = ask(&prompt, 16).submit(&engine).unwrap();
        let beside = ask(&tokens(kind, 200), 8).submit(&engine).unwrap();
        match n % 5 {
            0 => drop(answering.next().await),
            _ => assert!(answering.answer().await.finished.is_some()),
        }
        assert!(beside.answer().await.finished.is_some());
        while updates.try_recv().is_ok() {}
        n += 1;
        if began.elapsed() >= SAMPLE * samples.len() as u32 {
            samples.push(resident_bytes(&mut system) / MIB);
            let totals = engine.cache_view(EntryPage { after: None, entries_max: 1 }).await.unwrap().totals;
            println!(
                "{n} requests: {} MiB, {:?} in RAM, {:?} on disk",
                samples.last().unwrap(),
                totals.ram,
                totals.disk
            );
            assert!(totals.ram.n_bytes <= 4 * MIB && totals.disk.n_bytes <= 64 * MIB, "{totals:?}");
        }
    }
    let (early, late) = (samples[samples.len() / 4], *samples.last().unwrap());
    assert!(late <= early + 8, "{early} MiB after a quarter of the run, {late} MiB at its end");
    assert_eq!(engine.counters().failed, 0);
    stop(engine).await;
}
