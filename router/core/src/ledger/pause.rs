//! The pauses of one worker: what it has refused, and when it is asked again.
//!
//! Not here: what a client is told meanwhile (the router's `lifecycle`). The idea: a worker that says when it takes requests again
//! is asked by nobody before, and by one request first. One that does not say gets a pause that doubles with each refusal. Quotas
//! belong to a model's name, for several models of a server have each their own.

use std::time::{Duration, Instant};

use super::LedgerOptions;
use crate::fleet::Unavailable;
use crate::overload::retry::{Failure, Terms};

/// The longest that a worker's own word keeps requests away.
///
/// Source: own choice: quotas of a day exist, but an operator who lifts one waits for less; one request an hour asks.
const TOLD_MAX: Duration = Duration::from_secs(3600);

/// The pauses of one worker, one for each model's name at most.
#[derive(Debug, Clone, Default)]
pub(super) struct Pauses(Vec<Pause>);

#[derive(Debug, Clone)]
struct Pause {
    /// The name of the model that is refused; absent where it may be every model.
    model_name: Option<Box<str>>,
    until: Instant,
    why: Unavailable,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The worker has said how long.
    Told,
    /// What the worker has said is over, and one request finds out.
    Probed,
    /// The worker has refused so many requests in a row and not said how long.
    Guessed(u32),
}

impl Pause {
    fn concerns(&self, model_name: Option<&str>) -> bool {
        self.model_name.as_deref().is_none_or(|name| name == model_name.unwrap_or_default())
    }
}

impl Pauses {
    /// Returns the rest of the pause for requests that name a model, and the reason for it; absent where there is none.
    pub(super) fn of(&self, model_name: Option<&str>, now: Instant) -> Option<(Duration, Unavailable)> {
        let in_force = self.0.iter().filter(|pause| pause.concerns(model_name) && now < pause.until);
        in_force.map(|pause| (pause.until - now, pause.why)).max_by_key(|(left, _)| *left)
    }

    /// Returns the rest of the longest pause for a model of these names.
    pub(super) fn longest(&self, is_named: impl Fn(&str) -> bool, now: Instant) -> Duration {
        let concerned = self.0.iter().filter(|pause| pause.model_name.as_deref().is_none_or(&is_named));
        concerned.map(|pause| pause.until.saturating_duration_since(now)).max().unwrap_or_default()
    }

    /// Records that a request for a model is sent: the first one behind a pause keeps the others back until it is answered.
    ///
    /// A pause of no model's own is a Warmpath worker's, which reports its load: nobody has to find out.
    pub(super) fn sent(&mut self, model_name: Option<&str>, options: &LedgerOptions, now: Instant) {
        let is_over =
            |pause: &&mut Pause| pause.model_name.is_some() && pause.concerns(model_name) && now >= pause.until;
        for pause in self.0.iter_mut().filter(is_over) {
            pause.until = now + options.breaker.open_min;
            if pause.kind == Kind::Told {
                pause.kind = Kind::Probed;
            }
        }
    }

    /// Records a refusal.
    pub(super) fn refused(&mut self, (failure, terms): (Failure, Terms<'_>), options: &LedgerOptions, now: Instant) {
        let why = if failure == Failure::Full { Unavailable::Full } else { Unavailable::Unready };
        let place = self.0.iter().position(|pause| pause.model_name.as_deref() == terms.model_name);
        let before = place.map(|place| self.0.swap_remove(place));
        let (kind, pause) = match terms.retry_after {
            Some(after) => (Kind::Told, after.clamp(options.full_pause, TOLD_MAX)),
            None => {
                let n_refusals = match before.as_ref().map(|pause| pause.kind) {
                    Some(Kind::Guessed(n)) => n,
                    _ => 0,
                };
                let doubled = options.full_pause.saturating_mul(1 << n_refusals.min(16));
                (Kind::Guessed(n_refusals + 1), doubled.min(options.breaker.open_max))
            }
        };
        // A refusal that says less than an earlier one takes nothing back.
        let new = Pause { model_name: terms.model_name.map(Into::into), until: now + pause, why, kind };
        let longer = before.filter(|before| before.kind == Kind::Told && before.until > new.until);
        self.0.push(longer.unwrap_or(new));
    }

    /// Returns what is left once the worker has answered a request: its own word stands until it is over.
    pub(super) fn answered(mut self, now: Instant) -> Self {
        self.0.retain(|pause| pause.kind == Kind::Told && now < pause.until);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Failure = Failure::Full;

    fn told(model_name: Option<&'static str>, seconds: u64) -> (Failure, Terms<'static>) {
        (FULL, Terms { model_name, retry_after: Some(Duration::from_secs(seconds)) })
    }

    fn left_s(pauses: &Pauses, model_name: Option<&str>, now: Instant) -> Option<f64> {
        pauses.of(model_name, now).map(|(left, _)| left.as_secs_f64())
    }

    #[test]
    fn a_pause_lasts_as_long_as_is_said_and_ends_with_one_request() {
        let (options, start) = (LedgerOptions::default(), Instant::now());
        let mut pauses = Pauses::default();
        pauses.refused(told(Some("a"), 60), &options, start);
        assert_eq!(left_s(&pauses, Some("a"), start), Some(60.0));
        assert_eq!(left_s(&pauses, Some("b"), start), None, "each model has its own quota");
        pauses = pauses.answered(start);
        assert_eq!(left_s(&pauses, Some("a"), start), Some(60.0), "an answer of before tells nothing");
        pauses.refused((FULL, Terms { model_name: Some("a"), retry_after: None }), &options, start);
        assert_eq!(left_s(&pauses, Some("a"), start), Some(60.0), "nor does a refusal that says less");
        let later = start + Duration::from_secs(60);
        assert_eq!(left_s(&pauses, Some("a"), later), None);
        pauses.sent(Some("a"), &options, later);
        assert_eq!(left_s(&pauses, Some("a"), later), Some(1.0), "one finds out");
        assert_eq!(left_s(&pauses.clone().answered(later), Some("a"), later), None);
        pauses.refused(told(Some("a"), 60), &options, later);
        assert_eq!(left_s(&pauses, Some("a"), later), Some(60.0));
    }

    #[test]
    fn a_pause_has_its_bounds() {
        let (options, start) = (LedgerOptions::default(), Instant::now());
        for (seconds, expected) in [(0, 0.25), (1, 1.0), (86_400, 3600.0), (u64::MAX, 3600.0)] {
            let mut pauses = Pauses::default();
            pauses.refused(told(None, seconds), &options, start);
            assert_eq!(left_s(&pauses, Some("any"), start), Some(expected), "{seconds}");
        }
    }

    #[test]
    fn pauses_that_nobody_has_named_double_until_an_answer() {
        let (options, mut now) = (LedgerOptions::default(), Instant::now());
        let mut pauses = Pauses::default();
        let mut refuse = |pauses: &mut Pauses| {
            pauses.refused((FULL, Terms::default()), &options, now);
            let left = left_s(pauses, None, now).expect("it is paused");
            now += Duration::from_secs_f64(left);
            left
        };
        let paused: Vec<_> = (0..7).map(|_| refuse(&mut pauses)).collect();
        assert_eq!(paused, [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0]);
        pauses = pauses.answered(now);
        pauses.refused((FULL, Terms::default()), &options, now);
        assert_eq!(left_s(&pauses, None, now), Some(0.25));
    }
}
