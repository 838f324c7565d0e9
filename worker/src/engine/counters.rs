//! Counters of the engine, for metrics and tests.
//!
//! The engine thread updates them, and the store's thread updates those of failed disk operations; any thread reads
//! them. No value depends on another, so relaxed atomics suffice. Not here: moving averages
//! (`warmpath_worker_core::reports::rates`), reports to routers (`publish`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use warmpath_worker_core::batches::compute_threads::ThreadWaits;

use crate::engine::api::{CachedTokens, Finished};
use crate::store::{DiskEvent, WriteFailure};

/// Defines the counters and their values.
macro_rules! counters {
    ($($(#[doc = $meaning:literal])+ $counter:ident;)*) => {
        /// Counters of the engine.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[doc = $meaning])+ pub $counter: AtomicU64,)*
        }

        /// Values of the counters at one moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct CounterValues {
            $($(#[doc = $meaning])+ pub $counter: u64,)*
        }

        impl Counters {
            pub(crate) fn values(&self) -> CounterValues {
                CounterValues { $($counter: self.$counter.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Batches decoded by llama.cpp.
    steps;
    /// Sum, over those batches, of the slots that ran a sequence.
    busy_slot_steps;
    /// Tokens that were chosen.
    generated_tokens;
    /// Time from a slot's start to its first token, of completed requests. Units: microseconds.
    prompt_us;
    /// Time from the first token to the last, of completed requests. Units: microseconds.
    generation_us;
    /// Maximum number of tokens of any slot so far, of prompt and response together.
    sequence_tokens_max;
    /// Prompt tokens computed.
    prefill_tokens;
    /// Output tokens computed, rejected ones included.
    decode_tokens;
    /// Drafts computed.
    drafts;
    /// Tokens of these drafts.
    drafted_tokens;
    /// Drafted tokens that became part of responses.
    accepted_tokens;
    /// Drafted tokens that the draft model made.
    made_tokens;
    /// Time of the draft model. Units: microseconds.
    draft_model_us;
    /// Sequences for which the draft model failed.
    draft_model_failures;
    /// Requests that got a slot and only fill the cache.
    prewarms;
    /// Prompt tokens of the other requests that got a slot.
    prompt_tokens;
    /// Prompt tokens of these requests that were reused.
    cached_tokens;
    /// Maximum number of prompt tokens that a stream waited for between two of its tokens, without single tokens
    /// computed beside streams in their own pass.
    passed_tokens_max;
    /// Batches that failed: llama.cpp could not compute them, their logits were not finite, or their adapter could not
    /// be applied.
    decode_failures;
    /// Requests that were completed.
    finished;
    /// Requests whose client disconnected.
    cancelled;
    /// Requests that failed.
    failed;
    /// Reused tokens that came from the store in memory.
    cached_ram_tokens;
    /// Reused tokens that came from the store on disk.
    cached_disk_tokens;
    /// Requests that waited for a prefix that another request was computing.
    prefix_waits;
    /// Time of these waits when the requests got their slots. Units: microseconds.
    prefix_wait_us;
    /// Time that requests waited for reads from disk. Units: microseconds.
    disk_wait_us;
    /// Chunks that could not be read from disk.
    disk_read_failures;
    /// Chunks that could not be written to disk, or were not written because writing had just failed.
    disk_write_failures;
    /// Chunks that were not written to disk because too many were waiting.
    disk_writes_refused;
    /// Requests whose planned state could not be restored.
    failed_starts;
    /// Starts with state moved into the slot.
    restores;
    /// Time of these moves. Units: microseconds.
    restore_us;
    /// Exports into the store.
    saves;
    /// Time of these exports. Units: microseconds.
    save_us;
    /// Tokens whose state was stored.
    saved_tokens;
    /// Partial-state checkpoints made.
    checkpoints_made;
    /// Starts from a checkpoint.
    checkpoint_uses;
    /// Idle slots whose state was moved out of the buffer.
    moved_out;
    /// Prompt tokens whose state was moved within a slot.
    shifted_tokens;
    /// Shifts of a full context.
    context_shifts;
    /// Images that were encoded.
    encoded_images;
    /// Audio files that were encoded.
    encoded_audio;
    /// Media that could not be encoded.
    encode_failures;
    /// Time of encoding. Units: microseconds.
    encode_us;
    /// Time that the process's threads waited for a processor while it computed. Units: microseconds.
    processor_wait_us;
    /// Threads that computed a step, of the last ones that were measured.
    compute_threads;
    /// Slots that run a sequence.
    busy_slots;
    /// Requests that wait for a slot.
    queued;
    /// Cells with KV state.
    held_tokens;
    /// Whether a read from disk was late in the last step, so that requests start without the disk: 1 or 0.
    disk_late;
}

impl Counters {
    /// Counts a request that got a slot.
    pub(crate) fn admit(&self, n_prompt: u64, cached_tokens: CachedTokens) {
        self.prompt_tokens.fetch_add(n_prompt, Relaxed);
        self.cached_tokens.fetch_add(u64::from(cached_tokens.total()), Relaxed);
        self.cached_ram_tokens.fetch_add(u64::from(cached_tokens.ram), Relaxed);
        self.cached_disk_tokens.fetch_add(u64::from(cached_tokens.disk), Relaxed);
        self.shifted_tokens.fetch_add(u64::from(cached_tokens.shifted), Relaxed);
    }

    /// Counts a request that got a slot and only fills the cache.
    pub(crate) fn prewarm(&self) {
        self.prewarms.fetch_add(1, Relaxed);
    }

    /// Counts the waits of a request that gets a slot: for other requests and for the disk.
    pub(crate) fn waited(&self, for_prefix: Duration, for_disk: Duration) {
        self.prefix_wait_us.fetch_add(to_us(for_prefix), Relaxed);
        self.disk_wait_us.fetch_add(to_us(for_disk), Relaxed);
    }

    /// Counts the waits of a window of steps for a processor.
    pub(crate) fn threads_waited(&self, waits: ThreadWaits) {
        self.processor_wait_us.fetch_add(to_us(waits.waited), Relaxed);
        self.compute_threads.store(waits.n_threads.into(), Relaxed);
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
    pub(crate) fn answered(&self, response_end: &Finished) {
        self.finished.fetch_add(1, Relaxed);
        self.prompt_us.fetch_add((response_end.prompt_ms * 1e3) as u64, Relaxed);
        self.generation_us.fetch_add((response_end.predicted_ms * 1e3) as u64, Relaxed);
    }
}

/// Returns a duration in microseconds.
pub(crate) fn to_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
