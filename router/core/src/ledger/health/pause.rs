//! The pauses of one worker after refusals, and when it gets requests again.
//!
//! A worker that announces when it takes requests again gets none until then, and then a single one as a probe. Without
//! an announcement the pause doubles with each refusal. Each model name has its own pause, because each model of a
//! server may have a quota of its own, and so has each account of clients that send a server their own keys.
//!
//! Not here: the client's response meanwhile (the router's `lifecycle`).

use std::time::{Duration, Instant};

use crate::fleet::Unavailable;
use crate::overload::admission_queue::TenantKey;
use crate::overload::breaker;
use crate::overload::retry::{Terms, WorkerFailure};

/// First pause after a refusal without a time, and the shortest pause that a worker can announce.
///
/// Source: own choice: a worker pushes its load at most every 10 ms and at least every second.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(250);

/// Longest pause that a worker can announce.
///
/// Source: own choice: some quotas last a day, but an operator may raise one earlier, so one request is tried each
/// hour.
const ANNOUNCED_MAX: Duration = Duration::from_secs(3600);

/// Most pauses of one worker. Source: own choice: as many models as one server may list; a pattern such as `openai/*`
/// allows a client any number of names.
const PAUSES_MAX: usize = 1024;

/// Account and model name of a request: what a worker's quota may depend on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Quota<'a> {
    pub(crate) account: Option<TenantKey>,
    pub(crate) model_name: Option<&'a str>,
}

/// Pauses of one worker, at most one per account and model name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pauses(Vec<Pause>);

#[derive(Debug, Clone)]
struct Pause {
    /// Account of the refused request; `None` if it may be every account.
    account: Option<TenantKey>,
    /// Name of the refused model; `None` if it may be every model.
    model_name: Option<Box<str>>,
    until: Instant,
    why: Unavailable,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The worker has announced the time.
    Announced,
    /// The announced time is over, and one request probes the worker.
    Probed,
    /// The worker has refused this many requests in a row without a time.
    Guessed(u32),
}

impl Pause {
    fn concerns(&self, quota: Quota<'_>) -> bool {
        (self.account.is_none() || self.account == quota.account)
            && self.model_name.as_deref().is_none_or(|name| name == quota.model_name.unwrap_or_default())
    }
}

impl Pauses {
    /// Returns the remaining pause of requests, and its cause; `None` if there is none.
    pub(super) fn of(&self, quota: Quota<'_>, now: Instant) -> Option<(Duration, Unavailable)> {
        let in_force = self.0.iter().filter(|pause| pause.concerns(quota) && now < pause.until);
        in_force.map(|pause| (pause.until - now, pause.why)).max_by_key(|(left, _)| *left)
    }

    /// Returns the longest remaining pause of a model with these names, for all accounts.
    pub(super) fn longest(&self, is_named: impl Fn(&str) -> bool, now: Instant) -> Duration {
        let of_all = self.0.iter().filter(|pause| pause.account.is_none());
        let pauses = of_all.filter(|pause| pause.model_name.as_deref().is_none_or(&is_named));
        pauses.map(|pause| pause.until.saturating_duration_since(now)).max().unwrap_or_default()
    }

    /// Records that a request for a model is sent: the first one after a pause holds the others back until its
    /// response.
    ///
    /// A pause without a model's name is that of a Warmpath worker. Such a worker reports its load, so no request has
    /// to probe it.
    pub(super) fn sent(&mut self, quota: Quota<'_>, now: Instant) {
        let is_over = |pause: &&mut Pause| pause.model_name.is_some() && pause.concerns(quota) && now >= pause.until;
        for pause in self.0.iter_mut().filter(is_over) {
            pause.until = now + breaker::OPEN_MIN;
            if pause.kind == Kind::Announced {
                pause.kind = Kind::Probed;
            }
        }
    }

    /// Records a refusal. If there are too many pauses, one of the others is dropped: the one that ends first.
    pub(super) fn refused(&mut self, failure: WorkerFailure, terms: Terms<'_>, now: Instant) {
        let why = if failure == WorkerFailure::Full { Unavailable::Full } else { Unavailable::Unready };
        let is_same = |pause: &Pause| pause.account == terms.account && pause.model_name.as_deref() == terms.model_name;
        let place = self.0.iter().position(is_same);
        let before = place.map(|place| self.0.swap_remove(place));
        let (kind, pause) = match terms.retry_after {
            Some(after) => (Kind::Announced, after.clamp(PAUSE_MIN, ANNOUNCED_MAX)),
            None => {
                let n_refusals = match before.as_ref().map(|pause| pause.kind) {
                    Some(Kind::Guessed(n)) => n,
                    _ => 0,
                };
                let doubled_pause = PAUSE_MIN.saturating_mul(1 << n_refusals.min(16));
                (Kind::Guessed(n_refusals + 1), doubled_pause.min(breaker::OPEN_MAX))
            }
        };
        // A refusal without a time does not shorten an announced pause.
        let (account, model_name) = (terms.account, terms.model_name.map(Into::into));
        let new = Pause { account, model_name, until: now + pause, why, kind };
        let longer = before.filter(|before| before.kind == Kind::Announced && before.until > new.until);
        if self.0.len() == PAUSES_MAX {
            let first = (0..self.0.len()).min_by_key(|idx| self.0[*idx].until);
            first.map(|idx| self.0.swap_remove(idx));
        }
        self.0.push(longer.unwrap_or(new));
    }

    /// Returns the pauses that remain after the worker has completed a request: announced ones last until their time.
    pub(super) fn answered(mut self, now: Instant) -> Self {
        self.0.retain(|pause| pause.kind == Kind::Announced && now < pause.until);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: WorkerFailure = WorkerFailure::Full;

    fn terms(model_name: Option<&str>, seconds: Option<u64>) -> Terms<'_> {
        Terms { model_name, retry_after: seconds.map(Duration::from_secs), account: None }
    }

    fn named(model_name: Option<&str>) -> Quota<'_> {
        Quota { account: None, model_name }
    }

    fn left_s(pauses: &Pauses, model_name: Option<&str>, now: Instant) -> Option<f64> {
        pauses.of(named(model_name), now).map(|(left, _)| left.as_secs_f64())
    }

    #[test]
    fn a_client_that_invents_names_fills_no_memory_and_is_paused() {
        let start = Instant::now();
        let mut pauses = Pauses::default();
        for n in 0..3 * PAUSES_MAX as u64 {
            let name = format!("openai/{n}");
            pauses.refused(FULL, terms(Some(&name), Some(60 + n)), start);
            assert!(left_s(&pauses, Some(&name), start).is_some());
        }
        assert_eq!(pauses.0.len(), PAUSES_MAX);
        assert_eq!(left_s(&pauses, Some("openai/0"), start), None, "it ended first");
        let long = "x".repeat(10_000);
        pauses.refused(FULL, terms(Some(&long), None), start);
        assert_eq!(left_s(&pauses, Some(&long), start), Some(0.25), "however long the others are");
    }

    #[test]
    fn an_account_is_paused_alone() {
        let start = Instant::now();
        let mut pauses = Pauses::default();
        let [a, b] = [1, 2].map(|account| Quota { account: Some(TenantKey(account)), model_name: Some("m") });
        let of = |pauses: &Pauses, quota| pauses.of(quota, start).map(|(left, _)| left.as_secs());
        pauses.refused(FULL, Terms { account: a.account, ..terms(Some("m"), Some(60)) }, start);
        assert_eq!([a, b, named(Some("m"))].map(|quota| of(&pauses, quota)), [Some(60), None, None]);
        assert_eq!(pauses.longest(|_| true, start), Duration::ZERO, "the server serves others");
        pauses.refused(FULL, terms(Some("m"), Some(10)), start);
        assert_eq!([a, b, named(Some("m"))].map(|quota| of(&pauses, quota)), [Some(60), Some(10), Some(10)]);
    }

    #[test]
    fn a_pause_lasts_for_the_announced_time_and_ends_with_one_request() {
        let start = Instant::now();
        let mut pauses = Pauses::default();
        pauses.refused(FULL, terms(Some("a"), Some(60)), start);
        assert_eq!(left_s(&pauses, Some("a"), start), Some(60.0));
        assert_eq!(left_s(&pauses, Some("b"), start), None, "each model has its own quota");
        pauses = pauses.answered(start);
        assert_eq!(left_s(&pauses, Some("a"), start), Some(60.0), "a request sent before the refusal proves nothing");
        pauses.refused(FULL, terms(Some("a"), None), start);
        assert_eq!(
            left_s(&pauses, Some("a"), start),
            Some(60.0),
            "a refusal without a time does not shorten the pause"
        );
        let later = start + Duration::from_secs(60);
        assert_eq!(left_s(&pauses, Some("a"), later), None);
        let mut proved = pauses.clone().answered(later);
        proved.sent(named(Some("a")), later);
        assert_eq!(left_s(&proved, Some("a"), later), None, "a server that has answered needs no probe");
        pauses.sent(named(Some("a")), later);
        assert_eq!(left_s(&pauses, Some("a"), later), Some(1.0), "one request probes the server");
        assert_eq!(left_s(&pauses.clone().answered(later), Some("a"), later), None);
        pauses.refused(FULL, terms(Some("a"), Some(60)), later);
        assert_eq!(left_s(&pauses, Some("a"), later), Some(60.0));
    }

    #[test]
    fn a_pause_has_its_bounds() {
        let start = Instant::now();
        for (seconds, expected) in [(0, 0.25), (1, 1.0), (86_400, 3600.0), (u64::MAX, 3600.0)] {
            let mut pauses = Pauses::default();
            pauses.refused(FULL, terms(None, Some(seconds)), start);
            assert_eq!(left_s(&pauses, Some("any"), start), Some(expected), "{seconds}");
        }
    }

    #[test]
    fn pauses_without_a_given_length_double_until_an_answer() {
        let mut now = Instant::now();
        let mut pauses = Pauses::default();
        let mut refuse = |pauses: &mut Pauses| {
            pauses.refused(FULL, Terms::default(), now);
            let left = left_s(pauses, None, now).expect("it is paused");
            now += Duration::from_secs_f64(left);
            left
        };
        let paused: Vec<_> = (0..7).map(|_| refuse(&mut pauses)).collect();
        assert_eq!(paused, [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0]);
        pauses = pauses.answered(now);
        pauses.refused(FULL, Terms::default(), now);
        assert_eq!(left_s(&pauses, None, now), Some(0.25));
    }

    #[test]
    fn the_longest_pause_of_a_model_is_that_of_any_of_its_names_or_of_all() {
        let start = Instant::now();
        let mut pauses = Pauses::default();
        assert_eq!(pauses.longest(|_| true, start), Duration::ZERO);
        pauses.refused(FULL, terms(Some("a"), Some(60)), start);
        pauses.refused(FULL, terms(None, Some(10)), start);
        let longest = |name: &'static str, seconds| {
            let now = start + Duration::from_secs(seconds);
            pauses.longest(|known| known == name, now).as_secs()
        };
        assert_eq!([longest("a", 0), longest("b", 0), longest("a", 20), longest("b", 20)], [60, 10, 40, 0]);
    }

    #[test]
    fn a_probe_does_not_shorten_the_next_pause() {
        let start = Instant::now();
        let mut pauses = Pauses::default();
        pauses.refused(FULL, terms(Some("a"), None), start);
        let later = start + PAUSE_MIN;
        pauses.sent(named(Some("a")), later);
        pauses.refused(FULL, terms(Some("a"), None), later);
        assert_eq!(left_s(&pauses, Some("a"), later), Some(0.5));
    }

    #[test]
    fn requests_after_a_pause_of_every_model_need_no_probe() {
        let start = Instant::now();
        let mut pauses = Pauses::default();
        pauses.refused(FULL, terms(None, Some(10)), start);
        let later = start + Duration::from_secs(10);
        pauses.sent(named(Some("a")), later);
        assert_eq!(left_s(&pauses, Some("a"), later), None);
    }
}
