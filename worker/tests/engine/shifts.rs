//! Shifted state: it is the same as after the same moves with llama.cpp's own calls, and only requests that permit it
//! use it.
//!
//! Every state that the digital model attends to changes its response (`Preset::Tiny`; its positions are rotations,
//! which llama.cpp can shift). So a response from shifted state differs from one from computed state, and leaked state
//! changes other responses. Not here: moved state after tokens that are computed first (`parked`), which state is moved
//! (`shift_plan` in the core).

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::sync::mpsc;
use warmpath_bench::model::Preset;
use warmpath_common::ids::Token;
use warmpath_worker::engine::{
    AtContextEnd, CacheType, CachedTokens, DiskConfig, Engine, EngineConfig, EngineError, FinishReason, PrefixCache,
    ShiftConfig, ShiftObstacle, ShiftOptions, StartError, StoreConfig, Switch,
};

use super::by_hand::ByHand;
use super::support::{Answer, Ask, ask, config, start, stop, tokens};

const CONTEXT: u32 = 512;

pub fn slots(n_slots: u16) -> EngineConfig {
    let context_tokens_total = CONTEXT * u32::from(n_slots);
    EngineConfig { n_slots, context_tokens_total, ..config(Preset::Tiny) }
}

fn shifting(n_slots: u16) -> EngineConfig {
    let at_context_end = AtContextEnd::Shift;
    EngineConfig { shifts: ShiftConfig { at_context_end, ..ShiftConfig::default() }, ..slots(n_slots) }
}

/// Returns each kind of buffer with and without flash attention.
pub fn kinds(config: &EngineConfig) -> Vec<EngineConfig> {
    let kinds = [(Switch::Off, Switch::Off), (Switch::On, Switch::Off), (Switch::On, Switch::On)];
    kinds.map(|(kv_unified, flash_attn)| EngineConfig { kv_unified, flash_attn, ..config.clone() }).to_vec()
}

pub fn reusing(prompt: &[Token], max_tokens: u32) -> Ask {
    let shifts = ShiftOptions { cache_reuse_tokens: Some(32), ..ShiftOptions::default() };
    Ask { shifts, ..ask(prompt, max_tokens) }
}

/// Returns the answers that an engine without any cache gives.
pub async fn cold(asks: &[Ask]) -> Vec<Vec<Token>> {
    let (engine, _updates) = start(EngineConfig { prefix_cache: PrefixCache::Disabled, ..slots(1) });
    let mut answers = Vec::new();
    for ask in asks {
        answers.push(ask.answer(&engine).await.tokens);
    }
    stop(engine).await;
    answers
}

/// Returns a long prompt, and one that omits 80 tokens in its middle and is a little longer at the end.
fn conversation() -> (Vec<Token>, Vec<Token>) {
    let whole = tokens(1, 300);
    let cut = [&whole[..60], &whole[140..], &tokens(2, 20)].concat();
    (whole, cut)
}

/// Returns 12 tokens after the shortened prompt of [`conversation`], with the state of the long one moved by hand.
fn moved_by_hand(config: &EngineConfig) -> Vec<Token> {
    let (whole, cut) = conversation();
    let mut by_hand = ByHand::new(config);
    by_hand.compute(&whole);
    by_hand.shift(60, 80);
    by_hand.compute(&cut[220..]);
    by_hand.answer(12)
}

#[tokio::test]
async fn state_is_moved_only_for_requests_that_permit_it() {
    let (whole, cut) = conversation();
    let (engine, _updates) = start(slots(1));
    ask(&whole, 4).answer(&engine).await;
    let answer = ask(&cut, 12).answer(&engine).await;
    assert_eq!(answer.started.unwrap().cached, CachedTokens { resident: 60, ..CachedTokens::default() });
    assert_eq!(answer.tokens, cold(&[ask(&cut, 12)]).await[0]);
    let many =
        Ask { shifts: ShiftOptions { cache_reuse_tokens: Some(161), ..ShiftOptions::default() }, ..ask(&cut, 1) };
    ask(&whole, 1).answer(&engine).await;
    assert_eq!(many.answer(&engine).await.started.unwrap().cached.shifted, 0, "no common run has this length");
    assert_eq!(engine.counters().shifted_tokens, 0);
    stop(engine).await;
}

#[tokio::test]
async fn moved_state_gives_the_answer_of_the_same_moves_by_hand() {
    let (whole, cut) = conversation();
    for config in kinds(&slots(2)) {
        let expected = moved_by_hand(&config);
        let (engine, _updates) = start(config);
        ask(&whole, 1).answer(&engine).await;
        let answer = reusing(&cut, 12).answer(&engine).await;
        let cached = answer.started.unwrap().cached;
        assert_eq!(cached, CachedTokens { resident: 60, shifted: 160, ..CachedTokens::default() });
        assert_eq!(cached.total(), answer.cached_tokens());
        assert_eq!(answer.tokens, expected);
        assert_ne!(
            answer.tokens,
            cold(&[ask(&cut, 12)]).await[0],
            "moved state gives the same response as computed state, so the test proves nothing"
        );
        stop(engine).await;
    }
}

#[tokio::test]
async fn requests_that_start_together_use_the_same_moved_state() {
    let (whole, cut) = conversation();
    for config in kinds(&slots(3)) {
        let expected = moved_by_hand(&config);
        let (engine, _updates) = start(config);
        ask(&whole, 1).answer(&engine).await;
        // They arrive during a step of this one.
        let busy = ask(&tokens(5, 30), 400).submit(&engine).unwrap();
        let together = [(); 2].map(|()| reusing(&cut, 12).submit(&engine).unwrap());
        for running in together {
            assert_eq!(running.answer().await.tokens, expected);
        }
        drop(busy);
        stop(engine).await;
    }
}

#[tokio::test]
async fn a_conversation_keeps_its_moved_state_from_turn_to_turn() {
    let (whole, cut) = conversation();
    let (engine, _updates) = start(slots(2));
    ask(&whole, 1).answer(&engine).await;
    let answer = reusing(&cut, 8).answer(&engine).await;
    let longer = [&cut[..], &answer.tokens, &tokens(3, 10)].concat();
    let cached = reusing(&longer, 8).answer(&engine).await.started.unwrap().cached;
    assert_eq!((cached.resident, cached.shifted), (60, 160 + 20 + 7));
    stop(engine).await;
}

#[tokio::test]
async fn an_ordinary_request_never_sees_moved_state() {
    let (whole, cut) = conversation();
    let folder = tempfile::tempdir().unwrap();
    let disk = Some(DiskConfig { dir: folder.path().to_owned(), bytes: 64 << 20 });
    let config = EngineConfig { store: StoreConfig { disk, ..StoreConfig::default() }, ..slots(2) };
    for config in kinds(&config) {
        let (engine, _updates) = start(config.clone());
        ask(&whole, 1).answer(&engine).await;
        let moved = reusing(&cut, 40).answer(&engine).await;
        let longer = [&cut[..], &moved.tokens].concat();
        let asks = [ask(&cut, 12), ask(&longer, 12), ask(&cut[..180], 12)];
        let expected = cold(&asks).await;
        // An ordinary request starts while the moved state runs again, in another slot and in its own.
        let running = reusing(&cut, 200).submit(&engine).unwrap();
        for (ask, expected) in asks.iter().zip(&expected) {
            assert_eq!(&ask.answer(&engine).await.tokens, expected);
        }
        running.answer().await;
        for (ask, expected) in asks.iter().zip(&expected) {
            assert_eq!(&ask.answer(&engine).await.tokens, expected);
        }
        reusing(&cut, 40).answer(&engine).await;
        stop(engine).await;
        let (engine, _updates) = start(config);
        for (ask, expected) in asks.iter().zip(&expected) {
            assert_eq!(&ask.answer(&engine).await.tokens, expected, "after a restart");
        }
        stop(engine).await;
    }
}

#[tokio::test]
async fn moving_state_leaves_sequences_that_share_its_cells_unchanged() {
    let (whole, cut) = conversation();
    for config in kinds(&slots(2)) {
        let (engine, _updates) = start(config);
        ask(&whole, 1).answer(&engine).await;
        // One slot continues from the whole state; the other copies it and then moves a part of the copy.
        let neighbour = ask(&[&whole[..], &tokens(4, 5)].concat(), 150);
        let mut running = neighbour.submit(&engine).unwrap();
        running.tokens(2).await;
        ask(&[&whole[..], &tokens(5, 5)].concat(), 1).answer(&engine).await;
        let answer = reusing(&cut, 10).answer(&engine).await;
        assert_eq!(answer.started.unwrap().cached.shifted, 160);
        assert!(running.so_far().finished.is_none(), "the neighbour has ended, so the test proves nothing");
        assert_eq!(running.answer().await.tokens, cold(&[neighbour]).await[0]);
        stop(engine).await;
    }
}

#[tokio::test]
async fn an_answer_outgrows_its_context_as_with_llama_cpp_s_own_calls() {
    let prompt = tokens(1, 100);
    for (n_keep, n_discard) in [(0, None), (100, None), (30, Some(50))] {
        let request =
            Ask { shifts: ShiftOptions { n_keep, n_discard, ..ShiftOptions::default() }, ..ask(&prompt, 640) };
        for config in kinds(&shifting(2)) {
            let mut by_hand = ByHand::new(&config);
            by_hand.compute(&prompt);
            let expected = by_hand.endless_answer(640, (CONTEXT, n_keep, n_discard));
            let (engine, _updates) = start(config);
            let answer = request.answer(&engine).await;
            let n_before = (CONTEXT - 100) as usize + 1;
            assert_eq!(answer.tokens[..n_before], cold(&[ask(&prompt, n_before as u32)]).await[0][..]);
            assert_eq!(answer.tokens, expected, "n_keep {n_keep}");
            assert_eq!((answer.tokens.len(), answer.finished().truncated), (640, true));
            assert!(engine.counters().context_shifts > 0);
            let later = ask(&[&prompt[..], &answer.tokens[..300]].concat(), 10);
            assert_eq!(later.answer(&engine).await.tokens, cold(&[later]).await[0]);
            stop(engine).await;
        }
    }
}

#[tokio::test]
async fn an_answer_that_outgrows_its_context_does_not_change_others() {
    for config in kinds(&shifting(2)) {
        let (engine, _updates) = start(config);
        let prompt = tokens(1, 100);
        ask(&prompt, 1).answer(&engine).await;
        let neighbour = ask(&[&prompt[..], &tokens(2, 7)].concat(), 400);
        let running = neighbour.submit(&engine).unwrap();
        let long = ask(&[&prompt[..], &tokens(3, 7)].concat(), 900).submit(&engine).unwrap();
        let running = running.answer().await;
        assert_eq!(long.answer().await.tokens.len(), 900);
        assert_eq!(running.tokens, cold(&[neighbour]).await[0]);
        stop(engine).await;
    }
}

#[tokio::test]
async fn an_answer_ends_with_its_context_unless_it_may_outgrow_it() {
    let (engine, _updates) = start(slots(1));
    let answer = ask(&tokens(1, 500), 100).answer(&engine).await;
    assert_eq!((answer.tokens.len(), answer.finished().reason), (13, FinishReason::Length));
    assert!(answer.finished().truncated);
    assert!(!ask(&tokens(1, 400), 100).answer(&engine).await.finished().truncated);
    stop(engine).await;
    let (engine, _updates) = start(EngineConfig { context_tokens_total: 256, ..shifting(1) });
    let mut unasked = ask(&tokens(1, 250), 0);
    unasked.generation.max_tokens = None;
    let answer = unasked.answer(&engine).await;
    assert_eq!(answer.tokens.len(), engine.facts().n_ctx_train as usize, "the response ended otherwise");
    assert_eq!(answer.finished().reason, FinishReason::Length);
    let too_long = ask(&tokens(1, 256), 1).submit(&engine).err();
    assert!(matches!(too_long, Some(EngineError::InvalidPrompt(_))), "{too_long:?}");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn ordinary_answers_stay_right_among_shifted_ones() {
    for (seed, config) in (1..).zip(kinds(&shifting(3))) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (warm, _updates) = start(config.clone());
        let (fresh, _fresh_updates) = start(EngineConfig {
            prefix_cache: PrefixCache::Disabled,
            ..EngineConfig { n_slots: 1, context_tokens_total: CONTEXT, ..config }
        });
        let mut texts = [tokens(7, 200), tokens(8, 260)];
        for _ in 0..16 {
            let mut wave = Vec::new();
            for _ in 0..3 {
                let idx = rng.random_range(0..texts.len());
                let text = &mut texts[idx];
                let (start, n) = (rng.random_range(1..text.len() / 2), rng.random_range(0..90));
                let end = (start + n).min(text.len() - 1);
                let n_new = if rng.random_bool(0.5) { rng.random_range(1..60) } else { 0 };
                text.splice(start..end, tokens(rng.random_range(0..1000), n_new));
                text.extend(tokens(rng.random_range(0..1000), rng.random_range(1..60)));
                text.truncate(430);
                let is_shifted = rng.random_bool(0.5);
                let max_tokens = if is_shifted { rng.random_range(1..250) } else { rng.random_range(1..20) };
                let request = if is_shifted { reusing(text, max_tokens) } else { ask(text, max_tokens) };
                wave.push((idx, is_shifted, request.submit(&warm).unwrap(), request));
            }
            for (idx, is_shifted, answering, request) in wave {
                let answer: Answer = answering.answer().await;
                if !is_shifted {
                    assert_eq!(answer.tokens, request.answer(&fresh).await.tokens, "{seed}: {request:?}");
                }
                texts[idx] = [&request.prompt[..], &answer.tokens].concat();
                texts[idx].truncate(430);
            }
        }
        let counted = warm.counters();
        assert!(counted.shifted_tokens > 500 && counted.context_shifts > 2, "{counted:?}");
        assert_eq!((counted.failed, counted.failed_starts), (0, 0));
        stop(warm).await;
        stop(fresh).await;
    }
}

#[tokio::test]
async fn what_cannot_be_shifted_is_refused() {
    let f16 = CacheType::F16;
    for (preset, keys) in [
        (Preset::TinySwa, f16),
        (Preset::TinyRecurrent, f16),
        (Preset::TinyHybrid, f16),
        (Preset::Tiny, CacheType::Q8_0),
        (Preset::Tiny, CacheType::Bf16),
    ] {
        let plain = EngineConfig { cache_type_k: keys, n_slots: 1, context_tokens_total: 512, ..config(preset) };
        let (engine, _updates) = start(plain.clone());
        let refused = reusing(&tokens(1, 50), 1).submit(&engine).err();
        assert!(matches!(refused, Some(EngineError::Shift(_))), "{preset:?} {keys:?}: {refused:?}");
        let is_keys = engine.facts().shift_obstacle == Some(ShiftObstacle::Keys);
        assert_eq!(is_keys, preset == Preset::Tiny);
        let unwanted = ShiftOptions { cache_reuse_tokens: Some(0), ..ShiftOptions::default() };
        let answer = Ask { shifts: unwanted, ..ask(&tokens(1, 50), 3) }.answer(&engine).await;
        assert_eq!(answer.tokens.len(), 3);
        stop(engine).await;
        for shifts in [
            ShiftConfig { cache_reuse_tokens: 32, ..ShiftConfig::default() },
            ShiftConfig { at_context_end: AtContextEnd::Shift, ..ShiftConfig::default() },
        ] {
            let (sender, _updates) = mpsc::unbounded_channel();
            let refused = Engine::start(EngineConfig { shifts, ..plain.clone() }, |_| true, sender).err();
            assert!(matches!(refused, Some(StartError::Unsupported { .. })), "{preset:?} {keys:?}: {refused:?}");
        }
    }
}
