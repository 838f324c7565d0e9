//! The demands of this router: while requests wait for a model, one task posts their number to the best host.
//!
//! A host that does not take a demand is left out until every other host has refused it, too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;
use warmpath_common::host::{DEMAND_PATH, DEMAND_TTL_MS, Demand};
use warmpath_router_core::hosts::Autoload;
use warmpath_router_core::hosts::waiting::{Entered, WaitId};
use warmpath_shell::chain;

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
    let mut next = first;
    let mut refusing_hosts = Vec::new();
    while let Some(demand) = next {
        post(&fleet, &demand, &mut refusing_hosts).await;
        if demand.n_waiting > 0 {
            tokio::select! {
                _ = ticks.tick() => {}
                () = fleet.hosts.withdrawals.notified() => {}
            }
        }
        next = fleet.hosts.waiting().demand(&demand.model, &fleet.hosts.router, Instant::now());
    }
}

/// Posts a demand to the best host that has not refused it.
async fn post(fleet: &Fleet, demand: &Demand, refusing_hosts: &mut Vec<usize>) {
    let view = fleet.view();
    // Only requests that load the model are counted in the demand.
    let best = |excluded: &[usize]| view.demanded(Some(&demand.model), Autoload::On, Instant::now(), excluded);
    let best_host = best(refusing_hosts).or_else(|| {
        refusing_hosts.clear();
        best(&[])
    });
    let Some(prospect) = best_host else { return };
    // Its own first name may be an alias at another host.
    let demand = Demand { model: prospect.model.name.clone(), ..demand.clone() };
    let order = serde_json::to_vec(&demand).expect("a demand has a JSON form").into();
    let outcome = match fleet.hosts.post(prospect.host_idx, DEMAND_PATH, order).await {
        Ok(_) => "taken",
        Err(error) => {
            refusing_hosts.push(prospect.host_idx);
            let host = &view.hosts.hosts[prospect.host_idx].name;
            tracing::warn!(%host, model = demand.model, reason = %chain(&error), "a host does not take a demand");
            "failed"
        }
    };
    fleet.metrics.model_demands.with_label_values(&[outcome]).inc();
}
