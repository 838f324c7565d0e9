//! Images in prompts: responses are those of llama.cpp's own evaluation, whichever part of an image is cached, in
//! whichever tier. The random conversations have audio as well.
//!
//! The generated projector makes embeddings that the generated model can hash, so a missing, wrong or misplaced image
//! token changes the response. Not here: reading images (`warmpath-prompt`), HTTP (`tests/http/images.rs`), audio alone
//! (`audio`).

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::mtmd::{MtmdBitmap, MtmdContext, MtmdContextParams, MtmdInputText};
use llama_cpp_2::token::LlamaToken;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_bench::model::cache::cached_projector;
use warmpath_bench::model::projector::{IMAGE_TOKENS, Reads};
use warmpath_bench::pictures::{data_url, picture};
use warmpath_bench::sounds::{audio_part, sound};
use warmpath_common::ids::Token;
use warmpath_common::media::MEDIA_TOKEN_MIN;
use warmpath_common::prompts::{MediaPrompt, RawPrompt};
use warmpath_prompt::{MediaReader as _, Prompt, PromptMaker, PromptOptions, Scope};
use warmpath_worker::engine::{
    AtContextEnd, CacheType, CostSource, Engine, EngineConfig, EngineError, EngineHandle, PrefixCache, ProjectorConfig,
    ProjectorNeed, PromptFault, SpeculationConfig, Switch,
};

use super::support::{Ask, ask, config, model, start, stop, until};
use super::tiers::store;

/// Number of tokens of most responses.
pub(super) const N_ANSWER: u32 = 12;

pub(super) fn projector(preset: Preset, reads: Reads) -> PathBuf {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models"));
    cached_projector(preset, 1, reads, folder).unwrap()
}

/// Returns an engine's configuration with a projector of images and audio.
pub(super) fn seeing() -> EngineConfig {
    let projector = ProjectorConfig {
        path: projector(Preset::Tiny, Reads::Both),
        need: ProjectorNeed::Required,
        offload: false,
        min_tokens: None,
        max_tokens: None,
    };
    EngineConfig {
        projector: Some(projector),
        n_slots: 2,
        context_tokens_total: 2 * 1024,
        // If computing seemed cheap for a moment, the engine would not restore state.
        costs: CostSource::Assumed,
        ..config(Preset::Tiny)
    }
}

/// Returns the prompt maker for an engine that reads images and audio.
pub(super) fn prompts(engine: &EngineHandle) -> PromptMaker {
    let maker = PromptMaker::open(&model(Preset::Tiny, 1), PromptOptions::default()).unwrap();
    maker.with_media(Arc::clone(engine.projector().unwrap()) as Arc<_>)
}

pub(super) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Returns a message part with the image of a seed.
pub(super) fn image(seed: u64) -> Value {
    json!({"type": "image_url", "image_url": {"url": data_url(&picture(seed, 64, 48))}})
}

pub(super) fn user(parts: &[Value]) -> Value {
    json!({"role": "user", "content": parts})
}

pub(super) fn prompt(maker: &PromptMaker, messages: &[Value]) -> Prompt {
    maker.chat(&serde_json::from_value(json!({"messages": messages})).unwrap()).unwrap()
}

pub(super) fn asked(prompt: &Prompt) -> Ask {
    Ask { runs: prompt.runs.clone(), ..ask(&prompt.tokens, N_ANSWER) }
}

/// Returns the response of llama.cpp's own multimodal library to a prompt with these images, and the number of the
/// prompt's tokens.
fn by_mtmd(text: &str, seeds: &[u64]) -> (Vec<Token>, usize) {
    answered_by_mtmd((Preset::Tiny, Reads::Both), text, &|_| seeds.iter().map(|seed| bitmap(*seed)).collect())
}

/// Returns an image as llama.cpp has it.
pub(super) fn bitmap(seed: u64) -> MtmdBitmap {
    let picture = picture(seed, 64, 48);
    MtmdBitmap::from_image_data(picture.width(), picture.height(), &picture).unwrap()
}

/// Calls a function with a generated model and llama.cpp's reader of media for it.
pub(super) fn with_mtmd<T>(
    (preset, reads): (Preset, Reads),
    call: impl FnOnce(&LlamaModel, &mut MtmdContext) -> T,
) -> T {
    let backend = warmpath_prompt::backend();
    let model = LlamaModel::load_from_file(backend, model(preset, 1), &LlamaModelParams::default()).unwrap();
    let params = MtmdContextParams { use_gpu: false, print_timings: false, n_threads: 1, ..Default::default() };
    let mut mtmd = MtmdContext::init_from_file(projector(preset, reads).to_str().unwrap(), &model, &params).unwrap();
    call(&model, &mut mtmd)
}

/// Returns the response of llama.cpp's own multimodal library to a prompt, and the number of the prompt's tokens.
pub(super) fn answered_by_mtmd(
    pair: (Preset, Reads),
    text: &str,
    media: &dyn Fn(&MtmdContext) -> Vec<MtmdBitmap>,
) -> (Vec<Token>, usize) {
    with_mtmd(pair, |model, mtmd| answered(text, &media(mtmd), (model, mtmd)))
}

fn answered(text: &str, bitmaps: &[MtmdBitmap], (model, mtmd): (&LlamaModel, &mut MtmdContext)) -> (Vec<Token>, usize) {
    let params = LlamaContextParams::default().with_n_ctx(NonZeroU32::new(2048)).with_n_threads(1);
    let params = params.with_type_k(KvCacheType::F32).with_type_v(KvCacheType::F32);
    let mut context = model.new_context(warmpath_prompt::backend(), params.with_n_threads_batch(1)).unwrap();
    let input = MtmdInputText { text: text.to_owned(), add_special: true, parse_special: true };
    let chunks = mtmd.tokenize(input, &bitmaps.iter().collect::<Vec<_>>()).unwrap();
    let n_tokens = chunks.total_tokens();
    let mut position = chunks.eval_chunks(mtmd, &mut context, 0, 0, 512, true).unwrap();
    let mut answer = Vec::new();
    let mut idx = -1;
    for _ in 0..N_ANSWER {
        let logits = context.get_logits_ith(idx).iter().enumerate();
        // Generation continues past its end, as in the tests' requests.
        let best = logits.filter(|(id, _)| !model.vocab().is_eog(LlamaToken(*id as i32)));
        let (best, _) = best.max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap();
        answer.push(best as Token);
        let mut batch = LlamaBatch::new(1, 1);
        batch.add(LlamaToken(best as i32), position, &[0], true).unwrap();
        context.decode(&mut batch).unwrap();
        (position, idx) = (position + 1, 0);
    }
    (answer, n_tokens)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_are_those_of_llama_cpp_s_own_evaluation() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    for (parts, seeds) in [
        (vec![image(1), text("What is this?")], vec![1]),
        (vec![text("Look at this:"), image(2), text("What is it?")], vec![2]),
        (vec![text("Compare"), image(3), image(4), text("and"), image(3)], vec![3, 4, 3]),
    ] {
        let prompt = prompt(&maker, &[user(&parts)]);
        assert_eq!(prompt.text.matches("<__media__>").count(), seeds.len());
        let answer = asked(&prompt).answer(&engine).await;
        let (expected, n_tokens) = by_mtmd(&prompt.text, &seeds);
        assert_eq!((answer.tokens, prompt.tokens.len()), (expected, n_tokens), "{}", prompt.text);
        assert_eq!(prompt.runs.iter().map(|run| run.n_tokens as usize).sum::<usize>(), seeds.len() * IMAGE_TOKENS);
    }
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn raw_prompts_with_images_are_those_of_llama_cpp_too() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    for (text, seeds) in [
        ("<__media__>?", vec![1]),
        ("What is this: <__media__>\n", vec![2]),
        ("<|im_start|>user\nA<__media__><__media__> B <|im_end|><__media__> end", vec![3, 4, 3]),
    ] {
        let file = |seed: &u64| data_url(&picture(*seed, 64, 48)).split_once(";base64,").unwrap().1.to_owned();
        let media = MediaPrompt { text: text.to_owned(), media: seeds.iter().map(file).collect() };
        let made = maker.raw(&RawPrompt::Media(media), 2048, Scope::default()).unwrap().whole().unwrap();
        let asked = Ask { runs: made.runs.clone(), ..ask(&made.tokens, N_ANSWER) };
        let answer = asked.answer(&engine).await;
        let (expected, n_tokens) = by_mtmd(text, &seeds);
        assert_eq!((answer.tokens, made.tokens.len()), (expected, n_tokens), "{text}");
    }
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_image_shows_in_the_answer() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    let mut answers = Vec::new();
    for seed in 0..8 {
        let prompt = prompt(&maker, &[user(&[image(seed), text(&"word ".repeat(40))])]);
        answers.push(asked(&prompt).answer(&engine).await.tokens);
    }
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), 8, "the model sees no difference, so the other tests would prove nothing");
    stop(engine).await;
}

/// Conversations with images and audio, each a list of messages.
struct Talks {
    has_audio: bool,
    rng: ChaCha8Rng,
    talks: Vec<Vec<Value>>,
}

impl Talks {
    /// Adds a message to a conversation, or begins another; returns the prompt.
    fn go_on(&mut self, maker: &PromptMaker) -> Prompt {
        let nth = match self.talks.len() {
            n if n < 5 && (n < 2 || self.rng.random_bool(0.3)) => {
                self.talks.push(Vec::new());
                n
            }
            n => self.rng.random_range(0..n),
        };
        if self.talks[nth].len() > 5 {
            self.talks[nth].truncate(1);
        }
        let mut parts = Vec::new();
        for _ in 0..self.rng.random_range(1..3) {
            if self.rng.random_bool(0.6) {
                // There are few, so that conversations share some.
                let seed = self.rng.random_range(0..4);
                parts.push(if self.rng.random_bool(0.5) || !self.has_audio {
                    image(seed)
                } else {
                    audio_part(seed, 9 + 8 * seed as usize)
                });
            }
            parts.push(text(&"some words ".repeat(self.rng.random_range(1..12))));
        }
        self.talks[nth].push(user(&parts));
        let prompt = prompt(maker, &self.talks[nth]);
        if self.rng.random_bool(0.5) {
            self.talks[nth].push(json!({"role": "assistant", "content": "seen"}));
        } else {
            self.talks[nth].pop();
        }
        prompt
    }
}

/// Compares the responses in random conversations with those of an engine without a cache; returns the numbers of
/// tokens that were reused from memory and from disk, and the number of encoded images and audio files.
pub(super) async fn compare(seed: u64, n_waves: usize, change: impl Fn(&mut EngineConfig)) -> (u64, u64, u64) {
    let mut warm = seeing();
    change(&mut warm);
    let cold = EngineConfig { prefix_cache: PrefixCache::Disabled, speculation: None, ..warm.clone() };
    let (warm, _updates) = start(warm);
    let (cold, _cold_updates) = start(cold);
    let maker = prompts(&warm);
    let has_audio = warm.projector().unwrap().reading().modalities.audio;
    let mut talks = Talks { has_audio, rng: ChaCha8Rng::seed_from_u64(seed), talks: Vec::new() };
    let mut n_cached = 0;
    for _ in 0..n_waves {
        let n_asks = talks.rng.random_range(1..=4);
        let wave: Vec<Prompt> = (0..n_asks).map(|_| talks.go_on(&maker)).collect();
        let mut answering = Vec::new();
        for prompt in &wave {
            let mut ask = asked(prompt);
            ask.generation.sampling.repeat_penalty = if talks.rng.random_bool(0.3) { 1.3 } else { 1.0 };
            let answer = ask.submit(&warm).unwrap();
            answering.push((ask, answer));
        }
        for (prompt, (ask, answer)) in wave.iter().zip(answering) {
            let answer = answer.answer().await;
            let expected = ask.answer(&cold).await;
            assert_eq!(answer.tokens, expected.tokens, "{seed}: {}", prompt.text);
            assert_eq!(expected.cached_tokens(), 0);
            let resumed = answer.cached_tokens();
            assert!(!prompt.runs.iter().any(|run| run.start < resumed && resumed < run.end()), "within a medium");
            n_cached += resumed;
        }
    }
    until("the engine is idle", || warm.counters().busy_slots == 0).await;
    let counters = warm.counters();
    assert_eq!((counters.failed, counters.decode_failures, counters.failed_starts), (0, 0, 0));
    assert!(n_cached > 500, "only {n_cached} tokens were reused");
    stop(warm).await;
    stop(cold).await;
    (counters.cached_ram_tokens, counters.cached_disk_tokens, counters.encoded_images + counters.encoded_audio)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_whichever_part_of_an_image_a_slot_has() {
    compare(1, 20, |_| {}).await;
    let (.., n_encoded) = compare(2, 20, |config| {
        config.kv_unified = Switch::On;
        config.flash_attn = Switch::On;
        config.batch_tokens = 40;
        config.ubatch_tokens = 16;
    })
    .await;
    assert_eq!(n_encoded, 8, "each image and each audio is encoded once");
    compare(3, 16, |config| config.speculation = Some(SpeculationConfig::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_where_images_are_restored_from_memory_and_disk() {
    let (ram, ..) = compare(4, 24, |config| {
        config.store = store(2 << 20, None);
        // Chunks end within images.
        config.block_size_tokens = 24;
    })
    .await;
    assert!(ram > 0);
    let folder = tempfile::tempdir().unwrap();
    let (_, disk, _) = compare(5, 24, |config| {
        (config.kv_unified, config.flash_attn) = (Switch::On, Switch::On);
        (config.cache_type_k, config.cache_type_v) = (CacheType::Q8_0, CacheType::Q8_0);
        config.store = store(300 << 10, Some(&folder));
    })
    .await;
    assert!(disk > 0);
}

/// Sets the model of a preset, with its projector.
fn set_model(config: &mut EngineConfig, preset: Preset) {
    config.model = model(preset, 1);
    config.projector =
        config.projector.take().map(|set| ProjectorConfig { path: projector(preset, Reads::Both), ..set });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_the_same_with_media_where_state_resumes_at_checkpoints() {
    for (seed, preset) in [(6, Preset::TinySwa), (7, Preset::TinyHybrid)] {
        let (ram, ..) = compare(seed, 24, |config| {
            set_model(config, preset);
            config.store = store(8 << 20, None);
            // Checkpoints are due within media.
            config.block_size_tokens = 24;
        })
        .await;
        assert!(ram > 0, "{preset:?}");
        let mut config = seeing();
        set_model(&mut config, preset);
        let (engine, _updates) = start(config);
        let prompt = prompt(&prompts(&engine), &[user(&[image(1), audio_part(2, 20), text("and"), image(3)])]);
        let answer = asked(&prompt).answer(&engine).await;
        let sound = |seed| MtmdBitmap::from_audio_data(&sound(seed, 20)).unwrap();
        let media = |_: &MtmdContext| vec![bitmap(1), sound(2), bitmap(3)];
        let expected = answered_by_mtmd((preset, Reads::Both), &prompt.text, &media);
        assert_eq!((answer.tokens, prompt.tokens.len()), expected, "{preset:?}");
        stop(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn prompts_share_no_state_after_images_that_differ_by_a_byte() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    let first = picture(1, 64, 48);
    let mut other = first.clone();
    other.get_pixel_mut(63, 47).0[2] ^= 1;
    let of = |picture| json!({"type": "image_url", "image_url": {"url": data_url(picture)}});
    let asks = [&first, &other].map(|picture| {
        prompt(&maker, &[user(&[text("In this picture"), of(picture), text("there is something else")])])
    });
    assert_eq!(asks[0].tokens.len(), asks[1].tokens.len());
    let run = &asks[0].runs[0];
    let n_common = asks[0].tokens.iter().zip(&asks[1].tokens).take_while(|(a, b)| a == b).count();
    assert_eq!(n_common, run.start as usize);
    asked(&asks[0]).answer(&engine).await;
    assert_eq!(asked(&asks[1]).answer(&engine).await.cached_tokens(), run.start);
    assert_eq!(engine.counters().encoded_images, 2);
    let salted = Ask { salt: 1, ..asked(&asks[0]) };
    assert_eq!(salted.answer(&engine).await.cached_tokens(), 0, "another tenant's image is not reused");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_second_question_encodes_no_image_and_an_image_elsewhere_reuses_its_embeddings() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    let mut talk = vec![user(&[image(1), text("What is this?")])];
    let first = prompt(&maker, &talk);
    asked(&first).answer(&engine).await;
    talk.extend([json!({"role": "assistant", "content": "A cat."}), user(&[text("And its colour?")])]);
    let second = asked(&prompt(&maker, &talk)).answer(&engine).await;
    assert!(second.cached_tokens() >= first.runs[0].end());
    assert_eq!(engine.counters().encoded_images, 1);
    // At another position, the image has another state and the same embeddings.
    let moved = prompt(&maker, &[user(&[text("Before the picture"), image(1)])]);
    assert!(asked(&moved).answer(&engine).await.cached_tokens() <= moved.runs[0].start);
    assert_eq!(engine.counters().encoded_images, 1);
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_prompt_that_was_abandoned_within_an_image_is_resumed_before_it() {
    let (engine, _updates) = start(EngineConfig { batch_tokens: 16, ubatch_tokens: 8, ..seeing() });
    let maker = prompts(&engine);
    let long = prompt(&maker, &[user(&[text("Look"), image(1), image(2), text("twice")])]);
    let expected = asked(&long).answer(&engine).await.tokens;
    for n_steps in 1..12 {
        let other = Ask { salt: n_steps as u8, ..asked(&long) };
        let before = engine.counters().prefill_tokens;
        let leaving = other.submit(&engine).unwrap();
        until("the prompt is being computed", || engine.counters().prefill_tokens >= before + 8 * n_steps).await;
        drop(leaving);
        until("its slot is free", || engine.counters().busy_slots == 0).await;
        let answer = other.answer(&engine).await;
        assert_eq!(answer.tokens, expected, "{n_steps}");
        let resumed = answer.cached_tokens();
        assert!(!long.runs.iter().any(|run| run.start < resumed && resumed < run.end()), "{resumed}");
    }
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_image_never_takes_more_than_a_micro_batch_from_a_running_stream() {
    let (engine, _updates) = start(EngineConfig { batch_tokens: 64, ubatch_tokens: 16, ..seeing() });
    let maker = prompts(&engine);
    let stream = Ask { generation: ask(&[1], 400).generation, ..asked(&prompt(&maker, &[user(&[text("Go on")])])) };
    let mut stream = stream.submit(&engine).unwrap();
    stream.tokens(1).await;
    for seed in 0..3 {
        let prompt = prompt(&maker, &[user(&[image(seed), text("and also this one:"), image(seed + 10), text("?")])]);
        asked(&prompt).answer(&engine).await;
    }
    assert!(engine.counters().passed_tokens_max <= 16, "{}", engine.counters().passed_tokens_max);
    drop(stream);
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn clients_that_disconnect_while_their_image_is_encoded_free_their_slots() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    for seed in 0..6 {
        drop(asked(&prompt(&maker, &[user(&[image(seed), text("gone")])])).submit(&engine).unwrap());
    }
    until("the engine is idle", || (engine.counters().busy_slots, engine.counters().queued) == (0, 0)).await;
    let prompt = prompt(&maker, &[user(&[image(7), text("What is this?")])]);
    assert_eq!(asked(&prompt).answer(&engine).await.tokens, by_mtmd(&prompt.text, &[7]).0);
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_prompt_may_end_with_an_image() {
    let (engine, _updates) = start(seeing());
    let mut prompt = prompt(&prompts(&engine), &[user(&[text("Look"), image(1)])]);
    prompt.tokens.truncate(prompt.runs[0].end() as usize);
    let first = asked(&prompt).answer(&engine).await;
    assert_eq!(first.tokens.len(), N_ANSWER as usize);
    let again = asked(&prompt).answer(&engine).await;
    assert_eq!((again.tokens, again.started.unwrap().cached_tokens()), (first.tokens, prompt.runs[0].start));
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn image_tokens_without_an_image_are_unknown_tokens() {
    let (engine, _updates) = start(seeing());
    let image_token = ask(&[1, MEDIA_TOKEN_MIN + 5, 2], 1);
    let refused = image_token.submit(&engine).err();
    let is_unknown = |error: &EngineError| matches!(error, EngineError::InvalidPrompt(PromptFault::UnknownToken { token, .. }) if *token > MEDIA_TOKEN_MIN);
    assert!(refused.as_ref().is_some_and(is_unknown), "{refused:?}");
    stop(engine).await;
}

#[track_caller]
pub(super) fn check_refused(config: EngineConfig, says: &str) {
    let (sender, _updates) = tokio::sync::mpsc::unbounded_channel();
    match Engine::start(config, |_| true, sender) {
        Err(error) => assert!(error.to_string().contains(says), "{error}"),
        Ok(_) => panic!("the engine starts although: {says}"),
    }
}

#[test]
fn projectors_that_cannot_be_used_are_refused_by_name() {
    let with = |path: PathBuf| {
        let config = seeing();
        EngineConfig { projector: config.projector.clone().map(|one| ProjectorConfig { path, ..one }), ..config }
    };
    check_refused(with("/nowhere/projector.gguf".into()), "cannot load the projector /nowhere/projector.gguf");
    check_refused(with(model(Preset::Tiny, 1)), "it holds no projector");
    check_refused(EngineConfig { model: model(Preset::TinyRecurrent, 1), ..seeing() }, "a model with attention");
    check_refused(EngineConfig { model: model(Preset::TinyMrope, 1), ..seeing() }, "M-RoPE, as of Qwen-VL");
    check_refused(EngineConfig { model: model(Preset::Bench, 1), ..seeing() }, "llama.cpp refuses it for this model");
    let mut shifting = seeing();
    shifting.shifts.at_context_end = AtContextEnd::Shift;
    check_refused(shifting, "a model that reads images or audio cannot be shifted");
}
