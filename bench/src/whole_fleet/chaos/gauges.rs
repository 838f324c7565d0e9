//! Memory, descriptors and threads of the processes of a chaos run, sampled once a second from `/proc`.
//!
//! A restarted process counts as the same one, so a leak shows in the maxima of its name. Not here: their limits
//! (`verdict`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::load::Load;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// Figures of a process at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gauge {
    /// Resident memory. Units: bytes.
    pub rss_bytes: u64,
    /// Number of open descriptors.
    pub descriptors: u64,
    /// Number of threads.
    pub threads: u64,
}

/// Figures of a process and the time at which they were read.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Time.
    pub at: Instant,
    /// Figures.
    pub gauge: Gauge,
}

/// Samples of each process, by its name.
pub type Samples = BTreeMap<String, Vec<Sample>>;

/// Samples the running processes until the load is over.
pub async fn watch(load: Arc<Load>) -> Samples {
    let mut samples = Samples::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    while !load.is_over.load(Ordering::Relaxed) {
        ticks.tick().await;
        for (name, pid) in load.state.running() {
            if let Some(gauge) = read(pid) {
                samples.entry(name).or_default().push(Sample { at: Instant::now(), gauge });
            }
        }
    }
    samples
}

/// Returns the figures of a process; `None` if it has ended, or the machine has no `/proc`.
fn read(pid: u32) -> Option<Gauge> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some(Gauge {
        rss_bytes: field(&status, "VmRSS:")? * 1024,
        descriptors: descriptors as u64,
        threads: field(&status, "Threads:")?,
    })
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_s_own_figures_are_read() {
        let gauge = read(std::process::id()).expect("this process runs");
        assert!(gauge.rss_bytes > 1 << 20 && gauge.descriptors >= 3 && gauge.threads >= 1, "{gauge:?}");
        assert_eq!(read(u32::MAX), None);
    }
}
