//! The faults of a chaos run, which are injected one after the other.
//!
//! Not here: their choice and times (`chaos`). At most one worker or router, or one link, is faulty at a time, so every
//! request always has candidates.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::liar::Liar;
use super::network::{Network, Place};
use super::site::{Fleet, Served, Start};
use crate::output::names;
use crate::servers::cgroup::{Cgroup, Controller};

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Fault {
    /// A worker is killed, and started again seconds later.
    Kill,
    /// A worker is frozen for some seconds.
    Freeze,
    /// A worker gets SIGTERM, and is started again.
    Drain,
    /// A worker's address accepts connections and never answers.
    Mute,
    /// A worker is started with another model under the same name, and later with the right one.
    OtherModel,
    /// A worker computes at a tenth of its speed.
    Slow,
    /// A worker's summary also announces the blocks of another worker.
    Lie,
    /// A worker gets little more memory than it needs to start; only with control groups.
    LowMemory,
    /// Every worker gets SIGTERM and is started again, one after the other.
    RollWorkers,
    /// A router is killed, and started again.
    KillRouter,
    /// Every router gets SIGTERM and is started again, one after the other.
    RollRouters,
    /// No packet passes between a router and a worker; only with namespaces.
    Partition,
    /// A worker's packets are late, and some are lost; only with namespaces and netem.
    Loss,
}

/// Time before a killed worker or router is started again.
const DOWN: Duration = Duration::from_secs(3);
/// Duration of a fault that ends by itself: longer than the 3.5 s after which a router counts a worker as lost.
const LASTS: Duration = Duration::from_secs(7);
/// Times in which a slow worker is stopped and runs, in turn.
const SLOW_STOPPED: Duration = Duration::from_millis(180);
const SLOW_RUNNING: Duration = Duration::from_millis(20);
/// Memory that a worker with low memory may have beyond what it uses when it is ready. Units: bytes.
///
/// Source: less than half of its cache in memory, so it reaches the limit under load.
const SPARE_BYTES: u64 = 24 << 20;
/// Signal with which the kernel kills a process whose control group has no memory left.
const SIGKILL: i32 = 9;

impl Fault {
    /// Returns the fault's name, as `--faults` takes it.
    pub fn name(self) -> String {
        names::name(self)
    }

    /// Returns why the fault is impossible on this machine; `None` if it is possible.
    pub fn obstacle(self, network: &Network, n_routers: usize) -> Option<&'static str> {
        match self {
            Self::Partition if !network.can_cut() => Some("needs network namespaces"),
            Self::Loss if !network.can_lose() => Some("needs network namespaces and the kernel's netem"),
            Self::LowMemory if Cgroup::make(Controller::Memory).is_err() => {
                Some("needs root and control groups that limit memory")
            }
            Self::KillRouter | Self::RollRouters if n_routers < 2 => Some("needs two routers"),
            _ => None,
        }
    }

    /// Injects the fault, and returns its target once it is over.
    ///
    /// Errors: a process does not end or does not start again.
    pub async fn strike(self, fleet: &mut Fleet, rng: &mut ChaCha8Rng) -> anyhow::Result<String> {
        let worker = rng.random_range(0..fleet.workers.len());
        let router = rng.random_range(0..fleet.routers.len());
        let place = Place::Worker(worker);
        match self {
            Self::Kill => {
                fleet.kill_worker(worker).await?;
                tokio::time::sleep(DOWN).await;
                fleet.restart_worker(worker, Served::Fleets).await?;
            }
            Self::Freeze => {
                fleet.signal_worker(worker, "STOP").await?;
                tokio::time::sleep(LASTS).await;
                fleet.signal_worker(worker, "CONT").await?;
            }
            Self::Drain => {
                fleet.drain_worker(worker).await?;
                fleet.restart_worker(worker, Served::Fleets).await?;
            }
            Self::Mute => {
                fleet.kill_worker(worker).await?;
                let listener = fleet.site.network.listen(place, fleet.workers[worker].address())?;
                stay_mute(listener).await?;
                fleet.restart_worker(worker, Served::Fleets).await?;
            }
            Self::OtherModel => {
                for model in [Served::Other, Served::Fleets] {
                    fleet.drain_worker(worker).await?;
                    fleet.restart_worker(worker, model).await?;
                    tokio::time::sleep(DOWN).await;
                }
            }
            Self::Slow => slow_down(fleet, worker).await?,
            Self::Lie => {
                let other = (worker + rng.random_range(1..fleet.workers.len())) % fleet.workers.len();
                return lie(fleet, worker, other).await;
            }
            Self::LowMemory => return starve(fleet, worker).await,
            Self::RollWorkers => return roll_workers(fleet).await,
            Self::KillRouter => {
                fleet.kill_router(router, DOWN).await?;
                return Ok(Place::Router(router).name());
            }
            Self::RollRouters => {
                for router in 0..fleet.routers.len() {
                    fleet.roll_router(router).await?;
                }
                return Ok("every router".to_owned());
            }
            Self::Partition => {
                let places = [Place::Router(router), place];
                fleet.site.network.cut(places)?;
                tokio::time::sleep(LASTS).await;
                fleet.site.network.heal(places)?;
                return Ok(places.map(Place::name).join(" and "));
            }
            Self::Loss => {
                fleet.site.network.impair(place)?;
                tokio::time::sleep(LASTS).await;
                fleet.site.network.restore(place)?;
            }
        }
        Ok(place.name())
    }
}

/// Lets a worker run for only a tenth of the time.
async fn slow_down(fleet: &Fleet, worker: usize) -> anyhow::Result<()> {
    let until = tokio::time::Instant::now() + LASTS;
    while tokio::time::Instant::now() < until {
        fleet.signal_worker(worker, "STOP").await?;
        tokio::time::sleep(SLOW_STOPPED).await;
        fleet.signal_worker(worker, "CONT").await?;
        tokio::time::sleep(SLOW_RUNNING).await;
    }
    Ok(())
}

/// Puts a proxy at a worker's address that announces another worker's blocks, too.
async fn lie(fleet: &mut Fleet, worker: usize, other: usize) -> anyhow::Result<String> {
    let address = fleet.workers[worker].address();
    fleet.drain_worker(worker).await?;
    let listener = fleet.site.network.listen(Place::Worker(worker), address)?;
    let hidden = Some(SocketAddr::new(address.ip(), 0));
    fleet.start_worker(worker, Start { address: hidden, ..Start::default() }).await?;
    let liar = Liar::new(fleet.workers[worker].base_url(), &fleet.workers[other].base_url()).await?;
    let target =
        format!("{} with {} blocks of {}", Place::Worker(worker).name(), liar.n_stolen(), Place::Worker(other).name());
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(liar.serve(listener, async move {
        let _ = ended.await;
    }));
    tokio::time::sleep(LASTS).await;
    fleet.drain_worker(worker).await?;
    drop(end);
    serving.await.context("the proxy has panicked")??;
    fleet.start_worker(worker, Start { address: Some(address), ..Start::default() }).await?;
    Ok(target)
}

/// Restarts a worker in a control group whose memory it soon exhausts.
async fn starve(fleet: &mut Fleet, worker: usize) -> anyhow::Result<String> {
    let address = Some(fleet.workers[worker].address());
    fleet.drain_worker(worker).await?;
    let cgroup = Cgroup::make(Controller::Memory)?;
    fleet.start_worker(worker, Start { address, cgroup: Some(&cgroup), ..Start::default() }).await?;
    cgroup.limit_growth(SPARE_BYTES)?;
    tokio::time::sleep(LASTS).await;
    cgroup.lift_limit()?;
    let name = Place::Worker(worker).name();
    let target = match fleet.workers[worker].ended()? {
        None => {
            fleet.drain_worker(worker).await?;
            name
        }
        Some(status) => {
            let by_kernel = is_killed_by_kernel(status, cgroup.n_oom_kills()?);
            ensure!(by_kernel, "{name} ended with {status}; its log:\n{}", fleet.workers[worker].log());
            format!("{name}, killed by the kernel")
        }
    };
    fleet.restart_worker(worker, Served::Fleets).await?;
    Ok(target)
}

/// Returns whether a process ended for lack of memory, and not by a fault of its own.
fn is_killed_by_kernel(status: ExitStatus, n_oom_kills: u64) -> bool {
    status.signal() == Some(SIGKILL) && n_oom_kills > 0
}

/// Restarts every worker, each after the routers use the previous one again.
async fn roll_workers(fleet: &mut Fleet) -> anyhow::Result<String> {
    for worker in 0..fleet.workers.len() {
        fleet.drain_worker(worker).await?;
        fleet.restart_worker(worker, Served::Fleets).await?;
        tokio::time::sleep(DOWN).await;
    }
    Ok("every worker".to_owned())
}

/// Accepts connections, reads nothing and writes nothing.
async fn stay_mute(listener: std::net::TcpListener) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connections = Vec::new();
    let until = tokio::time::Instant::now() + LASTS;
    while let Ok(connection) = tokio::time::timeout_at(until, listener.accept()).await {
        connections.push(connection?.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kill_for_lack_of_memory_is_the_kernels() {
        let (killed, aborted, segfault) = (9, 6, 11);
        // A wait status has the exit code in its second byte, and the signal in its first.
        let panicked = 101 << 8;
        let by_kernel = |wait_status, n_oom_kills| is_killed_by_kernel(ExitStatus::from_raw(wait_status), n_oom_kills);
        assert!(by_kernel(killed, 1));
        assert!(!by_kernel(killed, 0));
        for wait_status in [aborted, segfault, panicked, 0] {
            assert!(!by_kernel(wait_status, 1), "{wait_status}");
        }
    }
}
