//! Damage: files that are truncated, changed, swapped and deleted between two processes or while an engine runs, a disk
//! that hangs, an unusable folder, a killed worker.
//!
//! Whatever is in the folder, responses are those of a fresh context; at worst they take longer. Not here: the disk
//! tier alone (`store`'s tests), failed decodes, which cannot be provoked safely in llama.cpp.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use warmpath_bench::model::Preset;
use warmpath_common::ids::Token;
use warmpath_worker::engine::{
    CostSource, DiskConfig, Engine, EngineConfig, EngineHandle, PrefixCache, StartError, StoreConfig,
};

use super::program::Program;
use super::support::{ask, config, model, start, stop, tokens, until};
use super::tiers::store;
use super::transfers::{base, offer, slow};

const N_PROMPTS: u32 = 4;

fn one_slot(preset: Preset, store: StoreConfig) -> EngineConfig {
    // Small batches make computing slow, so that restoring state is faster even with this small model.
    EngineConfig {
        n_slots: 1,
        context_tokens_total: 1024,
        batch_tokens: 32,
        ubatch_tokens: 32,
        store,
        ..config(preset)
    }
}

fn prompt(n: u32) -> Vec<Token> {
    tokens(n + 1, 200 + n as usize * 10)
}

/// Sends every prompt with a short suffix; returns the responses and how many of their tokens came from disk.
async fn ask_all(engine: &EngineHandle) -> (Vec<Vec<Token>>, u32) {
    let (mut answers, mut n_from_disk) = (Vec::new(), 0);
    for n in 0..N_PROMPTS {
        let answer = ask(&[prompt(n), tokens(50 + n, 15)].concat(), 50).answer(engine).await;
        n_from_disk += answer.started.unwrap().cached.disk;
        answers.push(answer.finished.map(|_| answer.tokens).unwrap());
    }
    (answers, n_from_disk)
}

/// Returns the responses of a fresh context.
async fn cold_answers(config: &EngineConfig) -> Vec<Vec<Token>> {
    let cold = EngineConfig { prefix_cache: PrefixCache::Disabled, store: store(0, None), ..config.clone() };
    let (engine, _updates) = start(cold);
    let (answers, _) = ask_all(&engine).await;
    stop(engine).await;
    answers
}

/// Returns the files of stored state.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false if path.file_name().unwrap() != "identity" => files.push(path),
            false => {}
        }
    }
    files.sort();
    files
}

/// A way to damage a file.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Cut,
    Empty,
    FlipPayload,
    FlipHeader,
    Delete,
    /// The file has another chunk's bytes.
    Swap,
}

const DAMAGES: [Damage; 6] =
    [Damage::Cut, Damage::Empty, Damage::FlipPayload, Damage::FlipHeader, Damage::Delete, Damage::Swap];

fn damage(files: &[PathBuf], damage: Damage) {
    let contents: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    for (idx, file) in files.iter().enumerate() {
        let mut bytes = contents[idx].clone();
        let n = bytes.len();
        match damage {
            Damage::Cut => bytes.truncate(n / 2),
            Damage::Empty => bytes.clear(),
            Damage::FlipPayload => bytes[n - 100] ^= 4,
            Damage::FlipHeader => bytes[40] ^= 4,
            Damage::Delete => {
                std::fs::remove_file(file).unwrap();
                continue;
            }
            Damage::Swap => bytes.clone_from(&contents[(idx + 1) % contents.len()]),
        }
        std::fs::write(file, bytes).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_right_when_files_were_damaged_between_two_runs() {
    for preset in [Preset::Tiny, Preset::TinyHybrid] {
        let expected = cold_answers(&one_slot(preset, store(0, None))).await;
        for kind in DAMAGES {
            let folder = tempfile::tempdir().unwrap();
            let config = one_slot(preset, store(64 << 20, Some(&folder)));
            let (engine, _updates) = start(config.clone());
            for n in 0..N_PROMPTS {
                ask(&prompt(n), 2).answer(&engine).await;
            }
            stop(engine).await;
            let all = files(folder.path());
            assert!(all.len() >= N_PROMPTS as usize, "{all:?}");
            damage(&all, kind);
            let (engine, _updates) = start(config);
            let (answers, n_from_disk) = ask_all(&engine).await;
            assert_eq!(answers, expected, "{preset:?} {kind:?}");
            assert_eq!(n_from_disk, 0, "{preset:?} {kind:?}: no file was intact");
            assert_eq!(engine.counters().failed, 0);
            stop(engine).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_right_when_files_are_damaged_while_the_engine_runs() {
    let expected = cold_answers(&one_slot(Preset::Tiny, store(0, None))).await;
    for kind in DAMAGES {
        let folder = tempfile::tempdir().unwrap();
        // There is memory for one prompt only, so the others have to be read.
        let (engine, _updates) = start(one_slot(Preset::Tiny, store(600 << 10, Some(&folder))));
        let whole = ask_all(&engine).await.0;
        assert_eq!(whole, expected);
        let (again, n_from_disk) = ask_all(&engine).await;
        assert_eq!(again, expected);
        assert!(n_from_disk > 0, "nothing is read from disk: {:?} {:?}", engine.counters(), engine.cache_totals());
        until("all chunks are written", || files(folder.path()).iter().all(|file| is_whole(file))).await;
        // One that is being written now would have another name in a moment.
        let written: Vec<PathBuf> = files(folder.path()).into_iter().filter(|file| is_whole(file)).collect();
        damage(&written, kind);
        for _ in 0..2 {
            assert_eq!(ask_all(&engine).await.0, expected, "{kind:?}");
        }
        let counters = engine.counters();
        assert_eq!(counters.failed, 0);
        assert!(counters.disk_read_failures > 0 && counters.disk_wait_us > 0, "{kind:?}: {counters:?}");
        stop(engine).await;
    }
}

fn is_whole(file: &Path) -> bool {
    !file.file_name().unwrap().to_string_lossy().starts_with('.')
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_disk_tier_too_small_for_any_chunk_changes_nothing() {
    let expected = cold_answers(&one_slot(Preset::Tiny, store(0, None))).await;
    let folder = tempfile::tempdir().unwrap();
    let disk = Some(DiskConfig { dir: folder.path().to_owned(), bytes: 100 });
    let (engine, _updates) = start(one_slot(Preset::Tiny, StoreConfig { disk, ..store(64 << 20, None) }));
    for _ in 0..2 {
        let (answers, n_from_disk) = ask_all(&engine).await;
        assert_eq!((answers, n_from_disk), (expected.clone(), 0));
    }
    assert!(engine.counters().cached_ram_tokens > 0);
    stop(engine).await;
    assert_eq!(files(folder.path()), [] as [PathBuf; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_stay_right_when_the_folder_disappears_while_the_engine_runs() {
    let expected = cold_answers(&one_slot(Preset::Tiny, store(0, None))).await;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("cache");
    let disk = Some(DiskConfig { dir: dir.clone(), bytes: 64 << 20 });
    let (engine, _updates) = start(one_slot(Preset::Tiny, StoreConfig { disk, ..store(600 << 10, None) }));
    assert_eq!(ask_all(&engine).await.0, expected);
    // The folder is renamed, because one that is emptied file by file may get new files meanwhile.
    std::fs::rename(&dir, folder.path().join("elsewhere")).unwrap();
    std::fs::write(&dir, "a file where the folder was").unwrap();
    for _ in 0..2 {
        assert_eq!(ask_all(&engine).await.0, expected);
    }
    assert_eq!(engine.counters().failed, 0);
    until("failed reads and writes are counted", || {
        let counters = engine.counters();
        counters.disk_read_failures > 0 && counters.disk_write_failures > 0
    })
    .await;
    stop(engine).await;
}

/// A disk whose reads hang: the files of stored state are links to a pipe that nobody writes to.
struct HangingDisk {
    pipe: PathBuf,
    files: Vec<PathBuf>,
}

impl HangingDisk {
    /// Replaces all files of a folder; later files are not affected.
    fn new(folder: &Path) -> Self {
        let files = files(folder);
        let pipe = folder.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for file in &files {
            std::fs::remove_file(file).unwrap();
            std::fs::hard_link(&pipe, file).unwrap();
        }
        Self { pipe, files }
    }

    /// Makes the read in progress and later ones fail at once.
    fn end(self) {
        for file in &self.files {
            // The engine may have deleted it.
            let _ = std::fs::remove_file(file);
        }
        drop(OpenOptions::new().read(true).write(true).open(&self.pipe).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn only_the_first_request_waits_for_a_disk_that_hangs() {
    for preset in [Preset::Tiny, Preset::TinyHybrid] {
        let folder = tempfile::tempdir().unwrap();
        // If computing seemed cheap for a moment, the engine would not read.
        let costs = CostSource::Assumed;
        let config = EngineConfig { costs, ..one_slot(preset, store(64 << 20, Some(&folder))) };
        let expected = cold_answers(&config).await;
        let (engine, _updates) = start(config.clone());
        for n in 0..N_PROMPTS {
            ask(&prompt(n), 2).answer(&engine).await;
        }
        stop(engine).await;
        let (engine, _updates) = start(config);
        let disk = HangingDisk::new(folder.path());
        let first = ask(&[prompt(0), tokens(50, 15)].concat(), 50).answer(&engine).await;
        assert_eq!((first.cached_tokens(), &first.tokens), (0, &expected[0]), "{preset:?}");
        let waited_us = engine.counters().disk_wait_us;
        assert!(waited_us > 0, "{preset:?}: it did not wait");
        let (answers, n_from_disk) = ask_all(&engine).await;
        assert_eq!((answers, n_from_disk), (expected, 0), "{preset:?}");
        let counters = engine.counters();
        assert_eq!((counters.disk_wait_us, counters.failed, counters.failed_starts), (waited_us, 0, 0), "{preset:?}");
        disk.end();
        until("the reads fail", || engine.counters().disk_read_failures > 0).await;
        stop(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_in_memory_is_sent_to_another_engine_while_the_disk_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let (holder, _holder_updates) = start(EngineConfig { store: store(64 << 20, Some(&folder)), ..base() });
    let (other, _other_updates) = start(base());
    let prompt = tokens(1, 300);
    ask(&prompt, 2).answer(&holder).await;
    until("the prompt's state is stored and written", || {
        let totals = holder.cache_totals();
        let written = files(folder.path()).iter().filter(|file| is_whole(file)).count();
        totals.ram.n_tokens >= 288 && totals.disk == totals.ram && written as u64 == totals.disk.n_chunks
    })
    .await;
    let disk = HangingDisk::new(folder.path());
    let moved = ask(&prompt, 2).submit_with(&other, offer(&holder, &other, &prompt)).unwrap().answer().await;
    assert_eq!(moved.started.unwrap().cached.ram, 288);
    disk.end();
    stop(holder).await;
    stop(other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_waits_for_another_engine_while_the_blocks_before_are_on_a_disk_that_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let (holder, _holder_updates) = start(base());
    let prompt = tokens(1, 300);
    ask(&prompt, 2).answer(&holder).await;
    let config = EngineConfig { costs: slow(1.0), store: store(64 << 20, Some(&folder)), ..base() };
    let (engine, _updates) = start(config.clone());
    for stored in [&prompt[..200], &tokens(2, 200)] {
        ask(stored, 2).answer(&engine).await;
    }
    until("both prompts are stored and written", || {
        let totals = engine.cache_totals();
        let written = files(folder.path()).iter().filter(|file| is_whole(file)).count();
        totals.ram.n_tokens >= 2 * 192 && totals.disk == totals.ram && written as u64 == totals.disk.n_chunks
    })
    .await;
    stop(engine).await;
    let (engine, _updates) = start(config);
    let disk = HangingDisk::new(folder.path());
    ask(&[tokens(2, 200), tokens(3, 20)].concat(), 2).answer(&engine).await;
    assert!(engine.counters().disk_wait_us > 0 && engine.counters().disk_late == 1, "{:?}", engine.counters());
    let answer = ask(&prompt, 2).submit_with(&engine, offer(&holder, &engine, &prompt)).unwrap().answer().await;
    assert_eq!((answer.cached_tokens(), answer.started.unwrap().fetched), (0, None));
    disk.end();
    until("the reads fail", || engine.counters().disk_read_failures > 0).await;
    stop(holder).await;
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_that_could_not_be_written_is_sent_to_another_engine() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("cache");
    let disk = Some(DiskConfig { dir: dir.clone(), bytes: 64 << 20 });
    let (holder, _holder_updates) =
        start(EngineConfig { store: StoreConfig { disk, ..store(64 << 20, None) }, ..base() });
    let (other, _other_updates) = start(base());
    std::fs::remove_dir_all(&dir).unwrap();
    let prompt = tokens(1, 300);
    ask(&prompt, 2).answer(&holder).await;
    until("the prompt's state is stored and cannot be written", || {
        holder.cache_totals().ram.n_tokens >= 288 && holder.counters().disk_write_failures > 0
    })
    .await;
    let moved = ask(&prompt, 2).submit_with(&other, offer(&holder, &other, &prompt)).unwrap().answer().await;
    assert_eq!(moved.started.unwrap().cached.ram, 288);
    assert_eq!(holder.counters().disk_read_failures, 0);
    stop(holder).await;
    stop(other).await;
}

#[tokio::test]
async fn an_unusable_folder_is_reported_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let refused = |dir: PathBuf| {
        let disk = Some(DiskConfig { dir, bytes: 1 << 20 });
        let (sender, _updates) = mpsc::unbounded_channel();
        let config = one_slot(Preset::Tiny, StoreConfig { disk, ..store(1 << 20, None) });
        Engine::start(config, |_| true, sender).err()
    };
    for dir in [file.clone(), file.join("below")] {
        let error = refused(dir.clone()).unwrap_or_else(|| panic!("{} was accepted", dir.display()));
        assert!(matches!(error, StartError::Store(_)), "{error:?}");
    }
    let (engine, _updates) = start(one_slot(Preset::Tiny, store(1 << 20, Some(&folder))));
    let error = refused(folder.path().to_owned()).expect("two engines cannot share a folder");
    assert!(matches!(error, StartError::Store(_)), "{error:?}");
    stop(engine).await;
}

/// Starts the worker's program with a disk tier, and waits until it is ready.
async fn start_program(folder: &Path) -> Program {
    let folder = folder.to_str().expect("a path");
    let flags = "--ctx-size 2048 --cache-ram 16 --flash-attn off --kv-unified off --cache-disk";
    let flags: Vec<&str> = flags.split(' ').chain([folder]).collect();
    let program = Program::start(&model(Preset::Tiny, 1), &flags);
    let ready = format!("{}/readyz", program.base);
    while !reqwest::get(&ready).await.is_ok_and(|response| response.status().is_success()) {
        tokio::task::yield_now().await;
    }
    program
}

/// Returns the text of a response and how many of its prompt's tokens were cached.
async fn complete(program: &Program, n: u32) -> (String, u64) {
    let words: Vec<String> = (0..150).map(|idx| format!("w{}", (idx * 7 + n * 13) % 97)).collect();
    let body = json!({"prompt": words.join(" "), "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    let request = reqwest::Client::new().post(format!("{}/v1/completions", program.base)).body(body.to_string());
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    let cached = &answer["timings"]["cache_n"];
    let text = answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    (text.to_owned(), cached.as_u64().unwrap_or_else(|| panic!("{answer}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_killed_worker_restarts_with_the_chunks_that_it_had_written() {
    let folder = tempfile::tempdir().unwrap();
    let program = start_program(folder.path()).await;
    let mut expected = Vec::new();
    for n in 0..4 {
        expected.push(complete(&program, n).await.0);
    }
    // The first prompt is no longer in the only slot; the worker is killed while it writes the last prompts.
    until("something is written", || files(folder.path()).iter().any(|file| is_whole(file))).await;
    drop(program);
    let program = start_program(folder.path()).await;
    let mut n_cached = 0;
    for (n, expected) in (0..).zip(expected) {
        let (text, cached) = complete(&program, n).await;
        assert_eq!(text, expected);
        n_cached += cached;
    }
    assert!(n_cached >= 256, "only {n_cached} tokens were restored");
}
