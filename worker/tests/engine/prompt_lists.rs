//! Log probabilities of a prompt's tokens, compared with those of the same model if it computes one token at a time.

use warmpath_bench::model::Preset;
use warmpath_common::ids::Token;
use warmpath_worker::engine::{EngineConfig, ProbabilityOptions, ProbabilitySource};
use warmpath_worker_output::logprobs::{PromptProbabilities, TokenLogprob, of_logits};

use super::by_hand::ByHand;
use super::support::{Ask, ask, config, start, stop, tokens};

const N_TOP: usize = 3;

/// Maximum difference between the two: kernels for a batch add the products in another order than those for one token.
const TOLERANCE: f32 = 0.02;

fn listing(prompt: &[Token], max_tokens: u32) -> Ask {
    let mut request = ask(prompt, max_tokens);
    let wish = ProbabilityOptions { n_top: N_TOP, source: ProbabilitySource::Model, of_prompt: true };
    request.generation.probabilities = Some(wish);
    request
}

fn check(listed: &PromptProbabilities, prompt: &[Token], by_hand: &mut ByHand) {
    assert_eq!((listed.first, listed.rest.len() + 1), (prompt[0], prompt.len()));
    let close = |a: TokenLogprob, b: TokenLogprob| (a.logprob - b.logprob).abs() <= TOLERANCE;
    for (pair, got) in prompt.windows(2).zip(&listed.rest) {
        by_hand.compute(&pair[..1]);
        let expected = of_logits(by_hand.logits(), pair[1], N_TOP);
        assert_eq!((got.chosen.token, got.top.len()), (pair[1], N_TOP));
        assert!(close(got.chosen, expected.chosen), "{got:?} {expected:?}");
        assert!(got.top.iter().zip(&expected.top).all(|(a, b)| close(*a, *b)), "{got:?} {expected:?}");
    }
}

#[tokio::test]
async fn a_prompts_tokens_are_as_likely_as_if_they_are_computed_one_at_a_time() {
    let config = EngineConfig { n_slots: 2, ubatch_tokens: 32, batch_tokens: 64, ..config(Preset::TinyKeys) };
    let prompt = tokens(1, 150);
    let (engine, _updates) = start(config.clone());
    // Cached state must not replace the prompt's tokens in the list.
    ask(&prompt, 1).answer(&engine).await;
    let answer = listing(&prompt, 2).answer(&engine).await;
    assert_eq!((answer.cached_tokens(), answer.tokens.len(), answer.probabilities.len()), (0, 2, 2));
    check(&answer.prompt.expect("the prompt is listed"), &prompt, &mut ByHand::new(&config));
    let only = listing(&prompt[..1], 0).answer(&engine).await;
    let listed = only.prompt.as_ref().expect("a single token is a list too");
    assert_eq!((listed.first, listed.rest.len(), only.finished().completion_tokens), (prompt[0], 0, 0));
    stop(engine).await;
}

#[tokio::test]
async fn lists_are_computed_in_small_steps_beside_a_stream_and_their_state_is_reused() {
    let base = config(Preset::Tiny);
    let probe = start(base.clone()).0;
    let n_vocab = probe.facts().n_vocab as usize;
    stop(probe).await;
    // Ten tokens per step, for all requests together.
    let (engine, _updates) = start(EngineConfig { n_slots: 3, listed_logits_max: 10 * n_vocab, ..base.clone() });
    let (spoken, prompt, other) = (tokens(2, 40), tokens(3, 200), tokens(4, 120));
    let alone = ask(&spoken, 60).answer(&engine).await;
    let mut stream = ask(&spoken, 60).submit(&engine).expect("there is room");
    stream.tokens(2).await;
    let first = listing(&prompt, 0).submit(&engine).expect("there is room");
    let second = listing(&other, 3).answer(&engine).await;
    let first = first.answer().await;
    assert!(engine.counters().passed_tokens_max <= 10, "{:?}", engine.counters());
    assert_eq!(stream.answer().await.tokens, alone.tokens, "the stream is unchanged");
    for (answer, prompt) in [(&first, &prompt), (&second, &other)] {
        check(answer.prompt.as_ref().expect("the prompt is listed"), prompt, &mut ByHand::new(&base));
    }
    assert_eq!((first.tokens.len(), second.tokens.len()), (0, 3));
    assert_eq!(ask(&prompt, 1).answer(&engine).await.cached_tokens(), 199, "the computed tokens are reused");
    stop(engine).await;
}
