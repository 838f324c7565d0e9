//! Number of threads that compute a step.
//!
//! The threads of a step wait for each other hundreds of times. If other programs need a processor, each of these waits
//! may last until the slowest thread gets its turn. Fewer threads are faster then, and a single one waits for nobody.
//!
//! Nothing is tried while all threads get their processors. Otherwise half as many threads are tried for some steps,
//! and kept if such steps are clearly faster. More threads are tried again, at intervals that double with every trial
//! without success. So on every machine the number in use is at most a trial away from a faster one.
//!
//! Not here: measuring how long threads wait for a processor, and setting their number (the engine).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Shortest computing time of a window. Source: tens of time slices of a scheduler, so that each thread's turn counts
/// as it comes.
const WINDOW_MIN: Duration = Duration::from_millis(150);

/// Number of steps in a window, unless they take [`WINDOW_LONG`]. Source: the time of a step on a busy machine varies
/// by half.
const WINDOW_STEPS: u32 = 4;

/// Computing time at which a window ends after two steps, and after twice of it after one. Source: so long steps have a
/// hundred time slices.
const WINDOW_LONG: Duration = Duration::from_millis(500);

/// Waiting threads, on average over a window, from which fewer threads are tried. Source: on a quiet machine with two
/// processors, the threads of network and timers make it up to 0.17.
const WAITING_MIN: f64 = 0.25;

/// Share of its time in which a thread waits, on average over a window, from which the window counts as busy from its
/// first step. Source: most steps were slow then.
const WAITING_MOST: f64 = 0.5;

/// Ratio of step times below which another number of threads is clearly faster. Source: windows of one number of
/// threads differ by less on a quiet machine.
const FASTER_MAX: f64 = 0.9;

/// Time from a trial to the next one, which doubles with every trial without success. Source: some windows.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest time between two trials, and so the longest time with too few threads after a machine has become quiet; also
/// the shortest time to a trial of more threads while threads wait, since more of them would wait as well. Source: the
/// steps of a trial are a few hundredths of those in between.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// Choice of the number of threads.
#[derive(Debug, Clone)]
pub struct ComputeThreads {
    /// Numbers to choose from: the configured one, and its halves down to one.
    numbers: Vec<u16>,
    /// Index of the number in use.
    idx: usize,
    /// Steps of the window in progress.
    window: StepTimes,
    /// Whether threads waited in the last window.
    is_waiting: bool,
    /// Number that is left for a trial, with the steps of its last window.
    trial: Option<(usize, StepTimes)>,
    pause: Duration,
    /// End of the last trial; `None` before the first one.
    tried_at: Option<Instant>,
    /// Whether the last trial was one of fewer threads.
    last_was_fewer: bool,
}

/// A step and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedStep {
    /// Kind of the step; only steps of a kind are compared.
    pub kind: u32,
    /// Work of the step; steps of a kind take a time that is proportional to it.
    pub work: u32,
    /// Time.
    pub took: Duration,
}

/// Waits of threads for a processor in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadWaits {
    /// Waits of all threads, in sum.
    pub waited: Duration,
    /// Computing time.
    pub took: Duration,
    /// Threads that computed.
    pub n_threads: u16,
}

/// Steps of a window.
#[derive(Debug, Clone, Default, PartialEq)]
struct StepTimes {
    /// Work and time by kind.
    kinds: BTreeMap<u32, (u32, Duration)>,
    n_steps: u32,
    total: Duration,
}

impl ComputeThreads {
    /// Returns the choice for a configured number of threads, which is used first.
    pub fn new(n_threads_max: u16) -> Self {
        let halves = std::iter::successors(Some(n_threads_max.max(1)), |n| (*n > 1).then_some(n / 2));
        Self {
            numbers: halves.collect(),
            idx: 0,
            window: StepTimes::default(),
            is_waiting: false,
            trial: None,
            pause: PAUSE_MIN,
            tried_at: None,
            last_was_fewer: false,
        }
    }

    /// Returns the number of threads for the next step.
    pub fn get(&self) -> u16 {
        self.numbers[self.idx]
    }

    /// Returns whether the next step begins a window.
    pub fn begins_window(&self) -> bool {
        self.window.n_steps == 0
    }

    /// Records a step that ended `now`.
    ///
    /// `time_waited` returns the sum of the times that the threads have waited for a processor since the window began,
    /// `None` if it is unknown; it is called at the end of a window only. Returns the waits of a window that has ended.
    pub fn step(
        &mut self,
        step: TimedStep,
        now: Instant,
        time_waited: impl FnOnce() -> Option<Duration>,
    ) -> Option<ThreadWaits> {
        self.window.add(step);
        let is_lost = self.trial.as_ref().is_some_and(|(_, before)| self.window.cannot_be_faster_than(before));
        if !is_lost && !self.window.is_complete() {
            return None;
        }
        let window = std::mem::take(&mut self.window);
        let (took, n_threads) = (window.total, self.get());
        let waits = time_waited().map(|time_waited| ThreadWaits { waited: time_waited, took, n_threads });
        let waiting = waits.map_or(0.0, |waits| waits.waited.as_secs_f64() / took.as_secs_f64());
        let was_waiting = std::mem::replace(&mut self.is_waiting, waiting >= WAITING_MIN);
        let is_mixed = self.is_waiting && !was_waiting && waiting < WAITING_MOST * f64::from(n_threads);
        match self.trial.take() {
            Some((before, steps)) => self.end_trial(before, &steps, &window, now),
            // The window in which the machine became busy has fast steps, too, so it is compared with nothing.
            None if is_mixed => {}
            None => self.try_another(window, now),
        }
        waits
    }

    /// Ends a trial with the number that is clearly faster. If none is, the number before the trial stays; if the two
    /// cannot be compared, the larger one is used, as configured.
    fn end_trial(&mut self, before: usize, steps: &StepTimes, tried_times: &StepTimes, now: Instant) {
        let is_faster = tried_times.ratio_to(steps).map_or(self.idx < before, |ratio| ratio < FASTER_MAX);
        if is_faster {
            self.pause = PAUSE_MIN;
        } else {
            self.idx = before;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        self.tried_at = Some(now);
    }

    /// Begins a trial if one is due: of fewer threads while threads wait, of more where fewer than configured are used.
    /// If both are possible, they take turns.
    fn try_another(&mut self, window: StepTimes, now: Instant) {
        let is_due = |pause| self.tried_at.is_none_or(|at| now >= at + pause);
        let more = self.idx.checked_sub(1).filter(|_| is_due(if self.is_waiting { PAUSE_MAX } else { self.pause }));
        let may_be_fewer = self.is_waiting && self.idx + 1 < self.numbers.len() && is_due(self.pause);
        let fewer = may_be_fewer.then_some(self.idx + 1);
        let other = if self.last_was_fewer { more.or(fewer) } else { fewer.or(more) };
        let Some(other) = other else { return };
        self.last_was_fewer = other > self.idx;
        self.trial = Some((self.idx, window));
        self.idx = other;
    }
}

impl StepTimes {
    fn add(&mut self, step: TimedStep) {
        let (work, total) = self.kinds.entry(step.kind).or_default();
        *work = work.saturating_add(step.work);
        *total += step.took;
        self.n_steps += 1;
        self.total += step.took;
    }

    fn is_complete(&self) -> bool {
        let time_min = match self.n_steps {
            WINDOW_STEPS.. => WINDOW_MIN,
            2.. => WINDOW_LONG,
            _ => 2 * WINDOW_LONG,
        };
        self.total >= time_min
    }

    /// Returns whether these steps have taken so long that the window cannot be clearly faster, even if its further
    /// steps take no time.
    fn cannot_be_faster_than(&self, other: &Self) -> bool {
        let part = f64::from(self.n_steps) / f64::from(WINDOW_STEPS);
        part < 1.0 && self.ratio_to(other).is_some_and(|ratio| ratio * part >= FASTER_MAX)
    }

    /// Returns the time of these steps, divided by that of the same work in `other`; `None` if no kind is in both.
    fn ratio_to(&self, other: &Self) -> Option<f64> {
        let (mut own_s, mut other_s) = (0.0, 0.0);
        for (kind, (work, total)) in &self.kinds {
            if let Some((work_other, total_other)) = other.kinds.get(kind) {
                own_s += total.as_secs_f64();
                other_s += total_other.as_secs_f64() * f64::from(*work) / f64::from(*work_other);
            }
        }
        (other_s > 0.0).then(|| own_s / other_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(took: Duration) -> TimedStep {
        TimedStep { kind: 1, work: 1, took }
    }

    /// A machine on which a step takes a time by its number of threads.
    struct Machine {
        threads: ComputeThreads,
        now: Instant,
    }

    /// Step times and waiting threads, by number of threads.
    type Steps = fn(u16) -> (u64, f64);

    /// Two processors without other work. Source of the times here and below: SmolLM2 on two processors.
    const QUIET: Steps = |n| if n == 1 { (23, 0.0) } else { (17, 0.01) };
    /// The same processors with four busy loops.
    const BUSY: Steps = |n| if n == 1 { (52, 0.6) } else { (107, 1.3) };

    impl Machine {
        fn new(configured: u16) -> Self {
            Self { threads: ComputeThreads::new(configured), now: Instant::now() }
        }

        /// Computes steps for some seconds; returns the number of steps by number of threads.
        fn run(&mut self, seconds: u64, kinds: impl Fn(u32) -> u32, steps: Steps) -> BTreeMap<u16, u32> {
            let mut n_steps: BTreeMap<u16, u32> = BTreeMap::new();
            let end = self.now + Duration::from_secs(seconds);
            let mut window = Duration::ZERO;
            while self.now < end {
                let n_threads = self.threads.get();
                let (ms, waiting) = steps(n_threads);
                let took = Duration::from_millis(ms);
                window = if self.threads.begins_window() { took } else { window + took };
                self.now += took;
                let n = n_steps.entry(n_threads).or_default();
                *n += 1;
                let kind = kinds(*n);
                self.threads.step(TimedStep { kind, work: 1, took }, self.now, || Some(window.mul_f64(waiting)));
            }
            n_steps
        }

        fn run_equal(&mut self, seconds: u64, steps: Steps) -> BTreeMap<u16, u32> {
            self.run(seconds, |_| 1, steps)
        }
    }

    #[test]
    fn a_quiet_machine_computes_with_the_configured_threads_only() {
        for configured in [1, 2, 3, 16] {
            let steps = Machine::new(configured).run_equal(60, |_| (17, 0.05));
            assert_eq!(steps.into_keys().collect::<Vec<_>>(), [configured]);
        }
    }

    #[test]
    fn a_busy_machine_soon_computes_with_one_thread_and_tries_two_seldom() {
        let mut machine = Machine::new(2);
        machine.run_equal(10, QUIET);
        let steps = machine.run_equal(2, BUSY);
        assert!(steps[&1] > steps[&2], "{steps:?}");
        machine.run_equal(20, BUSY);
        let steps = machine.run_equal(60, BUSY);
        assert!(steps[&2] * 20 < steps[&1], "{steps:?}");
    }

    #[test]
    fn a_trial_ends_once_it_cannot_succeed() {
        let mut threads = ComputeThreads::new(2);
        let (fast, slow) = (Duration::from_millis(100), Duration::from_millis(400));
        let mut now = Instant::now();
        let mut step = |threads: &mut ComputeThreads, took: Duration| {
            now += took;
            threads.step(of(took), now, || Some(2 * took));
            threads.get()
        };
        // A window with which the trial of one thread is compared.
        let n_steps = (1..20).find(|_| step(&mut threads, slow) == 1);
        assert_eq!(n_steps, Some(2));
        let mut fast_steps = (0..200).map(|_| step(&mut threads, fast));
        let n_steps = fast_steps.position(|n_threads| n_threads == 2).expect("two threads are tried");
        drop(fast_steps);
        assert!(n_steps > 60, "threads wait, so not before eight seconds: {n_steps}");
        assert_eq!(step(&mut threads, slow), 1, "one step shows that two threads are not faster");
    }

    #[test]
    fn the_configured_threads_are_back_soon_after_a_machine_has_become_quiet() {
        let mut machine = Machine::new(2);
        machine.run_equal(60, BUSY);
        machine.run_equal(PAUSE_MAX.as_secs() + 1, QUIET);
        let steps = machine.run_equal(60, QUIET);
        assert_eq!(steps.into_keys().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn waiting_threads_stay_where_fewer_are_not_faster() {
        let slower: Steps = |n| (200 / u64::from(n), 0.5 * f64::from(n));
        let mut machine = Machine::new(4);
        machine.run_equal(20, slower);
        let steps = machine.run_equal(60, slower);
        assert!(steps[&4] > 20 * steps.get(&2).copied().unwrap_or(0), "{steps:?}");
        assert!(!steps.contains_key(&1), "{steps:?}");
    }

    #[test]
    fn the_fastest_of_many_numbers_is_found() {
        // Eight of sixteen processors are free.
        let half_free: Steps = |n| (400 / u64::from(n.min(8)) + if n > 8 { 100 } else { 0 }, 0.3);
        let mut machine = Machine::new(16);
        machine.run_equal(20, half_free);
        let steps = machine.run_equal(120, half_free);
        let most = steps.iter().max_by_key(|(_, n_steps)| **n_steps).map(|(n, _)| *n);
        assert_eq!(most, Some(8), "{steps:?}");
        assert!(steps.values().sum::<u32>() < steps[&8] * 10 / 9, "{steps:?}");
    }

    #[test]
    fn steps_of_kinds_that_never_recur_leave_the_configured_threads() {
        let mut machine = Machine::new(2);
        let next = std::cell::Cell::new(0);
        let ever_new = |_| {
            next.set(next.get() + 1);
            next.get()
        };
        let steps = machine.run(60, ever_new, BUSY);
        assert!(steps[&2] > 10 * steps[&1], "{steps:?}");
        // The same after fewer threads were in use.
        let mut machine = Machine::new(2);
        machine.run_equal(20, BUSY);
        machine.run(PAUSE_MAX.as_secs() + 2, ever_new, BUSY);
        let steps = machine.run(60, ever_new, BUSY);
        assert!(steps[&2] > 10 * steps[&1], "{steps:?}");
    }

    #[test]
    fn nothing_is_tried_if_waits_are_unknown() {
        let mut threads = ComputeThreads::new(8);
        let mut now = Instant::now();
        for ms in (1..400).chain(1..400) {
            now += Duration::from_millis(ms);
            assert_eq!(threads.step(of(Duration::from_millis(ms)), now, || None), None);
            assert_eq!(threads.get(), 8);
        }
    }

    #[test]
    fn long_steps_are_compared_by_their_work() {
        let mut threads = ComputeThreads::new(2);
        let mut now = Instant::now();
        let mut with_one = 0;
        for n_tokens in (100..500).step_by(7) {
            let ms_per_token = if threads.get() == 2 { 12 } else { 7 };
            with_one += u32::from(threads.get() == 1);
            let took = Duration::from_millis(n_tokens * ms_per_token);
            now += took;
            threads.step(TimedStep { kind: 0, work: n_tokens as u32, took }, now, || Some(took));
        }
        assert!(with_one > 35, "{with_one} of 58");
    }

    #[test]
    fn waits_are_asked_for_at_the_end_of_a_window_only() {
        let mut threads = ComputeThreads::new(2);
        let step = Duration::from_millis(100);
        for n in 1..40_u32 {
            let mut n_asked = 0;
            assert_eq!(threads.begins_window(), n % 4 == 1);
            threads.step(of(step), Instant::now(), || {
                n_asked += 1;
                Some(Duration::ZERO)
            });
            assert_eq!(n_asked, u32::from(n % 4 == 0));
        }
    }
}
