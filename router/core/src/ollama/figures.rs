//! Token counts and times of an answer, with Ollama's names.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::stock::usage::Usage;

/// Times of an answer that the router measures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeasuredTimes {
    /// Time since the request's arrival.
    pub total: Duration,
    /// Time for which the request waited for its model to be loaded.
    pub load: Duration,
    /// Time from the arrival to the first part of a stream; `None` before it, and if the answer is no stream.
    pub first_part: Option<Duration>,
}

/// What a server has reported.
#[derive(Debug, Default)]
pub(super) struct Figures {
    usage: Usage,
    /// Time of the tokens of the answer. Units: milliseconds.
    decode_ms: Option<f64>,
}

impl Figures {
    /// Reads the counts and times of an object, whose text is `json`.
    pub fn read(&mut self, object: &Value, json: &[u8]) {
        if object["usage"].is_object() || object["timings"].is_object() {
            self.usage.read(json);
            self.decode_ms = object["timings"]["predicted_ms"].as_f64().or(self.decode_ms);
        }
    }

    /// Adds the fields of the last object. A time that the server does not report is the router's own: until the first
    /// part of a stream, and from there to its end.
    pub fn write(&self, times: &MeasuredTimes, object: &mut Map<String, Value>) {
        let prompt = times.first_part.map(|first_part| first_part.saturating_sub(times.load));
        let answer = times.first_part.map(|first_part| times.total.saturating_sub(first_part));
        let prompt = self.usage.prefill_ms.and_then(of_ms).or(prompt);
        let answer = self.decode_ms.and_then(of_ms).or(answer);
        let fields = [
            ("total_duration", Some(ns(times.total))),
            ("load_duration", Some(ns(times.load))),
            ("prompt_eval_count", self.usage.prompt_tokens.map(u64::from)),
            ("prompt_eval_duration", prompt.map(ns)),
            ("eval_count", self.usage.completion_tokens.map(u64::from)),
            ("eval_duration", answer.map(ns)),
        ];
        object.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into()))));
    }
}

/// Returns a server's time; `None` if it is none.
fn of_ms(ms: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(ms / 1e3).ok()
}

/// Returns a time in nanoseconds.
pub(super) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
