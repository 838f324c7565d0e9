//! Made models in llama.cpp.
#![allow(missing_docs)]

use std::path::Path;
use std::sync::OnceLock;

use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use warmpath_bench::model::cache::cached_model;
use warmpath_bench::model::stability::{Cells, OTHERS, PLAIN, Prober, compare};
use warmpath_bench::model::{Oracle, Preset};

fn backend() -> &'static LlamaBackend {
    static BACKEND: OnceLock<LlamaBackend> = OnceLock::new();
    BACKEND.get_or_init(|| {
        let mut backend = LlamaBackend::init().unwrap();
        if std::env::var_os("LOG").is_none() {
            backend.void_logs();
        }
        backend
    })
}

fn load(preset: Preset, seed: u64) -> LlamaModel {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/models");
    let path = cached_model(preset, seed, &folder).unwrap();
    LlamaModel::load_from_file(backend(), path, &LlamaModelParams::default()).unwrap()
}

fn prompt(n: usize, seed: u32, n_vocab: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 7) % n_vocab)
        .collect()
}

fn check(preset: Preset, lengths: &[usize], n: usize) {
    let model = load(preset, 1);
    let prober = Prober { backend: backend(), model: &model };
    let oracle = Oracle::new(preset, 1).unwrap();
    let n_vocab = model.n_vocab() as u32;
    let prompts: Vec<_> = lengths.iter().zip(0..).map(|(&n, i)| prompt(n, i, n_vocab)).collect();
    let mut plain = Vec::new();
    for prompt in &prompts {
        let answer = prober.answer(PLAIN, prompt, n).unwrap();
        let expected = oracle.answer(prompt, n);
        let same = answer.tokens.iter().zip(&expected).filter(|(a, b)| a == b).count();
        println!(
            "{preset:?} prompt {}: {same} of {n} as the oracle says; margin {:?} {:?}",
            prompt.len(),
            answer.margins().into_iter().fold(f32::MAX, f32::min),
            &answer.tokens[..6]
        );
        plain.push(answer);
    }
    for setting in OTHERS {
        if setting.cells == Cells::Shared && (model.is_recurrent() || model.is_hybrid()) {
            continue;
        }
        let other: Vec<_> = prompts
            .iter()
            .zip(&plain)
            .map(|(prompt, answer)| prober.forced(setting, prompt, &answer.tokens).unwrap())
            .collect();
        println!("{:?}", compare(setting.name, &plain, &other));
    }
}

#[test]
fn tiny() {
    check(Preset::Tiny, &[1, 2, 5, 40, 300, 1500], 32);
}

#[test]
fn swa() {
    check(Preset::TinySwa, &[1, 2, 5, 40, 300, 1500], 32);
}

#[test]
fn hybrid() {
    check(Preset::TinyHybrid, &[1, 2, 5, 40, 300, 1500], 32);
}

#[test]
fn recurrent() {
    check(Preset::TinyRecurrent, &[1, 2, 5, 40, 300, 1500], 32);
}

#[test]
fn bench() {
    check(Preset::Bench, &[1, 5, 150], 8);
}
