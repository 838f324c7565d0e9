//! The workers' processes: their starts, their ends, and their steps.

use std::time::Duration;

use super::boot::Boot;
use super::model::{Build, Model};
use super::requests::Reply;
use super::streams::key;
use super::worker::Worker;
use super::world::{Event, WorkerProcess, World};

/// Time between the start of a worker's shutdown and its end.
pub const DRAIN: Duration = Duration::from_millis(700);

impl World {
    /// Returns a random build for a restart.
    pub fn any_build(&mut self) -> Build {
        match self.rng.below(12) {
            0..6 => Build::USUAL,
            6..8 => Build { model: Model::Beta, ..Build::USUAL },
            8 => Build { model: Model::OtherAlpha, ..Build::USUAL },
            9 => Build { block_size_tokens: 8, ..Build::USUAL },
            10 => Build { kv_layout: 2, ..Build::USUAL },
            _ => Build { n_slots: 2, ..Build::USUAL },
        }
    }

    /// Starts a worker's process, which loads its model first.
    pub fn start_worker(&mut self, host: usize, build: Build) {
        let (is_set_back, is_other) = (self.rng.one_in(8), self.rng.one_in(10));
        let own = &mut self.hosts[host];
        own.start += 1;
        own.process = WorkerProcess::Loading(build);
        let start = own.start;
        let mut boot = own.boot;
        // The clock may have been set back. No two boots have the same epoch.
        let epoch = if is_set_back { boot.boot_epoch - 500 } else { boot.boot_epoch + 1_000_000 };
        boot.boot_epoch = epoch;
        if is_other {
            boot.worker_uid.0 += 1_000;
        }
        while self.boots.contains_key(&key(boot)) {
            boot.boot_epoch += 1;
        }
        self.hosts[host].boot = boot;
        self.note(|| format!("host {host} loads {build:?} as {boot}"));
        self.after(20..600, Event::Loaded { host, start });
    }

    /// Makes a worker serve, after its model is loaded.
    pub fn loaded(&mut self, host: usize, start: u64) {
        let now = self.now;
        let own = &mut self.hosts[host];
        let WorkerProcess::Loading(build) = own.process else { return };
        if own.start != start {
            return;
        }
        own.process = WorkerProcess::Up(Box::new(Worker::new(build, own.boot, now)));
        (own.step, own.tick) = (None, None);
        let boot = own.boot;
        self.boots.insert(key(boot), Boot::new(build));
        self.note(|| format!("host {host} serves"));
        self.worker_changed(host);
    }

    /// Kills a worker's process.
    pub fn kill_worker(&mut self, host: usize) {
        let process = std::mem::replace(&mut self.hosts[host].process, WorkerProcess::Down);
        self.note(|| format!("host {host} is killed"));
        if let WorkerProcess::Up(worker) = process {
            for attempt in worker.attempts() {
                self.send_reply(host, attempt, Reply::Broken);
            }
        }
        let boot = self.hosts[host].boot;
        let own: Vec<u64> =
            self.connections.iter().filter(|(_, of)| of.boot.is_same_boot(boot)).map(|(id, _)| *id).collect();
        for id in own {
            self.connections.get_mut(&id).expect("the connection was just found").end();
            self.pump(id);
        }
    }

    /// Returns a worker that serves.
    pub fn worker_mut(&mut self, host: usize) -> Option<&mut Worker> {
        match &mut self.hosts[host].process {
            WorkerProcess::Up(worker) => Some(worker),
            WorkerProcess::Down | WorkerProcess::Loading(_) => None,
        }
    }

    /// Sends a worker's frames and schedules the end of its step; called after every change of the worker.
    pub fn worker_changed(&mut self, host: usize) {
        self.broadcast(host);
        let Some(end) = self.worker_mut(host).and_then(|worker| worker.step_end()) else { return };
        let address = &mut self.hosts[host];
        if address.step != Some(end) {
            address.step = Some(end);
            let start = address.start;
            self.at(end, Event::Step { host, start });
        }
    }

    /// Ends a worker's step.
    pub fn step_ends(&mut self, host: usize, start: u64) {
        let now = self.now;
        if self.hosts[host].start != start || self.hosts[host].step != Some(now) {
            return;
        }
        self.hosts[host].step = None;
        let Some(worker) = self.worker_mut(host) else { return };
        for (attempt, progress) in worker.end_step(now) {
            self.send_reply(host, attempt, Reply::Progress(progress));
        }
        self.worker_changed(host);
    }

    /// Schedules a worker's next frame.
    pub fn want_tick(&mut self, host: usize) {
        let Some(due) = self.worker_mut(host).map(|worker| worker.writer.due()) else { return };
        let own = &mut self.hosts[host];
        if own.tick.is_none_or(|tick| due < tick) {
            own.tick = Some(due);
            let start = own.start;
            self.at(due, Event::Tick { host, start });
        }
    }

    /// Makes a worker send the frame that is due.
    pub fn tick(&mut self, host: usize, start: u64) {
        let now = self.now;
        if self.hosts[host].start != start || self.hosts[host].tick.is_none_or(|tick| tick > now) {
            return;
        }
        self.hosts[host].tick = None;
        let Some(worker) = self.worker_mut(host) else { return };
        if worker.writer.due() <= now {
            worker.writer.tick(now);
        }
        self.broadcast(host);
    }
}
