//! One open stream of a host's summaries, without its socket: takes bytes as they arrive, returns valid summaries.
//!
//! Nothing that a host sends is trusted. Events are limited in size and rate, and their content in number and length. A
//! stream that breaks a limit ends, and the last valid summary stays. Every event is a whole summary, so of several
//! that arrive together only the last is read.
//!
//! Not here: opening and closing streams, and the addresses of workers (the router's `fleet::hosts`).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use warmpath_common::host::{HostSummary, ModelState};

use crate::event_stream::splitter::Splitter;
use crate::fleet::compatibility::NAME_BYTES_MAX;

/// Longest event. Units: bytes. Source: own choice: twice the most models with usual names and states.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// Most events per second of a stream; more is a flood. Source: own choice: a host reports progress some times a
/// second.
pub const EVENTS_PER_S_MAX: u32 = 200;

/// Most models of a host. Source: own choice: some ten times as many as people keep on a machine.
pub const MODELS_MAX: usize = 2048;

/// Most aliases of a model. Source: own choice, far above usual catalogues.
pub const ALIASES_MAX: usize = 64;

/// Longest reason of a host. Units: bytes. Source: own choice: some lines of a log.
pub const REASON_BYTES_MAX: usize = 8 << 10;

/// Most devices of a host. Source: own choice: a large machine has 16 GPUs.
pub const DEVICES_MAX: usize = 256;

/// Period over which the rate of events is limited.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Reason why a host's stream cannot be read any further.
#[derive(Debug, thiserror::Error)]
pub enum HostFault {
    /// An event is longer than the limit.
    #[error("an event has more than {EVENT_BYTES_MAX} bytes")]
    TooLong,
    /// Events arrive faster than the limit.
    #[error("more than {EVENTS_PER_S_MAX} events arrived in a second")]
    Flood,
    /// An event is no summary.
    #[error("an event is no summary")]
    Malformed(#[from] serde_json::Error),
    /// A summary breaks a rule.
    #[error("a summary has {0}")]
    Rule(&'static str),
}

impl HostFault {
    /// Returns a short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::TooLong => "event_too_long",
            Self::Flood => "flood",
            Self::Malformed(_) => "malformed",
            Self::Rule(_) => "rule",
        }
    }
}

/// Bytes of one open stream, and its limits.
///
/// Memory: the longest event, and the last piece.
#[derive(Debug)]
pub struct HostStream {
    splitter: Splitter,
    /// Bytes of the event that is not whole yet.
    bytes: Vec<u8>,
    /// Sequence number of the last summary.
    sequence: Option<u64>,
    window_start: Instant,
    n_in_window: u32,
}

impl HostStream {
    /// Returns a stream that opens now.
    pub fn new(now: Instant) -> Self {
        Self { splitter: Splitter::default(), bytes: Vec::new(), sequence: None, window_start: now, n_in_window: 0 }
    }

    /// Takes a piece of the stream; returns the last summary that it completes, if it is newer than the one before.
    ///
    /// The first summary of a stream counts whatever its number is, because the host may have been restarted.
    /// Errors: every [`HostFault`]; the stream must then be dropped.
    pub fn take(&mut self, piece: &[u8], now: Instant) -> Result<Option<HostSummary>, HostFault> {
        let Some(ends) = self.splitter.split(piece) else {
            self.bytes.extend_from_slice(piece);
            return if self.bytes.len() > EVENT_BYTES_MAX { Err(HostFault::TooLong) } else { Ok(None) };
        };
        let (whole, rest) = piece.split_at(ends.last);
        self.bytes.extend_from_slice(whole);
        let events = std::mem::replace(&mut self.bytes, rest.to_vec());
        let Some(data) = self.last_data(&events, now)? else { return Ok(None) };
        if data.len() > EVENT_BYTES_MAX {
            return Err(HostFault::TooLong);
        }
        let summary: HostSummary = serde_json::from_slice(&data)?;
        check(&summary)?;
        if self.sequence.is_some_and(|last| summary.sequence <= last) {
            return Ok(None);
        }
        self.sequence = Some(summary.sequence);
        Ok(Some(summary))
    }

    /// Returns whether the last byte ended an event, or a comment.
    pub fn is_between_events(&self) -> bool {
        self.splitter.is_between_events()
    }

    /// Returns the data of the last of some whole events that has any.
    fn last_data(&mut self, events: &[u8], now: Instant) -> Result<Option<Vec<u8>>, HostFault> {
        let (mut last, mut data) = (None, Vec::new());
        for line in events.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if let Some(text) = line.strip_prefix(b"data:") {
                data.extend_from_slice(text);
            } else if line.is_empty() && !data.is_empty() {
                last = Some(std::mem::take(&mut data));
                self.count(now)?;
            }
        }
        Ok(last)
    }

    fn count(&mut self, now: Instant) -> Result<(), HostFault> {
        if now.saturating_duration_since(self.window_start) >= RATE_WINDOW {
            (self.window_start, self.n_in_window) = (now, 0);
        }
        self.n_in_window += 1;
        if self.n_in_window > EVENTS_PER_S_MAX { Err(HostFault::Flood) } else { Ok(()) }
    }
}

/// Checks the content of a summary.
///
/// Errors: `Rule`.
pub fn check(summary: &HostSummary) -> Result<(), HostFault> {
    let is_name = |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    let require = |holds: bool, fault| if holds { Ok(()) } else { Err(HostFault::Rule(fault)) };
    require(is_name(&summary.host), "no valid name of its host")?;
    require(summary.memory.len() <= DEVICES_MAX, "too many devices")?;
    require(summary.memory.iter().all(|memory| is_name(&memory.device)), "a device without a valid name")?;
    require(summary.models.len() <= MODELS_MAX, "too many models")?;
    // No two models have a name in common, and each has a state that is possible.
    let mut names = HashSet::new();
    for model in &summary.models {
        require(model.aliases.len() <= ALIASES_MAX, "a model with too many aliases")?;
        for name in std::iter::once(&model.name).chain(&model.aliases) {
            require(is_name(name), "a model without a valid name")?;
            require(names.insert(name), "two models of one name")?;
        }
        let are_names = model.set_params.keys().all(|name| model.answers_to(name));
        require(are_names, "parameters for a name that a model does not have")?;
        match &model.state {
            ModelState::Loading { progress, .. } => {
                require((0.0..=1.0).contains(progress), "a progress that is not from 0 to 1")?;
            }
            ModelState::Impossible { reason, .. } => {
                require(reason.len() <= REASON_BYTES_MAX, "a reason that is too long")?;
            }
            ModelState::Loaded { .. }
            | ModelState::Unloading { .. }
            | ModelState::Downloading(_)
            | ModelState::Loadable { .. } => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn summary(sequence: u64) -> Value {
        let model = json!({"name": "a", "aliases": ["b"], "is_autoloaded": true, "is_pinned": false,
            "state": "loading", "worker_url": null, "progress": 0.5, "remaining_ms": 10});
        json!({"host": "desk", "sequence": sequence, "memory": [], "models": [model]})
    }

    fn event(summary: &Value) -> String {
        format!("data: {summary}\n\n")
    }

    #[test]
    fn the_last_of_several_summaries_counts_if_it_is_newer() {
        let now = Instant::now();
        let mut stream = HostStream::new(now);
        let mut take = |text: &str| stream.take(text.as_bytes(), now).expect(text).map(|summary| summary.sequence);
        assert_eq!(take(&format!(": hello\n\n{}{}", event(&summary(4)), event(&summary(5)))), Some(5));
        assert_eq!(take(&event(&summary(5))), None);
        assert_eq!(take(&event(&summary(3))), None);
        assert_eq!(take(":\n\n"), None);
        assert_eq!(take(&event(&summary(6)).replace('\n', "\r\n")), Some(6));
        let restarted = HostStream::new(now).take(event(&summary(0)).as_bytes(), now).expect("a new stream");
        assert_eq!(restarted.map(|summary| summary.sequence), Some(0));
    }

    #[test]
    fn a_stream_that_breaks_a_limit_or_rule_is_refused() {
        let now = Instant::now();
        let fault = |text: &str| HostStream::new(now).take(text.as_bytes(), now).expect_err(text).label();
        assert_eq!(fault("data: {}\n\n"), "malformed");
        assert_eq!(fault("data: nothing\n\n"), "malformed");
        assert_eq!(fault(&format!("data: {}", "x".repeat(EVENT_BYTES_MAX))), "event_too_long");
        assert_eq!(fault(&format!("data: {}\n\n", "x".repeat(EVENT_BYTES_MAX + 1))), "event_too_long");
        assert_eq!(fault(&event(&summary(1)).repeat(EVENTS_PER_S_MAX as usize + 1)), "flood");
        let broken = |change: &dyn Fn(&mut Value)| {
            let mut summary = summary(1);
            change(&mut summary);
            fault(&event(&summary))
        };
        assert_eq!(broken(&|summary| summary["models"][0]["progress"] = json!(1.5)), "rule");
        assert_eq!(broken(&|summary| summary["models"][0]["name"] = json!("")), "rule");
        assert_eq!(broken(&|summary| summary["models"][0]["name"] = json!("b")), "rule");
        assert_eq!(broken(&|summary| summary["models"][0]["aliases"] = json!(["a\nb"])), "rule");
        assert_eq!(broken(&|summary| summary["models"][0]["set_params"] = json!({"c": {}})), "rule");
        assert_eq!(broken(&|summary| summary["models"][0]["name"] = json!("x".repeat(NAME_BYTES_MAX + 1))), "rule");
        assert_eq!(broken(&|summary| summary["host"] = json!("")), "rule");
        let names = (0..=ALIASES_MAX).map(|nth| format!("n{nth}")).collect::<Vec<_>>();
        assert_eq!(broken(&|summary| summary["models"][0]["aliases"] = json!(names)), "rule");
        let many: Vec<_> = (0..=MODELS_MAX)
            .map(|nth| {
                json!({"name": format!("m{nth}"), "is_autoloaded": true,
            "is_pinned": false, "state": "loadable", "memory_bytes": 1, "load_ms": 1, "is_local": true})
            })
            .collect();
        assert_eq!(broken(&|summary| summary["models"] = json!(many)), "rule");
        let impossible = |n: usize| {
            json!({"name": "a", "is_autoloaded": true, "is_pinned": false,
            "state": "impossible", "reason": "x".repeat(n), "retry_ms": null})
        };
        assert_eq!(broken(&|summary| summary["models"][0] = impossible(REASON_BYTES_MAX + 1)), "rule");
    }

    #[test]
    fn a_flood_is_counted_by_the_second() {
        let now = Instant::now();
        let mut stream = HostStream::new(now);
        for nth in 0..3 {
            let events = event(&summary(nth)).repeat(EVENTS_PER_S_MAX as usize / 2 + 1);
            let later = now + RATE_WINDOW * u32::try_from(nth).expect("small");
            assert!(stream.take(events.as_bytes(), later).is_ok(), "{nth}");
        }
    }

    proptest! {
        #[test]
        fn a_stream_says_the_same_wherever_it_is_cut(cuts in prop::collection::vec(1_usize..40, 1..20)) {
            let text = [event(&summary(1)), ": x\n\n".to_owned(), event(&summary(2))].concat();
            let now = Instant::now();
            let (mut stream, mut at, mut seen) = (HostStream::new(now), 0, None);
            for len in cuts.iter().cycle() {
                if at == text.len() {
                    break;
                }
                let end = (at + len).min(text.len());
                if let Some(summary) = stream.take(&text.as_bytes()[at..end], now).expect("valid") {
                    seen = Some(summary.sequence);
                }
                at = end;
            }
            prop_assert_eq!(seen, Some(2));
        }

        #[test]
        fn no_bytes_make_it_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..8)) {
            let now = Instant::now();
            let mut stream = HostStream::new(now);
            for piece in pieces {
                if stream.take(&piece, now).is_err() {
                    break;
                }
            }
        }
    }
}
