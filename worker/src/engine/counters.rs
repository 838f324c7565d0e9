//! What the engine counts while it runs, for metrics and tests.
//!
//! Not here: moving averages (`warmpath_worker_core::rates`), what goes to routers (`report`).
//! The idea: the engine thread writes, and the store's what the disk could not do; anyone reads. No value depends on another, so
//! relaxed atomics do.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::admit::Waiting;
use super::messages::{CachedTokens, Finished};
use crate::store::{DiskEvent, WriteFailure};

/// Is the engine's counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub steps: AtomicU64,
    pub busy_slot_steps: AtomicU64,
    pub generated_tokens: AtomicU64,
    pub prompt_us: AtomicU64,
    pub generation_us: AtomicU64,
    pub sequence_tokens_max: AtomicU64,
    pub prefill_tokens: AtomicU64,
    pub decode_tokens: AtomicU64,
    pub prompt_tokens: AtomicU64,
    pub cached_tokens: AtomicU64,
    pub passed_tokens_max: AtomicU64,
    pub decode_failures: AtomicU64,
    pub finished: AtomicU64,
    pub cancelled: AtomicU64,
    pub cached_ram_tokens: AtomicU64,
    pub cached_disk_tokens: AtomicU64,
    pub prefix_waits: AtomicU64,
    pub prefix_wait_us: AtomicU64,
    pub disk_wait_us: AtomicU64,
    pub disk_read_failures: AtomicU64,
    pub disk_write_failures: AtomicU64,
    pub disk_writes_refused: AtomicU64,
    pub failed_starts: AtomicU64,
    pub restores: AtomicU64,
    pub restore_us: AtomicU64,
    pub saves: AtomicU64,
    pub save_us: AtomicU64,
    pub saved_tokens: AtomicU64,
    pub checkpoints_made: AtomicU64,
    pub checkpoint_uses: AtomicU64,
    pub moved_out: AtomicU64,
    pub shifted_tokens: AtomicU64,
    pub context_shifts: AtomicU64,
    pub failed: AtomicU64,
    pub busy_slots: AtomicU64,
    pub queued: AtomicU64,
    pub held_tokens: AtomicU64,
}

/// Is the counters as they were at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterValues {
    /// Counts the batches that llama.cpp has decoded.
    pub steps: u64,
    /// Adds up, over those batches, the slots that ran a sequence.
    pub busy_slot_steps: u64,
    /// Counts the tokens that were chosen.
    pub generated_tokens: u64,
    /// Is the time from a slot's start to its first token, of the requests that were answered. Units: microseconds.
    pub prompt_us: u64,
    /// Is the time from the first token to the last, of the requests that were answered. Units: microseconds.
    pub generation_us: u64,
    /// Is the most tokens, prompt and answer, that a slot ever held.
    pub sequence_tokens_max: u64,
    /// Counts the prompt tokens computed.
    pub prefill_tokens: u64,
    /// Counts the answer tokens computed.
    pub decode_tokens: u64,
    /// Counts the prompt tokens of requests that got a slot.
    pub prompt_tokens: u64,
    /// Counts those of them that were reused.
    pub cached_tokens: u64,
    /// Is the most prompt tokens that were ever computed between two tokens of a stream.
    pub passed_tokens_max: u64,
    /// Counts the batches that llama.cpp failed to decode.
    pub decode_failures: u64,
    /// Counts the requests that were answered.
    pub finished: u64,
    /// Counts the requests whose client left.
    pub cancelled: u64,
    /// Counts the requests that failed.
    pub failed: u64,
    /// Counts those of them that came from the store in memory.
    pub cached_ram_tokens: u64,
    /// Counts those of them that came from the store on disk.
    pub cached_disk_tokens: u64,
    /// Counts the requests that waited for a prefix that another was computing.
    pub prefix_waits: u64,
    /// Is how long they had when they got their slots. Units: microseconds.
    pub prefix_wait_us: u64,
    /// Is how long requests had waited for state to be read from disk. Units: microseconds.
    pub disk_wait_us: u64,
    /// Counts the stored state that could not be read from disk.
    pub disk_read_failures: u64,
    /// Counts the stored state that could not be written to disk, or was not because writing had just failed.
    pub disk_write_failures: u64,
    /// Counts the stored state that was not written to disk because too much waited already.
    pub disk_writes_refused: u64,
    /// Counts the requests whose planned start could not be reached.
    pub failed_starts: u64,
    /// Counts the starts whose state was moved into the slot.
    pub restores: u64,
    /// Is the time that took. Units: microseconds.
    pub restore_us: u64,
    /// Counts the exports into the store.
    pub saves: u64,
    /// Is the time that took. Units: microseconds.
    pub save_us: u64,
    /// Counts the tokens whose state was stored.
    pub saved_tokens: u64,
    /// Counts the partial-state checkpoints made.
    pub checkpoints_made: u64,
    /// Counts the starts from one.
    pub checkpoint_uses: u64,
    /// Counts the idle slots whose state left the buffer.
    pub moved_out: u64,
    /// Counts the prompt tokens whose state was moved within a slot.
    pub shifted_tokens: u64,
    /// Counts the times that a full context was shifted.
    pub context_shifts: u64,
    /// Is the slots that run a sequence.
    pub busy_slots: u64,
    /// Is the requests that wait for a slot.
    pub queued: u64,
    /// Is the cells that hold KV state.
    pub held_tokens: u64,
}

impl Counters {
    /// Counts a request that got a slot.
    pub(crate) fn admit(&self, n_prompt: u64, cached: CachedTokens) {
        self.prompt_tokens.fetch_add(n_prompt, Relaxed);
        self.cached_tokens.fetch_add(u64::from(cached.total()), Relaxed);
        self.cached_ram_tokens.fetch_add(u64::from(cached.ram), Relaxed);
        self.cached_disk_tokens.fetch_add(u64::from(cached.disk), Relaxed);
        self.shifted_tokens.fetch_add(u64::from(cached.shifted), Relaxed);
    }

    /// Counts what a request that gets a slot at `now` has waited for others and for the disk.
    pub(super) fn waited(&self, waiting: &Waiting, now: Instant) {
        let waited = |since: Option<Instant>| since.map_or(0, |since| to_us(now.saturating_duration_since(since)));
        self.prefix_wait_us.fetch_add(waited(waiting.shares_since), Relaxed);
        self.disk_wait_us.fetch_add(waited(waiting.reads_since), Relaxed);
    }

    /// Counts a start whose state was moved into the slot.
    pub(crate) fn restored(&self, took: Duration) {
        self.restores.fetch_add(1, Relaxed);
        self.restore_us.fetch_add(to_us(took), Relaxed);
    }

    /// Counts an export into the store.
    pub(crate) fn saved(&self, n_tokens: u32, took: Duration) {
        self.saves.fetch_add(1, Relaxed);
        self.save_us.fetch_add(to_us(took), Relaxed);
        self.saved_tokens.fetch_add(u64::from(n_tokens), Relaxed);
    }

    /// Counts what the disk could not do. On the store's thread.
    pub(super) fn disk_answered(&self, event: &DiskEvent) {
        let counter = match event {
            DiskEvent::Written { .. } | DiskEvent::Read { .. } => return,
            DiskEvent::WriteFailed { reason: WriteFailure::QueueFull, .. } => &self.disk_writes_refused,
            DiskEvent::WriteFailed { .. } => &self.disk_write_failures,
            DiskEvent::ReadFailed { .. } => &self.disk_read_failures,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts an answer that is complete.
    pub(super) fn answered(&self, finished: &Finished) {
        self.finished.fetch_add(1, Relaxed);
        self.prompt_us.fetch_add((finished.prompt_ms * 1e3) as u64, Relaxed);
        self.generation_us.fetch_add((finished.predicted_ms * 1e3) as u64, Relaxed);
    }

    pub(crate) fn values(&self) -> CounterValues {
        CounterValues {
            steps: self.steps.load(Relaxed),
            busy_slot_steps: self.busy_slot_steps.load(Relaxed),
            generated_tokens: self.generated_tokens.load(Relaxed),
            prompt_us: self.prompt_us.load(Relaxed),
            generation_us: self.generation_us.load(Relaxed),
            sequence_tokens_max: self.sequence_tokens_max.load(Relaxed),
            prefill_tokens: self.prefill_tokens.load(Relaxed),
            decode_tokens: self.decode_tokens.load(Relaxed),
            prompt_tokens: self.prompt_tokens.load(Relaxed),
            cached_tokens: self.cached_tokens.load(Relaxed),
            passed_tokens_max: self.passed_tokens_max.load(Relaxed),
            decode_failures: self.decode_failures.load(Relaxed),
            finished: self.finished.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            failed: self.failed.load(Relaxed),
            cached_ram_tokens: self.cached_ram_tokens.load(Relaxed),
            cached_disk_tokens: self.cached_disk_tokens.load(Relaxed),
            prefix_waits: self.prefix_waits.load(Relaxed),
            prefix_wait_us: self.prefix_wait_us.load(Relaxed),
            disk_wait_us: self.disk_wait_us.load(Relaxed),
            disk_read_failures: self.disk_read_failures.load(Relaxed),
            disk_write_failures: self.disk_write_failures.load(Relaxed),
            disk_writes_refused: self.disk_writes_refused.load(Relaxed),
            failed_starts: self.failed_starts.load(Relaxed),
            restores: self.restores.load(Relaxed),
            restore_us: self.restore_us.load(Relaxed),
            saves: self.saves.load(Relaxed),
            save_us: self.save_us.load(Relaxed),
            saved_tokens: self.saved_tokens.load(Relaxed),
            checkpoints_made: self.checkpoints_made.load(Relaxed),
            checkpoint_uses: self.checkpoint_uses.load(Relaxed),
            moved_out: self.moved_out.load(Relaxed),
            shifted_tokens: self.shifted_tokens.load(Relaxed),
            context_shifts: self.context_shifts.load(Relaxed),
            busy_slots: self.busy_slots.load(Relaxed),
            queued: self.queued.load(Relaxed),
            held_tokens: self.held_tokens.load(Relaxed),
        }
    }
}

fn to_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
