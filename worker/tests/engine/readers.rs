//! Readers that are slow or never read: their buffered output is limited, they lose nothing, and no other request
//! waits.

use warmpath_bench::model::Preset;
use warmpath_worker::engine::EngineConfig;

use super::support::{Answering, Ask, ask, config, start, stop, tokens, until};

/// Number of tokens that exceed the limit with their alternatives.
const MANY_TOKENS: u32 = 6000;

fn with_alternatives(seed: u32) -> Ask {
    ask(&tokens(seed, 8), MANY_TOKENS).listing(20)
}

fn two_slots() -> EngineConfig {
    EngineConfig { n_slots: 2, context_tokens_total: 2 * (MANY_TOKENS + 100), ..config(Preset::Tiny) }
}

#[tokio::test]
async fn a_late_reader_loses_nothing_and_delays_nobody() {
    let (engine, _updates) = start(two_slots());
    let expected = with_alternatives(1).answer(&engine).await;
    let generated = || engine.counters().generated_tokens;
    let late = with_alternatives(1).submit(&engine).expect("there is a slot");
    let before = generated();
    // Other responses reach their ends, although the slow reader's does not.
    let mut n_others = 0;
    loop {
        let n_of_late = engine.slots().iter().map(|slot| slot.decoded_tokens).max().unwrap_or(0);
        let other = ask(&tokens(2 + n_others, 8), 300).answer(&engine).await;
        assert_eq!(other.tokens.len(), 300);
        n_others += 1;
        let n_after = engine.slots().iter().map(|slot| slot.decoded_tokens).max().unwrap_or(0);
        if n_of_late > 0 && n_of_late == n_after {
            break;
        }
    }
    let n_made = generated() - before - u64::from(n_others) * 300;
    assert!(n_made < u64::from(MANY_TOKENS), "the whole response was generated without a reader");
    let answer = late.answer().await;
    assert_eq!((&answer.tokens, &answer.text), (&expected.tokens, &expected.text));
    assert_eq!(answer.probabilities, expected.probabilities);
    stop(engine).await;
}

#[tokio::test]
async fn readers_that_never_read_free_their_slots_when_they_disconnect() {
    let (engine, _updates) = start(two_slots());
    let readers: Vec<Answering> =
        (0..2).map(|seed| with_alternatives(seed).submit(&engine).expect("there is a slot")).collect();
    let decoded = || engine.slots().iter().map(|slot| slot.decoded_tokens).sum::<u32>();
    let steps = || engine.counters().steps;
    // All running sequences wait, so the engine does no further step.
    let mut last = (0, 0);
    until("both wait", || {
        let now = (steps(), decoded());
        std::mem::replace(&mut last, now) == now && now.1 > 2 * 1000
    })
    .await;
    assert!(decoded() < 2 * MANY_TOKENS);
    let next = ask(&tokens(9, 8), 5).submit(&engine).expect("there is a place in the queue");
    drop(readers);
    assert_eq!(next.answer().await.tokens.len(), 5);
    until("the disconnected readers are counted", || engine.counters().cancelled == 2).await;
    stop(engine).await;
}

#[tokio::test]
async fn a_reader_that_never_reads_does_not_keep_the_engine_running() {
    let (engine, _updates) = start(two_slots());
    let reader = with_alternatives(1).submit(&engine).expect("there is a slot");
    until("it waits", || engine.slots().iter().any(|slot| slot.decoded_tokens > 1000)).await;
    engine.drain(std::time::Duration::from_millis(50), std::future::ready(())).await;
    assert!(reader.answer().await.failed.is_some(), "the reader gets the failure after the generated tokens");
}
