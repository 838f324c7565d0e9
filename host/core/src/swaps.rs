//! Which models are loaded, and when one leaves for another.
//!
//! The rules: a running answer is never ended; nothing is started that does not fit into the budget; the model whose
//! request has waited for longest is served first, and memory that it needs is kept for it. A loaded model keeps its
//! place while it has requests, so requests for A B A B are served as A A B B, until another has waited for
//! `swap_wait_max_ms`. Once loads have taken a minute, a model stays for at least the time that loading it took, so at
//! most half of the time goes into loading. Pinned models never leave. Of the models that may leave, those leave whose
//! memory is worth least: the expected time of loading it again, by how often it is used, for each byte; of equal ones,
//! the one that is idle for longest.
//!
//! The caller reports what happens, calls [`Swaps::step`] after it and at least every second, and does what it
//! returns. Times are milliseconds of one clock.

mod model;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use warmpath_common::host::{Demand, FetchedBytes, HostMemory, HostModel, ModelState, RAM};
use warmpath_common::model::Fingerprint;

use crate::catalogue::Entry;
use crate::memory::{Bytes, DeviceBytes};
use model::{Failure, Model, State, Want};

/// Longest time for which another model's request waits while a loaded model has requests. Source: own choice: half of
/// the minute after which common clients and proxies give up.
pub const SWAP_WAIT_MAX_DEFAULT_MS: u64 = 30_000;

/// Idle time after which a model may leave for another. Source: own choice: a client in a loop sends its next request
/// earlier, and a person does not notice the delay.
pub const IDLE_GRACE_MS: u64 = 50;

/// Default of [`SwapLimits::announce_ms`], and time between two steps while models wait. Source: own choice: a summary
/// reaches routers and their answer comes back within some milliseconds, and a load takes half a second or more.
pub const ANNOUNCE_MS: u64 = 25;

/// Time that loads may take together before a model has to stay. Units: milliseconds. Source: own choice: a person who
/// goes to and fro between models waits for loads only, and swaps that follow one another without an end are slowed
/// down within a minute.
const LOAD_BURST_MS: u64 = 60_000;

/// Expected time in which a worker without requests writes its cache and ends. Units: milliseconds. Source: 0.15 s with
/// 90 MB of new state (`warmpath-bench models`, SmolLM2).
const DRAIN_MS: u64 = 200;

/// Limits of swaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapLimits {
    /// Longest time for which a request waits while a loaded model has requests. Units: milliseconds.
    pub swap_wait_max_ms: u64,
    /// Most models that are loaded at a time; 0 for no limit.
    pub models_max: usize,
    /// Time for which a demand is announced before its load starts, so that routers which have chosen different hosts
    /// agree on one. Units: milliseconds.
    pub announce_ms: u64,
}

/// Something that the caller must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Find out what memory a model takes, after a download if its file is not on this machine: then
    /// [`Swaps::projected`] or [`Swaps::projection_failed`].
    Project(String),
    /// Start a model's worker: then [`Swaps::listening`].
    Start(String),
    /// Ask a model's worker to end after its last answer: then [`Swaps::exited`].
    Drain(String, Cause),
    /// Kill a model's worker, which does not end: then [`Swaps::exited`].
    Kill(String),
}

/// Why a model leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Another needs its memory.
    Swap,
    /// It had no request for its time to live.
    Idle,
    /// A person unloads it.
    Order,
    /// The catalogue has changed.
    Catalogue,
}

/// What the end of a worker means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to end.
    Left,
    /// It did not load its model.
    LoadFailed,
    /// It had loaded its model.
    Crashed,
}

/// Times of a load. Units: milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadTimes {
    /// From the start of the worker.
    pub load_ms: u64,
    /// The same, as it was expected.
    pub expected_ms: u64,
    /// From the first demand, or the order.
    pub waited_ms: u64,
}

/// Memory of a model with a worker. Units: bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerMemory {
    /// Name of the model.
    pub model: String,
    /// What it was projected to take, of all devices.
    pub projected: u64,
    /// The most that its process took; 0 if that is not known.
    pub measured: u64,
}

/// The models of a host.
#[derive(Debug)]
pub struct Swaps {
    limits: SwapLimits,
    budget: DeviceBytes,
    models: Vec<Model>,
    loads: RecentLoads,
}

/// Time that loads have taken, less the time in which there was none.
#[derive(Debug, Clone, Copy, Default)]
struct RecentLoads {
    took_ms: u64,
    at_ms: u64,
}

impl RecentLoads {
    /// Adds a load that has just ended.
    fn add(&mut self, load_ms: u64, now_ms: u64) {
        let before_ms = self.at(now_ms.saturating_sub(load_ms));
        *self = Self { took_ms: before_ms.saturating_add(load_ms), at_ms: now_ms };
    }

    fn at(&self, now_ms: u64) -> u64 {
        self.took_ms.saturating_sub(now_ms.saturating_sub(self.at_ms))
    }
}

/// Cost of making room for a model. Units: milliseconds.
struct RoomCost {
    wait_ms: u64,
    /// Expected time of loading again what leaves.
    evicts_ms: u64,
}

/// Room for models: memory, and places under the limit of their number.
#[derive(Debug, Clone, Default)]
struct Room {
    memory: DeviceBytes,
    places: usize,
}

impl Room {
    fn of(model: &Model) -> Self {
        Self { memory: model.charged(), places: 1 }
    }

    fn plus(&self, other: &Self) -> Self {
        Self { memory: self.memory.plus(&other.memory), places: self.places.saturating_add(other.places) }
    }

    fn minus(&self, other: &Self) -> Self {
        Self { memory: self.memory.minus(&other.memory), places: self.places.saturating_sub(other.places) }
    }

    fn fits_in(&self, room: &Self) -> bool {
        self.memory.fits_in(&room.memory) && self.places <= room.places
    }
}

impl Swaps {
    /// Returns the swaps of a host that starts now, with this budget of the machine's own memory.
    pub fn new(limits: SwapLimits, ram_bytes: u64, entries: Vec<Entry>, now_ms: u64) -> Self {
        let models = entries.into_iter().map(|entry| {
            let mut model = Model::new(entry);
            let Entry { is_pinned, loads_on_startup, .. } = model.entry;
            model.want = loads_on_startup.then_some(Want { since_ms: now_ms, evicts: is_pinned });
            model
        });
        Self { limits, budget: DeviceBytes::ram(ram_bytes), models: models.collect(), loads: RecentLoads::default() }
    }

    /// Takes another catalogue: a model that is no longer in it, or has other flags, leaves.
    pub fn replace_catalogue(&mut self, entries: Vec<Entry>) {
        let mut former = std::mem::take(&mut self.models);
        for entry in entries {
            let model = match former.iter().position(|model| model.entry.name == entry.name) {
                Some(idx) => {
                    let mut model = former.remove(idx);
                    // A worker answers to the names that it was started with.
                    if model.entry.flags != entry.flags || model.entry.aliases != entry.aliases {
                        model.is_outdated = true;
                        model.failure = None;
                    }
                    model.entry = entry;
                    model
                }
                None => Model::new(entry),
            };
            self.models.push(model);
        }
        for mut model in former {
            model.is_outdated = true;
            model.is_listed = false;
            self.models.push(model);
        }
        self.drop_outdated();
    }

    /// Returns a model's entry, by its name or an alias.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        let mut entries = self.models.iter().filter(|model| model.is_listed).map(|model| &model.entry);
        entries.find(|entry| entry.name == name || entry.aliases.iter().any(|alias| alias == name))
    }

    /// Sets the budget of a device that is not the machine's own memory, unless it has one.
    pub fn know_device(&mut self, device: &str, bytes: u64) {
        if !self.budget.knows(device) {
            self.budget.add(device, bytes);
        }
    }

    /// Takes what a model is expected to take.
    pub fn projected(&mut self, name: &str, memory: DeviceBytes) {
        let Some(model) = self.model_mut(name) else { return };
        model.projection = Some(memory);
        model.is_local = true;
        (model.is_projecting, model.download) = (false, None);
    }

    /// Takes the fingerprint of a model's file; `None` if its worker does not know it.
    pub fn identified(&mut self, name: &str, fingerprint: Option<Fingerprint>) {
        if let Some(model) = self.model_mut(name) {
            model.fingerprint = fingerprint;
        }
    }

    /// Takes that a model's file is not on this machine.
    pub fn remote(&mut self, name: &str) {
        let Some(model) = self.model_mut(name) else { return };
        model.is_local = false;
        model.is_projecting = false;
    }

    /// Takes why a model cannot be loaded.
    pub fn projection_failed(&mut self, name: &str, reason: String, now_ms: u64) {
        let Some(model) = self.model_mut(name) else { return };
        (model.is_projecting, model.download) = (false, None);
        model.fail_load(reason, now_ms);
    }

    /// Takes that the download of a model begins which a person has ordered.
    pub fn begin_download(&mut self, name: &str) {
        let Some(model) = self.model_mut(name) else { return };
        model.failure = None;
        model.download = Some(FetchedBytes::default());
    }

    /// Takes how far a model's download is, unless it has ended.
    pub fn downloading(&mut self, name: &str, bytes: FetchedBytes) {
        let Some(model) = self.model_mut(name) else { return };
        if model.download.is_some() || model.is_projecting {
            model.download = Some(bytes);
        }
    }

    /// Takes that a download has ended which a person has ordered; `result` is why it failed.
    pub fn downloaded(&mut self, name: &str, result: Result<(), String>, now_ms: u64) {
        let Some(model) = self.model_mut(name) else { return };
        model.download = None;
        if let Err(reason) = result {
            model.fail_load(reason, now_ms);
        }
    }

    /// Takes the demand of a router. It replaces the router's former one for the model.
    pub fn demand(&mut self, demand: &Demand, now_ms: u64) {
        let Some(name) = self.entry(&demand.model).map(|entry| entry.name.clone()) else { return };
        if let Some(model) = self.model_mut(&name) {
            model.demand(demand, now_ms);
        }
    }

    /// Loads a model that a person has named.
    pub fn load(&mut self, name: &str, now_ms: u64) {
        let Some(model) = self.model_mut(name) else { return };
        if !model.has_worker() {
            model.failure = None;
            model.want = Some(Want { since_ms: now_ms, evicts: true });
        }
    }

    /// Unloads a model that a person has named, once its answers have ended.
    pub fn unload(&mut self, name: &str) {
        let Some(model) = self.model_mut(name) else { return };
        model.want = None;
        model.demands.clear();
        model.is_unloading = model.has_worker();
    }

    /// Takes the address of a model's worker, which loads now.
    pub fn listening(&mut self, name: &str, worker_url: String) {
        if let Some(Model { state: State::Loading { url, .. }, .. }) = self.model_mut(name) {
            *url = Some(worker_url);
        }
    }

    /// Takes the share of a model that is loaded, from 0 to 1.
    pub fn progressed(&mut self, name: &str, share: f32) {
        if let Some(Model { state: State::Loading { progress, .. }, .. }) = self.model_mut(name) {
            *progress = share.clamp(*progress, 1.0);
        }
    }

    /// Takes that a model is loaded, and what its process takes if that is known; returns the times of the load.
    pub fn ready(&mut self, name: &str, memory: Option<DeviceBytes>, now_ms: u64) -> Option<LoadTimes> {
        let model = self.model_mut(name)?;
        let times = model.ready(now_ms)?;
        model.measure(memory);
        self.loads.add(times.load_ms, now_ms);
        Some(times)
    }

    /// Takes what a model's process takes.
    pub fn measured(&mut self, name: &str, memory: DeviceBytes) {
        if let Some(model) = self.model_mut(name) {
            model.measure(Some(memory));
        }
    }

    /// Takes the number of requests that a model's worker computes.
    pub fn running(&mut self, name: &str, n_running: u32, now_ms: u64) {
        if let Some(model) = self.model_mut(name) {
            model.running(n_running, now_ms);
        }
    }

    /// Takes that a model's worker has ended; `reason` is why, if it was not asked to.
    pub fn exited(&mut self, name: &str, reason: String, now_ms: u64) -> Ended {
        let ended = self.model_mut(name).map_or(Ended::Left, |model| model.exited(reason, now_ms));
        self.drop_outdated();
        ended
    }

    /// Returns whether something may have to be done soon, so that [`Self::step`] is due every [`ANNOUNCE_MS`].
    pub fn is_settling(&self) -> bool {
        let is_loading = |model: &Model| matches!(model.state, State::Loading { .. } | State::Draining { .. });
        let is_awaited = |model: &Model| model.waits_since().is_some() || model.download.is_some();
        self.models.iter().any(|model| is_loading(model) || is_awaited(model))
    }

    /// Returns what must be done now.
    pub fn step(&mut self, now_ms: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        for model in &mut self.models {
            model.expire(now_ms);
            if let Some(cause) = model.leaves(now_ms) {
                actions.push(model.drain(cause, now_ms));
            }
            actions.extend(model.overdue_end(now_ms));
        }
        self.serve_waiting(now_ms, &mut actions);
        actions
    }

    /// Returns the most models that are loaded at a time; 0 for no limit but memory.
    pub fn models_max(&self) -> usize {
        self.limits.models_max
    }

    /// Returns the memory of each device.
    pub fn memory(&self) -> Vec<HostMemory> {
        let charged_bytes = self.sum(Model::has_worker).memory;
        let of_device = |(device, budget_bytes): (&str, u64)| HostMemory {
            device: device.to_owned(),
            budget_bytes,
            free_bytes: budget_bytes.saturating_sub(charged_bytes.on(device)),
        };
        self.budget.iter().map(of_device).collect()
    }

    /// Returns the memory of each model with a worker.
    pub fn worker_memory(&self) -> Vec<WorkerMemory> {
        let workers = self.models.iter().filter(|model| model.has_worker());
        let memory = |model: &Model| WorkerMemory {
            model: model.entry.name.clone(),
            projected: model.projection.as_ref().map_or(0, DeviceBytes::total),
            measured: model.measured.total(),
        };
        workers.map(memory).collect()
    }

    /// Returns the models of the catalogue.
    pub fn models(&self, is_autoloaded: impl Fn(&Entry) -> bool, now_ms: u64) -> Vec<HostModel> {
        let describe = |model: &Model| HostModel {
            aliases: model.entry.aliases.clone(),
            set_params: model.entry.set_params.clone(),
            is_autoloaded: is_autoloaded(&model.entry),
            is_pinned: model.entry.is_pinned,
            is_removable: model.entry.is_removable,
            fingerprint: model.fingerprint,
            ..HostModel::new(&model.entry.name, self.described(model, now_ms))
        };
        self.models.iter().filter(|model| model.is_listed).map(describe).collect()
    }

    /// Returns a model's state for routers.
    fn described(&self, model: &Model, now_ms: u64) -> ModelState {
        match model.describe(self.obstacle(model, now_ms), now_ms) {
            ModelState::Loadable { memory_bytes, load_ms, kept_ms, is_local, .. } => {
                let RoomCost { wait_ms, evicts_ms } = self.room_cost(model, now_ms);
                ModelState::Loadable { memory_bytes, load_ms, wait_ms, evicts_ms, kept_ms, is_local }
            }
            state => state,
        }
    }

    /// Returns what it would cost to make room for a model now.
    fn room_cost(&self, model: &Model, now_ms: u64) -> RoomCost {
        let need = Room::of(model);
        let free_room = self.whole().minus(&self.sum(Model::has_worker));
        if need.fits_in(&free_room) {
            return RoomCost { wait_ms: 0, evicts_ms: 0 };
        }
        let room = free_room.plus(&self.sum(|model| matches!(model.state, State::Draining { .. })));
        if need.fits_in(&room) {
            return RoomCost { wait_ms: DRAIN_MS, evicts_ms: 0 };
        }
        let reload_ms =
            |victims: Vec<usize>| victims.into_iter().map(|victim| self.models[victim].reload_ms(now_ms)).sum();
        let idle_victims = self.victims(&need, &room, |model| model.may_leave() && model.is_idle(now_ms), now_ms);
        if let Some(victims) = idle_victims {
            return RoomCost { wait_ms: DRAIN_MS, evicts_ms: reload_ms(victims) };
        }
        // A model with requests stays until another's request has waited for that long.
        let evicts_ms = reload_ms(self.victims(&need, &room, Model::may_leave, now_ms).unwrap_or_default());
        RoomCost { wait_ms: model.turn_ms(self.limits.swap_wait_max_ms, now_ms), evicts_ms }
    }

    /// Starts the models that wait, the longest wait first, or makes room for them.
    fn serve_waiting(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        // What is free now, and what becomes free when workers that drain have ended.
        let mut free_room = self.whole().minus(&self.sum(Model::has_worker));
        let mut coming_room = self.sum(|model| matches!(model.state, State::Draining { .. }));
        let mut is_blocked = false;
        self.models.iter_mut().for_each(|model| model.is_next = false);
        for idx in self.waiting() {
            // A model that cannot be loaded, or whose size is not known yet, takes no room from others.
            let model = &self.models[idx];
            if let Some(Failure { retry_ms, .. }) = self.obstacle(model, now_ms) {
                // Only a request, which is told why, is repeated.
                if retry_ms == u64::MAX {
                    self.models[idx].want = None;
                }
                continue;
            }
            if model.projection.is_none() {
                if !model.is_projecting {
                    actions.push(self.models[idx].project());
                }
                continue;
            }
            // One that fits is started, and one that nothing may leave for does not wait.
            let need = Room::of(model);
            if need.fits_in(&free_room) {
                free_room = free_room.minus(&need);
                if model.demanded_ms(now_ms) >= self.limits.announce_ms {
                    actions.push(self.models[idx].start(now_ms));
                } else {
                    self.models[idx].is_next = true;
                }
                continue;
            }
            if !model.evicts() {
                self.models[idx].want = None;
                continue;
            }
            // Others leave for it: idle ones at once, ones with requests when its wait is over.
            let is_overdue = self.is_overdue(model, now_ms);
            let room = free_room.plus(&coming_room);
            if !need.fits_in(&room) && !is_blocked {
                let has_burst = self.loads.at(now_ms) <= LOAD_BURST_MS;
                let may_leave = |model: &Model| model.may_leave() && (has_burst || model.has_stayed(now_ms));
                let idle_victims =
                    self.victims(&need, &room, |model| may_leave(model) && model.is_idle(now_ms), now_ms);
                let victims = match idle_victims {
                    None if is_overdue => self.victims(&need, &room, may_leave, now_ms),
                    idle_victims => idle_victims,
                };
                for victim in victims.unwrap_or_default() {
                    coming_room = coming_room.plus(&Room::of(&self.models[victim]));
                    actions.push(self.models[victim].drain(Cause::Swap, now_ms));
                }
            }
            let has_room = need.fits_in(&free_room.plus(&coming_room));
            self.models[idx].is_next = has_room;
            // No model whose requests wait for less time takes what this one needs. Until its wait is over, a model
            // that finds no room leaves it to others, and then it takes all.
            if has_room || is_overdue {
                free_room = free_room.minus(&need.minus(&coming_room));
                coming_room = coming_room.minus(&need);
                is_blocked |= !has_room;
            }
        }
    }

    /// Returns the models that wait to be loaded, the longest wait first.
    fn waiting(&self) -> Vec<usize> {
        let waits = |(idx, model): (usize, &Model)| Some((model.waits_since()?, idx));
        let mut waiting: Vec<_> = self.models.iter().enumerate().filter_map(waits).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, idx)| idx).collect()
    }

    fn is_overdue(&self, model: &Model, now_ms: u64) -> bool {
        model.waited_ms(now_ms) >= self.limits.swap_wait_max_ms
    }

    /// Returns the least valuable of the models that may leave, without those that are not necessary, so that `need`
    /// fits into `room`; `None` if all of them do not suffice.
    fn victims(&self, need: &Room, room: &Room, may_leave: impl Fn(&Model) -> bool, now_ms: u64) -> Option<Vec<usize>> {
        let mut candidates: Vec<usize> = (0..self.models.len()).filter(|idx| may_leave(&self.models[*idx])).collect();
        let by_value = |a: &usize, b: &usize| -> Ordering {
            let (a, b) = (&self.models[*a], &self.models[*b]);
            let by_idle_time = || a.idle_since_ms().cmp(&b.idle_since_ms());
            let by_value = a.value(now_ms).total_cmp(&b.value(now_ms));
            by_value.then_with(by_idle_time).then_with(|| a.entry.name.cmp(&b.entry.name))
        };
        candidates.sort_by(by_value);
        let with = |victims: &[usize]| {
            victims.iter().fold(room.clone(), |room, victim| room.plus(&Room::of(&self.models[*victim])))
        };
        let n_enough = (1..=candidates.len()).find(|n| need.fits_in(&with(&candidates[..*n])))?;
        candidates.truncate(n_enough);
        // The last ones may make some of the first ones unnecessary.
        let mut idx = candidates.len();
        while idx > 0 {
            idx -= 1;
            let victim = candidates.remove(idx);
            if !need.fits_in(&with(&candidates)) {
                candidates.insert(idx, victim);
            }
        }
        Some(candidates)
    }

    /// Returns why a model cannot be loaded now, whatever leaves.
    fn obstacle(&self, model: &Model, now_ms: u64) -> Option<Failure> {
        if model.has_worker() {
            return None;
        }
        if let Some(failure) = &model.failure
            && failure.retry_ms > now_ms
        {
            return Some(failure.clone());
        }
        // All models but the pinned ones may leave, so only what these take is out of reach.
        let stays = |other: &Model| other.entry.is_pinned && !matches!(other.state, State::Draining { .. });
        let pinned_room = self.sum(|other| other.has_worker() && stays(other));
        let (need, room) = (Room::of(model), self.whole().minus(&pinned_room));
        let short_device = need.memory.excess_over(&room.memory);
        let reason = match short_device {
            Some(device) => {
                let (need, budget) = (Bytes(need.memory.on(device)), Bytes(self.budget.on(device)));
                let less = match pinned_room.memory.on(device) {
                    0 => String::new(),
                    pinned_bytes => format!(", of which pinned models take {}", Bytes(pinned_bytes)),
                };
                let flag = if device == RAM { "--models-memory" } else { "the device" };
                format!("it needs {need} of {device}, and the budget is {budget}{less} ({flag})")
            }
            None if room.places == 0 => "pinned models take every place (--models-max)".to_owned(),
            None => return None,
        };
        Some(Failure { reason, retry_ms: u64::MAX, n: 0 })
    }

    /// Returns all that models may take.
    fn whole(&self) -> Room {
        let places = if self.limits.models_max == 0 { usize::MAX } else { self.limits.models_max };
        Room { memory: self.budget.clone(), places }
    }

    fn sum(&self, counts: impl Fn(&Model) -> bool) -> Room {
        let models = self.models.iter().filter(|model| counts(model));
        models.fold(Room::default(), |sum, model| sum.plus(&Room::of(model)))
    }

    fn model_mut(&mut self, name: &str) -> Option<&mut Model> {
        self.models.iter_mut().find(|model| model.entry.name == name)
    }

    /// Forgets what was known of models that have changed or are gone, once their workers have ended.
    fn drop_outdated(&mut self) {
        self.models.retain(|model| model.is_listed || model.has_worker());
        for model in self.models.iter_mut().filter(|model| model.is_outdated && !model.has_worker()) {
            model.is_outdated = false;
            (model.projection, model.fingerprint) = (None, None);
            model.measured = DeviceBytes::default();
        }
    }
}
