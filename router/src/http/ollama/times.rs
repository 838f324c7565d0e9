//! The times of one answer, by the router's clock.

use std::time::Instant;

use warmpath_router_core::ollama::MeasuredTimes;

use crate::http::completions::ReceivedRequest;
use crate::lifecycle::ModelWait;

/// Clock of one answer.
pub(super) struct AnswerTimes {
    arrived: Instant,
    model_wait: ModelWait,
    first_part: Option<Instant>,
}

impl AnswerTimes {
    /// Returns the clock of a request's answer.
    pub fn of(request: &ReceivedRequest) -> Self {
        Self { arrived: request.arrived(), model_wait: request.model_wait.clone(), first_part: None }
    }

    /// Records that a part of the answer has been written.
    pub fn wrote_part(&mut self) {
        self.first_part.get_or_insert_with(Instant::now);
    }

    /// Returns the times so far.
    pub fn measured(&self) -> MeasuredTimes {
        MeasuredTimes {
            total: self.arrived.elapsed(),
            load: self.model_wait.total(),
            first_part: self.first_part.map(|at| at - self.arrived),
        }
    }
}
