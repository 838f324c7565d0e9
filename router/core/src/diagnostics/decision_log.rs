//! The last routing decisions of a router, for operators: which worker got which request, why, and with what outcome.
//!
//! Decisions are made in `ledger`. The log is a ring of a fixed number of entries. An entry is written when a worker
//! is chosen and closed when the outcome is known, unless the ring has dropped it by then. It never holds a prompt.

use std::collections::VecDeque;
use std::sync::Arc;

use warmpath_common::ids::RequestId;
use warmpath_common::model::ModelInfo;

use crate::overload::retry::WorkerFailure;
use crate::routing::choose::ChoiceReason;

/// One choice of a worker, as it was made.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedChoice {
    /// Time of the choice. Units: milliseconds since 1970.
    pub at_ms: u64,
    /// Id of the request.
    pub request_id: RequestId,
    /// Requested model.
    pub model: Arc<ModelInfo>,
    /// Name of the worker for people: its URL.
    pub worker: String,
    /// Reason for the choice.
    pub reason: ChoiceReason,
    /// Worker from which the chosen worker was to fetch KV state; `None` if it was to fetch none.
    pub kv_peer: Option<String>,
    /// Length of the prompt, or an estimate of it. Units: tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens that were expected to be reused; `None` if the prompt is not known. Units: tokens.
    pub predicted_cached_tokens: Option<u32>,
}

/// Outcome of a choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DecisionOutcome {
    /// Not known yet.
    Open,
    /// The worker has begun to respond.
    Answered {
        /// HTTP status of the response.
        status: u16,
        /// Time since the request's arrival, including waiting and failed attempts. Units: milliseconds.
        ttft_ms: f64,
        /// Prompt tokens that were reused; `None` if the worker does not report them before the response ends.
        /// Units: tokens.
        cached_tokens: Option<u32>,
    },
    /// The worker failed before the response began.
    Failed(WorkerFailure),
    /// The client disconnected before the response began.
    Left,
}

/// A choice and its outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct DecisionEntry {
    /// The choice.
    pub chosen: LoggedChoice,
    /// Its outcome.
    pub outcome: DecisionOutcome,
}

/// Number of an entry, valid also after the ring has dropped the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryNumber(u64);

/// Ring of the last entries.
#[derive(Debug)]
pub struct DecisionLog {
    entries: VecDeque<DecisionEntry>,
    entries_max: usize,
    /// Number of entries ever written.
    n_written: u64,
}

impl DecisionLog {
    /// Returns a log that keeps the last `entries_max` entries.
    pub fn new(entries_max: usize) -> Self {
        Self { entries: VecDeque::with_capacity(entries_max), entries_max, n_written: 0 }
    }

    /// Adds an entry and drops the oldest one when the log is full. Cost: O(1).
    pub fn write(&mut self, choice: LoggedChoice) -> EntryNumber {
        let number = EntryNumber(self.n_written);
        self.n_written += 1;
        if self.entries.len() == self.entries_max {
            self.entries.pop_front();
        }
        if self.entries_max > 0 {
            self.entries.push_back(DecisionEntry { chosen: choice, outcome: DecisionOutcome::Open });
        }
        number
    }

    /// Records the outcome of an entry, if the log still has it. Cost: O(1).
    pub fn close(&mut self, EntryNumber(number): EntryNumber, outcome: DecisionOutcome) {
        let oldest = self.n_written - self.entries.len() as u64;
        let place = number.checked_sub(oldest).and_then(|place| usize::try_from(place).ok());
        if let Some(entry) = place.and_then(|place| self.entries.get_mut(place)) {
            entry.outcome = outcome;
        }
    }

    /// Returns the entries, the latest first.
    pub fn latest(&self) -> impl ExactSizeIterator<Item = &DecisionEntry> {
        self.entries.iter().rev()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::model;

    fn chosen(n: u64) -> LoggedChoice {
        LoggedChoice {
            at_ms: n,
            request_id: RequestId::new(&format!("r{n}")).expect("an id"),
            model: Arc::new(model()),
            worker: "http://worker-0".to_owned(),
            reason: ChoiceReason::Cold,
            kv_peer: None,
            prompt_tokens: 1,
            predicted_cached_tokens: None,
        }
    }

    proptest! {
        #[test]
        fn keeps_the_last_entries_and_completes_those_that_it_still_has(
            entries_max in 0..6_usize,
            // Each step writes an entry, or closes one of those that were ever written.
            steps in prop::collection::vec(prop::option::of(0..20_usize), 0..40),
        ) {
            let mut log = DecisionLog::new(entries_max);
            let mut naive: Vec<DecisionEntry> = Vec::new();
            let mut numbers = Vec::new();
            for step in steps {
                match step {
                    None => {
                        let chosen = chosen(naive.len() as u64);
                        numbers.push(log.write(chosen.clone()));
                        naive.push(DecisionEntry { chosen, outcome: DecisionOutcome::Open });
                    }
                    Some(n) if n < numbers.len() => {
                        log.close(numbers[n], DecisionOutcome::Failed(WorkerFailure::Full));
                        naive[n].outcome = DecisionOutcome::Failed(WorkerFailure::Full);
                    }
                    Some(_) => {}
                }
                let last: Vec<&DecisionEntry> = naive.iter().rev().take(entries_max).collect();
                prop_assert_eq!(log.latest().collect::<Vec<_>>(), last);
            }
        }
    }
}
