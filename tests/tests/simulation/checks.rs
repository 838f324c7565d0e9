//! Invariants: those that hold after every step of a router, and those of a fleet without faults and traffic.

use std::collections::HashMap;

use warmpath_common::summary::Digest;
use warmpath_router_core::fleet::ConnectionState;
use warmpath_router_core::fleet::compatibility::{self, Declaration, Mismatch};

use super::model::Model;
use super::requests::{Conversation, Outcome, keys};
use super::router::{INDEX_BYTES_MAX, Router, Shown};
use super::streams::key;
use super::world::{Host, WorkerProcess, World};

/// Pairs of requests with which a quiet fleet is probed.
const PROBES: usize = 4;
/// Length of a probe's prompt. Units: tokens.
const PROBE_TOKENS: u32 = 40;
/// Time after which every router knows the blocks that a worker has computed. Units: milliseconds.
const ANNOUNCED_MS: u64 = 300;

impl World {
    /// Checks a router's view: the blocks are those that the worker had at the position of its stream, in that boot of
    /// its process, and the model is the one that this boot declares.
    pub fn check_views(&self, idx: usize) {
        let Some(router) = self.routers[idx].router.as_deref() else { return };
        assert!(router.fleet.index().bytes() <= INDEX_BYTES_MAX, "the index exceeds its limit");
        for worker in &router.fleet.view().workers {
            let expected = match router.shown.get(&worker.idx) {
                Some(Shown::Damaged) => continue,
                Some(Shown::At(position)) => {
                    let boot = &self.boots[&key(*position)];
                    boot.digest_at(position.seq).expect("a position is that of an update which the worker has sent")
                }
                Some(Shown::Nothing) | None => Digest::default(),
            };
            let shown = worker.blocks.digest.unwrap_or_default();
            assert_eq!(shown, expected, "router {idx} shows other blocks of {} than at its position", worker.name);
            let is_connected = matches!(worker.link, ConnectionState::Live | ConnectionState::Stale { .. });
            if let Some(boot) = router.declared.get(&worker.idx).filter(|_| is_connected) {
                let declared = self.boots[&key(*boot)].build.declared();
                assert_eq!(
                    worker.model.as_deref(),
                    Some(&declared),
                    "router {idx} shows another model of {}",
                    worker.name
                );
            }
        }
    }

    /// Checks that every router's view equals the state of every worker, in a fleet without faults and traffic.
    pub fn check_quiet(&self) {
        for host in &self.hosts {
            let WorkerProcess::Up(worker) = &host.process else { panic!("a worker is not up") };
            let blocks = worker.blocks().expect("no request is left at a worker");
            assert_eq!(self.boots[&key(host.boot)].announced, blocks, "{} has announced other blocks", host.boot);
        }
        let verdicts = self.verdicts();
        for idx in 0..self.routers.len() {
            let router = self.routers[idx].router.as_deref().expect("every router is up");
            self.check_knowledge((idx, router), &verdicts);
        }
        Model::NAMES.iter().for_each(|name| self.check_name(name));
    }

    /// Returns the reason for which every router excludes the worker of each host, in the order of the hosts.
    fn verdicts(&self) -> Vec<Option<Mismatch>> {
        let models: Vec<_> = self.hosts.iter().map(|host| self.boots[&key(host.boot)].build.declared()).collect();
        let declared = |(host, model): (&Host, _)| {
            Some(Declaration { model, boot_epoch: Some(host.boot.boot_epoch), counts: true })
        };
        compatibility::check_all(&self.hosts.iter().zip(&models).map(declared).collect::<Vec<_>>())
    }

    /// Checks that all routers resolve a name to the same model, if a worker declares the name.
    fn check_name(&self, name: &str) {
        let mut found = self.routers.iter().map(|host| {
            let fleet = &host.router.as_deref().expect("every router is up").fleet;
            let model = fleet.view().lookup(Some(name), None, self.now).ok();
            model.map(|model| (model.fingerprint, model.block_size_tokens))
        });
        let first = found.next().expect("there is a router");
        let declares = |host: &Host| self.boots[&key(host.boot)].build.model.name() == name;
        assert_eq!(first.is_some(), self.hosts.iter().any(declares), "router 0, {name}");
        assert!(found.all(|model| model == first), "routers take different models for {name}");
    }

    /// Returns whether two models have the same name and equally many workers.
    pub fn is_tied(&self) -> bool {
        let mut n_workers: HashMap<_, HashMap<_, usize>> = HashMap::new();
        for build in self.hosts.iter().map(|host| self.boots[&key(host.boot)].build) {
            let models = n_workers.entry(build.model.name()).or_default();
            *models.entry((build.declared().fingerprint, build.block_size_tokens)).or_default() += 1;
        }
        let is_tied = |models: HashMap<_, usize>| {
            let most = models.values().max().copied();
            models.values().filter(|n| Some(**n) == most).count() > 1
        };
        n_workers.into_values().any(is_tied)
    }

    fn check_knowledge(&self, (idx, router): (usize, &Router), verdicts: &[Option<Mismatch>]) {
        let view = router.fleet.view();
        assert_eq!(view.workers.len(), self.hosts.len(), "router {idx} has as many workers as discovery lists");
        for worker in &view.workers {
            let host = self.host_of(idx, worker.idx).expect("a worker has a subscription");
            let boot = &self.boots[&key(self.hosts[host].boot)];
            let model = &boot.build.declared();
            let whose = format!("router {idx}, {}", worker.name);
            assert_eq!(worker.link, ConnectionState::Live, "{whose}");
            assert_eq!(worker.model.as_deref(), Some(model), "{whose}");
            assert_eq!(worker.excluded, verdicts[host], "{whose}");
            assert!(worker.blocks.is_current && !worker.is_leaving, "{whose}: {:?}", worker.blocks);
            assert_eq!(worker.blocks.digest, Some(boot.digest()), "{whose}");
            let load = &worker.load;
            let n_tokens = load.queued_prefill_tokens + load.running_prefill_tokens;
            assert!(n_tokens == 0 && load.n_queued + load.n_decoding == 0 && !load.draining, "{whose}: {load:?}");
            if router.shown.get(&worker.idx) == Some(&Shown::Damaged) {
                continue;
            }
            for conversation in &self.conversations {
                let keys = keys(model, &conversation.tokens);
                let found = router.fleet.index().matches(&keys).into_iter().find(|found| found.worker == worker.idx);
                let n_blocks = found.map_or(0, |found| found.blocks as usize);
                assert_eq!(n_blocks, boot.n_announced(&keys), "{whose}");
            }
        }
    }

    /// Checks that prefixes are reused again: of two turns of a conversation, sent through any two routers, the second
    /// reuses the KV state of the first.
    pub fn probe(&mut self) {
        let mut n_hits = 0;
        for probe in 0..PROBES {
            let router = probe % self.routers.len();
            let names = self.routers[router].router.as_deref().expect("every router is up").fleet.view().names();
            let model = Model::NAMES.into_iter().find(|name| names.iter().any(|served| served == name));
            let model = model.expect("a worker serves");
            let tokens = (0..PROBE_TOKENS).map(|_| self.rng.below(1000) as u32).collect();
            let conversation = self.conversations.len();
            self.conversations.push(Conversation { model, tokens, last: None });
            for turn in 0..2 {
                self.ask(conversation, (router + turn) % self.routers.len());
                self.finish_requests();
                self.run_for(std::time::Duration::from_millis(ANNOUNCED_MS));
                let last = self.conversations[conversation].last;
                let Some(Outcome::Answered { cached_tokens, predicted_tokens }) = last else {
                    panic!("a quiet fleet answers: {last:?}");
                };
                assert!(cached_tokens >= predicted_tokens, "{cached_tokens} tokens of {predicted_tokens} are reused");
                n_hits += usize::from(turn == 1 && cached_tokens >= PROBE_TOKENS / 2);
            }
        }
        assert!(n_hits + 1 >= PROBES, "only {n_hits} of {PROBES} second turns reused the first");
    }

    /// Checks that no router counts a request that has ended.
    pub fn check_nothing_in_flight(&self) {
        for (idx, host) in self.routers.iter().enumerate() {
            let router = host.router.as_deref().expect("every router is up");
            let ledger = router.fleet.ledger();
            for worker in &router.fleet.view().workers {
                assert_eq!(ledger.sent.n_in_flight(worker.idx), 0, "router {idx}, {}", worker.name);
                let unreported = ledger.sent.unreported(worker.idx);
                assert_eq!((unreported.n_requests, unreported.prefill_tokens), (0, 0), "router {idx}, {}", worker.name);
            }
        }
    }
}
