//! Poller of a stock server: finds and polls it, and sends the tracker the reports that a Warmpath worker would send
//! itself.
//!
//! Requests record their progress in one small state for each server. Its poller wakes up, takes the changes and
//! reports them over the same channel as a summary subscriber. When a server is lost its state is dropped, because a
//! server that returns cannot be asked for its blocks.
//!
//! Not here: the state (the core's `stock`), polls (`probe`), requests (`request`).

mod probe;
mod request;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;
use warmpath_common::model::{Fingerprint, ModelInfo};
use warmpath_common::summary::Change;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::WorkerView;
use warmpath_router_core::stock::{
    AssumedCacheLimits, Counts, PeerServer, Placed, ServerInfo, StockModel, StockServer, TokenizerSource, Updates,
    place,
};
use warmpath_shell::chain;

use self::probe::{FoundServer, LoadReport, Probe, ProbeError, ProbeResult};
pub use self::request::ServerRequest;
use super::members::Member;
use super::subscriber::{Closed, FleetEvents};
use super::vocabulary_files::LoadedVocabulary;
use super::{Fleet, FollowError, FollowErrorKind, TrackerMessage};
use crate::config::{STOCK_POLL, STOCK_SILENT_POLLS};

/// A stock server, shared by its poller and the requests sent to it.
#[derive(Default)]
pub struct Stock {
    /// State of the server. The lock is held for one entry, never across `.await`.
    server: Mutex<StockServer>,
    /// Signal that there are changes to report.
    news: Notify,
    /// Signal that a request has failed there.
    suspicion: Notify,
}

impl Stock {
    /// Records the models that the server stands for in the fleet.
    fn placed(&self, n_slots: u16, models: Vec<Placed>) {
        self.server().placed(n_slots, models);
        self.news.notify_one();
    }

    fn server(&self) -> MutexGuard<'_, StockServer> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tracker's state of the stock servers.
pub(super) struct StockServers {
    /// Declaration of each server that was found.
    found: HashMap<WorkerIdx, Known>,
    /// For each given vocabulary, whether servers were found to count differently.
    given: Vec<Counts>,
}

/// The tracker's state of one stock server.
struct Known {
    declared: ServerInfo,
    /// First names of the models whose tokens the server counts differently than assumed.
    differing: HashSet<String>,
}

/// A server's model as it appears in the fleet.
struct PlacedModel {
    model: Arc<ModelInfo>,
    tokenizer_source: TokenizerSource,
}

impl StockServers {
    /// Returns the state before any server is found.
    pub(super) fn new(fleet: &Fleet) -> Self {
        Self { found: HashMap::new(), given: vec![Counts::Agree; fleet.given().len()] }
    }

    /// Records a server's declaration; a new model is assumed to count as its vocabulary does.
    pub(super) fn found(&mut self, worker: WorkerIdx, declared: ServerInfo) {
        let mut differing = self.found.remove(&worker).map(|known_server| known_server.differing).unwrap_or_default();
        differing.retain(|name| declared.models.iter().any(|stock_model| stock_model.names[0] == *name));
        self.found.insert(worker, Known { declared, differing });
    }

    /// Records that a server was lost: when it returns, its token counts are trusted again.
    pub(super) fn lost(&mut self, worker: WorkerIdx) {
        if let Some(known_server) = self.found.get_mut(&worker) {
            known_server.differing.clear();
        }
    }

    /// Removes a server that has left.
    pub(super) fn left(&mut self, worker: WorkerIdx) {
        self.found.remove(&worker);
    }

    /// Records that a server counts a model's tokens differently, so that the vocabulary given for the model is no
    /// longer used.
    pub(super) fn differs(&mut self, fleet: &Fleet, worker: &WorkerView, model: Fingerprint) {
        let Some(model) = worker.models().find(|declared_model| declared_model.fingerprint == model) else { return };
        if let Some(known_server) = self.found.get_mut(&worker.idx) {
            known_server.differing.insert(model.names[0].clone());
        }
        for (given, counts) in fleet.given().iter().zip(&mut self.given) {
            if given.cuts(model) {
                *counts = Counts::Differ;
            }
        }
    }

    fn given_for<'a>(&self, fleet: &'a Fleet, stock_model: &StockModel) -> Option<&'a ModelInfo> {
        let is_for =
            |(nth, given): &(usize, &LoadedVocabulary)| self.given[*nth] == Counts::Agree && given.is_for(stock_model);
        fleet.given().iter().enumerate().find(is_for).map(|(_, given)| &given.model)
    }

    /// Determines for each server its models in the fleet, and the tokenizer for their prompts.
    pub(super) fn place(&self, fleet: &Fleet, workers: Vec<&mut Arc<WorkerView>>) {
        let is_fellow = |worker: &&&mut Arc<WorkerView>| worker.stock.is_none() && worker.excluded.is_none();
        let fellows = workers.iter().filter(is_fellow).filter_map(|worker| worker.model.clone());
        let mut fellows: Vec<_> =
            fellows.map(|model| PlacedModel { model, tokenizer_source: TokenizerSource::Vocabulary }).collect();
        for worker in workers {
            let member = fleet.member(worker.idx);
            let (Some(known_server), Some(stock)) = (self.found.get(&worker.idx), &member.stock) else { continue };
            let placed_models = self.placed_models(fleet, known_server, &fellows);
            seat(worker, stock, known_server, &placed_models);
            fellows.extend(placed_models);
        }
    }

    /// Returns how the models of one server appear, given the models already placed.
    fn placed_models(&self, fleet: &Fleet, known_server: &Known, fellows: &[PlacedModel]) -> Vec<PlacedModel> {
        let declared = &known_server.declared;
        let stand = |(nth, stock_model): (usize, &StockModel)| {
            let given = self.given_for(fleet, stock_model);
            let counts =
                if known_server.differing.contains(&stock_model.names[0]) { Counts::Differ } else { Counts::Agree };
            let fellows = fellows
                .iter()
                .map(|fellow| PeerServer { model: &fellow.model, tokenizer_source: fellow.tokenizer_source });
            let (model, tokenizer_source) = place(declared, nth, fellows, given, counts);
            PlacedModel { model: Arc::new(model), tokenizer_source }
        };
        declared.models.iter().enumerate().map(stand).collect()
    }
}

/// Writes a server's models into its view and state, if they changed.
fn seat(worker: &mut Arc<WorkerView>, stock: &Stock, known_server: &Known, placed_models: &[PlacedModel]) {
    let placed = |(placed_model, stock_model): (&PlacedModel, &StockModel)| Placed {
        fingerprint: placed_model.model.fingerprint,
        tokenizer_source: placed_model.tokenizer_source,
        block_size_tokens: placed_model.model.block_size_tokens,
        limits: AssumedCacheLimits::of(&placed_model.model),
        identity: stock_model.identity.clone(),
        residence: stock_model.residence,
    };
    let placed = placed_models.iter().zip(&known_server.declared.models).map(placed).collect();
    stock.placed(known_server.declared.n_slots, placed);
    let tokenizer_source =
        placed_models.first().map_or(TokenizerSource::Load, |placed_model| placed_model.tokenizer_source);
    let models = placed_models.iter().map(|placed_model| &placed_model.model);
    if worker.stock == Some(tokenizer_source) && worker.models().eq(models.clone()) {
        return;
    }
    let (label, n_models) = (tokenizer_source.label(), placed_models.len());
    tracing::info!(worker = %worker.name, tokenizer_source = label, models = n_models, "stock server is placed");
    let view = Arc::make_mut(worker);
    let mut models = models.cloned();
    (view.model, view.further, view.stock) = (models.next(), models.collect(), Some(tokenizer_source));
}

/// Reason why a server is not followed for now.
enum Left {
    /// The server cannot be used.
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

/// Follows one stock server as long as it is in the fleet.
pub async fn follow(fleet: Arc<Fleet>, worker: WorkerIdx, stock: Arc<Stock>, outbox: FleetEvents) {
    let member = fleet.member(worker);
    let probe = Probe::new(member.client.clone());
    let poller = ServerPoller { fleet, worker, member, stock, outbox };
    let (mut last_label, mut n_silent) = ("", 0);
    loop {
        let last_message = poller.member.last_message();
        let Err(Left::Server(error)) = poller.attend(&probe).await else { return };
        let has_message = poller.member.last_message() != last_message;
        n_silent = u32::from(error.is_silence()) + if has_message { 0 } else { n_silent };
        let fleet = &poller.fleet;
        fleet.metrics.stock_losses.with_label_values(&[error.label()]).inc();
        // A server that is down is tried every second; each change is logged once.
        let is_news = has_message || error.label() != last_label;
        last_label = error.label();
        if is_news && poller.changed(&error).await.is_err() {
            return;
        }
        if poller.lost(&error, n_silent).await.is_err() {
            return;
        }
        tokio::time::sleep(STOCK_POLL).await;
    }
}

struct ServerPoller {
    fleet: Arc<Fleet>,
    worker: WorkerIdx,
    member: Arc<Member>,
    stock: Arc<Stock>,
    outbox: FleetEvents,
}

impl ServerPoller {
    /// Finds the server, and reports its changes until it is lost.
    async fn attend(&self, probe: &Probe) -> Result<(), Left> {
        let worker = self.worker;
        let mut found_server = probe.find().await?;
        self.fleet.record_message(&self.member);
        self.outbox.tell(TrackerMessage::Replaced { worker, runs: Vec::new() }).await?;
        self.report_found(&found_server).await?;
        let mut was_shortage = false;
        loop {
            was_shortage = match self.refresh(probe, &mut found_server).await {
                // A shortage on this machine shows nothing about the server: its state and its assumed cache stay.
                Err(Left::Server(error)) if error.is_shortage() => {
                    if !was_shortage {
                        let reason = chain(&error);
                        tracing::warn!(worker = %self.member.url, %reason, "this machine cannot poll a stock server");
                    }
                    true
                }
                refreshed => refreshed.map(|()| false)?,
            };
            self.report_updates().await?;
        }
    }

    /// Polls the server after a pause, and finds it again if its models have changed.
    async fn refresh(&self, probe: &Probe, found_server: &mut FoundServer) -> Result<(), Left> {
        let ProbeResult { load, models } = self.next_poll(probe, found_server).await?;
        self.fleet.record_message(&self.member);
        if models.is_some_and(|models| models != found_server.models) {
            *found_server = probe.find().await?;
            self.report_found(found_server).await?;
        }
        let mut server = self.stock.server();
        match load {
            LoadReport::Read(server_status) if server.observed(server_status) => {
                tracing::warn!(worker = %self.member.url, "stock server has restarted");
                server.lost();
            }
            LoadReport::Spared => server.unobserved(),
            LoadReport::Read(_) | LoadReport::Missing => {}
        }
        Ok(())
    }

    /// Reports changes until the next poll: after a pause, or at once if a request has failed there.
    async fn next_poll(&self, probe: &Probe, found_server: &FoundServer) -> Result<ProbeResult, Left> {
        let polling = async {
            tokio::select! {
                () = tokio::time::sleep(STOCK_POLL) => {}
                () = self.stock.suspicion.notified() => {}
            }
            let activity = self.stock.server().activity(Instant::now());
            probe.poll(&found_server.ways, activity).await
        };
        tokio::pin!(polling);
        loop {
            tokio::select! {
                () = self.stock.news.notified() => self.report_updates().await?,
                polled = &mut polling => return Ok(polled?),
            }
        }
    }

    async fn report_found(&self, found_server: &FoundServer) -> Result<(), Closed> {
        let declared = found_server.declared.clone();
        if declared.n_left_out > 0 {
            tracing::error!(
                worker = %self.member.url,
                left_out = declared.n_left_out,
                "stock server lists more models than a router takes; requests for the last ones are refused"
            );
        }
        let left_out = i64::try_from(declared.n_left_out).unwrap_or(i64::MAX);
        self.fleet.metrics.left_out_models.with_label_values(&[&self.member.name()]).set(left_out);
        self.outbox.tell(TrackerMessage::Found { worker: self.worker, declared }).await
    }

    /// Reports the changes.
    async fn report_updates(&self) -> Result<(), Closed> {
        let worker = self.worker;
        let updates = self.stock.server().take_updates(Instant::now());
        let Updates { accepted, is_forgotten, mut changes, load, differing } = updates;
        if is_forgotten {
            self.outbox.tell(TrackerMessage::Replaced { worker, runs: Vec::new() }).await?;
        }
        changes.extend(accepted.into_iter().map(Change::Accepted));
        self.outbox.tell(TrackerMessage::Update { worker, changes, load: Some(load), digest: None }).await?;
        for model in differing {
            self.fleet.metrics.stock_mismatches.inc();
            self.outbox.tell(TrackerMessage::Differs { worker, model }).await?;
        }
        Ok(())
    }

    /// Logs the reason why the server cannot be used; it is called once for each new reason. A server without models is
    /// reported.
    async fn changed(&self, error: &ProbeError) -> Result<(), Closed> {
        tracing::warn!(worker = %self.member.url, reason = %chain(error), "stock server cannot be used");
        if !matches!(error, ProbeError::NoModel) {
            return Ok(());
        }
        let declared = ServerInfo { models: Vec::new(), n_slots: 1, n_left_out: 0 };
        self.outbox.tell(TrackerMessage::Found { worker: self.worker, declared }).await
    }

    /// Reports that the server cannot be used after `n_silent` unanswered polls.
    async fn lost(&self, error: &ProbeError, n_silent: u32) -> Result<(), Closed> {
        let worker = self.worker;
        self.stock.server().lost();
        let kind = match error {
            ProbeError::Loading { names } => {
                // A server that loads responds to every poll, so it is not silent.
                self.fleet.record_message(&self.member);
                FollowErrorKind::Loading { names: names.clone() }
            }
            ProbeError::Refused { .. } => FollowErrorKind::Refusal,
            _ if n_silent >= STOCK_SILENT_POLLS => FollowErrorKind::Loss,
            _ => FollowErrorKind::Other,
        };
        let trouble = FollowError { kind, reason: chain(error).into() };
        self.outbox.tell(TrackerMessage::Unreachable { worker, trouble }).await
    }
}
