//! Counters of the engine, for metrics and tests.
//!
//! The engine thread writes them, and the store's thread those of failed disk operations; any thread reads them. No
//! value depends on another, so relaxed atomics suffice. Not here: moving averages (`warmpath_worker_core::rates`),
//! reports to routers (`summary_events`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::engine::api::{CachedTokens, Finished};
use crate::engine::schedule::queue::Waiting;
use crate::store::{DiskEvent, WriteFailure};

/// Counters of the engine.
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
    pub drafts: AtomicU64,
    pub drafted_tokens: AtomicU64,
    pub accepted_tokens: AtomicU64,
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

/// Values of the counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterValues {
    /// Batches decoded by llama.cpp.
    pub steps: u64,
    /// Sum, over those batches, of the slots that ran a sequence.
    pub busy_slot_steps: u64,
    /// Tokens that were chosen.
    pub generated_tokens: u64,
    /// Time from a slot's start to its first token, of completed requests. Units: microseconds.
    pub prompt_us: u64,
    /// Time from the first token to the last, of completed requests. Units: microseconds.
    pub generation_us: u64,
    /// Most tokens, prompt and response, of any slot so far.
    pub sequence_tokens_max: u64,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Output tokens computed, rejected ones included.
    pub decode_tokens: u64,
    /// Drafts computed.
    pub drafts: u64,
    /// Tokens of these drafts.
    pub drafted_tokens: u64,
    /// Drafted tokens that became part of responses.
    pub accepted_tokens: u64,
    /// Prompt tokens of requests that got a slot.
    pub prompt_tokens: u64,
    /// Those of them that were reused.
    pub cached_tokens: u64,
    /// Most prompt tokens ever computed between two tokens of a stream.
    pub passed_tokens_max: u64,
    /// Batches that llama.cpp failed to decode.
    pub decode_failures: u64,
    /// Requests that were completed.
    pub finished: u64,
    /// Requests whose client disconnected.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Reused tokens that came from the store in memory.
    pub cached_ram_tokens: u64,
    /// Reused tokens that came from the store on disk.
    pub cached_disk_tokens: u64,
    /// Requests that waited for a prefix that another was computing.
    pub prefix_waits: u64,
    /// Time of these waits when the requests got their slots. Units: microseconds.
    pub prefix_wait_us: u64,
    /// Time that requests had waited for state to be read from disk. Units: microseconds.
    pub disk_wait_us: u64,
    /// Stored state that could not be read from disk.
    pub disk_read_failures: u64,
    /// Stored state that could not be written to disk, or was not because writing had just failed.
    pub disk_write_failures: u64,
    /// Stored state that was not written to disk because too much was waiting already.
    pub disk_writes_refused: u64,
    /// Requests whose planned start could not be reached.
    pub failed_starts: u64,
    /// Starts with state moved into the slot.
    pub restores: u64,
    /// Time of these moves. Units: microseconds.
    pub restore_us: u64,
    /// Exports into the store.
    pub saves: u64,
    /// Time of these exports. Units: microseconds.
    pub save_us: u64,
    /// Tokens whose state was stored.
    pub saved_tokens: u64,
    /// Partial-state checkpoints made.
    pub checkpoints_made: u64,
    /// Starts from one.
    pub checkpoint_uses: u64,
    /// Idle slots whose state left the buffer.
    pub moved_out: u64,
    /// Prompt tokens whose state was moved within a slot.
    pub shifted_tokens: u64,
    /// Shifts of a full context.
    pub context_shifts: u64,
    /// Slots that run a sequence.
    pub busy_slots: u64,
    /// Requests that wait for a slot.
    pub queued: u64,
    /// Cells with KV state.
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

    /// Counts the waits of a request that gets a slot at `now`: for other requests and for the disk.
    pub(crate) fn waited(&self, waiting: &Waiting, now: Instant) {
        let waited = |since: Option<Instant>| since.map_or(0, |since| to_us(now.saturating_duration_since(since)));
        self.prefix_wait_us.fetch_add(waited(waiting.shares_since), Relaxed);
        self.disk_wait_us.fetch_add(waited(waiting.reads_since), Relaxed);
    }

    /// Counts a start with state moved into the slot.
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

    /// Counts failed operations of the disk. Called on the store's thread.
    pub(crate) fn disk_answered(&self, event: &DiskEvent) {
        let counter = match event {
            DiskEvent::Written { .. } | DiskEvent::Read { .. } => return,
            DiskEvent::WriteFailed { reason: WriteFailure::QueueFull, .. } => &self.disk_writes_refused,
            DiskEvent::WriteFailed { .. } => &self.disk_write_failures,
            DiskEvent::ReadFailed { .. } => &self.disk_read_failures,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a complete response.
    pub(crate) fn answered(&self, finished: &Finished) {
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
            drafts: self.drafts.load(Relaxed),
            drafted_tokens: self.drafted_tokens.load(Relaxed),
            accepted_tokens: self.accepted_tokens.load(Relaxed),
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
