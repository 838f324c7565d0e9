//! Examples of turns, and random workers in which every sequence gets its turn.

use proptest::prelude::*;
use warmpath_common::ids::SlotId;

use super::*;
use crate::batches::batch_plan::{self, BatchLimits, BatchTiming, Share};

const UBATCH_TOKENS: u32 = 20;
const MEDIUM_TOKENS: u32 = 16;
const N_ADAPTERS: u32 = 3;
/// Time of every batch of the random workers, and of a usual prompt.
const BATCH: Duration = Duration::from_millis(10);
/// Number of tokens of prompts and responses that do not end.
const ENDLESS: u32 = 1_000_000_000;

fn sequence(adapter: u32, work: Work) -> (u32, RunningSequence) {
    (adapter, RunningSequence { slot: SlotId(0), work, waited: Duration::ZERO, passed_tokens: 0 })
}

fn stream(adapter: u32, passed_tokens: u32) -> (u32, RunningSequence) {
    let (adapter, stream) = sequence(adapter, Work::Decode);
    (adapter, RunningSequence { passed_tokens, ..stream })
}

fn prompt(adapter: u32, n_tokens: u32) -> (u32, RunningSequence) {
    sequence(adapter, Work::Prefill { n_tokens, ends: true })
}

fn turns<'a>(passes: Passes, ready: &'a [(u32, RunningSequence)], round: &'a [u32]) -> AdapterTurns<'a, u32> {
    AdapterTurns { ready, round, passes, usual_prompt: BATCH }
}

#[track_caller]
fn check(passes: Passes, ready: &[(u32, RunningSequence)], round: &[u32], expected: Option<u32>) {
    assert_eq!(turns(passes, ready, round).next_adapter(), expected);
}

#[test]
fn every_adapter_gets_its_turn_while_others_are_added_or_removed() {
    for passes in [Passes::Together, Passes::Apart] {
        let check = |present: &[u32], round: &[u32], expected, round_after: &[u32]| {
            let ready: Vec<(u32, RunningSequence)> = present.iter().map(|adapter| stream(*adapter, 0)).collect();
            check(passes, &ready, round, expected);
            let after = expected.map(|adapter| turns(passes, &ready, round).round_after(adapter));
            assert_eq!(after.unwrap_or_default(), round_after);
        };
        check(&[], &[], None, &[]);
        check(&[], &[2], None, &[]);
        check(&[3, 1, 2, 1], &[], Some(1), &[2, 3]);
        check(&[3, 1, 2], &[2, 3], Some(2), &[3]);
        check(&[3, 1], &[2, 3], Some(3), &[2]);
        check(&[3, 1], &[2], Some(1), &[3]);
        check(&[2], &[], Some(2), &[]);
        check(&[1, 5], &[4, 5], Some(5), &[4]);
    }
}

#[test]
fn adapters_that_arrive_within_a_round_wait_for_the_next_one() {
    // A stream without an adapter, and requests with ever larger scales of an adapter.
    let mut arrivals = [1, 2];
    let (mut round, mut n_of_stream) = (Vec::new(), 0);
    for newest in 3..33 {
        let ready = [stream(0, 0), prompt(arrivals[0], 1), prompt(arrivals[1], 1)];
        let turns = turns(Passes::Together, &ready, &round);
        let adapter = turns.next_adapter().unwrap();
        round = turns.round_after(adapter);
        match arrivals.iter().position(|arrival| *arrival == adapter) {
            Some(idx) => arrivals[idx] = newest,
            None => n_of_stream += 1,
        }
    }
    assert_eq!(n_of_stream, 10);
}

#[test]
fn in_one_pass_the_order_does_not_depend_on_the_work() {
    check(Passes::Together, &[stream(1, 0), prompt(1, 5), prompt(2, 500)], &[2], Some(2));
    check(Passes::Together, &[stream(1, 20), prompt(1, 5), stream(2, 0)], &[2], Some(2));
}

#[test]
fn in_separate_passes_waiting_streams_come_first_and_then_the_first_prompt_of_all_adapters() {
    check(Passes::Apart, &[stream(1, 16), prompt(2, 5), stream(3, 20)], &[2, 3], Some(3));
    check(Passes::Apart, &[stream(3, 20), prompt(2, 5), stream(1, 20)], &[2, 3], Some(1));
    check(Passes::Apart, &[stream(1, 0), prompt(1, 30), prompt(2, 4000)], &[2], Some(1));
    check(Passes::Apart, &[stream(1, 0), prompt(1, 30), prompt(2, 20)], &[], Some(2));
}

#[test]
fn a_single_token_takes_a_turn_only_without_streams_of_its_adapter() {
    check(Passes::Apart, &[stream(1, 0), prompt(1, 1), stream(2, 0), prompt(2, 30)], &[2], Some(2));
    check(Passes::Apart, &[stream(1, 0), prompt(1, 1)], &[], Some(1));
    check(Passes::Apart, &[prompt(1, 1), stream(2, 0)], &[2], Some(1));
}

#[test]
fn a_short_prompt_goes_before_streams_unless_other_adapters_have_streams() {
    let n_own = |passes, ready: &[(u32, RunningSequence)]| {
        let turns = turns(passes, ready, &[]);
        turns.sequences(1).len()
    };
    assert_eq!(n_own(Passes::Apart, &[stream(1, 8), prompt(1, 5), prompt(2, 5)]), 2);
    let several = [stream(1, 8), prompt(1, 5), prompt(1, 1), stream(2, 0)];
    assert_eq!(n_own(Passes::Apart, &several), 2);
    assert_eq!(n_own(Passes::Together, &several), 3);
    assert_eq!(n_own(Passes::Apart, &[stream(1, 0), prompt(1, 5), stream(2, 0)]), 2);
}

/// A request of a random worker.
#[derive(Debug, Clone, Copy)]
struct Request {
    adapter: u32,
    n_prompt: u32,
    n_answer: u32,
    /// Whether the same request comes again whenever it has ended.
    repeats: bool,
}

/// State of a request.
#[derive(Debug, Clone)]
struct Sequence {
    request: Request,
    /// Index of the batch with which it comes.
    came: u32,
    n_prompt_left: u32,
    n_answer_left: u32,
    /// Index of the last batch with a token of it, or of the one with which it came.
    last_batch: u32,
    passed_tokens: u32,
}

impl Sequence {
    fn new(request: Request, came: u32) -> Self {
        let Request { n_prompt, n_answer, .. } = request;
        Self { request, came, n_prompt_left: n_prompt, n_answer_left: n_answer, last_batch: came, passed_tokens: 0 }
    }

    fn is_stream(&self) -> bool {
        self.n_prompt_left == 0 && self.n_answer_left > 0
    }

    /// Returns whether its prompt must be computed soon: it has an end, and is needed only once.
    fn awaits_end(&self) -> bool {
        self.n_prompt_left > 0 && self.request.n_prompt < ENDLESS && !self.request.repeats
    }

    fn ready(&self, slot: u16, now: u32) -> Option<(u32, RunningSequence)> {
        if self.came > now || self.n_prompt_left + self.n_answer_left == 0 {
            return None;
        }
        let work = match self.n_prompt_left {
            0 => Work::Decode,
            n_tokens => Work::Prefill { n_tokens, ends: true },
        };
        let waited = BATCH * (now - self.came);
        let passed_tokens = self.passed_tokens;
        Some((self.request.adapter, RunningSequence { slot: SlotId(slot), work, waited, passed_tokens }))
    }

    fn compute(&mut self, n_tokens: u32, now: u32) {
        match self.n_prompt_left {
            0 => self.n_answer_left -= n_tokens,
            _ => self.n_prompt_left -= n_tokens,
        }
        (self.last_batch, self.passed_tokens) = (now, 0);
        if self.n_prompt_left + self.n_answer_left == 0 && self.request.repeats {
            *self = Self::new(self.request, now + 1);
        }
    }
}

/// A worker that does with its turns what the engine does.
#[derive(Debug)]
struct Worker {
    sequences: Vec<Sequence>,
    passes: Passes,
    /// Whether a medium without an end is computed.
    has_medium: bool,
    round: Vec<u32>,
    last_was_medium: bool,
    /// Number of batches so far.
    now: u32,
    last_medium: u32,
}

impl Worker {
    fn new(sequences: Vec<Sequence>, passes: Passes, has_medium: bool) -> Self {
        Self { sequences, passes, has_medium, round: Vec::new(), last_was_medium: false, now: 0, last_medium: 0 }
    }

    /// Computes the next batch.
    fn step(&mut self) {
        let now = self.now;
        let sequences = (0..).zip(&self.sequences);
        let ready: Vec<(u32, RunningSequence)> =
            sequences.filter_map(|(slot, sequence)| sequence.ready(slot, now)).collect();
        let turns = turns(self.passes, &ready, &self.round);
        let is_within_round = turns.is_within_round();
        let adapter = turns.next_adapter();
        if self.has_medium && !is_within_round && !(self.last_was_medium && turns.follows_medium()) {
            (self.last_was_medium, self.last_medium) = (true, now);
            self.pass(MEDIUM_TOKENS, 0);
        } else if let Some(adapter) = adapter {
            let shares = self.plan(&turns.sequences(adapter));
            let n_decode = self.n_tokens(&shares, Sequence::is_stream);
            self.round = turns.round_after(adapter);
            self.last_was_medium &= self.passes == Passes::Apart && (is_within_round || n_decode > 0);
            self.pass(self.n_tokens(&shares, |sequence| !sequence.is_stream()), n_decode);
            for share in shares {
                self.sequences[usize::from(share.slot.0)].compute(share.n_tokens, now);
            }
        }
        self.check_waits();
        self.now += 1;
    }

    fn plan(&self, sequences: &[RunningSequence]) -> Vec<Share> {
        let room = BatchLimits { batch_tokens: UBATCH_TOKENS, ubatch_tokens: UBATCH_TOKENS, passes: self.passes };
        let timing = BatchTiming { usual_prompt: BATCH, ..BatchTiming::default() };
        let shares = batch_plan::plan(sequences, room, timing, 0);
        assert!(!shares.is_empty(), "a batch is empty: {self:?}");
        shares
    }

    fn n_tokens(&self, shares: &[Share], counts: impl Fn(&Sequence) -> bool) -> u32 {
        let counted = shares.iter().filter(|share| counts(&self.sequences[usize::from(share.slot.0)]));
        counted.map(|share| share.n_tokens).sum()
    }

    /// Counts the tokens for which streams wait.
    fn pass(&mut self, n_prefill: u32, n_decode: u32) {
        let n_passed = batch_plan::passed_tokens(self.passes, n_prefill, n_decode);
        let streams = self.sequences.iter_mut().filter(|sequence| sequence.is_stream());
        streams.for_each(|stream| stream.passed_tokens += n_passed);
    }

    /// Checks that nothing has waited for too many batches.
    fn check_waits(&self) {
        // Two rounds of the adapters and the micro-batch between them. Instead of that micro-batch there may be ten
        // prompts of two tokens, one after the other.
        let turn_batches_max = 2 * N_ADAPTERS + 1 + UBATCH_TOKENS / 2;
        // A prompt waits until its wait per token is the longest. In 6,000 random workers, 373 batches were the most.
        let prompt_batches_max = 2000;
        assert!(!self.has_medium || self.now - self.last_medium <= turn_batches_max, "the medium waits: {self:?}");
        for sequence in &self.sequences {
            let n_batches = self.now.saturating_sub(sequence.last_batch);
            if sequence.is_stream() {
                assert!(n_batches <= turn_batches_max, "a stream waits: {sequence:?} {self:?}");
                let is_passed = self.passes == Passes::Apart && sequence.passed_tokens > UBATCH_TOKENS;
                assert!(!is_passed, "a stream waits for more than a micro-batch: {sequence:?} {self:?}");
            }
            if sequence.awaits_end() {
                assert!(n_batches <= prompt_batches_max, "a prompt waits: {sequence:?} {self:?}");
            }
        }
    }

    /// Runs until all prompts that end are computed, and for at least 200 batches.
    fn run(mut self) {
        while self.now < 200 || self.sequences.iter().any(Sequence::awaits_end) {
            self.step();
        }
    }
}

#[test]
fn a_prompt_beside_a_stream_is_computed_although_another_adapter_has_a_long_prompt() {
    let request = |adapter, n_prompt, n_answer| Request { adapter, n_prompt, n_answer, repeats: false };
    let requests = [request(0, 1, ENDLESS), request(1, ENDLESS, 1), request(0, 30, 1)];
    let sequences = requests.iter().zip([0, 0, 5]).map(|(request, came)| Sequence::new(*request, came)).collect();
    let mut worker = Worker::new(sequences, Passes::Apart, false);
    (0..15).for_each(|_| worker.step());
    assert_eq!(worker.sequences[2].n_prompt_left, 0);
    // The long prompt has the other micro-batches between two tokens of the stream.
    assert!(worker.sequences[1].n_prompt_left <= ENDLESS - 3 * UBATCH_TOKENS, "{worker:?}");
}

fn sequences() -> impl Strategy<Value = Vec<Sequence>> {
    let once = (1_u32..40, prop_oneof![Just(0), Just(5), Just(ENDLESS)]);
    let lengths = prop_oneof![
        2 => once.prop_map(|(n_prompt, n_answer)| (n_prompt, n_answer, false)),
        1 => prop_oneof![Just(1), 1_u32..40].prop_map(|n_prompt| (n_prompt, 0, true)),
        1 => Just((ENDLESS, 1, false)),
        1 => Just((1, ENDLESS, false)),
    ];
    let sequence = (0..N_ADAPTERS, 0_u32..50, lengths).prop_map(|(adapter, came, (n_prompt, n_answer, repeats))| {
        Sequence::new(Request { adapter, n_prompt, n_answer, repeats }, came)
    });
    prop::collection::vec(sequence, 1..12)
}

proptest! {
    #[test]
    fn every_sequence_gets_its_turn_whatever_other_adapters_compute(
        sequences in sequences(),
        passes in prop_oneof![Just(Passes::Together), Just(Passes::Apart)],
        has_medium in any::<bool>(),
    ) {
        Worker::new(sequences, passes, has_medium).run();
    }
}
