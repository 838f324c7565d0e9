//! Models that are split over several files: they load, and their identity depends on every file.
//!
//! Not here: which files belong together (`warmpath-gguf`).

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use warmpath_bench::model::{Preset, write_split_model};
use warmpath_common::ids::Token;
use warmpath_gguf::shard_path;
use warmpath_worker::engine::{EngineConfig, StoreConfig};

use super::support::{ask, config, start, stop, tokens};
use super::tiers::store;

const N_FILES: u16 = 2;

/// Writes a model of two files into a folder of its own; returns the path of the first.
fn split(folder: &TempDir, seed: u64) -> PathBuf {
    let own = folder.path().join(format!("seed-{seed}"));
    std::fs::create_dir(&own).unwrap();
    write_split_model(Preset::Tiny, seed, &own.join("m"), N_FILES).unwrap()
}

fn second_file(first: &Path) -> PathBuf {
    shard_path(&first.parent().unwrap().join("m"), 2, N_FILES.into())
}

fn one_slot(model: &Path, store: StoreConfig) -> EngineConfig {
    // Small batches make computing slow, so that reading state is faster even with this small model.
    EngineConfig {
        model: model.to_owned(),
        n_slots: 1,
        context_tokens_total: 1024,
        batch_tokens: 32,
        ubatch_tokens: 32,
        store,
        ..config(Preset::Tiny)
    }
}

/// Answers one prompt with a new engine; returns the response and how many of the prompt's tokens were reused.
async fn answer(config: EngineConfig) -> (Vec<Token>, u32) {
    let (engine, _updates) = start(config);
    let answer = ask(&tokens(3, 300), 20).answer(&engine).await;
    stop(engine).await;
    let cached_tokens = answer.cached_tokens();
    (answer.tokens, cached_tokens)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn stored_state_of_a_split_model_is_not_used_by_another_with_the_same_first_file() {
    let (models, saved) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (one, other) = (split(&models, 1), split(&models, 2));
    std::fs::copy(&one, &other).unwrap();
    let with_disk = |model: &Path| one_slot(model, store(8 << 20, Some(&saved)));
    let (first, cached_tokens) = answer(with_disk(&one)).await;
    assert_eq!(cached_tokens, 0);
    let (again, cached_tokens) = answer(with_disk(&one)).await;
    assert_eq!(again, first);
    assert!(cached_tokens > 200, "its own state was not reused: {cached_tokens}");
    let (cold, _) = answer(one_slot(&other, store(0, None))).await;
    assert_ne!(cold, first, "the second files differ");
    let (warm, cached_tokens) = answer(with_disk(&other)).await;
    assert_eq!((warm, cached_tokens), (cold, 0));
    assert_ne!(warmpath_gguf::fingerprint(&one).unwrap(), warmpath_gguf::fingerprint(&other).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_split_model_answers_as_the_same_model_in_one_file() {
    let models = TempDir::new().unwrap();
    let (split, _) = answer(one_slot(&split(&models, 1), store(0, None))).await;
    let whole = EngineConfig { model: config(Preset::Tiny).model, ..one_slot(Path::new(""), store(0, None)) };
    assert_eq!(split, answer(whole).await.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn files_of_a_split_model_are_found_beside_a_symbolic_link() {
    let models = TempDir::new().unwrap();
    let first = split(&models, 1);
    for (name, path) in [("77ab", first.clone()), ("3f0c", second_file(&first))] {
        let blob = models.path().join(name);
        std::fs::rename(&path, &blob).unwrap();
        std::os::unix::fs::symlink(&blob, &path).unwrap();
    }
    let (linked, _) = answer(one_slot(&first, store(0, None))).await;
    assert_eq!(linked.len(), 20);
}
