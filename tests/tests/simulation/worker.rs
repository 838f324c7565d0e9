//! A simulated worker process: a simulated engine, and the production writer of its summary.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_bench::simulated::engine::{self, Engine, EngineSettings, Progress};
use warmpath_bench::simulated::kv::{EndedState, Eviction, KvSizes, Prompt};
use warmpath_common::block_hash::{BlockKey, block_chain};
use warmpath_common::ids::{RequestId, Token};
use warmpath_common::model::Fingerprint;
use warmpath_common::summary::{Change, ReplayLimits, Resume, Run, RunState, Stamp, Tier};
use warmpath_worker_core::batches::batch_plan::{BatchLimits, Passes};
use warmpath_worker_core::reports::pending_prefills::AnnouncementId;
use warmpath_worker_core::reports::summary_writer::{EngineUpdate, SummaryWriter};

use super::model::{Build, CONTEXT_TOKENS};

/// Size of a batch: small, so that prompts take several steps.
const BATCH: BatchLimits = BatchLimits { batch_tokens: 32, ubatch_tokens: 32, passes: Passes::Together };
/// Capacity of the store: small, so that it evicts often.
const STORE_BLOCKS: u64 = 60;
/// Most requests that wait.
const QUEUE_MAX: usize = 6;
/// Steps after which the cache is checked as a whole, which takes longer than a step.
const CHECK_STEPS: u64 = 16;
/// Limits of the replay buffer: low, so that routers also need snapshots.
const REPLAY_LIMITS: ReplayLimits = ReplayLimits { updates_max: 24, bytes_max: 64 << 10 };

/// A request as a worker receives it.
#[derive(Debug, Clone)]
pub struct Job {
    /// Number of the attempt, unique in the run.
    pub attempt: u64,
    /// Id of the request.
    pub request_id: RequestId,
    /// Fingerprint of the model for which the router chose the worker.
    pub model: Fingerprint,
    /// Prompt.
    pub tokens: Vec<Token>,
    /// Length of the answer. Units: tokens.
    pub n_answer: u32,
}

/// Reason why a worker refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its queue is full (429).
    Full,
    /// It is shutting down, or serves another model (503).
    Unready,
}

/// One boot of a worker's process.
pub struct Worker {
    /// Model and layout that it serves.
    pub build: Build,
    /// Its summary.
    pub writer: SummaryWriter,
    /// Whether it is shutting down.
    pub is_draining: bool,
    /// Whether it has announced blocks that it does not hold.
    pub has_announced_wrong_blocks: bool,
    start: Instant,
    engine: Engine,
    n_steps: u64,
}

impl Worker {
    /// Returns a process that has just loaded its model.
    pub fn new(build: Build, boot: Stamp, now: Instant) -> Self {
        let next_token = Box::new(move |cells: &[Token], idx| build.model.answer(cells, idx));
        let mut worker = Self {
            build,
            writer: SummaryWriter::new(boot, build.declared(), REPLAY_LIMITS, now),
            is_draining: false,
            has_announced_wrong_blocks: false,
            start: now,
            engine: Engine::new(engine_settings(build), Some(next_token)),
            n_steps: 0,
        };
        worker.report(Vec::new(), now);
        worker
    }

    /// Queues a request, and starts it if no step is running.
    pub fn submit(&mut self, job: Job, now: Instant) -> Result<(), Refusal> {
        if self.is_draining || job.model != self.build.declared().fingerprint {
            return Err(Refusal::Unready);
        }
        if self.engine.n_waiting() >= QUEUE_MAX {
            return Err(Refusal::Full);
        }
        let (root, prompt_tokens) = (self.build.root(), job.tokens.len() as u32);
        let chain = block_chain(&root, &job.tokens, self.build.block_size_tokens);
        let prompt = Prompt { tokens: job.tokens, chain, root };
        let arrived = EngineUpdate::Arrived {
            id: AnnouncementId(job.attempt),
            request: job.request_id,
            n_tokens: prompt_tokens,
            keys: prompt.keys().collect(),
            is_filling: true,
        };
        self.writer.apply(arrived, now);
        let (id, prompt) = (job.attempt, Arc::new(prompt));
        let job = engine::Job { id, prompt, prompt_tokens, answer_tokens: job.n_answer };
        self.engine.submit(job, self.elapsed(now));
        self.publish(now);
        Ok(())
    }

    /// Cancels the request of an attempt.
    pub fn cancel(&mut self, attempt: u64, now: Instant) {
        self.engine.cancel(attempt, self.elapsed(now));
        self.publish(now);
    }

    /// Returns when the running step ends; `None` if nothing runs.
    pub fn step_end(&self) -> Option<Instant> {
        self.engine.step_end().map(|end| self.start + end)
    }

    /// Ends the running step; returns the progress of its requests.
    pub fn end_step(&mut self, now: Instant) -> Vec<(u64, Progress)> {
        let (progress, _) = self.engine.end_step(self.elapsed(now));
        self.publish(now);
        self.n_steps += 1;
        if self.n_steps.is_multiple_of(CHECK_STEPS) {
            self.engine.kv().check();
        }
        progress
    }

    /// Returns the attempts that it has.
    pub fn attempts(&self) -> Vec<u64> {
        self.engine.requests().collect()
    }

    /// Announces blocks that it does not hold.
    pub fn announce_wrong_blocks(&mut self, keys: Vec<BlockKey>, now: Instant) {
        self.has_announced_wrong_blocks = true;
        let (tier, state, resume) = (Tier::Ram, RunState::Ready, Resume::EveryBlock);
        self.report(vec![Change::Stored(Run { keys, tier, state, resume, slot: None })], now);
    }

    /// Begins to shut down.
    pub fn drain(&mut self, now: Instant) {
        self.is_draining = true;
        self.report(Vec::new(), now);
    }

    /// Returns the blocks that it holds, if it has no request.
    pub fn blocks(&self) -> Option<BTreeSet<BlockKey>> {
        self.attempts().is_empty().then(|| self.engine.kv().blocks())
    }

    /// Publishes the changes of the cache and `others`, with the load.
    fn report(&mut self, others: Vec<Change>, now: Instant) {
        self.engine.report();
        self.publish_with(others, now);
    }

    fn publish(&mut self, now: Instant) {
        self.publish_with(Vec::new(), now);
    }

    /// Publishes the engine's reports, the first one with `others`.
    fn publish_with(&mut self, mut others: Vec<Change>, now: Instant) {
        for mut update in self.engine.take_updates() {
            if let EngineUpdate::Step { changes, load, .. } = &mut update {
                changes.append(&mut others);
                load.draining = self.is_draining;
            }
            self.writer.apply(update, now);
        }
    }

    fn elapsed(&self, now: Instant) -> Duration {
        now.duration_since(self.start)
    }
}

fn engine_settings(build: Build) -> EngineSettings {
    let kv = KvSizes {
        n_slots: build.n_slots,
        slot_cells: CONTEXT_TOKENS,
        block_cells: build.block_size_tokens,
        store_blocks: STORE_BLOCKS,
        disk: None,
        eviction: Eviction::Arc,
        chunk_blocks_max: 3,
        min_hold_ms: 0,
        ended: EndedState::StaysInSlot,
        checkpoint_blocks: None,
        cell_tokens: 1,
    };
    EngineSettings {
        kv,
        tokens_per_cell: 1,
        batch: BATCH,
        prefill_tokens_per_s: 2000.0,
        half_speed_tokens: f64::INFINITY,
        decode_step_ms: 4.0,
        restore_ms_per_token: 0.01,
        joins_decode_steps: false,
    }
}
