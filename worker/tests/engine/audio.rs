//! Audio in prompts: files are decoded as llama.cpp decodes them, and responses are those of its own evaluation.
//!
//! Not here: whichever part of audio is cached, which the random conversations in `images` have too; hostile WAV files
//! one by one (`warmpath-prompt`), HTTP (`tests/http/audio.rs`).

use llama_cpp_2::mtmd::{MtmdBitmap, MtmdContext};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_bench::model::projector::{FRAME_SAMPLES, Reads, SAMPLE_RATE};
use warmpath_bench::sounds::{audio_part, file_part, flac, mp3, sound, wav};
use warmpath_common::media::{AudioSize, LayoutPart, MediaSize};
use warmpath_common::model::Modalities;
use warmpath_prompt::{MediaContent, MediaReader as _, PromptMaker};
use warmpath_worker::engine::EngineHandle;

use super::images::{answered_by_mtmd, asked, bitmap, image, prompt, prompts, seeing, text, user, with_mtmd};
use super::support::{Ask, start, stop};

/// Returns audio of this many tokens as llama.cpp has it.
fn of_sound(seed: u64, n_tokens: usize) -> MtmdBitmap {
    MtmdBitmap::from_audio_data(&sound(seed, n_tokens)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_about_audio_are_those_of_llama_cpp_s_own_evaluation() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    type Media = fn(&MtmdContext) -> Vec<MtmdBitmap>;
    let asks: [(Vec<Value>, Media); 3] = [
        (vec![audio_part(1, 30), text("What is said?")], |_| vec![of_sound(1, 30)]),
        (vec![text("Listen:"), audio_part(2, 8), audio_part(3, 100)], |_| vec![of_sound(2, 8), of_sound(3, 100)]),
        (vec![audio_part(1, 30), image(1), text("and"), audio_part(1, 30)], |_| {
            vec![of_sound(1, 30), bitmap(1), of_sound(1, 30)]
        }),
    ];
    for (parts, media) in asks {
        let prompt = prompt(&maker, &[user(&parts)]);
        let answer = asked(&prompt).answer(&engine).await;
        let (expected, n_tokens) = answered_by_mtmd((Preset::Tiny, Reads::Both), &prompt.text, &media);
        assert_eq!((answer.tokens, prompt.tokens.len()), (expected, n_tokens), "{}", prompt.text);
    }
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_sound_shows_in_the_answer() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    let mut answers = Vec::new();
    for seed in 0..8 {
        let prompt = prompt(&maker, &[user(&[audio_part(seed, 12), text(&"word ".repeat(40))])]);
        answers.push(asked(&prompt).answer(&engine).await.tokens);
    }
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), 8, "the model hears no difference, so the other tests would prove nothing");
    stop(engine).await;
}

/// Returns the samples of a file as they are read for a prompt.
fn samples(maker: &PromptMaker, file: &[u8], format: &str) -> Vec<f32> {
    match prompt(maker, &[user(&[file_part(file, format)])]).runs[0].medium.content().unwrap() {
        MediaContent::Samples(samples) => samples,
        MediaContent::Pixels(_) => panic!("it is audio"),
    }
}

/// Returns the samples of a file as llama.cpp decodes it.
fn decoded_by_mtmd(file: &[u8]) -> Vec<f32> {
    with_mtmd((Preset::Tiny, Reads::Both), |_, mtmd| {
        let bitmap = MtmdBitmap::from_buffer(mtmd, file, false).unwrap();
        bitmap.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    })
}

/// Returns a WAV with every sample of a telephone's encoding, by its number in the format.
fn telephone_wav(encoding: u16) -> Vec<u8> {
    let data: Vec<u8> = (0..=u8::MAX).cycle().take(36 * 256).collect();
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0".to_vec();
    file.extend([encoding.to_le_bytes(), 1_u16.to_le_bytes()].concat());
    file.extend([SAMPLE_RATE.to_le_bytes(), SAMPLE_RATE.to_le_bytes()].concat());
    file.extend([1_u16.to_le_bytes(), 8_u16.to_le_bytes()].concat());
    file.extend([&b"data"[..], &(data.len() as u32).to_le_bytes(), &data].concat());
    let n_bytes = (file.len() - 8) as u32;
    file[4..8].copy_from_slice(&n_bytes.to_le_bytes());
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn files_are_decoded_as_llama_cpp_decodes_them() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    let noise: Vec<f32> = (0..9000).map(|n: i32| f64::from(n * n).sin() as f32 * 0.9).collect();
    for (format, file) in [("wav", wav(&noise, SAMPLE_RATE)), ("flac", flac(&noise, SAMPLE_RATE))] {
        let read = samples(&maker, &file, format);
        assert!(read == decoded_by_mtmd(&file) && read.len() == noise.len(), "{format}");
    }
    for encoding in [6, 7] {
        let file = telephone_wav(encoding);
        let read = samples(&maker, &file, "wav");
        assert!(read == decoded_by_mtmd(&file) && read.len() == 36 * 256, "{encoding}");
    }
    let file = mp3(1, 40);
    let (read, expected) = (samples(&maker, &file, "mp3"), decoded_by_mtmd(&file));
    let loudest = expected.iter().fold(0.0_f32, |most, sample| most.max(sample.abs()));
    assert!(loudest > 1e-3, "silence would prove nothing: {loudest}");
    assert_eq!(read.len(), expected.len());
    let farthest = read.iter().zip(&expected).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(farthest < 1e-4 * loudest.max(1.0), "{farthest}");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn audio_of_another_sample_rate_is_resampled_as_in_llama_cpp() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    for rate in [8_000, 44_100, 48_000] {
        let file = wav(&sound(4, 60), rate);
        let prompt = prompt(&maker, &[user(&[text("Listen"), file_part(&file, "wav")])]);
        let answer = asked(&prompt).answer(&engine).await;
        let resampled = |mtmd: &MtmdContext| vec![MtmdBitmap::from_buffer(mtmd, &file, false).unwrap()];
        let (expected, n_tokens) = answered_by_mtmd((Preset::Tiny, Reads::Both), &prompt.text, &resampled);
        assert_eq!((answer.tokens, prompt.tokens.len()), (expected, n_tokens), "{rate}");
    }
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_second_question_encodes_no_audio_and_audio_elsewhere_reuses_its_embeddings() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    let mut talk = vec![user(&[audio_part(1, 880), text("What is said?")])];
    let first = prompt(&maker, &talk);
    asked(&first).answer(&engine).await;
    talk.extend([json!({"role": "assistant", "content": "Hello."}), user(&[text("By whom?")])]);
    let second = prompt(&maker, &talk);
    let cached = asked(&second).answer(&engine).await.cached_tokens();
    assert!(f64::from(cached) >= 0.97 * second.tokens.len() as f64, "{cached} of {}", second.tokens.len());
    let moved = prompt(&maker, &[user(&[text("Before the sound"), audio_part(1, 880)])]);
    assert!(asked(&moved).answer(&engine).await.cached_tokens() <= moved.runs[0].start);
    assert_eq!((engine.counters().encoded_audio, engine.counters().encoded_images), (1, 0));
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn prompts_share_no_state_after_audio_that_differs_by_a_sample() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    let first = sound(1, 20);
    let mut other = first.clone();
    other[20 * FRAME_SAMPLES - 1] = 0.25;
    let asks = [&first, &other].map(|samples| {
        let part = file_part(&wav(samples, SAMPLE_RATE), "wav");
        prompt(&maker, &[user(&[text("In this sound"), part, text("there is something else")])])
    });
    let run = &asks[0].runs[0];
    let n_common = asks[0].tokens.iter().zip(&asks[1].tokens).take_while(|(a, b)| a == b).count();
    assert_eq!((n_common, asks[0].tokens.len()), (run.start as usize, asks[1].tokens.len()));
    asked(&asks[0]).answer(&engine).await;
    assert_eq!(asked(&asks[1]).answer(&engine).await.cached_tokens(), run.start);
    assert_eq!(engine.counters().encoded_audio, 2);
    let salted = Ask { salt: 1, ..asked(&asks[0]) };
    assert_eq!(salted.answer(&engine).await.cached_tokens(), 0, "another tenant's audio is not reused");
    // The same samples in a FLAC file are the same audio.
    let part = file_part(&flac(&first, SAMPLE_RATE), "flac");
    let same = prompt(&maker, &[user(&[text("In this sound"), part, text("there is something else")])]);
    assert_eq!(same.tokens, asks[0].tokens);
    stop(engine).await;
}

/// Returns the number of tokens of audio's run; `None` if the model cannot read it.
fn n_run_tokens(engine: &EngineHandle, size: AudioSize) -> Option<u32> {
    let layout = engine.projector().unwrap().layout(MediaSize::Audio(size))?;
    let run = |part: &LayoutPart| match part {
        LayoutPart::Run(n_tokens) => Some(*n_tokens),
        LayoutPart::Text(_) => None,
    };
    layout.parts.iter().find_map(run)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn layouts_of_audio_have_as_many_tokens_as_its_length_needs() {
    let (engine, _updates) = start(seeing());
    let projector = engine.projector().unwrap();
    assert_eq!(projector.reading().modalities, Modalities { vision: true, audio: true });
    let frame = FRAME_SAMPLES as u32;
    let of = |n_samples: u32, sample_rate: u32| n_run_tokens(&engine, AudioSize { n_samples, sample_rate });
    assert_eq!(of(8 * frame, SAMPLE_RATE), Some(8));
    assert_eq!(of(8 * frame + 1, SAMPLE_RATE), Some(9));
    assert_eq!(of(19 * frame, 2 * SAMPLE_RATE), Some(10));
    assert_eq!(of(7 * frame, SAMPLE_RATE), None, "too few tokens to tell audio apart");
    assert_eq!(of(4096 * frame, SAMPLE_RATE), Some(4096));
    assert_eq!(of(4096 * frame + 1, SAMPLE_RATE), None, "too long for an encoder");
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn damaged_files_are_audio_or_refused() {
    let (engine, _updates) = start(seeing());
    let maker = prompts(&engine);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let noise: Vec<f32> = (0..6000).map(|n: i32| f64::from(n * n).sin() as f32 * 0.9).collect();
    let (mut n_read, mut n_refused) = (0, 0);
    for (format, whole) in [("wav", wav(&noise, SAMPLE_RATE)), ("flac", flac(&noise, SAMPLE_RATE)), ("mp3", mp3(2, 12))]
    {
        for _ in 0..400 {
            let mut file = whole.clone();
            for _ in 0..rng.random_range(1..6) {
                // Headers come first, and are what hurts.
                let end = if rng.random_bool(0.7) { 64 } else { file.len() };
                let at = rng.random_range(0..end.min(file.len()));
                file[at] = rng.random();
            }
            file.truncate(if rng.random_bool(0.3) { rng.random_range(0..file.len()) } else { file.len() });
            let message = user(&[file_part(&file, format)]);
            match maker.chat(&serde_json::from_value(json!({"messages": [message]})).unwrap()) {
                Ok(_) => n_read += 1,
                Err(_) => n_refused += 1,
            }
        }
    }
    assert!(n_read > 100 && n_refused > 300, "{n_read} {n_refused}");
    stop(engine).await;
}
