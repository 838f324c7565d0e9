//! Scheduling: which sequences run, and which of their tokens the next batch computes.
//!
//! [`Scheduler`] owns the queue, the running sequences and the batch in progress. It reads the slots' KV state for its
//! decisions, and never changes it.
//!
//! Not here: the state of slots (`kv`), choosing tokens (`output`), computing a batch (`step`).

pub(crate) mod batch;
pub(crate) mod queue;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use warmpath_common::lora::Applied;
use warmpath_common::summary::{Load, Rates};
use warmpath_prompt::MediaRun;
use warmpath_worker_core::batches::batch_plan::BatchLimits;
use warmpath_worker_core::batches::decode_groups::DecodeGroups;
use warmpath_worker_core::reports::rates::Averages;
use warmpath_worker_core::slots::slot_table::SlotTable;

use super::counters::Counters;
use super::kv::restoring::SlotStart;
use super::media::{Encoder, Projector};
use super::sequence::admission::Admission;
use super::sequence::running::RunningSequences;
use super::sequence::{Sequence, UpcomingMedia};
use batch::PlannedBatch;
use queue::QueuedSubmission;

/// Queue, running sequences and the batch in progress.
pub(crate) struct Scheduler {
    /// Submissions without a slot, in the order of arrival.
    pub(crate) queue: VecDeque<QueuedSubmission>,
    pub(crate) running: RunningSequences,
    pub(crate) averages: Averages,
    limits: ScheduleLimits,
    planned: PlannedBatch,
    /// Encoder of media; `None` if the model reads only text.
    encoder: Option<Encoder>,
    /// Whether a medium was computed since a prompt last had a turn.
    last_was_media: bool,
    /// Adapter of the planned batch's sequences; `None` if they have none.
    adapter: Option<Applied>,
    /// Adapters whose turn in this round is still to come, ascending; `None` stands for no adapter.
    round: Vec<Option<Applied>>,
    n_started: u64,
    /// Whether reads from disk were requested since [`Self::take_fetched`].
    has_fetched: bool,
    counters: Arc<Counters>,
}

/// Limits of batches.
pub(crate) struct ScheduleLimits {
    pub room: BatchLimits,
    /// Groups of slots that are computed together; `None` if the slots share their cells, because then all slots are.
    pub decode_groups: Option<DecodeGroups>,
    /// Whether a draft is computed without other sequences.
    pub drafts_alone: bool,
    /// Maximum number of prompt tokens of one step for prompts whose log probabilities are wanted.
    pub listed_tokens_max: usize,
    /// Longest time that an idle engine waits for further requests before its first step.
    pub gather_max: Duration,
}

impl Scheduler {
    /// Returns a scheduler of `n_slots` slots without a request.
    pub(crate) fn new(n_slots: u16, limits: ScheduleLimits, encoder: Option<Encoder>, counters: Arc<Counters>) -> Self {
        Self {
            queue: VecDeque::new(),
            running: RunningSequences::new(n_slots),
            averages: Averages::default(),
            limits,
            planned: PlannedBatch::default(),
            encoder,
            last_was_media: false,
            adapter: None,
            round: Vec::new(),
            n_started: 0,
            has_fetched: false,
            counters,
        }
    }

    /// Changes the groups of slots that are computed together.
    pub(crate) fn set_decode_groups(&mut self, groups: Option<DecodeGroups>) {
        self.limits.decode_groups = groups;
    }

    /// Returns how long to wait for further requests: at most as long as the step that waiting saves them.
    pub(crate) fn gather_max(&self) -> Duration {
        let gather_max = self.limits.gather_max;
        let step_ms = self.averages.rates().decode_step_ms.map(f64::from);
        step_ms.map_or(gather_max, |step_ms| gather_max.min(Duration::from_secs_f64(step_ms.max(0.0) / 1e3)))
    }

    /// Runs a submission in its slot.
    pub(crate) fn start(&mut self, admission: Admission, start: SlotStart) -> &mut Sequence {
        let slot_start = start.started;
        let n_prompt = u32::try_from(admission.submission.prompt.len()).unwrap_or(u32::MAX);
        match admission.submission.generation.is_prewarm() {
            true => self.counters.prewarm(),
            false => self.counters.admit(u64::from(n_prompt), slot_start.cached),
        }
        self.averages.prompt(n_prompt.saturating_sub(slot_start.cached.total()));
        self.n_started += 1;
        let media = self.media(&admission.submission.runs, slot_start.cached.total());
        let sequence = Sequence::start(admission, start, self.n_started);
        self.running.put(slot_start.slot, sequence.with_media(media))
    }

    /// Returns the model's projector; `None` if it reads only text.
    pub(crate) fn projector(&self) -> Option<Arc<Projector>> {
        self.encoder.as_ref().map(|encoder| Arc::clone(encoder.projector()))
    }

    /// Starts encoding the media after a prompt's first `n_cached` tokens, and returns them.
    fn media(&self, runs: &[MediaRun], n_cached: u32) -> Vec<UpcomingMedia> {
        let Some(encoder) = &self.encoder else { return Vec::new() };
        let upcoming = &runs[runs.partition_point(|run| run.end() <= n_cached)..];
        let places = upcoming.iter().map(|run| run.start..run.end());
        let attentions = upcoming.iter().map(|run| encoder.projector().attention(run.medium.size));
        let runs = places.zip(attentions).zip(encoder.encode(upcoming));
        runs.map(|((place, attention), encoding)| UpcomingMedia { place, attention, encoding }).collect()
    }

    /// Returns the load for routers.
    pub(crate) fn load(&self, table: &SlotTable) -> Load {
        let n_prompt_left = |(slot, sequence): (_, &Sequence)| u64::from(sequence.n_prompt_left(table.n_held(slot)));
        let n_running = self.running.iter().count();
        let prefills: Vec<u64> = self.running.iter().map(n_prompt_left).filter(|n_left| *n_left > 0).collect();
        Load {
            queued_prefill_tokens: self.queue.iter().map(|waiting| u64::from(waiting.n_uncached)).sum(),
            running_prefill_tokens: prefills.iter().sum(),
            n_queued: u32::try_from(self.queue.len()).unwrap_or(u32::MAX),
            n_decoding: u32::try_from(n_running - prefills.len()).unwrap_or(u32::MAX),
            busy_slots: self.running.slots(),
            free_cells: table.free_cells(),
            // The publisher sets it.
            draining: false,
            rates: Rates {
                encode_ms_per_token: self.encoder.as_ref().and_then(Encoder::ms_per_token),
                ..self.averages.rates()
            },
        }
    }
}
