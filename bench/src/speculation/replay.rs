//! Answers replayed in virtual time: the worker's own drafters and its own choice of lengths, with given times of
//! steps.
//!
//! The tokens of the answers are known, so no model is needed: a draft is accepted as far as it is the answer. Prompts
//! take no time, and answers that run at the same time begin together. Not here: the answers (`recording`) and the
//! times (`cost_curve`).

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;
use warmpath_worker_core::drafting::lengths::{self, Length, StepRoom};
use warmpath_worker_core::drafting::step_costs::StepCosts;
use warmpath_worker_core::drafting::suffix_memory::SuffixMemory;
use warmpath_worker_core::drafting::{DraftLimits, Drafter};
use warmpath_worker_core::tenants::TenantId;

use super::ANSWER_TOKENS;

/// Root of all answers: one tenant without a salt.
const ROOT: (BlockHash, TenantId) = (BlockHash([0; 32]), TenantId(0));
/// Most tokens of a step. Source: the worker's default of `--ubatch-size`.
const STEP_TOKENS_MAX: u32 = 512;
/// Most tokens of earlier answers. Source: the worker's own limit.
const MEMORY_TOKENS_MAX: usize = 1 << 18;

/// An answer whose tokens are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) prompt: Vec<Token>,
    pub(super) answer: Vec<Token>,
}

/// Outcome of answers that were replayed at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Replayed {
    /// Tokens a second of all answers, each without its first token. A millisecond is one unit of the costs.
    pub(super) rate: f64,
    /// Drafted tokens that were computed.
    pub(super) n_drafted: usize,
    /// Drafted tokens that became part of answers.
    pub(super) n_accepted: usize,
}

/// A worker that replays answers one group after the other.
#[derive(Debug)]
pub(super) struct Replay<'a> {
    costs: &'a StepCosts,
    limits: DraftLimits,
    memory: SuffixMemory,
}

/// An answer in progress.
struct Stream<'a> {
    drafter: Drafter,
    recorded: &'a Recorded,
    /// Tokens that are chosen; the state of the last one is not computed yet.
    n_said: usize,
}

impl<'a> Replay<'a> {
    /// Returns a worker without earlier answers; no drafts are computed if `limits` allow no token.
    pub(super) fn new(costs: &'a StepCosts, limits: DraftLimits) -> Self {
        Self { costs, limits, memory: SuffixMemory::new(MEMORY_TOKENS_MAX) }
    }

    /// Replays answers that run at the same time.
    pub(super) fn run(&mut self, recorded: &[Recorded]) -> Replayed {
        let mut streams: Vec<Stream<'_>> =
            recorded.iter().filter_map(|recorded| Stream::new(recorded, self.limits)).collect();
        let (mut replayed, mut now_ms) = (Replayed::default(), 0.0);
        self.end(&mut streams, |_| {});
        while !streams.is_empty() {
            let drafts = self.drafts(&mut streams, &mut now_ms);
            for (stream, draft) in streams.iter_mut().zip(drafts) {
                replayed.n_drafted += draft.len();
                replayed.n_accepted += stream.verify(&draft);
            }
            self.end(&mut streams, |n_tokens| replayed.rate += (n_tokens - 1) as f64 * 1e3 / now_ms);
        }
        replayed
    }

    /// Computes a step; returns the draft of each stream.
    fn drafts(&mut self, streams: &mut [Stream<'_>], now_ms: &mut f64) -> Vec<Vec<Token>> {
        let n_streams = streams.len() as u32;
        let held_tokens = streams.iter().map(Stream::n_held).sum::<u32>() / n_streams;
        let room = StepRoom { n_streams, tokens_max: STEP_TOKENS_MAX, drafts_max: n_streams, held_tokens };
        let mut possible = Vec::new();
        for stream in &mut *streams {
            let n_max = (ANSWER_TOKENS as usize).saturating_sub(stream.n_said + 1);
            possible.push(stream.drafter.propose(self.memory.of(&ROOT.0), n_max));
        }
        let lengths: Vec<Length> = lengths::lengths(&possible, room, self.costs);
        let drafts: Vec<Vec<Token>> =
            streams.iter_mut().zip(lengths).map(|(stream, length)| stream.drafter.draft(length).to_vec()).collect();
        let drafted = drafts.iter().filter(|draft| !draft.is_empty()).map(|draft| 1 + draft.len() as u32);
        let n_single = n_streams - drafted.clone().count() as u32;
        *now_ms += self.costs.step((n_single, held_tokens), drafted);
        drafts
    }

    /// Takes out the streams that are complete, and learns their answers.
    fn end(&mut self, streams: &mut Vec<Stream<'_>>, mut ended: impl FnMut(usize)) {
        let is_complete = |stream: &mut Stream<'_>| stream.n_said >= stream.recorded.answer.len();
        for stream in streams.extract_if(.., is_complete) {
            let (before, answer) = stream.drafter.answer(stream.n_said);
            self.memory.learn((&ROOT.0, ROOT.1), before, answer);
            ended(stream.n_said);
        }
    }
}

impl<'a> Stream<'a> {
    /// Returns an answer whose first token is chosen; `None` if it has none.
    fn new(recorded: &'a Recorded, limits: DraftLimits) -> Option<Self> {
        let mut drafter = Drafter::new(&recorded.prompt, &[], limits);
        drafter.push(*recorded.answer.first()?);
        Some(Self { drafter, recorded, n_said: 1 })
    }

    fn n_held(&self) -> u32 {
        u32::try_from(self.recorded.prompt.len() + self.n_said - 1).unwrap_or(u32::MAX)
    }

    /// Takes the tokens of a step with a draft; returns how many drafted ones were right.
    fn verify(&mut self, draft: &[Token]) -> usize {
        for n_accepted in 0..=draft.len() {
            let Some(chosen) = self.recorded.answer.get(self.n_said) else { return n_accepted };
            self.drafter.push(*chosen);
            self.n_said += 1;
            if draft.get(n_accepted) != Some(chosen) {
                return n_accepted;
            }
        }
        draft.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use warmpath_worker_core::batch_plan::Passes;
    use warmpath_worker_core::drafting::step_costs::{Curve, DepthCost};

    use super::*;

    const NONE: DraftLimits = DraftLimits { n_max: 0, n_min: 0 };
    /// Short drafts, so that the chance of the last token is still seen in a sum.
    const SHORT: DraftLimits = DraftLimits { n_max: 7, n_min: 0 };

    fn costs(tokens: &[(u32, f64)], streams: &[(u32, f64)], per_held_token: &[(u32, f64)]) -> StepCosts {
        let curve = |points: &[(u32, f64)]| Curve::new(points.iter().copied());
        let depth = DepthCost { held_tokens: 0, per_held_token: curve(per_held_token) };
        StepCosts { tokens: curve(tokens), streams: curve(streams), passes: Passes::Together, depth }
    }

    /// Every step takes a millisecond.
    fn flat() -> StepCosts {
        costs(&[(1, 1.0), (64, 1.0)], &[(1, 1.0), (64, 1.0)], &[])
    }

    fn recorded(prompt: &[Token], answer: &[Token]) -> Recorded {
        Recorded { prompt: prompt.to_vec(), answer: answer.to_vec() }
    }

    fn count_up(from: Token, n: usize) -> Vec<Token> {
        (from..).take(n).collect()
    }

    #[test]
    fn without_drafts_each_token_takes_a_step_of_its_depth() {
        let costs = costs(&[(1, 10.0), (4, 16.0)], &[(1, 10.0), (2, 14.0)], &[(1, 0.5)]);
        let mut replay = Replay::new(&costs, NONE);
        let one = recorded(&count_up(0, 10), &count_up(100, 4));
        // Steps with 10, 11 and 12 tokens held.
        let one_ms = 3.0 * 10.0 + 0.5 * 33.0;
        assert_eq!(replay.run(std::slice::from_ref(&one)), Replayed { rate: 3e3 / one_ms, ..Replayed::default() });
        let short = recorded(&count_up(0, 10), &count_up(200, 2));
        let (both_ms, rest_ms) = (14.0 + 10.0, 2.0 * 10.0 + 0.5 * 23.0);
        let replayed = replay.run(&[one, short]);
        assert!((replayed.rate - 1e3 / both_ms - 3e3 / (both_ms + rest_ms)).abs() < 1e-9, "{replayed:?}");
    }

    #[test]
    fn answers_of_less_than_two_tokens_take_no_step() {
        let costs = flat();
        let both = [recorded(&[1, 2], &[]), recorded(&[1, 2], &[3])];
        assert_eq!(Replay::new(&costs, SHORT).run(&both), Replayed::default());
        assert_eq!(Replay::new(&costs, SHORT).run(&[]), Replayed::default());
    }

    #[test]
    fn an_answer_that_was_given_before_is_drafted_from_its_first_tokens_on() {
        let costs = flat();
        let mut replay = Replay::new(&costs, SHORT);
        let said = recorded(&count_up(0, 40), &count_up(100, 49));
        assert_eq!(replay.run(std::slice::from_ref(&said)), Replayed { rate: 1e3, ..Replayed::default() });
        // The prompt's end leads to it, so that each step has seven drafted tokens and one more.
        assert_eq!(replay.run(std::slice::from_ref(&said)), Replayed { rate: 8e3, n_drafted: 42, n_accepted: 42 });
        // Both at the same time take as many steps.
        let both = replay.run(&[said.clone(), said]);
        assert_eq!(both, Replayed { rate: 16e3, n_drafted: 84, n_accepted: 84 });
    }

    /// Returns the steps of an answer where whatever is found is drafted, with a search of every place.
    fn n_steps_naive(prompt: &[Token], answer: &[Token]) -> usize {
        let n_common = |text: &[Token], end: usize| {
            let pairs = text[..end].iter().rev().zip(text.iter().rev()).take(32);
            pairs.take_while(|(a, b)| a == b).count()
        };
        let (mut n_said, mut n_steps) = (1, 0);
        while n_said < answer.len() {
            let text = [prompt, &answer[..n_said]].concat();
            // The index looks at the last 17 places, the text's own end among them.
            let places = (4..=text.len()).rev().filter(|end| n_common(&text, *end) >= 4).take(17);
            let best = places.filter(|end| *end < text.len()).fold(None, |best: Option<usize>, end| match best {
                Some(best) if n_common(&text, best) >= n_common(&text, end) => Some(best),
                _ => Some(end),
            });
            let draft = best.map_or(Vec::new(), |end| text[end..].iter().cycle().take(SHORT.n_max).copied().collect());
            let n_right = draft.iter().zip(&answer[n_said..]).take_while(|(drafted, said)| drafted == said).count();
            n_said += n_right + 1;
            n_steps += 1;
        }
        n_steps
    }

    proptest! {
        #[test]
        fn with_free_drafts_an_answer_takes_the_steps_that_a_search_of_every_place_finds(
            prompt in prop::collection::vec(0_u32..3, 1..60),
            answer in prop::collection::vec(0_u32..3, 2..80),
        ) {
            let costs = flat();
            let replayed = Replay::new(&costs, SHORT).run(&[recorded(&prompt, &answer)]);
            let n_steps = (answer.len() - 1) as f64 * 1e3 / replayed.rate;
            prop_assert!((n_steps - n_steps_naive(&prompt, &answer) as f64).abs() < 1e-6, "{}", n_steps);
        }
    }
}
