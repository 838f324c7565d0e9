//! What the engine counts while it runs, for metrics and tests.
//!
//! Not here: moving averages (`warmpath_worker_core::rates`), what goes to routers (`report`).
//! The idea: the engine thread is the only writer, anyone reads; no value depends on another, so relaxed atomics do.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Is the engine's counters, written by its thread alone.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub steps: AtomicU64,
    pub prefill_tokens: AtomicU64,
    pub decode_tokens: AtomicU64,
    pub prompt_tokens: AtomicU64,
    pub cached_tokens: AtomicU64,
    pub prefill_tokens_beside_decode_max: AtomicU64,
    pub decode_failures: AtomicU64,
    pub finished: AtomicU64,
    pub cancelled: AtomicU64,
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
    /// Counts the prompt tokens computed.
    pub prefill_tokens: u64,
    /// Counts the answer tokens computed.
    pub decode_tokens: u64,
    /// Counts the prompt tokens of requests that got a slot.
    pub prompt_tokens: u64,
    /// Counts those of them that were reused.
    pub cached_tokens: u64,
    /// Is the most prompt tokens that ever shared a step with a decoding sequence.
    pub prefill_tokens_beside_decode_max: u64,
    /// Counts the batches that llama.cpp failed to decode.
    pub decode_failures: u64,
    /// Counts the requests that were answered.
    pub finished: u64,
    /// Counts the requests whose client left.
    pub cancelled: u64,
    /// Counts the requests that failed.
    pub failed: u64,
    /// Is the slots that run a sequence.
    pub busy_slots: u64,
    /// Is the requests that wait for a slot.
    pub queued: u64,
    /// Is the cells that hold KV state.
    pub held_tokens: u64,
}

impl Counters {
    pub(super) fn values(&self) -> CounterValues {
        CounterValues {
            steps: self.steps.load(Relaxed),
            prefill_tokens: self.prefill_tokens.load(Relaxed),
            decode_tokens: self.decode_tokens.load(Relaxed),
            prompt_tokens: self.prompt_tokens.load(Relaxed),
            cached_tokens: self.cached_tokens.load(Relaxed),
            prefill_tokens_beside_decode_max: self.prefill_tokens_beside_decode_max.load(Relaxed),
            decode_failures: self.decode_failures.load(Relaxed),
            finished: self.finished.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            failed: self.failed.load(Relaxed),
            busy_slots: self.busy_slots.load(Relaxed),
            queued: self.queued.load(Relaxed),
            held_tokens: self.held_tokens.load(Relaxed),
        }
    }
}
