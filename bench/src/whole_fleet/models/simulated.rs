//! `warmpath-bench models --simulated`: hosts with room for some of the models, in virtual time.
//!
//! The production decisions run: which host gets a demand (`router_core::hosts`), and when a model leaves for another
//! (`host_core::swaps`). They are compared with hosts that load in the order of arrival and evict what was used longest
//! ago. Requests are conversations whose models are chosen by Zipf's law, and bursts that alternate between two models.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use warmpath_common::host::{Demand, HostSummary};
use warmpath_host_core::swaps::{ANNOUNCE_MS, Action, SwapLimits};
use warmpath_router_core::hosts::{HostLink, HostView, HostsView};

use crate::output::figures::{Figures, Measure, Row, Unit};
use crate::output::names;
use crate::summary::Distribution;
use crate::virtual_time::sim::trace::shapes::{exponential, weighted};
use crate::virtual_time::simulated::host::{ModelShape, REPEAT_MS, SimHost, Worker, index};

/// Loads: work of the requests with warm prompts; at 1, the most requested model has as much as one worker can do.
const LOADS: [f64; 3] = [0.5, 0.8, 1.1];
/// Models, all of one size.
const N_MODELS: usize = 6;
/// Models that fit into each host at a time: together fewer than there are.
const PLACES: [usize; 3] = [2, 1, 1];
/// Requests that a worker runs at a time.
const N_SLOTS: usize = 4;
/// Time of a run. Units: milliseconds.
const RUN_MS: u64 = 3600 * 1000;
/// Time between two looks at everything. Units: milliseconds.
const TICK_MS: u64 = 50;
/// Routers of [`Policy::EightRouters`], each of which follows the hosts in another order.
const N_ROUTERS: usize = 8;
/// Ages of the routers' views, in looks at everything: those of [`Policy::EightRouters`] see the hosts as they were 50,
/// 100 or 150 ms before, the only one of [`Policy::Warmpath`] 50 ms before.
const N_AGES: usize = 3;
/// Time that a load takes. Units: milliseconds. Source: 8 GB from an NVMe disk at 1 GB/s.
const LOAD_MS: u64 = 8000;
/// Prompt tokens that a worker computes in a millisecond.
const PREFILL_TOKENS_PER_MS: f64 = 1.0;
/// Time of an answer. Units: milliseconds.
const ANSWER_MS: f64 = 2000.0;
/// Tokens of a conversation's first prompt, and those that each turn adds.
const PROMPT_TOKENS: (u64, u64) = (2000, 300);
/// Turns of a conversation.
const N_TURNS: usize = 5;
/// Mean time between two turns. Units: milliseconds.
const THINK_MS: f64 = 45_000.0;
/// Share of conversations that are bursts: they alternate between two models, with a hundredth of the pause.
const BURST_SHARE: usize = 5;

/// How hosts choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Warmpath's.
    Warmpath,
    /// The same, with requests spread over eight routers.
    EightRouters,
    /// In the order of arrival at the host with room, or the one with the model that was used longest ago; KV state is
    /// lost with its model.
    Lru,
    /// The same, and KV state stays on disk.
    LruKept,
    /// Each model has a host; otherwise as `Lru`.
    Sticky,
    /// As `LruKept`, and the model leaves whose next request is farthest away.
    Oracle,
}

/// A request.
#[derive(Debug, Clone)]
struct Request {
    at_ms: u64,
    /// Router that gets it, of [`N_ROUTERS`].
    router: usize,
    model: usize,
    conversation: usize,
    /// Tokens of the prompt that earlier turns computed, and new ones.
    history_tokens: u64,
    new_tokens: u64,
}

/// One host.
struct Host {
    n_places: usize,
    sim: SimHost,
    /// End and model of each running request.
    running: Vec<(u64, usize)>,
    used_ms: [u64; N_MODELS],
    /// Conversations whose state is here.
    kept: HashSet<usize>,
}

/// Result of a run.
#[derive(Debug, Clone, Default, PartialEq)]
struct Outcome {
    n_loads: u64,
    /// Loads of a model that another host loads or has loaded.
    n_copies: u64,
    computed_tokens: u64,
    /// Time from arrival to the start of computing, of each request. Units: milliseconds.
    waits_ms: Vec<u64>,
    /// Requests that had not begun at the end.
    n_unserved: u64,
}

/// Runs every policy under every load, and returns the figures.
pub fn figures(seed: u64) -> Figures {
    let mut figures = Figures::default();
    for load in LOADS {
        let requests = requests(load, seed);
        for policy in Policy::value_variants().iter().copied() {
            let Outcome { n_loads, n_copies, computed_tokens, waits_ms, n_unserved } = run(policy, &requests);
            let of_request = computed_tokens as f64 / waits_ms.len().max(1) as f64;
            let mut waits = Distribution::default();
            waits_ms.iter().for_each(|ms| waits.add_ms(*ms as f64));
            let row = Row::new(format!("load {load}"), names::name(policy));
            figures.add(&row, Measure::lower("loads", Unit::Count), &[n_loads as f64]);
            figures.add(&row, Measure::lower("second copies", Unit::Count), &[n_copies as f64]);
            figures.add(&row, Measure::lower("computed for a request", Unit::Tokens), &[of_request]);
            figures.add(&row, Measure::lower("wait p50", Unit::Ms), &[waits.quantile_ms(0.5)]);
            figures.add(&row, Measure::lower("wait p95", Unit::Ms), &[waits.quantile_ms(0.95)]);
            figures.add(&row, Measure::lower("longest wait", Unit::Ms), &[waits.quantile_ms(1.0)]);
            figures.add(&row, Measure::lower("not served", Unit::Count), &[n_unserved as f64]);
        }
    }
    figures
}

/// Returns the requests of a run in the order of arrival.
fn requests(load: f64, seed: u64) -> Vec<Request> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // Mean time between two conversations, from the work of one with warm prompts.
    let (first_tokens, turn_tokens) = PROMPT_TOKENS;
    let compute_ms = (first_tokens + (N_TURNS as u64 - 1) * turn_tokens) as f64 / PREFILL_TOKENS_PER_MS;
    let work_ms = compute_ms + N_TURNS as f64 * ANSWER_MS;
    let weights: f64 = (0..N_MODELS).map(weight).sum();
    let pause_ms = work_ms / (load * N_SLOTS as f64 * weights / weight(0));

    let (mut requests, mut begun_ms, mut n_conversations) = (Vec::new(), 0.0, 0_usize);
    loop {
        begun_ms += exponential(&mut random, pause_ms);
        if begun_ms >= RUN_MS as f64 {
            break;
        }
        let models = [(); 2].map(|()| weighted(&mut random, (0..N_MODELS).map(weight)));
        let is_burst = n_conversations.is_multiple_of(BURST_SHARE);
        // A burst has one conversation with each of its models.
        let mut at_ms = begun_ms;
        for turn in 0..N_TURNS {
            let side = if is_burst { turn % 2 } else { 0 };
            let nth = (if is_burst { turn / 2 } else { turn }) as u64;
            requests.push(Request {
                at_ms: at_ms as u64,
                router: requests.len() % N_ROUTERS,
                model: models[side],
                conversation: 2 * n_conversations + side,
                history_tokens: if nth == 0 { 0 } else { first_tokens + (nth - 1) * turn_tokens },
                new_tokens: if nth == 0 { first_tokens } else { turn_tokens },
            });
            let think_ms = exponential(&mut random, THINK_MS);
            at_ms += if is_burst { think_ms / 100.0 } else { think_ms };
        }
        n_conversations += 1;
    }
    requests.retain(|request| request.at_ms < RUN_MS);
    requests.sort_by_key(|request| request.at_ms);
    requests
}

/// Returns how often a model is requested, by Zipf's law.
fn weight(model: usize) -> f64 {
    1.0 / (model + 1) as f64
}

/// Runs a policy over requests.
fn run(policy: Policy, requests: &[Request]) -> Outcome {
    let mut fleet = Fleet {
        policy,
        hosts: PLACES.iter().map(|&n_places| Host::new(n_places)).collect(),
        waiting: Default::default(),
        demanded: [[None; N_MODELS]; N_ROUTERS],
        views: Default::default(),
        outcome: Outcome::default(),
        start: Instant::now(),
    };
    let mut coming = requests.iter().peekable();
    // The last requests have as long as a client may wait.
    for now_ms in (0..RUN_MS + 600_000).step_by(TICK_MS as usize) {
        while let Some(request) = coming.next_if(|request| request.at_ms <= now_ms) {
            fleet.waiting[request.model].push_back(request.clone());
        }
        fleet.step_workers(now_ms);
        fleet.dispatch(now_ms);
        match policy {
            Policy::Warmpath => fleet.swap(1, now_ms),
            Policy::EightRouters => fleet.swap(N_ROUTERS, now_ms),
            _ => fleet.load_in_order(now_ms, coming.clone()),
        }
    }
    fleet.outcome.n_unserved = fleet.waiting.iter().map(|waiting| waiting.len() as u64).sum();
    fleet.outcome
}

impl Host {
    fn new(n_places: usize) -> Self {
        let limits = SwapLimits { swap_wait_max_ms: 30_000, models_max: 0, announce_ms: ANNOUNCE_MS };
        let models = vec![ModelShape { bytes: 1, load_ms: LOAD_MS, is_pinned: false }; N_MODELS];
        let sim = SimHost::new(models, n_places as u64, limits);
        Self { n_places, sim, running: Vec::new(), used_ms: [0; N_MODELS], kept: HashSet::new() }
    }

    fn n_running(&self, model: usize) -> usize {
        self.running.iter().filter(|(_, of)| *of == model).count()
    }

    /// Returns the host as the router sees it.
    fn view(&self, host_idx: usize, now_ms: u64) -> HostView {
        let models = self.sim.swaps.models(|_| true, now_ms);
        let summary = HostSummary { host: host_idx.to_string(), models, ..HostSummary::default() };
        HostView { name: String::new(), link: HostLink::Live, summary: Some(Arc::new(summary)), trouble: None }
    }
}

/// Time and host of a demand.
#[derive(Debug, Clone, Copy)]
struct Demanded {
    at_ms: u64,
    host_idx: usize,
}

/// The hosts and the requests that wait.
struct Fleet {
    policy: Policy,
    hosts: Vec<Host>,
    /// Requests that wait, by model and in the order of arrival.
    waiting: [VecDeque<Request>; N_MODELS],
    /// The last demand for each model, by router.
    demanded: [[Option<Demanded>; N_MODELS]; N_ROUTERS],
    /// The hosts as they were at the last looks, the last one first.
    views: [HostsView; N_AGES],
    outcome: Outcome,
    start: Instant,
}

impl Fleet {
    /// Ends answers, loads and workers whose time has come.
    fn step_workers(&mut self, now_ms: u64) {
        for host in &mut self.hosts {
            host.running.retain(|(until_ms, _)| *until_ms > now_ms);
            let n_running = |model| host.running.iter().filter(|(_, of)| *of == model).count();
            let ended_models = host.sim.step_workers(now_ms, n_running);
            if matches!(self.policy, Policy::Lru | Policy::Sticky) {
                host.kept.retain(|kept| !ended_models.contains(&(kept % N_MODELS)));
            }
        }
    }

    /// Starts the requests whose model is loaded and has a free slot, first come, first served.
    fn dispatch(&mut self, now_ms: u64) {
        for model in 0..N_MODELS {
            while let Some(request) = self.waiting[model].front() {
                let kept_key = request.conversation * N_MODELS + model;
                let is_able =
                    |host: &&mut Host| host.sim.workers[model] == Worker::Loaded && host.n_running(model) < N_SLOTS;
                let able = self.hosts.iter_mut().filter(is_able);
                let Some(host) = able.max_by_key(|host| host.kept.contains(&kept_key)) else { break };
                let is_warm = !host.kept.insert(kept_key);
                let computed_tokens = request.new_tokens + if is_warm { 0 } else { request.history_tokens };
                let took_ms = computed_tokens as f64 / PREFILL_TOKENS_PER_MS + ANSWER_MS;
                host.running.push((now_ms + took_ms as u64, model));
                host.used_ms[model] = now_ms + took_ms as u64;
                self.outcome.computed_tokens += computed_tokens;
                self.outcome.waits_ms.push(now_ms - request.at_ms);
                self.waiting[model].pop_front();
            }
        }
    }

    /// Lets Warmpath's hosts swap: each router demands each model that waits there at the best host.
    fn swap(&mut self, n_routers: usize, now_ms: u64) {
        // What the hosts see of their workers.
        for host in &mut self.hosts {
            for model in 0..N_MODELS {
                host.sim.report_running(model, host.n_running(model), now_ms);
            }
        }
        for router in 0..n_routers {
            (0..N_MODELS).for_each(|model| self.demand(model, router, n_routers, now_ms));
        }
        let view = |(host_idx, host): (usize, &Host)| Arc::new(host.view(host_idx, now_ms));
        self.views.rotate_right(1);
        self.views[0] = HostsView { hosts: self.hosts.iter().enumerate().map(view).collect() };
        self.act(now_ms);
    }

    /// Lets a router demand a model for its requests, if it is time.
    fn demand(&mut self, model: usize, router: usize, n_routers: usize, now_ms: u64) {
        if let Some(host_idx) = self.hosts.iter().position(|host| host.sim.workers[model] == Worker::Loaded) {
            self.withdraw(model, router, host_idx, now_ms);
            return;
        }
        let waiting = self.waiting[model].iter().filter(|request| request.router % n_routers == router);
        let Some(oldest_ms) = waiting.clone().map(|request| request.at_ms).next() else { return };
        // Each router has another order of the hosts.
        let mut view = self.views[router % N_AGES].clone();
        let n_hosts = view.hosts.len().max(1);
        view.hosts.rotate_left(router % n_hosts);
        let (name, now) = (model.to_string(), self.start + Duration::from_millis(now_ms));
        let Some(best) = view.best(&name, now, |_| true) else { return };
        let host_idx = (best.host_idx + router) % n_hosts;
        let (n_waiting, oldest_wait_ms) = (waiting.count() as u32, now_ms - oldest_ms);
        self.withdraw(model, router, host_idx, now_ms);
        let last = self.demanded[router][model];
        if last.is_some_and(|last| now_ms < last.at_ms + REPEAT_MS) {
            return;
        }
        let demand = Demand { model: name, router: router.to_string(), n_waiting, oldest_wait_ms };
        self.hosts[host_idx].sim.swaps.demand(&demand, now_ms);
        self.demanded[router][model] = Some(Demanded { at_ms: now_ms, host_idx });
    }

    /// Withdraws a router's last demand for a model, unless it was at this host.
    fn withdraw(&mut self, model: usize, router: usize, host_idx: usize, now_ms: u64) {
        let last = &mut self.demanded[router][model];
        let Some(Demanded { host_idx, .. }) = last.take_if(|last| last.host_idx != host_idx) else { return };
        let (model, router) = (model.to_string(), router.to_string());
        let withdrawn = Demand { model, router, n_waiting: 0, oldest_wait_ms: 0 };
        self.hosts[host_idx].sim.swaps.demand(&withdrawn, now_ms);
    }

    /// Does what the hosts decide.
    fn act(&mut self, now_ms: u64) {
        let mut has_worker: [bool; N_MODELS] = std::array::from_fn(|model| {
            let is_there = |host: &Host| matches!(host.sim.workers[model], Worker::Loading { .. } | Worker::Loaded);
            self.hosts.iter().any(is_there)
        });
        for host in &mut self.hosts {
            for action in host.sim.swap(now_ms) {
                let Action::Start(name) = action else { continue };
                self.outcome.n_copies += u64::from(std::mem::replace(&mut has_worker[index(&name)], true));
                self.outcome.n_loads += 1;
            }
        }
    }

    /// Loads what waits in the order of arrival, each at once.
    fn load_in_order<'a>(&mut self, now_ms: u64, coming: impl Iterator<Item = &'a Request> + Clone) {
        let first_ms = |model: &usize| Some((self.waiting[*model].front()?.at_ms, *model));
        let mut waiting: Vec<_> = (0..N_MODELS).filter_map(|model| first_ms(&model)).collect();
        waiting.sort_unstable();
        for (_, model) in waiting {
            let has_worker = |host: &Host| matches!(host.sim.workers[model], Worker::Loaded | Worker::Loading { .. });
            if self.hosts.iter().any(has_worker) {
                continue;
            }
            let is_own =
                |(host_idx, _): &(usize, &Host)| self.policy != Policy::Sticky || *host_idx == model % self.hosts.len();
            let hosts = || self.hosts.iter().enumerate().filter(is_own);
            // A host with room, if there is one.
            if let Some((host_idx, _)) = hosts().find(|(_, host)| host.sim.n_workers() < host.n_places) {
                let host = &mut self.hosts[host_idx];
                host.sim.start(model, now_ms);
                host.used_ms[model] = now_ms + LOAD_MS;
                self.outcome.n_loads += 1;
                continue;
            }
            // Room that is being made is for the first that waits.
            let is_draining = |worker: &Worker| matches!(worker, Worker::Draining { .. });
            if hosts().any(|(_, host)| host.sim.workers.iter().any(is_draining)) {
                break;
            }
            let loaded = hosts().flat_map(|(host_idx, host)| {
                let loaded = (0..N_MODELS).filter(|of| host.sim.workers[*of] == Worker::Loaded);
                loaded.map(move |of| (host_idx, of))
            });
            let next_use_ms = |of: usize| coming.clone().find(|next| next.model == of).map_or(u64::MAX, |n| n.at_ms);
            let victim = match self.policy {
                Policy::Oracle => loaded.max_by_key(|(_, of)| next_use_ms(*of)),
                _ => loaded.min_by_key(|(host_idx, of)| self.hosts[*host_idx].used_ms[*of]),
            };
            let Some((host_idx, victim)) = victim else { break };
            self.hosts[host_idx].sim.drain(victim, now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_are_the_same_for_the_same_seed_and_more_for_a_higher_load() {
        let n = |load, seed| requests(load, seed).len();
        assert_eq!(n(0.5, 1), n(0.5, 1));
        assert!(n(0.8, 1) > n(0.5, 1));
        assert!(requests(0.5, 1).is_sorted_by_key(|request| request.at_ms));
    }

    #[test]
    fn every_policy_serves_every_request_of_a_light_load_and_computes_what_is_new() {
        let requests = requests(0.1, 1);
        let new_tokens: u64 = requests.iter().map(|request| request.new_tokens).sum();
        for policy in Policy::value_variants().iter().copied() {
            let outcome = run(policy, &requests);
            assert_eq!(outcome.waits_ms.len(), requests.len(), "{policy:?}");
            assert!(outcome.computed_tokens >= new_tokens && outcome.n_loads >= N_MODELS as u64, "{outcome:?}");
        }
    }
}
