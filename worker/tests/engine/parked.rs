//! Moved state after tokens that are computed first: responses are those of the same moves with llama.cpp's own calls,
//! whatever else runs, and a request that is cancelled meanwhile leaves correct state.
//!
//! Not here: moves without such tokens and unsupported shifts (`shifts`), which state is moved (`shift_plan` in the
//! core).

use warmpath_common::ids::Token;
use warmpath_worker::engine::{CachedTokens, EngineConfig, EngineHandle, PrefixCache, SlotView, StoreConfig, Switch};

use super::by_hand::ByHand;
use super::shifts::{cold, kinds, reusing, slots};
use super::support::{Ask, ask, start, stop, tokens, until};

/// Number of first tokens that all these prompts have in common.
const N_EXACT: usize = 60;

/// Position of tokens in a text, their position in a prompt, and their number.
type Part = (usize, usize, usize);

/// Parts that move to a later or an earlier position, several parts, adjacent parts, and a part that also stays in
/// place.
const REARRANGED: [&[Part]; 5] = [
    &[(100, 110, 160)],
    &[(140, 75, 160)],
    &[(80, 110, 70), (150, 210, 90)],
    &[(100, 60, 60), (200, 150, 80)],
    &[(70, 90, 40), (120, 130, 60), (200, 195, 90)],
];

fn text() -> Vec<Token> {
    tokens(1, 300)
}

/// Returns a prompt that begins like the text and has these parts of it, with other tokens before and after each.
fn rearranged(parts: &[Part]) -> Vec<Token> {
    let text = text();
    let mut prompt = text[..N_EXACT].to_vec();
    let mut others = tokens(9, 400).into_iter();
    for &(from, to, n) in parts {
        let n_before = to - prompt.len();
        prompt.extend(others.by_ref().take(n_before));
        prompt.extend(&text[from..from + n]);
    }
    prompt.extend(others.take(20));
    prompt
}

fn n_moved(parts: &[Part]) -> u32 {
    parts.iter().map(|(.., n)| *n as u32).sum()
}

/// Returns the response to a rearranged prompt if llama.cpp's own calls move each part to a separate sequence and back.
fn answer_by_hand(config: &EngineConfig, parts: &[Part], n_tokens: usize) -> Vec<Token> {
    let prompt = rearranged(parts);
    let mut by_hand = ByHand::new(config);
    by_hand.compute(&text());
    for (aside, &(from, _, n)) in (1..).zip(parts) {
        by_hand.lay_aside(aside, from as u32..(from + n) as u32);
    }
    by_hand.cut(N_EXACT as u32);
    for (aside, &(from, to, _)) in (1..).zip(parts) {
        let n_held = by_hand.n_held() as usize;
        if n_held < to {
            by_hand.compute(&prompt[n_held..to]);
        }
        by_hand.take_back(aside, from as u32);
    }
    by_hand.compute(&prompt[by_hand.n_held() as usize..]);
    by_hand.answer(n_tokens)
}

/// Makes prompts take many steps.
fn small_steps(config: EngineConfig) -> EngineConfig {
    EngineConfig { batch_tokens: 8, ubatch_tokens: 8, ..config }
}

#[tokio::test]
async fn state_after_computed_tokens_gives_the_answer_of_the_same_moves_by_hand() {
    for parts in REARRANGED {
        let prompt = rearranged(parts);
        let plain = &cold(&[ask(&prompt, 12)]).await[0];
        for config in kinds(&slots(2)) {
            let expected = answer_by_hand(&config, parts, 12);
            for config in [config.clone(), small_steps(config)] {
                let kv_unified = config.kv_unified;
                let (engine, _updates) = start(config);
                ask(&text(), 1).answer(&engine).await;
                let answer = reusing(&prompt, 12).answer(&engine).await;
                let cached = answer.started.unwrap().cached;
                let (resident, shifted) = (N_EXACT as u32, n_moved(parts));
                assert_eq!(cached, CachedTokens { resident, shifted, ..CachedTokens::default() }, "{parts:?}");
                assert_eq!(answer.tokens, expected, "{parts:?}");
                assert_ne!(
                    &answer.tokens, plain,
                    "moved state gives the same response as computed state, so the test proves nothing"
                );
                assert_eq!(engine.counters().prefill_tokens, 300 + prompt.len() as u64 - u64::from(cached.total()));
                let text_goes_on = ask(&[&text()[..], &tokens(6, 3)].concat(), 1).answer(&engine).await;
                // A shared buffer has no room for both idle slots.
                if kv_unified == Switch::Off {
                    assert_eq!(text_goes_on.started.unwrap().cached.resident, 300, "the text's slot still has it");
                }
                stop(engine).await;
            }
        }
    }
}

#[tokio::test]
async fn moves_do_not_change_other_running_sequences() {
    let prompt = rearranged(REARRANGED[2]);
    // The state comes from a slot that is idle, or from one that is busy all the time.
    let sources = [true, false].into_iter();
    for (config, is_idle) in sources.flat_map(|is_idle| kinds(&slots(3)).into_iter().map(move |kind| (kind, is_idle))) {
        let expected = answer_by_hand(&config, REARRANGED[2], 12);
        // It begins with the text whose state is moved, so the two share cells in a shared buffer.
        let neighbour = ask(&[&text()[..], &tokens(4, 5)].concat(), 150);
        let asks = [ask(&prompt, 12), ask(&prompt[..150], 12), neighbour];
        let plain = cold(&asks).await;
        let (engine, _updates) = start(small_steps(config));
        ask(&text(), 1).answer(&engine).await;
        let mut running = asks[2].submit(&engine).unwrap();
        running.tokens(2).await;
        if is_idle {
            ask(&[&text()[..], &tokens(5, 5)].concat(), 1).answer(&engine).await;
        }
        let moved = reusing(&prompt, 12).submit(&engine).unwrap();
        let (same, shorter) = (asks[0].submit(&engine).unwrap(), asks[1].submit(&engine).unwrap());
        let moved = moved.answer().await;
        assert_eq!(moved.started.unwrap().cached.shifted, n_moved(REARRANGED[2]));
        assert_eq!(moved.tokens, expected);
        assert_eq!([same.answer().await.tokens, shorter.answer().await.tokens], plain[..2]);
        assert_eq!(running.answer().await.tokens, plain[2]);
        assert_eq!(asks[0].answer(&engine).await.tokens, plain[0], "afterwards");
        stop(engine).await;
    }
}

/// Cancels a request while the tokens before its moved state are computed; returns its slot afterwards.
async fn leave_before_moved_state(engine: &EngineHandle, prompt: &[Token], n_before: usize) -> SlotView {
    loop {
        ask(&text(), 1).answer(engine).await;
        let mut leaving = reusing(prompt, 100).submit(engine).unwrap();
        while leaving.so_far().started.is_none() {
            leaving.next().await;
        }
        assert!(leaving.so_far().started.unwrap().cached.shifted > 0);
        drop(leaving);
        until("the slot is free", || engine.counters().busy_slots == 0).await;
        let held = engine.slots()[0].clone();
        // On a busy machine, the engine may have been faster than the test.
        if (held.held_tokens as usize) < n_before {
            return held;
        }
    }
}

#[tokio::test]
async fn a_request_that_is_cancelled_before_its_moved_state_leaves_its_computed_tokens() {
    let parts: &[Part] = &[(100, 300, 160)];
    let prompt = rearranged(parts);
    let plain = &cold(&[ask(&prompt, 12)]).await[0];
    // A store would have the prompt's exact state after the first time, and a small buffer would have no room for an
    // idle
    // slot.
    let store = StoreConfig { ram_bytes: 0, ..StoreConfig::default() };
    for config in kinds(&EngineConfig { store, context_tokens_total: 1024, ..slots(1) }) {
        let expected = answer_by_hand(&config, parts, 12);
        let (engine, _updates) = start(small_steps(config));
        let held = leave_before_moved_state(&engine, &prompt, 300).await;
        assert_eq!(held.exact_tokens, held.held_tokens, "the tokens were computed after the text's first tokens");
        assert_eq!(engine.counters().held_tokens, u64::from(held.held_tokens), "parked state is in no slot");
        let answer = ask(&prompt, 12).answer(&engine).await;
        assert!(answer.cached_tokens() >= held.held_tokens);
        assert_eq!(&answer.tokens, plain);
        leave_before_moved_state(&engine, &prompt, 300).await;
        ask(&text(), 1).answer(&engine).await;
        assert_eq!(reusing(&prompt, 12).answer(&engine).await.tokens, expected);
        assert_eq!((engine.counters().failed, engine.counters().failed_starts), (0, 0));
        stop(engine).await;
    }
}

#[tokio::test]
async fn a_request_without_a_cache_moves_nothing() {
    let prompt = rearranged(REARRANGED[0]);
    let uncached = |ask: Ask| Ask { cache_prompt: false, ..ask };
    for config in [slots(2), EngineConfig { prefix_cache: PrefixCache::Disabled, ..slots(2) }] {
        let is_cached = config.prefix_cache != PrefixCache::Disabled;
        let (engine, _updates) = start(config);
        ask(&text(), 1).answer(&engine).await;
        let request = if is_cached { uncached(reusing(&prompt, 12)) } else { reusing(&prompt, 12) };
        let answer = request.answer(&engine).await;
        assert_eq!((answer.cached_tokens(), &answer.tokens), (0, &cold(&[ask(&prompt, 12)]).await[0]));
        stop(engine).await;
    }
}
