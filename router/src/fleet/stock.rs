//! A stock server's follower: finds the server, polls it, and tells tracker and indexer what a Warmpath worker would say itself.
//!
//! Not here: what is known of the server (the core's `stock`), what it is asked (`probe`), requests at it (`visit`).
//! The idea: requests write what becomes of them into one small book for each server; its follower wakes up, takes what is
//! new and passes it on by the same channels as a summary subscriber. Lost means forgotten: what a server that was away
//! holds cannot be asked.

mod probe;
mod visit;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use warmpath_common::model::ModelInfo;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::WorkerView;
use warmpath_router_core::stock::{Counts, Declared, Footing, MemoryLimits, News, StockServer, place};
use warmpath_shell::chain;

use self::probe::{Probe, ProbeError};
pub use self::visit::Visit;
use super::given::Given;
use super::indexer::BlockReport;
use super::members::Member;
use super::subscriber::{Closed, Outbox};
use super::vocabulary::VocabularyKey;
use super::{Fleet, Report, Trouble, TroubleKind};
use crate::config::{STOCK_POLL, STOCK_SILENT_LOOKS};

/// Is a stock server, shared by its follower and the requests at it.
#[derive(Default)]
pub struct Stock {
    /// Guards what is known of the server; held for one entry, never across `.await`.
    server: Mutex<StockServer>,
    /// Rings when there is something to tell.
    news: Notify,
    /// Rings when a request has failed there.
    suspicion: Notify,
}

impl Stock {
    /// Records on what footing the server stands, and with which model.
    pub fn placed(&self, footing: Footing, model: &ModelInfo) {
        let limits = MemoryLimits::of(model);
        self.server().placed(footing, (model.n_slots, model.block_size_tokens), limits);
        self.news.notify_one();
    }

    fn server(&self) -> MutexGuard<'_, StockServer> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Is what the tracker knows of the stock servers.
pub(super) struct Stocks {
    /// Says of each server that was found what it declares, and whether it counts tokens as is thought.
    found: HashMap<WorkerIdx, (Declared, Counts)>,
    /// Says of each vocabulary that the operator gives whether servers have been found to count otherwise.
    given: Vec<Counts>,
}

impl Stocks {
    /// Returns what is known before any server is found.
    pub(super) fn new(fleet: &Fleet) -> Self {
        Self { found: HashMap::new(), given: vec![Counts::Agree; fleet.given().len()] }
    }

    /// Records a server that was found: it is believed again to count as is thought.
    pub(super) fn found(&mut self, worker: WorkerIdx, declared: Declared) {
        self.found.insert(worker, (declared, Counts::Agree));
    }

    /// Forgets a server that has left.
    pub(super) fn left(&mut self, worker: WorkerIdx) {
        self.found.remove(&worker);
    }

    /// Records that a server counts tokens otherwise: the vocabulary that was given for it is used no more.
    pub(super) fn differs(&mut self, fleet: &Fleet, worker: &WorkerView) {
        if let Some((_, counts)) = self.found.get_mut(&worker.idx) {
            *counts = Counts::Differ;
        }
        let key = worker.model.as_deref().map(VocabularyKey::of);
        for (given, counts) in fleet.given().iter().zip(&mut self.given) {
            if Some(VocabularyKey::of(&given.model)) == key {
                *counts = Counts::Differ;
            }
        }
    }

    fn given_for(&self, fleet: &Fleet, declared: &Declared) -> Option<usize> {
        let is_for = |(nth, given): (usize, &Given)| self.given[nth] == Counts::Agree && given.is_for(declared);
        fleet.given().iter().enumerate().position(is_for)
    }

    /// Says of each server with which model and on what footing it is in the fleet.
    pub(super) fn place(&self, fleet: &Fleet, workers: Vec<&mut Arc<WorkerView>>) {
        let is_fellow = |worker: &&&mut Arc<WorkerView>| worker.stock.is_none() && worker.excluded.is_none();
        let served: Vec<_> = workers.iter().filter(is_fellow).filter_map(|worker| worker.model.clone()).collect();
        for worker in workers {
            let member = fleet.member(worker.idx);
            let (Some((declared, counts)), Some(stock)) = (self.found.get(&worker.idx), &member.stock) else {
                continue;
            };
            let given = self.given_for(fleet, declared).map(|nth| &fleet.given()[nth].model);
            let (model, footing) = place(declared, served.iter().map(|model| &**model), given, *counts);
            if worker.model.as_deref() != Some(&model) || worker.stock != Some(footing) {
                tracing::info!(worker = %worker.name, footing = footing.label(), "stock server is placed");
                stock.placed(footing, &model);
                let view = Arc::make_mut(worker);
                (view.model, view.stock) = (Some(Arc::new(model)), Some(footing));
            }
        }
    }
}

/// Says why a server is followed no longer for now.
enum Left {
    /// It cannot be used.
    Server(ProbeError),
    /// The router ends.
    Router,
}

impl From<Closed> for Left {
    fn from(_: Closed) -> Self {
        Self::Router
    }
}

impl From<ProbeError> for Left {
    fn from(error: ProbeError) -> Self {
        Self::Server(error)
    }
}

/// Follows one stock server for as long as it is in the fleet.
pub async fn follow(fleet: Arc<Fleet>, worker: WorkerIdx, stock: Arc<Stock>, outbox: Outbox) {
    let member = fleet.member(worker);
    let probe = Probe::new(member.client.clone());
    let follower = Follower { fleet, worker, member, stock, outbox };
    let (mut last_label, mut n_silent) = ("", 0);
    loop {
        let last_heard = follower.member.last_heard();
        let Err(Left::Server(error)) = follower.attend(&probe).await else { return };
        let was_heard = follower.member.last_heard() != last_heard;
        n_silent = u32::from(error.is_silence()) + if was_heard { 0 } else { n_silent };
        let kind = if n_silent >= STOCK_SILENT_LOOKS { TroubleKind::Loss } else { TroubleKind::Other };
        let fleet = &follower.fleet;
        fleet.metrics.stock_losses.with_label_values(&[error.label()]).inc();
        // A server that is down is tried every second; it is said once.
        if error.label() != last_label {
            tracing::warn!(worker = %follower.member.url, reason = %chain(&error), "stock server cannot be used");
        }
        last_label = error.label();
        if follower.lost(Trouble { kind, reason: chain(&error).into() }).await.is_err() {
            return;
        }
        tokio::time::sleep(STOCK_POLL).await;
    }
}

struct Follower {
    fleet: Arc<Fleet>,
    worker: WorkerIdx,
    member: Arc<Member>,
    stock: Arc<Stock>,
    outbox: Outbox,
}

impl Follower {
    /// Finds the server, and tells what becomes of it until it is lost.
    async fn attend(&self, probe: &Probe) -> Result<(), Left> {
        let worker = self.worker;
        let found = probe.find().await?;
        self.fleet.heard(&self.member);
        self.outbox.tell_blocks(BlockReport::Replace { worker, runs: Vec::new() }).await?;
        self.outbox.tell(Report::Found { worker, declared: found.declared }).await?;
        loop {
            let poll = async {
                tokio::select! {
                    () = tokio::time::sleep(STOCK_POLL) => {}
                    () = self.stock.suspicion.notified() => {}
                }
                probe.look(&found.ways).await
            };
            tokio::pin!(poll);
            let pulse = loop {
                tokio::select! {
                    () = self.stock.news.notified() => self.tell_news().await?,
                    polled = &mut poll => break polled?,
                }
            };
            self.fleet.heard(&self.member);
            if let Some(pulse) = pulse {
                let mut server = self.stock.server();
                if server.observed(pulse) {
                    tracing::warn!(worker = %self.member.url, "stock server has begun anew");
                    server.lost();
                }
            }
            self.tell_news().await?;
        }
    }

    /// Tells what is new: the blocks first, so that a load never stands there without them.
    async fn tell_news(&self) -> Result<(), Closed> {
        let worker = self.worker;
        let News { accepted, is_forgotten, changes, load, differs } = self.stock.server().take_news();
        if is_forgotten {
            self.outbox.tell_blocks(BlockReport::Replace { worker, runs: Vec::new() }).await?;
        }
        if !changes.is_empty() {
            self.outbox.tell_blocks(BlockReport::Update { worker, changes, digest: None, pending: None }).await?;
        }
        self.outbox.tell(Report::Update { worker, accepted, load: Some(load) }).await?;
        if differs {
            self.fleet.metrics.stock_mismatches.inc();
            self.outbox.tell(Report::Differs { worker }).await?;
        }
        Ok(())
    }

    async fn lost(&self, trouble: Trouble) -> Result<(), Closed> {
        let worker = self.worker;
        self.stock.server().lost();
        self.outbox.tell_blocks(BlockReport::Gone { worker }).await?;
        self.outbox.tell(Report::Unreachable { worker, trouble }).await
    }
}
