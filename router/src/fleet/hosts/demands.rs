//! The demands of this router: while requests wait for a model, one task posts their number to the best host.
//!
//! A host that does not take a demand is left out until every other host has refused it, too. If another host becomes
//! the best, the demand moves there at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use warmpath_common::host::{DEMAND_PATH, DEMAND_TTL_MS, Demand};
use warmpath_router_core::hosts::Autoload;
use warmpath_router_core::hosts::waiting::{Entered, WaitId};
use warmpath_shell::chain;

use super::HostCallError;
use crate::fleet::Fleet;

/// Interval at which a demand is repeated. Source: a third of the time for which it counts, so that two may be lost.
const DEMAND_INTERVAL: Duration = Duration::from_millis(DEMAND_TTL_MS / 3);

/// A request that waits for a model. If this is dropped, its client has left, and the demand is withdrawn.
pub struct ModelDemand {
    fleet: Arc<Fleet>,
    model: String,
    id: WaitId,
    is_over: bool,
}

impl ModelDemand {
    /// Ends the wait of a request whose client is still there: the host forgets the demand by itself.
    pub fn end(mut self) {
        self.is_over = true;
        self.fleet.hosts.waiting().leave(&self.model, self.id);
    }
}

impl Drop for ModelDemand {
    fn drop(&mut self) {
        if !self.is_over && self.fleet.hosts.waiting().withdraw(&self.model, self.id) {
            self.fleet.hosts.withdrawals.notify_waiters();
        }
    }
}

impl Fleet {
    /// Demands the model of a request that arrived at this time, until the result ends, and once in any case; `None` if
    /// no host loads it for the request.
    pub fn demand(self: &Arc<Self>, name: Option<&str>, autoload: Autoload, arrived: Instant) -> Option<ModelDemand> {
        let view = self.view();
        let model = view.demanded(name, autoload, Instant::now(), &[])?.model.name.clone();
        let mut waiting = self.hosts.waiting();
        let id = match waiting.enter(&model, arrived) {
            Entered::Further(id) => id,
            Entered::First(id) => {
                let demand = waiting.demand(&model, &self.hosts.router, Instant::now());
                tokio::spawn(post_while_waiting(Arc::clone(self), demand));
                id
            }
        };
        drop(waiting);
        Some(ModelDemand { fleet: Arc::clone(self), model, id, is_over: false })
    }
}

/// Posts a demand, and again as long as requests wait, or once more if they are withdrawn.
async fn post_while_waiting(fleet: Arc<Fleet>, first: Option<Demand>) {
    let mut ticks = tokio::time::interval(DEMAND_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is now.
    ticks.tick().await;
    let mut reports = fleet.host_reports();
    let mut poster = Poster { fleet, refusing_hosts: Vec::new(), host_idx: None };
    let mut next = first;
    while let Some(demand) = next {
        poster.post(&demand).await;
        if demand.n_waiting > 0 {
            let is_better = poster.finds_better_host(&demand, &mut reports);
            tokio::select! {
                _ = ticks.tick() => {}
                () = poster.fleet.hosts.withdrawals.notified() => {}
                () = is_better => {}
            }
        }
        next = poster.fleet.hosts.waiting().demand(&demand.model, &poster.fleet.hosts.router, Instant::now());
        if next.is_none() {
            // Another host may have loaded it.
            let best_host = poster.best(&demand);
            poster.withdraw(&demand, poster.host_idx.filter(|host_idx| Some(*host_idx) != best_host)).await;
        }
    }
}

/// Sender of the demands for one model.
struct Poster {
    fleet: Arc<Fleet>,
    refusing_hosts: Vec<usize>,
    /// Host that has taken the last demand.
    host_idx: Option<usize>,
}

impl Poster {
    /// Returns the best host that has not refused the demand.
    fn best(&self, demand: &Demand) -> Option<usize> {
        let view = self.fleet.view();
        // Only requests that load the model are counted in the demand.
        let best = view.demanded(Some(&demand.model), Autoload::On, Instant::now(), &self.refusing_hosts);
        best.map(|prospect| prospect.host_idx)
    }

    /// Waits until another host than the one with the demand is the best.
    async fn finds_better_host(&self, demand: &Demand, reports: &mut watch::Receiver<()>) {
        while reports.changed().await.is_ok() {
            if self.best(demand) != self.host_idx {
                return;
            }
        }
        std::future::pending().await
    }

    /// Posts a demand to the best host that has not refused it, and withdraws it from the host that had it before.
    async fn post(&mut self, demand: &Demand) {
        let best_host = self.best(demand).or_else(|| {
            self.refusing_hosts.clear();
            self.best(demand)
        });
        let Some(host_idx) = best_host else { return };
        let former = self.host_idx.take();
        let outcome = match self.post_to(host_idx, demand).await {
            Ok(_) => {
                self.host_idx = Some(host_idx);
                "taken"
            }
            Err(error) => {
                self.refusing_hosts.push(host_idx);
                let host = &self.fleet.view().hosts.hosts[host_idx].name;
                tracing::warn!(%host, model = demand.model, reason = %chain(&error), "a host does not take a demand");
                "failed"
            }
        };
        self.fleet.metrics.model_demands.with_label_values(&[outcome]).inc();
        self.withdraw(demand, former.filter(|former| *former != host_idx)).await;
    }

    async fn withdraw(&self, demand: &Demand, host_idx: Option<usize>) {
        if let Some(host_idx) = host_idx {
            // A host that does not take this forgets the demand by itself.
            let _ = self.post_to(host_idx, &Demand { n_waiting: 0, ..demand.clone() }).await;
        }
    }

    async fn post_to(&self, host_idx: usize, demand: &Demand) -> Result<Bytes, HostCallError> {
        let view = self.fleet.view();
        // The model's first name may be an alias at this host.
        let names = view.hosts.hosts[host_idx].summary.as_ref().and_then(|summary| summary.model(&demand.model));
        let model = names.map_or_else(|| demand.model.clone(), |model| model.name.clone());
        let order = serde_json::to_vec(&Demand { model, ..demand.clone() }).expect("a demand has a JSON form");
        self.fleet.hosts.post(host_idx, DEMAND_PATH, order.into()).await
    }
}
