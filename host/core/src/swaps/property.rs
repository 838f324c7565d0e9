//! Random hosts in virtual time: clients that request models, workers that load, answer and end.

use proptest::prelude::*;
use warmpath_common::host::ModelState;

use super::*;

/// Time between two looks of the host.
const TICK_MS: u64 = 25;
/// Time of a run.
const RUN_MS: u64 = 120_000;
/// Time between two demands of the router.
const REPEAT_MS: u64 = 1_000;
/// Time from the last answer of a worker to its end.
const END_MS: u64 = 75;

/// A model of a random host.
#[derive(Debug, Clone)]
struct RandomModel {
    bytes: u64,
    load_ms: u64,
    is_pinned: bool,
}

/// A client, which sends one request after the other.
#[derive(Debug, Clone)]
struct RandomClient {
    /// Models that it requests in turn.
    models: Vec<prop::sample::Index>,
    think_ms: u64,
    answer_ms: u64,
}

/// Worker of a model in the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SimWorker {
    None,
    Loading { ready_ms: u64 },
    Loaded,
    Draining { quiet_ms: u64 },
}

/// State of a client in the run.
#[derive(Debug, Clone, Copy)]
enum SimClient {
    Thinking { until_ms: u64 },
    Waiting { model: usize, since_ms: u64 },
    Answered { model: usize, until_ms: u64 },
}

fn models() -> impl Strategy<Value = Vec<RandomModel>> {
    let model = (1_u64..60, 10_u64..3_000, prop::bool::weighted(0.1))
        .prop_map(|(bytes, load_ms, is_pinned)| RandomModel { bytes, load_ms, is_pinned });
    prop::collection::vec(model, 2..6)
}

fn clients() -> impl Strategy<Value = Vec<RandomClient>> {
    let models = prop::collection::vec(any::<prop::sample::Index>(), 1..4);
    // A client that does not think keeps its model busy.
    let think_ms = prop_oneof![Just(0), 0_u64..4_000];
    let client = (models, think_ms, 25_u64..3_000).prop_map(|(models, think_ms, answer_ms)| RandomClient {
        models,
        think_ms,
        answer_ms,
    });
    prop::collection::vec(client, 1..8)
}

/// A run of a host.
struct Run<'a> {
    models: &'a [RandomModel],
    clients: &'a [RandomClient],
    budget: u64,
    limits: SwapLimits,
    swaps: Swaps,
    workers: Vec<SimWorker>,
    states: Vec<SimClient>,
    n_sent: Vec<usize>,
}

impl<'a> Run<'a> {
    fn new(models: &'a [RandomModel], clients: &'a [RandomClient], budget: u64, limits: SwapLimits) -> Self {
        let entry = |(idx, model): (usize, &RandomModel)| Entry {
            name: idx.to_string(),
            aliases: Vec::new(),
            set_params: std::collections::BTreeMap::new(),
            flags: Vec::new(),
            file_bytes: 0,
            is_pinned: model.is_pinned,
            loads_on_startup: false,
            is_removable: false,
            ttl_ms: None,
            stop_timeout_ms: 60_000,
        };
        let mut swaps = Swaps::new(limits, budget, models.iter().enumerate().map(entry).collect(), 0);
        for (idx, model) in models.iter().enumerate() {
            swaps.projected(&idx.to_string(), DeviceBytes::ram(model.bytes));
        }
        let (workers, n_sent) = (vec![SimWorker::None; models.len()], vec![0; clients.len()]);
        let states = vec![SimClient::Thinking { until_ms: 0 }; clients.len()];
        Self { models, clients, budget, limits, swaps, workers, states, n_sent }
    }

    /// Returns the longest wait of a request: others that wait are served before, each after the answers of the models
    /// that leave for it, the time that these must stay, and its load.
    fn wait_max_ms(&self) -> u64 {
        let load_ms = self.models.iter().map(|model| model.load_ms).max().unwrap_or(0);
        let answer_ms = self.clients.iter().map(|client| client.answer_ms).max().unwrap_or(0);
        let each_ms = answer_ms + 2 * (load_ms + TICK_MS) + END_MS + 4 * TICK_MS + REPEAT_MS;
        self.limits.swap_wait_max_ms + self.models.len() as u64 * each_ms
    }

    fn n_running(&self, model: usize) -> u32 {
        let runs = |state: &&SimClient| matches!(state, SimClient::Answered { model: of, .. } if *of == model);
        u32::try_from(self.states.iter().filter(runs).count()).expect("a few clients")
    }

    fn tick(&mut self, now_ms: u64) -> Result<(), TestCaseError> {
        self.step_workers(now_ms);
        self.step_clients(now_ms)?;
        let actions = self.swaps.step(now_ms);
        for action in actions {
            self.execute(action, now_ms)?;
        }
        let taken: u64 = (0..self.models.len())
            .filter(|idx| self.workers[*idx] != SimWorker::None)
            .map(|idx| self.models[idx].bytes)
            .sum();
        prop_assert!(taken <= self.budget, "{taken} bytes of {} at {now_ms} ms", self.budget);
        let n_workers = self.workers.iter().filter(|worker| **worker != SimWorker::None).count();
        prop_assert!(self.limits.models_max == 0 || n_workers <= self.limits.models_max);
        Ok(())
    }

    fn execute(&mut self, action: Action, now_ms: u64) -> Result<(), TestCaseError> {
        match action {
            Action::Start(name) => {
                let idx: usize = name.parse().expect("an index");
                prop_assert_eq!(self.workers[idx], SimWorker::None, "one worker for each model");
                self.workers[idx] = SimWorker::Loading { ready_ms: now_ms + self.models[idx].load_ms };
                self.swaps.listening(&name, format!("http://{name}"));
            }
            Action::Drain(name) => {
                let idx: usize = name.parse().expect("an index");
                prop_assert_eq!(self.workers[idx], SimWorker::Loaded);
                prop_assert!(!self.models[idx].is_pinned, "a pinned model leaves");
                self.workers[idx] = SimWorker::Draining { quiet_ms: now_ms };
            }
            Action::Kill(name) => prop_assert!(false, "kills {}", name),
            Action::Project(name) => prop_assert!(false, "projects {}", name),
        }
        Ok(())
    }

    fn step_workers(&mut self, now_ms: u64) {
        for idx in 0..self.models.len() {
            let (name, n_running) = (idx.to_string(), self.n_running(idx));
            self.workers[idx] = match self.workers[idx] {
                SimWorker::Loading { ready_ms } if ready_ms <= now_ms => {
                    self.swaps.ready(&name, None, now_ms);
                    SimWorker::Loaded
                }
                SimWorker::Draining { .. } if n_running > 0 => SimWorker::Draining { quiet_ms: now_ms },
                SimWorker::Draining { quiet_ms } if quiet_ms + END_MS <= now_ms => {
                    self.swaps.exited(&name, String::new(), now_ms);
                    SimWorker::None
                }
                worker => worker,
            };
        }
    }

    fn step_clients(&mut self, now_ms: u64) -> Result<(), TestCaseError> {
        for idx in 0..self.clients.len() {
            let RandomClient { models, think_ms, answer_ms } = &self.clients[idx];
            if let SimClient::Answered { until_ms, .. } = self.states[idx]
                && until_ms <= now_ms
            {
                self.states[idx] = SimClient::Thinking { until_ms: now_ms + think_ms };
            }
            if let SimClient::Thinking { until_ms } = self.states[idx]
                && until_ms <= now_ms
            {
                let model = models[self.n_sent[idx] % models.len()].index(self.models.len());
                self.n_sent[idx] += 1;
                self.states[idx] = SimClient::Waiting { model, since_ms: now_ms };
            }
            if let SimClient::Waiting { model, .. } = self.states[idx]
                && self.workers[model] == SimWorker::Loaded
            {
                self.states[idx] = SimClient::Answered { model, until_ms: now_ms + answer_ms };
            }
        }
        for model in 0..self.models.len() {
            let n_running = self.n_running(model);
            self.swaps.running(&model.to_string(), n_running, now_ms);
            let waits = |state: &SimClient| match state {
                SimClient::Waiting { model: of, since_ms } if *of == model => Some(now_ms - since_ms),
                _ => None,
            };
            let waits: Vec<u64> = self.states.iter().filter_map(waits).collect();
            let Some(oldest_wait_ms) = waits.iter().copied().max() else { continue };
            if !self.is_impossible(model, now_ms) {
                let wait_max_ms = self.wait_max_ms();
                prop_assert!(oldest_wait_ms <= wait_max_ms, "model {} waits {} ms", model, oldest_wait_ms);
            }
            if now_ms.is_multiple_of(REPEAT_MS) || waits.contains(&0) {
                let n_waiting = u32::try_from(waits.len()).expect("a few clients");
                let demand = Demand { model: model.to_string(), router: "r".to_owned(), n_waiting, oldest_wait_ms };
                self.swaps.demand(&demand, now_ms);
            }
        }
        Ok(())
    }

    fn is_impossible(&self, model: usize, now_ms: u64) -> bool {
        matches!(self.swaps.models(|_| true, now_ms)[model].state, ModelState::Impossible { .. })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_budget_holds_pins_stay_and_every_request_is_served_within_its_time(
        models in models(),
        clients in clients(),
        budget in 60_u64..150,
        models_max in 0_usize..4,
    ) {
        let limits = SwapLimits { swap_wait_max_ms: 5_000, models_max };
        let mut run = Run::new(&models, &clients, budget, limits);
        for now_ms in (0..RUN_MS).step_by(TICK_MS as usize) {
            run.tick(now_ms)?;
        }
    }
}
