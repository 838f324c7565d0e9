//! A worker that joins fetches the prefixes that the others used last, which a router sends it as a list.
//!
//! It fetches one after the other, and pauses after each for as long as that took, as a real worker does. Not here:
//! transfers for requests (`world`).

use std::cmp::Reverse;
use std::rc::Rc;

use warmpath_common::prefetch::HotPrefix;
use warmpath_router_core::routing::prefetch::{self, HotPrefixes};

use super::{Event, WorkerHost, World, worker_idx};

/// Most workers whose prefixes a new worker fetches. Source: `warmpath_router_core::routing::prefetch`.
const SOURCES_MAX: usize = 4;

impl World<'_> {
    /// Begins to fill a worker that has just joined.
    pub(super) fn warm(&mut self, worker: usize) {
        let others = self.hosts.iter().enumerate().filter(|(idx, host)| *idx != worker && host.is_up);
        let hot_prefixes = |(idx, host): (usize, &WorkerHost)| HotPrefixes {
            worker: worker_idx(idx),
            prefixes: host.worker.hot_prefixes(),
        };
        let mut lists: Vec<_> = others.map(hot_prefixes).collect();
        lists.sort_by_key(|list| Reverse(list.prefixes.iter().map(|prefix| prefix.tokens.len()).sum::<usize>()));
        lists.truncate(SOURCES_MAX);
        self.hosts[worker].ahead = prefetch::merge(lists, 1).into();
        self.fetch_ahead(worker);
    }

    /// Stores a prefix that has arrived, and begins the transfer of the next one.
    pub(super) fn prefetched(&mut self, worker: usize, prefix: &HotPrefix) {
        self.hosts[worker].worker.bring_ahead(prefix, self.now);
        self.want_push(worker);
        self.fetch_ahead(worker);
    }

    fn fetch_ahead(&mut self, worker: usize) {
        let Some(network) = self.scene.network else { return };
        while let Some((peer, prefix)) = self.hosts[worker].ahead.pop_front() {
            let peer = peer.0 as usize;
            let n_blocks = self.hosts[worker].worker.n_wanted_blocks(&prefix);
            let Some(n_blocks) = n_blocks.filter(|_| self.hosts[peer].is_up) else { continue };
            let bytes = network.bytes(n_blocks as u64 * u64::from(self.trace.block_tokens));
            let (mut to, mut from) = (self.hosts[worker].links, self.hosts[peer].links);
            let at = network.transfer(&mut to, &mut from, bytes, self.now);
            (self.hosts[worker].links, self.hosts[peer].links) = (to, from);
            let boot = self.hosts[worker].boot;
            let pause = at - self.now;
            return self.schedule(at + pause, Event::Prefetched { worker, boot, prefix: Rc::new(prefix) });
        }
    }
}
