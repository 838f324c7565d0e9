//! What goes wrong: every fault is chosen by the seed, and most of them end by themselves.

use warmpath_common::block_hash::BlockKey;

use super::connection::Damage;
use super::model::Build;
use super::processes::DRAIN;
use super::world::{Event, Process, World};

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
    /// A router reads fast again.
    Fast(usize),
    /// Discovery lists a worker again.
    List(usize),
}

impl World {
    /// Lets one thing go wrong, and schedules the next.
    pub fn fault(&mut self) {
        if !self.is_hostile {
            return;
        }
        let (host, router) = (self.dice.below(self.hosts.len()), self.dice.below(self.routers.len()));
        match self.dice.below(20) {
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
            10 => self.lie(host),
            11 => self.drain(host),
            _ => self.damage(),
        }
        self.after(20..700, Event::Fault);
    }

    fn restart(&mut self, host: usize) {
        if !matches!(self.hosts[host].process, Process::Down) {
            self.count("killed");
            self.kill_worker(host);
            let build = self.any_build();
            // Half of the restarts are so fast that routers notice only the new process.
            let pause = if self.dice.one_in(2) { 1..10 } else { 100..4000 };
            self.after(pause, Event::Heal(Heal::Start { host, build }));
        }
    }

    fn drain(&mut self, host: usize) {
        let now = self.now;
        if let Some(worker) = self.worker_mut(host) {
            worker.drain(now);
            self.worked(host);
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
            self.routers[router].life += 1;
            self.after(10..1500, Event::Heal(Heal::Router(router)));
        }
    }

    /// Lets a worker announce blocks that it does not hold: those of a conversation, or too many.
    fn lie(&mut self, host: usize) {
        let now = self.now;
        let (conversation, many) = (self.dice.below(self.conversations.len()), 50 + self.dice.below(500) as u64);
        let tokens = self.conversations[conversation].tokens.clone();
        let is_about_many = self.dice.one_in(3);
        let Some(worker) = self.worker_mut(host) else { return };
        let keys = match is_about_many {
            true => (0..many).map(|n| BlockKey(1_000_000 + n)).collect(),
            false => super::requests::keys(&worker.build.declared(), &tokens),
        };
        if !keys.is_empty() {
            worker.lie(keys, now);
            self.count("lied");
            self.note(|| format!("host {host} lies"));
            self.worked(host);
        }
    }

    /// Damages any connection.
    fn damage(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let (id, damage) = (self.dice.pick(&ids), self.dice.pick(&Damage::ALL));
        let connection = self.connections.get_mut(&id).expect("the connection was just found");
        connection.arm(damage);
        let host = connection.host;
        self.note(|| format!("a connection of host {host}: {damage:?}"));
        self.pump(id);
    }

    /// Ends a fault.
    pub fn heal(&mut self, heal: Heal) {
        match heal {
            Heal::Start { host, build } if matches!(self.hosts[host].process, Process::Down) => {
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

    /// Ends all faults; workers that have lied or drain are replaced.
    pub fn heal_all(&mut self) {
        self.note(|| "all faults end".to_owned());
        self.cut_off.clear();
        for host in 0..self.hosts.len() {
            self.hosts[host].is_listed = true;
            let is_bad = self.worker_mut(host).is_some_and(|worker| worker.lies || worker.is_draining);
            if is_bad {
                self.kill_worker(host);
            }
            if matches!(self.hosts[host].process, Process::Down) {
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
