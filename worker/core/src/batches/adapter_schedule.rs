//! Schedule of LoRA adapters: llama.cpp applies one adapter to a whole batch, so adapters take turns.
//!
//! The contents of the batch are in `batch_plan`; the shell applies the adapter.
//!
//! - If prompts and single tokens go through the model in one pass, adapters are served in rounds, each in ascending
//!   order. With n adapters a stream is in every n-th batch. A round has the adapters that are ready at its start,
//!   because a client chooses an adapter's scale, so ever larger adapters could arrive. A medium comes between two
//!   rounds.
//! - If they go in separate passes, an adapter with prompts and streams needs two batches. In a fixed order, another
//!   adapter's prompts would use up the turns of its prompts, because a stream waits for at most one micro-batch of
//!   prompts, whatever their adapter. So the streams take a round: a batch for each adapter whose streams have waited.
//!   Between two rounds comes one micro-batch: of the prompt with the highest priority of all adapters, or of a medium
//!   (docs/decisions/0036-batch-plan.md).

use std::cmp::Reverse;
use std::time::Duration;

use crate::batches::batch_plan::{Passes, PromptRest, RunningSequence, Work};

/// Ready sequences, and what else determines which of them are next.
#[derive(Debug, Clone, Copy)]
pub struct AdapterTurns<'a, K> {
    /// Sequences whose next tokens can be computed, with their adapters.
    pub ready: &'a [(K, RunningSequence)],
    /// Adapters whose turn in this round is still to come, ascending.
    pub round: &'a [K],
    /// Passes of prompts and single tokens through the model.
    pub passes: Passes,
    /// Time to compute a prompt of average length.
    pub usual_prompt: Duration,
}

impl<K: Ord + Copy> AdapterTurns<'_, K> {
    /// Returns the adapter of the next batch; `None` if no sequence is ready.
    ///
    /// Cost: O(n).
    pub fn next_adapter(&self) -> Option<K> {
        match self.passes {
            Passes::Together => self.in_order(),
            Passes::Apart => self.of_waiting_stream().or_else(|| self.of_first_prompt()).or_else(|| self.in_order()),
        }
    }

    /// Returns the sequences of the next batch's adapter, without those that must not be in the batch.
    ///
    /// Within a round of several adapters, no prompt goes before the streams. Otherwise streams that have had their
    /// token in this round would wait again, so the round might never end.
    pub fn sequences(&self, adapter: K) -> Vec<RunningSequence> {
        let is_in_round = self.passes == Passes::Apart && self.is_within_round();
        let has_others = self.streams().any(|(other, _)| other != adapter);
        let is_long = |work| matches!(work, Work::Prefill { n_tokens, .. } if n_tokens > 1);
        let with_adapter = self.ready.iter().filter(|(other, _)| *other == adapter).map(|(_, sequence)| *sequence);
        with_adapter.filter(|sequence| !(is_in_round && has_others && is_long(sequence.work))).collect()
    }

    /// Returns whether a round has begun and not ended. Within a round, no medium is computed.
    pub fn is_within_round(&self) -> bool {
        match self.passes {
            Passes::Together => self.next_in_round().is_some(),
            Passes::Apart => self.of_waiting_stream().is_some(),
        }
    }

    /// Returns the adapters whose turn in the round is still to come after a batch of `adapter`, ascending.
    pub fn round_after(&self, adapter: K) -> Vec<K> {
        let mut round = match self.next_in_round() {
            Some(_) => self.round.to_vec(),
            None => self.ready.iter().map(|(other, _)| *other).collect(),
        };
        round.retain(|other| *other != adapter);
        round.sort_unstable();
        round.dedup();
        round
    }

    /// Returns whether tokens come before the next medium if a medium was computed after the last round.
    pub fn follows_medium(&self) -> bool {
        match self.passes {
            Passes::Together => !self.ready.is_empty(),
            Passes::Apart => self.of_first_prompt().is_some(),
        }
    }

    fn streams(&self) -> impl Iterator<Item = (K, &RunningSequence)> {
        let streams = self.ready.iter().filter(|(_, sequence)| sequence.work == Work::Decode);
        streams.map(|(adapter, stream)| (*adapter, stream))
    }

    /// Returns the next adapter of the round; after the round, the smallest one.
    fn in_order(&self) -> Option<K> {
        self.next_in_round().or_else(|| self.ready.iter().map(|(adapter, _)| *adapter).min())
    }

    /// Returns the next adapter of the round; `None` if the round has ended.
    fn next_in_round(&self) -> Option<K> {
        let is_ready = |adapter: &K| self.ready.iter().any(|(other, _)| other == adapter);
        self.round.iter().copied().find(is_ready)
    }

    /// Returns the adapter of the stream that has waited for the most prompt tokens; `None` if no stream has waited.
    /// Ties: the smallest adapter.
    fn of_waiting_stream(&self) -> Option<K> {
        let waiting = self.streams().filter(|(_, stream)| stream.passed_tokens > 0);
        waiting.max_by_key(|(adapter, stream)| (stream.passed_tokens, Reverse(*adapter))).map(|(adapter, _)| adapter)
    }

    /// Returns the adapter of the prompt with the highest priority; `None` without prompts, and if its single token is
    /// computed with the streams of its adapter.
    fn of_first_prompt(&self) -> Option<K> {
        let prompt_rest = |sequence| PromptRest::of(sequence, self.usual_prompt);
        let prompts = self.ready.iter().filter_map(|(adapter, sequence)| Some((*adapter, prompt_rest(sequence)?)));
        let (adapter, first) = prompts.min_by(|(_, a), (_, b)| a.by_claim(b))?;
        let is_alone = !self.streams().any(|(other, _)| other == adapter);
        (first.share.n_tokens > 1 || is_alone).then_some(adapter)
    }
}

#[cfg(test)]
mod tests;
