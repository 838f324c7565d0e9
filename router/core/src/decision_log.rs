//! The last decisions of a router, for people to look at: who got which request, why, and what came of it.
//!
//! Not here: deciding (`dispatch`). The idea: a ring of a fixed number of entries. An entry is written when a worker is chosen and
//! closed when something comes back; one that has been pushed out meanwhile is closed by nobody. It never holds a prompt.

use std::collections::VecDeque;
use std::sync::Arc;

use warmpath_common::ids::RequestId;
use warmpath_common::model::ModelInfo;

use crate::choose::Reason;
use crate::retry::Failure;

/// Is one choice of a worker, as it was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// Is when. Units: milliseconds since 1970.
    pub at_ms: u64,
    /// Names the request.
    pub request_id: RequestId,
    /// Is the model that was asked for.
    pub model: Arc<ModelInfo>,
    /// Names the worker for people: its URL.
    pub worker: String,
    /// Says why it was chosen.
    pub reason: Reason,
    /// Is the length of the prompt, or a guess of it. Units: tokens.
    pub prompt_tokens: u32,
    /// Is how much of it was counted on; absent where the prompt is not known. Units: tokens.
    pub predicted_cached_tokens: Option<u32>,
}

/// Says what came of a choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// Nothing yet.
    Open,
    /// The worker has begun to answer.
    Answered {
        /// Is the answer's status.
        status: u16,
        /// Is the time from the request's arrival, waiting and failed attempts included. Units: milliseconds.
        ttft_ms: f64,
        /// Is how much of the prompt was reused; absent where the worker does not say before the answer's end. Units: tokens.
        cached_tokens: Option<u32>,
    },
    /// The worker has failed before there was anything to show.
    Failed(Failure),
    /// The client has left before.
    Left,
}

/// Is a choice and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Is the choice.
    pub chosen: Chosen,
    /// Says what came of it.
    pub outcome: Outcome,
}

/// Names an entry, also after it has been pushed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryNumber(u64);

/// Is the last entries.
#[derive(Debug)]
pub struct DecisionLog {
    entries: VecDeque<Entry>,
    entries_max: usize,
    /// Counts the entries that were ever written.
    n_written: u64,
}

impl DecisionLog {
    /// Returns a log that keeps the last `entries_max`.
    pub fn new(entries_max: usize) -> Self {
        Self { entries: VecDeque::with_capacity(entries_max), entries_max, n_written: 0 }
    }

    /// Writes an entry down, in the place of the oldest where there is no other. Cost: O(1).
    pub fn write(&mut self, chosen: Chosen) -> EntryNumber {
        let number = EntryNumber(self.n_written);
        self.n_written += 1;
        if self.entries.len() == self.entries_max {
            self.entries.pop_front();
        }
        if self.entries_max > 0 {
            self.entries.push_back(Entry { chosen, outcome: Outcome::Open });
        }
        number
    }

    /// Says what came of an entry, if that is still here. Cost: O(1).
    pub fn close(&mut self, EntryNumber(number): EntryNumber, outcome: Outcome) {
        let oldest = self.n_written - self.entries.len() as u64;
        let place = number.checked_sub(oldest).and_then(|place| usize::try_from(place).ok());
        if let Some(entry) = place.and_then(|place| self.entries.get_mut(place)) {
            entry.outcome = outcome;
        }
    }

    /// Returns the entries, the latest first.
    pub fn latest(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter().rev()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::model;

    fn chosen(n: u64) -> Chosen {
        Chosen {
            at_ms: n,
            request_id: RequestId::new(&format!("r{n}")).expect("an id"),
            model: Arc::new(model()),
            worker: "http://worker-0".to_owned(),
            reason: Reason::Cold,
            prompt_tokens: 1,
            predicted_cached_tokens: None,
        }
    }

    proptest! {
        #[test]
        fn keeps_the_last_entries_and_closes_those_that_are_still_here(
            entries_max in 0..6_usize,
            // Each step writes an entry, or closes one of those that were ever written.
            steps in prop::collection::vec(prop::option::of(0..20_usize), 0..40),
        ) {
            let mut log = DecisionLog::new(entries_max);
            let mut naive: Vec<Entry> = Vec::new();
            let mut numbers = Vec::new();
            for step in steps {
                match step {
                    None => {
                        let chosen = chosen(naive.len() as u64);
                        numbers.push(log.write(chosen.clone()));
                        naive.push(Entry { chosen, outcome: Outcome::Open });
                    }
                    Some(n) if n < numbers.len() => {
                        log.close(numbers[n], Outcome::Failed(Failure::Full));
                        naive[n].outcome = Outcome::Failed(Failure::Full);
                    }
                    Some(_) => {}
                }
                let last: Vec<&Entry> = naive.iter().rev().take(entries_max).collect();
                prop_assert_eq!(log.latest().collect::<Vec<_>>(), last);
            }
        }
    }
}
