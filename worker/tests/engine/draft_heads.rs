//! Draft heads of the model: whatever they propose, every response is the same as without them.
//!
//! The generated model's head is often right, as long as the hidden states that it reads are those of the token before
//! and its KV state is that of the sequence; so wrong state is visible in the counters.
//!
//! Not here: which hidden states are kept (the core's tests), random traffic (`property`).

use futures::future::join_all;
use warmpath_bench::model::Preset;
use warmpath_worker::engine::{
    CostSource, CounterValues, DraftCosts, Engine, EngineConfig, HeadUse, SpeculationConfig, StartError, Switch,
};

use super::speculation::{assert_same, check_disconnects, run};
use super::support::{ask, config, start, stop, tokens};

/// Returns a configuration whose model drafts with its heads, on a machine where drafting is faster.
pub fn drafting(config: &EngineConfig) -> EngineConfig {
    let (costs, heads) = (DraftCosts::LikeGpu, HeadUse::Required);
    EngineConfig {
        speculation: Some(SpeculationConfig { costs, heads, ..SpeculationConfig::default() }),
        ..config.clone()
    }
}

fn slots(n_slots: u16) -> EngineConfig {
    let context_tokens_total = 1024 * u32::from(n_slots);
    EngineConfig { n_slots, context_tokens_total, costs: CostSource::Assumed, ..config(Preset::TinyQwen35Mtp) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_are_the_same_with_draft_heads_and_many_drafts_are_right() {
    let prompt = tokens(1, 60);
    let sampled = |seed| {
        let mut asked = ask(&tokens(2, 50), 40);
        (asked.generation.sampling.temperature, asked.generation.sampling.seed) = (1.0, Some(seed));
        asked
    };
    // Longer than the hidden states that are kept, cut back, and beginning in state that another slot computed.
    let asks = [
        ask(&prompt, 60),
        sampled(1),
        ask(&tokens(3, 700), 60),
        ask(&prompt, 40),
        ask(&[&prompt[..], &tokens(4, 9)].concat(), 40),
        sampled(2),
    ];
    for kv_unified in [Switch::Off, Switch::On] {
        let config = EngineConfig { kv_unified, ..slots(2) };
        let (expected, held, plain) = run(&config, &asks).await;
        stop(plain).await;
        let (answers, held_then, engine) = run(&drafting(&config), &asks).await;
        for ((found, expected), ask) in answers.iter().zip(&expected).zip(&asks) {
            assert_same(found, expected, ask);
        }
        assert_eq!(held_then, held, "the slots have the same tokens as without drafts");
        let counters = engine.counters();
        assert_eq!((counters.decode_failures, counters.failed_starts, counters.draft_model_failures), (0, 0, 0));
        assert!(counters.made_tokens > 100, "{counters:?}");
        assert!(counters.accepted_tokens * 3 > counters.made_tokens, "{counters:?}");
        stop(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn sequences_that_were_computed_together_are_drafted_by_their_own_hidden_states() {
    let long = ask(&tokens(1, 50), 60);
    let (alone, _, engine) = run(&drafting(&slots(1)), std::slice::from_ref(&long)).await;
    let apart = engine.counters();
    stop(engine).await;
    // The prompts and first tokens are computed in the same batches; nothing is drafted for several streams here.
    let asks = [ask(&tokens(2, 30), 4), long, ask(&tokens(3, 70), 4)];
    let (engine, _updates) = start(drafting(&slots(3)));
    let together = join_all(asks.iter().map(|ask| ask.answer(&engine))).await;
    assert_eq!(together[1].tokens, alone[0].tokens);
    let beside = engine.counters();
    assert!(beside.made_tokens > 20, "{beside:?}");
    let share = |counters: &CounterValues| counters.accepted_tokens as f64 / counters.drafted_tokens as f64;
    assert!(share(&beside) > 0.8 * share(&apart), "{beside:?} {apart:?}");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_client_that_disconnects_within_a_draft_of_heads_leaves_correct_state() {
    let prompt = tokens(8, 60);
    let (expected, _, plain) = run(&slots(1), &[ask(&prompt, 300)]).await;
    stop(plain).await;
    check_disconnects(drafting(&slots(1)), &prompt, &expected[0].tokens).await;
}

#[test]
fn heads_that_a_model_lacks_are_refused_only_if_they_are_required() {
    let (sender, _updates) = tokio::sync::mpsc::unbounded_channel();
    let without = EngineConfig { model: config(Preset::TinyQwen35).model, ..slots(1) };
    let refused = Engine::start(drafting(&without), |_| true, sender.clone());
    assert!(matches!(refused, Err(StartError::Unsupported { .. })));
    let mut optional = drafting(&without);
    if let Some(speculation) = &mut optional.speculation {
        speculation.heads = HeadUse::IfPresent;
    }
    assert!(Engine::start(optional, |_| true, sender).is_ok());
}
