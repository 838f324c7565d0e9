//! `warmpath serve`: workers and a router on this machine, as child processes that are restarted when they end.
//!
//! A child that ends before the fleet was ready for the first time ends the fleet: its flags or its model are wrong,
//! and a restart would not help.

mod flags;
mod plan;

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::try_join_all;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use warmpath_shell::log;
use warmpath_shell::stop_signals::StopSignals;

use crate::child::{self, ChildSignals};
use crate::host::Host;
use crate::programs::{ProgramSettings, Programs};
use crate::status::{self, Fleet};
pub use flags::{Flags, Settings, split};
use plan::{Machine, Plan};

/// Interval at which the fleet is polled until it is ready.
///
/// Source: own choice: a person does not notice the delay.
const READY_POLL: Duration = Duration::from_millis(200);

/// Runs the fleet until SIGINT or SIGTERM; a second signal kills the remaining processes.
///
/// Errors: settings that contradict each other, a program that cannot be started, a child that ends before the fleet
/// was ready.
pub async fn run(settings: Settings, flags: Flags) -> anyhow::Result<()> {
    let mut stops = StopSignals::listen().context("listening for SIGTERM and SIGINT")?;
    settings.check(&flags)?;
    let programs = Programs::of(settings.bin_dir.as_deref())?;
    let host = match settings.models.needs_host(&flags.workers) {
        true => Some(Host::bind(settings.models.clone(), &flags.workers, programs.worker.clone()).await?),
        false => None,
    };
    let program_settings = match host {
        Some(_) => ProgramSettings::of_router(&programs, &flags).await?,
        None => ProgramSettings::read(&programs, &flags).await?,
    };
    let host_url = host.as_ref().map(Host::url);
    let plan = Plan::of(settings, programs, &flags, &program_settings, &Machine::here(), host_url.as_deref())?;
    let on_demand = host.as_ref().map(Host::models).unwrap_or_default();
    let (workers_end, router_ends, kill) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let is_ready = CancellationToken::new();
    let signals =
        |ends: &CancellationToken| ChildSignals { ends: ends.clone(), kill: kill.clone(), is_ready: is_ready.clone() };
    let workers = try_join_all(plan.workers.iter().map(|worker| child::keep(worker, signals(&workers_end))));
    let router = async {
        // A router that starts first reports its workers as down.
        tokio::select! {
            () = until_listening(&plan.worker_listen) => {}
            () = router_ends.cancelled() => {}
        }
        let result = child::keep(&plan.router, signals(&router_ends)).await;
        // The router's last responses need the workers.
        workers_end.cancel();
        result
    };
    let hosted = async {
        match host {
            Some(host) => host.serve(workers_end.clone(), kill.clone()).await,
            None => Ok(()),
        }
    };
    let announce = async {
        let fleet = until_ready(&plan, &on_demand).await;
        is_ready.cancel();
        say(&plan.greeting(&fleet, &on_demand));
        std::future::pending::<()>().await;
    };
    let signals = async {
        for (token, line) in [(&router_ends, "warmpath: stopping"), (&kill, "warmpath: stopping at once")] {
            stops.next().await;
            log::line(line);
            token.cancel();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = async { tokio::try_join!(workers, hosted, router) } => result.map(drop),
        () = announce => Ok(()),
        () = signals => Ok(()),
    }
}

/// Waits until something listens at each address.
async fn until_listening(addresses: &[SocketAddr]) {
    for address in addresses {
        while TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(READY_POLL).await;
        }
    }
}

/// Waits until the router reports that it and every worker of the plan are ready; returns the fleet. Models that are
/// loaded on demand need no worker.
async fn until_ready(plan: &Plan, on_demand: &[String]) -> Fleet {
    let admin = status::Admin::at(&plan.admin_url());
    loop {
        if let Ok(fleet) = admin.fleet().await
            && (!on_demand.is_empty() || fleet.has_ready(&plan.worker_urls))
        {
            return fleet;
        }
        tokio::time::sleep(READY_POLL).await;
    }
}

/// Writes a text to stdout, which may be closed.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
