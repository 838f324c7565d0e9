//! Random hosts in virtual time: clients that request models, workers that load, answer and end.

use proptest::prelude::*;
use warmpath_common::host::{Demand, ModelState};

use super::*;

/// Time between two looks of the host.
const TICK_MS: u64 = 25;
/// Time of a run.
const RUN_MS: u64 = 120_000;

/// A client, which sends one request after the other.
#[derive(Debug, Clone)]
struct RandomClient {
    /// Models that it requests in turn.
    models: Vec<prop::sample::Index>,
    think_ms: u64,
    answer_ms: u64,
}

/// State of a client in the run.
#[derive(Debug, Clone, Copy)]
enum SimClient {
    Thinking { until_ms: u64 },
    Waiting { model: usize, since_ms: u64 },
    Answered { model: usize, until_ms: u64 },
}

fn models() -> impl Strategy<Value = Vec<ModelShape>> {
    let model = (1_u64..60, 10_u64..3_000, prop::bool::weighted(0.1))
        .prop_map(|(bytes, load_ms, is_pinned)| ModelShape { bytes, load_ms, is_pinned });
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
    host: SimHost,
    clients: &'a [RandomClient],
    budget: u64,
    limits: SwapLimits,
    states: Vec<SimClient>,
    n_sent: Vec<usize>,
}

impl<'a> Run<'a> {
    fn new(models: Vec<ModelShape>, clients: &'a [RandomClient], budget: u64, limits: SwapLimits) -> Self {
        let (host, n_sent) = (SimHost::new(models, budget, limits), vec![0; clients.len()]);
        let states = vec![SimClient::Thinking { until_ms: 0 }; clients.len()];
        Self { host, clients, budget, limits, states, n_sent }
    }

    /// Returns the longest wait of a request: others that wait are served before, each after the answers of the models
    /// that leave for it, the time that these must stay, and its load.
    fn wait_max_ms(&self) -> u64 {
        let load_ms = self.host.models.iter().map(|model| model.load_ms).max().unwrap_or(0);
        let answer_ms = self.clients.iter().map(|client| client.answer_ms).max().unwrap_or(0);
        let each_ms = answer_ms + 2 * (load_ms + TICK_MS) + END_MS + 4 * TICK_MS + REPEAT_MS;
        self.limits.swap_wait_max_ms + self.host.models.len() as u64 * each_ms
    }

    fn n_running(states: &[SimClient], model: usize) -> usize {
        let runs = |state: &&SimClient| matches!(state, SimClient::Answered { model: of, .. } if *of == model);
        states.iter().filter(runs).count()
    }

    fn tick(&mut self, now_ms: u64) -> Result<(), TestCaseError> {
        self.host.step_workers(now_ms, |model| Self::n_running(&self.states, model));
        self.step_clients(now_ms)?;
        let workers = self.host.workers.clone();
        for action in self.host.swap(now_ms) {
            match action {
                Action::Start(name) => {
                    prop_assert_eq!(workers[index(&name)], Worker::None, "one worker for each model")
                }
                Action::Drain(name, _) => {
                    prop_assert_eq!(workers[index(&name)], Worker::Loaded);
                    prop_assert!(!self.host.models[index(&name)].is_pinned, "a pinned model leaves");
                }
                Action::Kill(name) => prop_assert!(false, "kills {}", name),
                Action::Project(name) => prop_assert!(false, "projects {}", name),
            }
        }
        let with_models = self.host.workers.iter().zip(&self.host.models);
        let taken: u64 = with_models.filter(|(worker, _)| **worker != Worker::None).map(|(_, model)| model.bytes).sum();
        prop_assert!(taken <= self.budget, "{taken} bytes of {} at {now_ms} ms", self.budget);
        prop_assert!(self.limits.models_max == 0 || self.host.n_workers() <= self.limits.models_max);
        Ok(())
    }

    fn step_clients(&mut self, now_ms: u64) -> Result<(), TestCaseError> {
        let n_models = self.host.models.len();
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
                let model = models[self.n_sent[idx] % models.len()].index(n_models);
                self.n_sent[idx] += 1;
                self.states[idx] = SimClient::Waiting { model, since_ms: now_ms };
            }
            if let SimClient::Waiting { model, .. } = self.states[idx]
                && self.host.workers[model] == Worker::Loaded
            {
                self.states[idx] = SimClient::Answered { model, until_ms: now_ms + answer_ms };
            }
        }
        for model in 0..n_models {
            self.host.report_running(model, Self::n_running(&self.states, model), now_ms);
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
                let (model, n_waiting) = (model.to_string(), waits.len() as u32);
                let demand = Demand { model, router: "router".to_owned(), n_waiting, oldest_wait_ms };
                self.host.swaps.demand(&demand, now_ms);
            }
        }
        Ok(())
    }

    fn is_impossible(&self, model: usize, now_ms: u64) -> bool {
        matches!(self.host.swaps.models(|_| true, now_ms)[model].state, ModelState::Impossible { .. })
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
        let limits = SwapLimits { swap_wait_max_ms: 5_000, models_max, announce_ms: 25 };
        let mut run = Run::new(models, &clients, budget, limits);
        for now_ms in (0..RUN_MS).step_by(TICK_MS as usize) {
            run.tick(now_ms)?;
        }
    }
}
