//! A simulated router: the production code for state, index and choice, fed with the workers' announcements.
//!
//! Not here: the times at which announcements arrive (`world`), policies that the router does not offer (`ablation`,
//! `rivals`). Each router has its own view of the fleet, like one of several processes, and learns of other routers'
//! requests only from the workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use warmpath_common::ids::{RequestId, WorkerUid};
use warmpath_common::model::{Fingerprint, KvTransfer, ModelInfo};
use warmpath_common::summary::{Change, Load};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::{ConnectionState, FleetView, KnownBlocks, WorkerView};
use warmpath_router_core::index::{IndexOptions, IndexWriter, PrefixIndex};
use warmpath_router_core::ledger::{Decision, Ledger, LedgerOptions, RouteRequest, Ticket};
use warmpath_router_core::routing::choose::{Policy as Offered, PromptView};
use warmpath_router_core::routing::transfer::Transfer;

use super::network::Network;
use super::policy::Policy;
use super::policy::ablation::{self, Term};
use super::policy::rivals::Rival;
use super::trace::Request;

/// Maximum memory of a router's index, which no simulation reaches. Units: bytes.
const INDEX_BYTES_MAX: usize = 4 << 30;

/// One router.
pub struct Router {
    fleet: FleetView,
    model: Arc<ModelInfo>,
    writer: IndexWriter,
    index: Arc<PrefixIndex>,
    ledger: Ledger,
    rule: Rule,
    rng: ChaCha8Rng,
    start: Instant,
    block_tokens: u32,
}

/// Rule by which the production code chooses among its candidates.
enum Rule {
    /// The policy that the router offers.
    Offered,
    /// Our policy without a term.
    Without(Term),
    /// A random candidate.
    Random,
    /// A rule of others.
    Rival(Rival),
}

/// Size of a fleet.
#[derive(Debug, Clone, Copy)]
pub struct FleetShape {
    /// Number of workers.
    pub n_workers: u32,
    /// Number of slots of each worker.
    pub n_slots: u16,
    /// Length of a block. Units: tokens.
    pub block_tokens: u32,
    /// Network between the workers; absent if they exchange no KV state.
    pub network: Option<Network>,
}

/// Destination of a request.
#[derive(Debug)]
pub struct Sent {
    /// The worker.
    pub worker: WorkerIdx,
    /// Prompt tokens that are expected to be reused. Units: tokens.
    pub cached_tokens: u32,
    /// State that the worker is to fetch.
    pub transfer: Option<Transfer>,
    /// Receipt, which must be returned to [`Router::ended`].
    pub ticket: Ticket,
}

impl Router {
    /// Returns a router that knows nothing of the workers' state yet.
    pub fn new(policy: Policy, shape: FleetShape, seed: u64) -> Self {
        let model = Arc::new(model(shape));
        let worker = |idx| WorkerView {
            idx: WorkerIdx(idx),
            name: format!("worker-{idx}"),
            uid: Some(WorkerUid(u64::from(idx))),
            boot_epoch: None,
            model: Some(Arc::clone(&model)),
            further: Vec::new(),
            awaited: Vec::new(),
            joined_at: Instant::now(),
            load: Load::default(),
            measured_at: Instant::now(),
            link: ConnectionState::Connecting,
            trouble: None,
            excluded: None,
            blocks: KnownBlocks::default(),
            stock: None,
            is_leaving: false,
        };
        let fleet = FleetView {
            workers: (0..shape.n_workers).map(|idx| Arc::new(worker(idx))).collect(),
            ..FleetView::default()
        };
        let writer = IndexWriter::new(IndexOptions { bytes_max: INDEX_BYTES_MAX, seed });
        let index = writer.reader();
        let (rule, offered) = match policy {
            Policy::Offered(offered) => (Rule::Offered, offered),
            Policy::Random => (Rule::Random, Offered::default()),
            Policy::Without(term) => (Rule::Without(term), Offered::default()),
            Policy::Rival(kind) => (Rule::Rival(Rival::new(kind, shape.block_tokens)), Offered::default()),
        };
        // Others know no transfers of KV state.
        let network = shape.network.filter(|_| !matches!(rule, Rule::Rival(_)));
        let kv_bytes_per_ms = network.map(|network| network.bytes_per_ms);
        let ledger = Ledger::new(LedgerOptions { policy: offered, kv_bytes_per_ms, ..LedgerOptions::default() });
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self { fleet, model, writer, index, ledger, rule, rng, start: Instant::now(), block_tokens: shape.block_tokens }
    }

    /// Returns how long a request is held back before its choice.
    pub fn backoff(&mut self, request: &Request, id: &RequestId, now: Duration) -> Duration {
        if matches!(self.rule, Rule::Without(Term::Backoff) | Rule::Rival(_)) {
            return Duration::ZERO;
        }
        let keys = request.reusable_keys(self.block_tokens);
        let matches = self.index.matches(keys);
        let prompt = PromptView::Known { n_tokens: request.prompt_tokens, keys, matches: &matches, media: &[] };
        self.ledger.backoff(&self.fleet, &ask(id, self.start + now, &self.model, prompt), &mut self.rng)
    }

    /// Returns whether a request that is held back may continue to wait.
    pub fn may_back_off(&self, request: &Request, id: &RequestId, now: Duration) -> bool {
        let prompt = PromptView::Estimated { n_tokens: request.prompt_tokens };
        self.ledger.may_back_off(&self.fleet, &ask(id, self.start + now, &self.model, prompt))
    }

    /// Chooses a worker for a request that has failed at `failed_workers`; `None` if no worker is available.
    pub fn choose(
        &mut self,
        request: &Request,
        id: &RequestId,
        failed_workers: &[WorkerIdx],
        now: Duration,
    ) -> Option<Sent> {
        let keys = request.reusable_keys(self.block_tokens);
        let matches = self.index.matches(keys);
        let prompt = PromptView::Known { n_tokens: request.prompt_tokens, keys, matches: &matches, media: &[] };
        let ask = RouteRequest { tried: failed_workers, ..ask(id, self.start + now, &self.model, prompt) };
        let Self { fleet, ledger, rng, .. } = self;
        let choice = match &self.rule {
            Rule::Offered => ledger.choose(fleet, &ask),
            Rule::Without(term) => ablation::choose(*term, ledger, fleet, &ask),
            Rule::Random => ledger.choose_by(fleet, &ask, |candidates, _| {
                candidates.get((rng.next_u64() % candidates.len().max(1) as u64) as usize)
            }),
            Rule::Rival(rival) => ledger.choose_by(fleet, &ask, |candidates, _| rival.pick(request, candidates)),
        };
        let (Decision { worker, cached_tokens, transfer, .. }, ticket) = choice.ok()?;
        if let Rule::Rival(rival) = &mut self.rule {
            rival.sent(worker, request, id, cached_tokens);
        }
        Some(Sent { worker, cached_tokens, transfer, ticket })
    }

    /// Records that the first token of a request has arrived.
    pub fn first_token(&mut self, worker: WorkerIdx, id: &RequestId) {
        self.ledger.health.answered(worker, &[], self.start);
        if let Rule::Rival(rival) = &mut self.rule {
            rival.first_token(id);
        }
    }

    /// Records that a worker fetched `bytes` of KV state from a peer in `took_ms`.
    pub fn fetched(&mut self, worker: WorkerIdx, peer: WorkerIdx, bytes: u64, took_ms: f64, now: Duration) {
        self.ledger.transfer_rates.fetched(worker, peer, bytes, took_ms, self.start + now);
    }

    /// Records that a worker could not fetch what a peer was to have.
    pub fn fetch_failed(&mut self, worker: WorkerIdx, peer: WorkerIdx, now: Duration) {
        self.ledger.transfer_rates.failed(worker, peer, self.start + now);
    }

    /// Records that a request has left its worker.
    pub fn ended(&mut self, ticket: Ticket, id: &RequestId) {
        self.ledger.ended(ticket);
        if let Rule::Rival(rival) = &mut self.rule {
            rival.ended(id);
        }
    }

    /// Applies changes of what a worker holds.
    pub fn apply_changes(&mut self, worker: WorkerIdx, changes: &[Change]) {
        let n_filling: usize = changes.iter().map(|change| self.writer.apply(worker, change)).sum();
        if n_filling > 0 {
            self.ledger.recent_work.fill(worker, n_filling as u64 * u64::from(self.block_tokens));
        }
        let n_blocks = self.writer.n_blocks_of(worker);
        self.view_mut(worker).blocks.n_blocks = n_blocks;
    }

    /// Takes a worker's load, with the requests that it now counts.
    pub fn apply_load(&mut self, worker: WorkerIdx, load: &Load, counted_requests: &[Change], now: Duration) {
        for change in counted_requests {
            let Change::Accepted(id) = change else { continue };
            self.ledger.accepted(worker, id, self.start + now);
        }
        let now = self.start + now;
        let view = self.view_mut(worker);
        view.record_load(load.clone(), now);
        view.link = ConnectionState::Live;
    }

    /// Records that a worker is gone.
    pub fn lost(&mut self, worker: WorkerIdx, now: Duration) {
        let since = self.start + now;
        let view = self.view_mut(worker);
        view.link = ConnectionState::Down { since };
        view.load = Load::default();
        view.blocks = KnownBlocks::default();
        self.writer.remove_worker(worker);
    }

    fn view_mut(&mut self, worker: WorkerIdx) -> &mut WorkerView {
        Arc::make_mut(&mut self.fleet.workers[worker.0 as usize])
    }
}

/// Returns the model that every simulated worker declares.
fn model(shape: FleetShape) -> ModelInfo {
    let kv_transfer =
        |network: Network| KvTransfer { layout: Fingerprint([4; 32]), bytes_per_token: network.bytes_per_token };
    ModelInfo {
        names: vec!["simulated".into()],
        kv_transfer: shape.network.map(kv_transfer),
        ..ModelInfo::text(Fingerprint([1; 32]), shape.block_tokens, u32::MAX, shape.n_slots, u32::MAX)
    }
}

/// Returns the routing request of a first attempt.
fn ask<'a>(request_id: &'a RequestId, now: Instant, model: &'a ModelInfo, prompt: PromptView<'a>) -> RouteRequest<'a> {
    let (model_name, account, wanted) = (None, None, None);
    let (tried, awaited, n_sequences) = (&[], &[], 1);
    RouteRequest { request_id, model_name, account, model, wanted, prompt, tried, awaited, n_sequences, now }
}
