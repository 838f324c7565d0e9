//! State that is not finite: it ends the sequences that could read it, and no later response shows it.
//!
//! The models and the projector have NaN in one place, so that only prompts with one token or an image give such state.
//! Not here: embedding models (`tests/http/embeddings.rs`), failed computations, which cannot be provoked in llama.cpp.

use std::path::{Path, PathBuf};

use futures::future::join_all;
use warmpath_bench::model::Preset;
use warmpath_bench::model::projector::Reads;
use warmpath_common::ids::Token;
use warmpath_worker::engine::{EngineConfig, EngineError, PrefixCache, ProjectorConfig, Switch};

use super::draft_models::drafting;
use super::images::{asked, image, projector, prompt, prompts, seeing, text, user};
use super::support::{Answer, Ask, ask, config, model, start, stop, tokens};

/// Kinds of memory, with buffers that the slots share or do not.
const SETTINGS: [(Preset, Switch); 6] = [
    (Preset::Tiny, Switch::On),
    (Preset::Tiny, Switch::Off),
    (Preset::TinySwa, Switch::On),
    (Preset::TinyHybrid, Switch::On),
    (Preset::TinyHybrid, Switch::Off),
    (Preset::TinyRecurrent, Switch::Off),
];

/// Position of the broken token in a prompt.
const BROKEN_AT: usize = 150;

/// Writes a copy of a GGUF file with NaN at the start of a tensor's row.
fn with_nan(path: &Path, (tensor, row, n_rows): (&str, u64, u64), name: &str) -> PathBuf {
    let header = warmpath_gguf::check(path).unwrap();
    let tensor = header.tensors().iter().find(|other| other.name == tensor).unwrap();
    let at = (tensor.offset_bytes + row * (tensor.size_bytes / n_rows)) as usize;
    let mut file = std::fs::read(path).unwrap();
    // The upper half of these bytes is NaN as a 16-bit float, too.
    file[at..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let broken = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.gguf", std::process::id()));
    std::fs::write(&broken, file).unwrap();
    broken
}

/// Returns the last token of the vocabulary, which is in no response.
fn broken_token(preset: Preset) -> Token {
    let header = warmpath_gguf::check(&model(preset, 1)).unwrap();
    header.list_len("tokenizer.ggml.tokens").unwrap() as Token - 1
}

/// Returns a model that gives NaN for [`broken_token`] and for all that attends to it; each test has its own file.
fn broken_model(preset: Preset, test: &str) -> PathBuf {
    let token = u64::from(broken_token(preset));
    let row = ("token_embd.weight", token, token + 1);
    with_nan(&model(preset, 1), row, &format!("not-finite-{test}-{}", preset.name()))
}

fn slots(preset: Preset, kv_unified: Switch) -> EngineConfig {
    EngineConfig {
        n_slots: 3,
        context_tokens_total: 3 * 1024,
        batch_tokens: 64,
        ubatch_tokens: 32,
        kv_unified,
        ..config(preset)
    }
}

fn broken_prompt(preset: Preset) -> Vec<Token> {
    [tokens(1, BROKEN_AT), vec![broken_token(preset)], tokens(2, BROKEN_AT)].concat()
}

/// Returns requests without the broken token: short ones, and one that begins like the broken prompt.
fn intact_asks() -> Vec<Ask> {
    let prompts = [tokens(3, 20), tokens(4, 90), [tokens(1, BROKEN_AT), tokens(5, 30)].concat()];
    prompts.iter().map(|prompt| ask(prompt, 24)).collect()
}

fn is_faulty(answer: &Answer) -> bool {
    matches!(answer.failed, Some(EngineError::NotFinite))
}

fn has_lost_its_state(answer: &Answer) -> bool {
    matches!(answer.failed, Some(EngineError::Decode { .. }))
}

/// Returns the responses of the intact model without a cache.
async fn cold_answers(config: EngineConfig, asks: &[Ask]) -> Vec<Vec<Token>> {
    let (engine, _updates) = start(EngineConfig { prefix_cache: PrefixCache::Disabled, ..config });
    let mut answers = Vec::new();
    for ask in asks {
        answers.push(ask.answer(&engine).await.tokens);
    }
    stop(engine).await;
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_prompt_whose_state_is_not_finite_fails_and_changes_no_later_answer() {
    for (preset, kv_unified) in SETTINGS {
        let intact = slots(preset, kv_unified);
        let asks = intact_asks();
        let expected = cold_answers(intact.clone(), &asks).await;
        let (engine, _updates) = start(EngineConfig { model: broken_model(preset, "alone"), ..intact });
        for n_failures in 1..=3 {
            // The last of these requests wants only its prompt, whose state would be kept without a chosen token.
            let n_tokens = if n_failures == 3 { 0 } else { 24 };
            let failed = ask(&broken_prompt(preset), n_tokens).answer(&engine).await;
            assert!(is_faulty(&failed), "{preset:?} {kv_unified:?}: {failed:?}");
            assert!(failed.cached_tokens() as usize <= BROKEN_AT, "{preset:?} {kv_unified:?}: its state was kept");
            for (ask, expected) in asks.iter().zip(&expected) {
                assert_eq!(&ask.answer(&engine).await.tokens, expected, "{preset:?} {kv_unified:?}");
            }
            let counters = engine.counters();
            assert_eq!((counters.decode_failures, counters.failed), (n_failures, n_failures), "{counters:?}");
        }
        stop(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stream_beside_state_that_is_not_finite_fails_and_is_answered_when_it_is_sent_again() {
    for (preset, kv_unified) in SETTINGS {
        let intact = slots(preset, kv_unified);
        let asked = ask(&tokens(6, 40), 900);
        let expected = cold_answers(intact.clone(), std::slice::from_ref(&asked)).await.remove(0);
        let (engine, _updates) = start(EngineConfig { model: broken_model(preset, "beside"), ..intact });
        let mut stream = asked.submit(&engine).unwrap();
        stream.tokens(3).await;
        let faulty = ask(&broken_prompt(preset), 24).answer(&engine).await;
        assert!(is_faulty(&faulty), "{preset:?} {kv_unified:?}: {faulty:?}");
        let cut_off = stream.answer().await;
        assert!(has_lost_its_state(&cut_off), "{preset:?} {kv_unified:?}: {:?}", cut_off.finished);
        assert!(expected.starts_with(&cut_off.tokens), "{preset:?} {kv_unified:?}: a token came from wrong state");
        assert_eq!(asked.answer(&engine).await.tokens, expected, "{preset:?} {kv_unified:?}");
        stop(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_draft_model_whose_state_is_not_finite_for_one_sequence_goes_on_for_the_others() {
    let intact = EngineConfig { ubatch_tokens: 64, ..slots(Preset::Tiny, Switch::On) };
    // The draft model computes the prompts in few passes.
    let broken = [tokens(1, 20), vec![broken_token(Preset::Tiny)], tokens(2, 9)].concat();
    let asks = [ask(&broken, 60), ask(&tokens(7, 60), 60)];
    let expected = cold_answers(intact.clone(), &asks).await;
    let (engine, _updates) = start(drafting(&intact, broken_model(Preset::Tiny, "draft")));
    let found = join_all(asks.iter().map(|ask| ask.answer(&engine))).await;
    let found: Vec<_> = found.into_iter().map(|answer| answer.tokens).collect();
    assert_eq!(found, expected);
    let counters = engine.counters();
    assert_eq!((counters.draft_model_failures, counters.decode_failures), (1, 0), "{counters:?}");
    assert!(counters.made_tokens > 0, "the other sequence has drafts: {counters:?}");
    stop(engine).await;
}

#[tokio::test]
async fn an_image_whose_embeddings_are_not_finite_fails_its_request_alone() {
    let expected = cold_answers(config(Preset::Tiny), &intact_asks()).await;
    let path = with_nan(&projector(Preset::Tiny, Reads::Both), ("mm.2.bias", 0, 1), "not-finite-projector");
    let seeing = seeing();
    let projector = seeing.projector.clone().map(|projector| ProjectorConfig { path, ..projector });
    let (engine, _updates) = start(EngineConfig { projector, ..seeing });
    let seen = prompt(&prompts(&engine), &[user(&[text("What is this?"), image(1)])]);
    let failed = asked(&seen).answer(&engine).await;
    assert!(matches!(failed.failed, Some(EngineError::Encode(_))), "{failed:?}");
    for (ask, expected) in intact_asks().iter().zip(&expected) {
        assert_eq!(&ask.answer(&engine).await.tokens, expected);
    }
    assert_eq!(engine.counters().decode_failures, 0);
    stop(engine).await;
}
