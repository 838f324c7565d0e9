//! The engine's reports: updates for routers, early announcements, the view of its slots, counters.
//!
//! [`EnginePublisher`] reads the other parts between two steps and changes none of them.

pub(crate) mod arrival_announcer;
pub(crate) mod summary_events;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use warmpath_common::ids::SlotId;
use warmpath_common::summary::Load;
use warmpath_worker_core::slots::slot_table::SlotTable;

use super::api::SlotView;
use super::handle::view::EngineView;
use super::kv::{KvState, contents};
use super::schedule::Scheduler;
use super::schedule::batch::Batch;
use super::sequence::Sequence;
use summary_events::UpdateSender;

/// Publisher of the engine's state.
pub(crate) struct EnginePublisher {
    pub(crate) report: UpdateSender,
    pub(crate) view: Arc<EngineView>,
}

impl EnginePublisher {
    /// Publishes changes if an update is due.
    pub(crate) fn publish(&mut self, schedule: &Scheduler, kv: &mut KvState<'_>) {
        let now = Instant::now();
        let changes = kv.take_changes();
        let is_due = self.report.due_in(now).is_some_and(|wait| wait.is_zero());
        if is_due || self.report.is_urgent() || !changes.is_empty() {
            self.show_slots(schedule, &kv.table);
            let draining = self.view.draining.load(Relaxed);
            let load = Load { draining, ..schedule.load(&kv.table) };
            self.report.send(changes, load, now);
        }
        let totals = contents::totals(kv);
        if **self.view.cache.load() != totals {
            self.view.cache.store(Arc::new(totals));
        }
    }

    /// Publishes the current state of the slots.
    pub(crate) fn show_slots(&self, schedule: &Scheduler, table: &SlotTable) {
        let view = |(id, sequence): (SlotId, Option<&Sequence>)| SlotView {
            id,
            request_id: sequence.map(|sequence| sequence.submission.request_id.clone()),
            held_tokens: table.n_held(id),
            exact_tokens: table.slot(id).exact_tokens().len() as u32,
            prompt_tokens: sequence.map_or(0, |sequence| sequence.submission.prompt.len() as u32),
            cached_tokens: sequence.map_or(0, |sequence| sequence.n_cached),
            decoded_tokens: sequence.map_or(0, |sequence| sequence.n_generated),
            remaining_tokens: sequence.and_then(|sequence| {
                let n_max = sequence.submission.generation.max_tokens?;
                Some(n_max.saturating_sub(sequence.n_generated))
            }),
        };
        self.view.slots.store(Arc::new(schedule.running.all().map(view).collect()));
    }

    /// Updates the counters of running and waiting requests, of used cells and of the disk.
    pub(crate) fn count(&self, schedule: &Scheduler, kv: &KvState<'_>) {
        let (counters, table) = (&self.view.counters, &kv.table);
        counters.busy_slots.store(schedule.running.iter().count() as u64, Relaxed);
        counters.queued.store(schedule.queue.len() as u64, Relaxed);
        counters.held_tokens.store(table.held_tokens(), Relaxed);
        counters.disk_late.store(u64::from(kv.cache.is_disk_late()), Relaxed);
        let longest = table.iter().map(|(_, slot)| slot.tokens().len()).max().unwrap_or(0);
        counters.sequence_tokens_max.fetch_max(longest as u64, Relaxed);
    }

    /// Counts a computed micro-batch.
    pub(crate) fn count_batch(&self, batch: &Batch, n_running: usize) {
        let counters = &self.view.counters;
        counters.steps.fetch_add(1, Relaxed);
        counters.busy_slot_steps.fetch_add(n_running as u64, Relaxed);
        counters.prefill_tokens.fetch_add(u64::from(batch.n_prefill), Relaxed);
        counters.decode_tokens.fetch_add(u64::from(batch.n_decode), Relaxed);
    }
}
