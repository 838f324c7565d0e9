//! A simulated worker: an engine, the early announcements of its requests, and the state that other workers send it.
//!
//! Not here: virtual time (`world`), routing (`router`), the engine's steps (`simulated::engine`). A cell of its engine
//! stands for a block of the trace, and the state of ended sequences is limited in blocks, so it moves to the store.

mod announcements;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use warmpath_common::ids::RequestId;
use warmpath_common::prefetch::HotPrefix;
use warmpath_common::summary::{Change, Load};
use warmpath_worker_core::batches::batch_plan::{BatchLimits, Passes};
use warmpath_worker_core::reports::summary_writer::EngineUpdate;
use warmpath_worker_core::store::chunk_index::ChunkId;

use self::announcements::Announcements;
use super::trace::Trace;
use crate::virtual_time::simulated::disk::DiskShape;
use crate::virtual_time::simulated::engine::{Engine, EngineSettings, Job, Progress};
use crate::virtual_time::simulated::kv::{EndedState, Eviction, KvSizes};

/// Size of a batch.
///
/// Source: the defaults of `warmpath-worker --batch-size` and `--ubatch-size`.
const BATCH: BatchLimits = BatchLimits { batch_tokens: 2048, ubatch_tokens: 512, passes: Passes::Together };
/// Time to bring one stored token's KV state into a slot. Units: milliseconds.
///
/// Source: docs/decisions/0000-measured-before.md: 2,048 tokens in 2-3 ms.
pub const RESTORE_MS_PER_TOKEN: f64 = 0.0015;
/// Length of a stored chunk. Units: tokens.
///
/// Source: the glossary: a chunk is up to 256 tokens.
const CHUNK_TOKENS: u32 = 256;
/// Time for which a chunk stays after its last use. Units: milliseconds.
///
/// Source: `StoreConfig::default` of the worker's engine.
const MIN_HOLD_MS: u64 = 10_000;

/// Size and speed of a worker.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Number of slots.
    pub n_slots: u16,
    /// Maximum number of blocks that it keeps in RAM.
    pub n_blocks_max: u64,
    /// Disk tier, if there is one.
    pub disk: Option<DiskShape>,
    /// Order in which it evicts.
    pub eviction: Eviction,
    /// Prefill speed at the start of a prompt. Units: prompt tokens per second.
    pub prefill_tokens_per_s: f64,
    /// Number of tokens behind which the prefill speed is half of that; infinity for the same speed everywhere.
    pub half_speed_tokens: f64,
    /// Time of a step that decodes. Units: milliseconds.
    pub decode_step_ms: f64,
    /// Time to bring one stored token's KV state into a slot. Units: milliseconds.
    pub restore_ms_per_token: f64,
    /// Size of a checkpoint, for a model that resumes only at checkpoints. Units: blocks of state.
    pub checkpoint_blocks: Option<u64>,
}

impl Shape {
    /// Returns the settings of its engine, of which a cell stands for a block.
    pub fn engine(self, block_tokens: u32) -> EngineSettings {
        let kv = KvSizes {
            n_slots: self.n_slots,
            slot_cells: u32::MAX,
            block_cells: 1,
            store_blocks: self.n_blocks_max,
            disk: self.disk,
            eviction: self.eviction,
            chunk_blocks_max: (CHUNK_TOKENS / block_tokens).max(1) as usize,
            min_hold_ms: MIN_HOLD_MS,
            ended: EndedState::MovesToStore,
            checkpoint_blocks: self.checkpoint_blocks,
            cell_tokens: block_tokens,
        };
        EngineSettings {
            kv,
            tokens_per_cell: block_tokens,
            batch: BATCH,
            prefill_tokens_per_s: self.prefill_tokens_per_s,
            half_speed_tokens: self.half_speed_tokens,
            decode_step_ms: self.decode_step_ms,
            restore_ms_per_token: self.restore_ms_per_token,
            joins_decode_steps: true,
        }
    }
}

/// One worker.
pub struct Worker {
    shape: Shape,
    block_tokens: u32,
    engine: Engine,
    announcements: Announcements,
    /// Requests that wait for state from another worker.
    fetching: Vec<usize>,
    /// Chunks that stay in place for the requests that fetched them, until these start.
    fetched_chunks: HashMap<usize, Vec<ChunkId>>,
}

impl Worker {
    /// Returns a worker that holds nothing.
    pub fn new(shape: Shape, block_tokens: u32) -> Self {
        let mut worker = Self {
            shape,
            block_tokens,
            engine: Engine::new(shape.engine(block_tokens), None),
            announcements: Announcements::default(),
            fetching: Vec::new(),
            fetched_chunks: HashMap::new(),
        };
        worker.engine.report();
        worker.announce();
        worker
    }

    /// Makes every further step slower.
    pub fn slow_down(&mut self, factor: f64) {
        self.shape.prefill_tokens_per_s /= factor;
        self.shape.decode_step_ms *= factor;
        self.engine.slow_down(factor);
    }

    /// Takes a request; returns the end of the running step if that has changed.
    pub fn submit(&mut self, trace: &Trace, request: usize, id: RequestId, now: Duration) -> Option<Duration> {
        self.announcements.arrive(&trace.requests[request], request, id, 0, self.block_tokens);
        self.enter(trace, request, now)
    }

    /// Takes a request that waits for state of its first `n_blocks` from another worker ([`Worker::fetched`]).
    pub fn fetch(&mut self, trace: &Trace, request: usize, id: RequestId, n_blocks: usize) {
        self.announcements.arrive(&trace.requests[request], request, id, n_blocks, self.block_tokens);
        self.fetching.push(request);
    }

    /// Takes the state of a request's first `n_blocks`, which may then start; returns the end of the running step if
    /// that has changed.
    pub fn fetched(&mut self, trace: &Trace, request: usize, n_blocks: usize, now: Duration) -> Option<Duration> {
        self.fetching.retain(|waiting| *waiting != request);
        let now_ms = now.as_millis() as u64;
        let chunks = self.engine.kv_mut().bring(&trace.requests[request].prompt, n_blocks, now_ms);
        self.fetched_chunks.insert(request, chunks);
        self.engine.report();
        self.enter(trace, request, now)
    }

    /// Returns how many of the request's leading blocks the worker could send.
    pub fn n_held_blocks(&self, trace: &Trace, request: usize) -> usize {
        self.engine.kv().n_usable(&trace.requests[request].prompt) as usize
    }

    /// Returns the stored prefixes, the ones most worth having first.
    pub fn hot_prefixes(&self) -> Vec<HotPrefix> {
        self.engine.kv().hot_prefixes()
    }

    /// Returns how many blocks of a prefix are missing, if they fit without an eviction.
    pub fn n_wanted_blocks(&self, prefix: &HotPrefix) -> Option<usize> {
        let n_missing = prefix.tokens.len() - self.engine.kv().n_stored(prefix);
        (n_missing > 0 && n_missing as u64 <= self.engine.kv().free_store_blocks()).then_some(n_missing)
    }

    /// Takes a prefix that another worker has sent before a request needs it.
    pub fn bring_ahead(&mut self, prefix: &HotPrefix, now: Duration) {
        self.engine.kv_mut().bring_ahead(prefix, now.as_millis() as u64);
        self.engine.report();
        self.announce();
    }

    /// Returns when the next read from disk for a waiting request ends.
    pub fn next_read(&self, now: Duration) -> Option<Duration> {
        self.engine.next_read(now)
    }

    /// Starts the requests that have waited for the disk; returns the end of the running step if that has changed.
    pub fn read_ended(&mut self, now: Duration) -> Option<Duration> {
        let end = self.engine.wake(now);
        self.announce();
        end
    }

    /// Returns the numbers of blocks that it has read from disk and written to it.
    pub fn n_disk_blocks(&self) -> [u64; 2] {
        self.engine.kv().n_disk_blocks()
    }

    /// Returns when the running step ends.
    pub fn step_end(&self) -> Option<Duration> {
        self.engine.step_end()
    }

    /// Ends the running step; returns the progress of its requests and the end of the next step.
    pub fn end_step(&mut self, now: Duration) -> (Vec<(u64, Progress)>, Option<Duration>) {
        let updates = self.engine.end_step(now);
        self.announce();
        updates
    }

    /// Ends the worker; returns the requests that it had.
    pub fn die(&mut self) -> Vec<usize> {
        let lost = self.engine.requests().map(|id| id as usize).chain(self.fetching.iter().copied()).collect();
        *self = Self::new(self.shape, self.block_tokens);
        lost
    }

    /// Returns whether there are changes that have not been taken yet.
    pub fn has_changes(&self) -> bool {
        self.announcements.has_changes()
    }

    /// Takes the changes since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.announcements.take_changes()
    }

    /// Returns the load of the worker.
    pub fn load(&self) -> Load {
        self.announcements.load()
    }

    fn enter(&mut self, trace: &Trace, request: usize, now: Duration) -> Option<Duration> {
        let trace_request = &trace.requests[request];
        let job = Job {
            id: request as u64,
            prompt: Arc::clone(&trace_request.prompt),
            prompt_tokens: trace_request.prompt_tokens,
            answer_tokens: trace_request.answer_tokens,
        };
        let end = self.engine.submit(job, now);
        self.announce();
        end
    }

    /// Announces what the engine reports, and releases the chunks that started requests fetched.
    fn announce(&mut self) {
        for update in self.engine.take_updates() {
            if let EngineUpdate::Resolved(id) = update {
                let chunks = self.fetched_chunks.remove(&(id.0 as usize)).unwrap_or_default();
                self.engine.kv_mut().release(chunks);
            }
            self.announcements.apply(update);
        }
    }
}
