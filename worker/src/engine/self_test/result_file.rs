//! A small file with the results of self-tests, and a lock so that the workers of a machine measure in turn.
//!
//! The key has everything that a measurement depends on, so an entry may be unused but is never wrong. An unreadable
//! file counts as empty; if the file cannot be written, the next start takes a second longer. Workers that measured at
//! the same time would disturb each other, so they take turns, and a worker finds the result of an earlier one with the
//! same settings. Not here: the result (`report`).

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use sysinfo::{CpuRefreshKind, RefreshKind, System};
use warmpath_common::model::Fingerprint;

use super::report::{FiguresOrigin, SelfTestReport};
use crate::backends;
use crate::engine::config::{EngineConfig, ShiftConfig};
use crate::engine::llama;

/// Name of the file.
const FILE: &str = "self-test.json";
/// Name of the file whose lock a measuring worker holds.
const LOCK_FILE: &str = "self-test.lock";
/// Interval between two attempts to take the lock. Source: short, as a measurement takes about a second.
const LOCK_POLL: Duration = Duration::from_millis(20);
/// Maximum number of entries; beyond it the oldest one is dropped. Source: more models and settings than one machine
/// has.
const ENTRIES_MAX: usize = 64;
/// Largest file that is read. Units: bytes. Source: 16 kB for each of [`ENTRIES_MAX`], which have some 2 kB.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Time for which a machine that was busy counts as busy still. Source: own choice: models that a host swaps start
/// every few seconds or minutes, and each try takes half a second.
const BUSY_FOR: Duration = Duration::from_secs(10 * 60);
/// Version of the measurement, increased when it changes.
const VERSION: u32 = 7;

/// Key of a model, a setup and a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResultKey(pub String);

impl ResultKey {
    pub(super) fn of(model: Fingerprint, config: &EngineConfig) -> Self {
        let EngineConfig { n_slots, context_tokens_total, threads, threads_batch, ubatch_tokens, .. } = config;
        let (placement, metadata) = (&config.placement, &config.metadata_overrides);
        let devices = llama::devices::described(placement);
        let (k, v) = (config.cache_type_k, config.cache_type_v);
        let drafts = if config.speculation.is_some() { " drafts" } else { "" };
        // Keys that may be shifted cannot be bf16.
        let shifts = if config.shifts == ShiftConfig::default() { "" } else { " shifts" };
        let context = context_tokens_total.checked_ilog2().map_or("default".to_owned(), |log| format!("2^{log}"));
        Self(format!(
            "model {model} | slots {n_slots} context {context} threads {threads}/{threads_batch} devices \
             [{devices}] {placement:?} {metadata:?} ubatch {ubatch_tokens} block {} k {k:?} v {v:?} flash attention {:?} unified {:?}{drafts}{shifts} | {} | warmpath {} measuring \
             {VERSION}",
            config.block_size_tokens,
            config.flash_attn,
            config.kv_unified,
            *MACHINE,
            env!("CARGO_PKG_VERSION"),
        ))
    }
}

/// The processor and the features that llama.cpp can use.
static MACHINE: LazyLock<String> = LazyLock::new(|| {
    let only_names = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(only_names);
    let processor = system.as_ref().ok().and_then(|system| system.cpus().first()).map_or("", |cpu| cpu.brand());
    let n = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{n} x {processor}, {}", backends::cpu_features())
});

/// Access to the file; without a folder there is no file.
#[derive(Debug)]
pub(super) struct Remembered {
    path: Option<PathBuf>,
}

/// Content of the file.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct Entries {
    /// Entries by key; each with the time of its writing, seconds since 1970.
    entries: BTreeMap<String, (u64, SelfTestReport)>,
}

fn since_1970() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

impl Remembered {
    pub(super) fn new(folder: Option<&Path>) -> Self {
        Self { path: folder.map(|folder| folder.join(FILE)) }
    }

    /// Waits for the turn to measure, which lasts until the file is dropped; `None` without a folder or after
    /// `wait_max`.
    pub(super) fn turn(&self, wait_max: Duration) -> Option<File> {
        let path = self.path.as_ref()?.with_file_name(LOCK_FILE);
        std::fs::create_dir_all(path.parent()?).ok()?;
        let file = File::options().create(true).append(true).open(path).ok()?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Some(file),
                Err(TryLockError::WouldBlock) if began.elapsed() < wait_max => std::thread::sleep(LOCK_POLL),
                Err(_) => return None,
            }
        }
    }

    /// Returns the result of an earlier self-test; that of a busy machine only for some minutes.
    pub(super) fn load(&self, key: &ResultKey) -> Option<SelfTestReport> {
        let (written_at, report) = self.read().entries.remove(&key.0)?;
        if !report.is_calm() && since_1970().as_secs().abs_diff(written_at) > BUSY_FOR.as_secs() {
            return None;
        }
        Some(SelfTestReport { origin: FiguresOrigin::Remembered, ..report })
    }

    /// Adds a result to the file; that of a busy machine replaces no other.
    ///
    /// Errors: if the folder or file cannot be written.
    pub(super) fn store(&self, key: &ResultKey, report: &SelfTestReport) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut all = self.read();
        if !report.is_calm() && all.entries.get(&key.0).is_some_and(|(_, known)| known.is_calm()) {
            return Ok(());
        }
        all.entries.insert(key.0.clone(), (since_1970().as_secs(), report.clone()));
        while all.entries.len() > ENTRIES_MAX {
            let others = all.entries.iter().filter(|(name, _)| **name != key.0);
            let oldest = others.min_by_key(|(_, (written_at, _))| *written_at).map(|(name, _)| name.clone());
            oldest.and_then(|name| all.entries.remove(&name));
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // Another worker may write at the same time. Each writes its own file, and the last rename wins.
        let temporary_path = path.with_extension(format!("{}.tmp", std::process::id()));
        let write_result = std::fs::write(&temporary_path, serde_json::to_vec_pretty(&all)?);
        write_result.and_then(|()| std::fs::rename(&temporary_path, path)).inspect_err(|_| {
            let _ = std::fs::remove_file(&temporary_path);
        })
    }

    fn read(&self) -> Entries {
        let read_file = |path: &PathBuf| {
            let fits = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() <= FILE_BYTES_MAX);
            fits.then(|| std::fs::read(path).ok()).flatten()
        };
        let bytes = self.path.as_ref().and_then(read_file).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }
}
