//! A host of several models: the production swaps, with workers in virtual time that load, answer and end.
//!
//! Not here: who requests the models (`models --simulated`, and random clients in this module's tests).

use warmpath_host_core::catalogue::Entry;
use warmpath_host_core::memory::DeviceBytes;
use warmpath_host_core::swaps::{Action, SwapLimits, Swaps};

/// Time from the last answer of a worker to its end. Units: milliseconds.
pub const END_MS: u64 = 150;
/// Time between two demands of a router. Units: milliseconds.
pub const REPEAT_MS: u64 = 1000;

/// A model.
#[derive(Debug, Clone)]
pub struct ModelShape {
    /// Memory that it takes.
    pub bytes: u64,
    /// Time that a load takes. Units: milliseconds.
    pub load_ms: u64,
    /// Whether it never leaves once it is loaded.
    pub is_pinned: bool,
}

/// Worker of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worker {
    /// There is none.
    None,
    /// It loads until a time.
    Loading {
        /// End of the load. Units: milliseconds.
        ready_ms: u64,
    },
    /// It answers.
    Loaded,
    /// It ends after its last answer.
    Draining {
        /// Time of the last answer, or of the order to end. Units: milliseconds.
        quiet_ms: u64,
    },
}

/// A host, whose models are named by their indices.
#[derive(Debug)]
pub struct SimHost {
    /// Decisions of the host.
    pub swaps: Swaps,
    /// Worker of each model.
    pub workers: Vec<Worker>,
    models: Vec<ModelShape>,
}

impl SimHost {
    /// Returns a host that starts now with this budget, and knows what each model takes.
    pub fn new(models: Vec<ModelShape>, budget_bytes: u64, limits: SwapLimits) -> Self {
        let entry =
            |(idx, model): (usize, &ModelShape)| Entry { is_pinned: model.is_pinned, ..Entry::new(&idx.to_string()) };
        let mut swaps = Swaps::new(limits, budget_bytes, models.iter().enumerate().map(entry).collect(), 0);
        for (idx, model) in models.iter().enumerate() {
            swaps.projected(&idx.to_string(), DeviceBytes::ram(model.bytes));
        }
        Self { swaps, workers: vec![Worker::None; models.len()], models }
    }

    /// Returns the number of workers.
    pub fn n_workers(&self) -> usize {
        self.workers.iter().filter(|worker| **worker != Worker::None).count()
    }

    /// Ends loads and workers whose time has come, and reports them and the numbers of running answers; returns the
    /// models whose workers have ended.
    pub fn step_workers(&mut self, now_ms: u64, n_running: impl Fn(usize) -> usize) -> Vec<usize> {
        let mut ended_models = Vec::new();
        for (idx, worker) in self.workers.iter_mut().enumerate() {
            let (name, n_running) = (idx.to_string(), n_running(idx));
            *worker = match *worker {
                Worker::Loading { ready_ms } if ready_ms <= now_ms => {
                    self.swaps.ready(&name, None, now_ms);
                    Worker::Loaded
                }
                Worker::Draining { .. } if n_running > 0 => Worker::Draining { quiet_ms: now_ms },
                Worker::Draining { quiet_ms } if quiet_ms + END_MS <= now_ms => {
                    self.swaps.exited(&name, String::new(), now_ms);
                    ended_models.push(idx);
                    Worker::None
                }
                worker => worker,
            };
        }
        ended_models
    }

    /// Reports how many answers a model's worker computes.
    pub fn report_running(&mut self, model: usize, n_running: usize, now_ms: u64) {
        self.swaps.running(&model.to_string(), n_running as u32, now_ms);
    }

    /// Starts a model's worker.
    pub fn start(&mut self, model: usize, now_ms: u64) {
        self.workers[model] = Worker::Loading { ready_ms: now_ms + self.models[model].load_ms };
        self.swaps.listening(&model.to_string(), format!("http://{model}"));
    }

    /// Lets a model's worker end after its last answer.
    pub fn drain(&mut self, model: usize, now_ms: u64) {
        self.workers[model] = Worker::Draining { quiet_ms: now_ms };
    }

    /// Does what the swaps decide, and returns it.
    pub fn swap(&mut self, now_ms: u64) -> Vec<Action> {
        let actions = self.swaps.step(now_ms);
        for action in &actions {
            match action {
                Action::Start(name) => self.start(index(name), now_ms),
                Action::Drain(name, _) => self.drain(index(name), now_ms),
                Action::Project(_) | Action::Kill(_) => {}
            }
        }
        actions
    }
}

/// Returns the index of the model with this name.
pub fn index(name: &str) -> usize {
    name.parse().expect("models are named by their indices")
}

#[cfg(test)]
mod tests;
