//! Faults of a run: the seed chooses each one, and most of them end by themselves.

use warmpath_common::block_hash::BlockKey;

use super::connection::Damage;
use super::model::Build;
use super::processes::DRAIN;
use super::world::{Event, WorkerProcess, World};

/// End of a fault.
#[derive(Debug, Clone, Copy)]
pub enum Heal {
    /// A worker's process starts again.
    Start { host: usize, build: Build },
    /// A worker that has drained ends.
    Kill { host: usize },
    /// Router and worker reach each other again.
    Reach { router: usize, host: usize },
    /// A router starts again.
    Router(usize),
    /// A router reads its streams quickly again.
    Fast(usize),
    /// Discovery lists a worker again.
    List(usize),
}

impl World {
    /// Starts a random fault and schedules the next one.
    pub fn fault(&mut self) {
        if !self.is_hostile {
            return;
        }
        let (host, router) = (self.rng.below(self.hosts.len()), self.rng.below(self.routers.len()));
        match self.rng.below(20) {
            0..3 => self.restart(host),
            3..5 => self.cut(router, host),
            5 => (0..self.hosts.len()).for_each(|host| self.cut(router, host)),
            6 => (0..self.routers.len()).for_each(|router| self.cut(router, host)),
            7 => self.unlist(host),
            8 => self.restart_router(router),
            9 => {
                self.routers[router].is_slow = true;
                self.after(300..3000, Event::Heal(Heal::Fast(router)));
            }
            10 => self.announce_wrong_blocks(host),
            11 => self.drain(host),
            _ => self.damage(),
        }
        self.after(20..700, Event::Fault);
    }

    fn restart(&mut self, host: usize) {
        if !matches!(self.hosts[host].process, WorkerProcess::Down) {
            self.count("killed");
            self.kill_worker(host);
            let build = self.any_build();
            // Half of the restarts are so fast that routers notice only the new process.
            let pause = if self.rng.one_in(2) { 1..10 } else { 100..4000 };
            self.after(pause, Event::Heal(Heal::Start { host, build }));
        }
    }

    fn drain(&mut self, host: usize) {
        let now = self.now;
        if let Some(worker) = self.worker_mut(host) {
            worker.drain(now);
            self.worker_changed(host);
            self.count("drained");
            self.at(now + DRAIN, Event::Heal(Heal::Kill { host }));
        }
    }

    fn cut(&mut self, router: usize, host: usize) {
        if self.cut_off.insert((router, host)) {
            self.count("cut off");
            self.note(|| format!("router {router} and host {host} are cut off"));
            self.after(50..6000, Event::Heal(Heal::Reach { router, host }));
        }
    }

    fn unlist(&mut self, host: usize) {
        self.hosts[host].is_listed = false;
        self.count("unlisted");
        self.note(|| format!("host {host} is not listed"));
        self.after(100..8000, Event::Heal(Heal::List(host)));
    }

    fn restart_router(&mut self, router: usize) {
        if self.routers[router].router.is_some() {
            self.count("router ended");
            self.note(|| format!("router {router} ends"));
            self.end_requests_of(router);
            self.routers[router].router = None;
            self.routers[router].boot += 1;
            self.after(10..1500, Event::Heal(Heal::Router(router)));
        }
    }

    /// Makes a worker announce blocks that it does not hold: those of a conversation, or more than the limit.
    fn announce_wrong_blocks(&mut self, host: usize) {
        let now = self.now;
        let (conversation, many) = (self.rng.below(self.conversations.len()), 50 + self.rng.below(500) as u64);
        let tokens = self.conversations[conversation].tokens.clone();
        let exceeds_limit = self.rng.one_in(3);
        let Some(worker) = self.worker_mut(host) else { return };
        let keys = match exceeds_limit {
            true => (0..many).map(|n| BlockKey(1_000_000 + n)).collect(),
            false => super::requests::keys(&worker.build.declared(), &tokens),
        };
        if !keys.is_empty() {
            worker.announce_wrong_blocks(keys, now);
            self.count("wrong blocks");
            self.note(|| format!("host {host} announces wrong blocks"));
            self.worker_changed(host);
        }
    }

    /// Damages a random connection.
    fn damage(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let (id, damage) = (self.rng.pick(&ids), self.rng.pick(&Damage::ALL));
        let connection = self.connections.get_mut(&id).expect("the connection was just found");
        connection.arm(damage);
        let host = connection.host;
        self.note(|| format!("a connection of host {host}: {damage:?}"));
        self.pump(id);
    }

    /// Ends a fault.
    pub fn heal(&mut self, heal: Heal) {
        match heal {
            Heal::Start { host, build } if matches!(self.hosts[host].process, WorkerProcess::Down) => {
                self.start_worker(host, build);
            }
            Heal::Kill { host } if self.worker_mut(host).is_some_and(|worker| worker.is_draining) => {
                self.kill_worker(host);
                let build = self.any_build();
                self.after(10..2000, Event::Heal(Heal::Start { host, build }));
            }
            Heal::Reach { router, host } => {
                self.cut_off.remove(&(router, host));
            }
            Heal::Router(router) if self.routers[router].router.is_none() => self.start_router(router),
            Heal::Fast(router) => self.routers[router].is_slow = false,
            Heal::List(host) => self.hosts[host].is_listed = true,
            Heal::Start { .. } | Heal::Kill { .. } | Heal::Router(_) => {}
        }
    }

    /// Ends all faults; replaces workers that drain or have announced wrong blocks.
    pub fn heal_all(&mut self) {
        self.note(|| "all faults end".to_owned());
        self.cut_off.clear();
        for host in 0..self.hosts.len() {
            self.hosts[host].is_listed = true;
            let is_bad =
                self.worker_mut(host).is_some_and(|worker| worker.has_announced_wrong_blocks || worker.is_draining);
            if is_bad {
                self.kill_worker(host);
            }
            if matches!(self.hosts[host].process, WorkerProcess::Down) {
                self.start_worker(host, if host == 0 { Build::USUAL } else { Build { n_slots: 2, ..Build::USUAL } });
            }
        }
        for router in 0..self.routers.len() {
            self.routers[router].is_slow = false;
            if self.routers[router].router.is_none() {
                self.start_router(router);
            }
        }
    }
}
