//! Saving, restoring and erasing slots: the restored state is the saved one, and only intact files of this model are
//! used.
//!
//! Not here: every byte of a file (`store::slot_file`'s own tests).

use std::path::PathBuf;

use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_common::model::ModelInfo;
use warmpath_worker::config::Config;
use warmpath_worker::engine::SelfTest;
use warmpath_worker::store::slot_file::{self, SlotFileError};
use warmpath_worker::store::{Identity, SlotIdentity};

use crate::cache::{compute, prompt};
use crate::harness::{TestWorker, folder, model, tiny};

const COMPLETIONS: &str = "/v1/completions";

/// Returns an empty folder for one test's files.
fn saves(test: &str) -> PathBuf {
    let path = folder().join(format!("saves-{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("the folder can be made");
    path
}

async fn act(worker: &TestWorker, (slot, action): (u32, &str), filename: &str) -> (u16, Value) {
    worker.try_ask(&format!("/slots/{slot}?action={action}"), &json!({"filename": filename})).await
}

/// Returns the slot with this number of tokens, all of them exact.
async fn holding(worker: &TestWorker, n_tokens: u64) -> Option<u32> {
    let slots = worker.get_json("/slots").await;
    let is_it = |slot: &Value| slot["n_held_tokens"] == n_tokens && slot["n_exact_tokens"] == n_tokens;
    slots.as_array().expect("an array").iter().position(is_it).and_then(|slot| u32::try_from(slot).ok())
}

#[tokio::test]
async fn a_saved_slot_is_restored_in_any_slot_and_after_a_restart() {
    for kind in [Preset::Tiny, Preset::TinySwa, Preset::TinyRecurrent, Preset::TinyHybrid] {
        for buffer in ["on", "off"] {
            come_back(kind, buffer).await;
        }
    }
}

async fn come_back(kind: Preset, buffer: &str) {
    let saves = saves(&format!("{kind:?}-{buffer}"));
    // Only the slots keep state, so reused state was restored.
    let flags =
        format!("--slots 2 --cache-ram 0 --flash-attn off --kv-unified {buffer} --slot-save-path {}", saves.display());
    let worker = TestWorker::start_model(&model(kind, 1), &flags).await;
    let first = prompt(1, 300);
    let mut longer = first.as_array().expect("an array").clone();
    longer.extend(prompt(2, 40).as_array().expect("an array").clone());
    let body = json!({"prompt": longer, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    let mut uncached = body.clone();
    uncached["cache_prompt"] = json!(false);
    let expected = worker.ask(COMPLETIONS, uncached).await["choices"].clone();

    compute(&worker, &first).await;
    worker.until("a slot shows the prompt", async |worker| holding(worker, 300).await.is_some()).await;
    let slot = holding(&worker, 300).await.expect("it holds the prompt");
    let (status, saved) = act(&worker, (slot, "save"), "one.bin").await;
    assert_eq!((status, &saved["n_saved"], &saved["id_slot"]), (200, &json!(300), &json!(slot)), "{saved}");
    assert_eq!(saved["n_written"], std::fs::metadata(saves.join("one.bin")).expect("it is there").len());
    assert!(saved["timings"]["save_ms"].as_f64() > Some(0.0));
    let (status, erased) = act(&worker, (slot, "erase"), "").await;
    assert_eq!((status, &erased), (200, &json!({"id_slot": slot, "n_erased": 300})));
    worker.until("the slot shows nothing", async |worker| holding(worker, 300).await.is_none()).await;

    let restore = async |worker: &TestWorker, slot: u32| {
        let (status, restored) = act(worker, (slot, "restore"), "one.bin").await;
        assert_eq!((status, &restored["n_restored"]), (200, &json!(300)), "{kind:?} {buffer}: {restored}");
        assert_eq!(restored["n_read"], saved["n_written"]);
        let answer = worker.ask(COMPLETIONS, body.clone()).await;
        assert_eq!(answer["timings"]["cache_n"], 300, "{kind:?} {buffer}");
        assert_eq!(answer["choices"], expected, "{kind:?} {buffer}");
    };
    restore(&worker, 1 - slot).await;
    worker.stop().await.expect("a good end");
    restore(&TestWorker::start_model(&model(kind, 1), &flags).await, 0).await;
}

#[tokio::test]
async fn a_restored_slot_is_reused_for_the_same_prompt_and_for_one_that_branches_off_earlier() {
    for kind in [Preset::Tiny, Preset::TinySwa, Preset::TinyRecurrent, Preset::TinyHybrid] {
        for buffer in ["on", "off"] {
            resume(kind, (buffer, Saved::FromMemory)).await;
        }
    }
}

#[tokio::test]
async fn idle_slots_keep_their_state_in_a_shared_buffer_if_clients_may_save_them() {
    // Two prompts of 300 tokens are more than half of the cells, above which idle state is moved to the store.
    let flags = "--slots 2 --ctx-size 1024 --kv-unified on --flash-attn off";
    let with_saves = format!("{flags} --slot-save-path {}", saves("idle").display());
    for (flags, n_kept) in [(flags, 1), (&with_saves, 2)] {
        // The measured costs of idle state could move the second prompt too.
        let assume = |config: &mut Config| config.engine.self_test = SelfTest::Skip;
        let worker = TestWorker::start_changed(tiny(), flags, assume).await;
        for seed in [1, 2] {
            compute(&worker, &prompt(seed, 300)).await;
        }
        let n_full = async |worker: &TestWorker| {
            let slots = worker.get_json("/slots").await;
            slots.as_array().expect("an array").iter().filter(|slot| slot["n_held_tokens"] == 300).count()
        };
        worker.until("the second prompt is in a slot", async |worker| n_full(worker).await == n_kept).await;
        assert_eq!(worker.metric("slots_offloaded_total").await, if n_kept == 2 { 0.0 } else { 1.0 });
    }
}

#[tokio::test]
async fn a_slot_is_saved_with_its_checkpoints_that_are_only_on_disk() {
    for kind in [Preset::TinySwa, Preset::TinyRecurrent, Preset::TinyHybrid] {
        resume(kind, ("off", Saved::FromDisk)).await;
    }
}

/// Location of the checkpoints when a slot is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    FromMemory,
    FromDisk,
}

async fn resume(kind: Preset, (buffer, saved): (&str, Saved)) {
    let saves = saves(&format!("resume-{kind:?}-{buffer}-{saved:?}"));
    let flags = format!(
        "--slots 2 --block-size 32 --flash-attn off --kv-unified {buffer} --slot-save-path {}",
        saves.display()
    );
    let first = prompt(1, 300);
    let tokens = first.as_array().expect("an array");
    let branch = |at: usize, seed: u32| {
        let other = prompt(seed, 60);
        json!([&tokens[..at], other.as_array().expect("an array")].concat())
    };
    // Each prompt, and the minimum number of tokens that it must reuse: up to the last checkpoint or block before its
    // end or branch.
    let cases = [(first.clone(), 288), (branch(200, 3), 192), (branch(100, 4), 96), (branch(300, 5), 288)];
    let body = |prompt: &Value| json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    // At the end of each prompt there is a checkpoint.
    let compute_in_turns = async |worker: &TestWorker| {
        for n_tokens in [110, 210, 300] {
            compute(worker, &json!(tokens[..n_tokens])).await;
        }
    };

    let worker = TestWorker::start_model(&model(kind, 1), &flags).await;
    let mut expected = Vec::new();
    for (prompt, _) in &cases {
        let mut uncached = body(prompt);
        uncached["cache_prompt"] = json!(false);
        expected.push(worker.ask(COMPLETIONS, uncached).await["choices"].clone());
    }
    let worker = match saved {
        Saved::FromMemory => worker,
        Saved::FromDisk => {
            let with_disk = format!("{flags} --cache-disk {}", saves.join("cache").display());
            let earlier = TestWorker::start_model(&model(kind, 1), &with_disk).await;
            compute_in_turns(&earlier).await;
            earlier.stop().await.expect("a good end");
            TestWorker::start_model(&model(kind, 1), &with_disk).await
        }
    };
    compute_in_turns(&worker).await;
    worker.until("a slot shows the prompt", async |worker| holding(worker, 300).await.is_some()).await;
    let slot = holding(&worker, 300).await.expect("it holds the prompt");
    assert_eq!(act(&worker, (slot, "save"), "one.bin").await.0, 200);
    worker.stop().await.expect("a good end");

    // The prompts run one after the other, each after its own restore.
    let worker = TestWorker::start_model(&model(kind, 1), &flags).await;
    for ((prompt, n_least), expected) in cases.iter().zip(&expected) {
        assert_eq!(worker.ask("/cache/clear", json!({})).await["cleared"]["disk"]["entries"], 0);
        assert_eq!(act(&worker, (1, "restore"), "one.bin").await.0, 200);
        let answer = worker.ask(COMPLETIONS, body(prompt)).await;
        let n_cached = answer["timings"]["cache_n"].as_u64();
        assert!(n_cached >= Some(*n_least), "{kind:?} {buffer}: {n_cached:?} of {n_least}");
        assert_eq!(&answer["choices"], expected, "{kind:?} {buffer}");
    }
    // All prompts run at the same time.
    assert_eq!(act(&worker, (0, "restore"), "one.bin").await.0, 200);
    let answers = cases.iter().map(|(prompt, _)| worker.ask(COMPLETIONS, body(prompt)));
    for (answer, expected) in futures::future::join_all(answers).await.iter().zip(&expected) {
        assert_eq!(&answer["choices"], expected, "{kind:?} {buffer}");
    }
}

#[tokio::test]
async fn checkpoints_within_this_worker_s_larger_blocks_are_not_used() {
    for kind in [Preset::TinySwa, Preset::TinyRecurrent, Preset::TinyHybrid] {
        let saves = saves(&format!("blocks-{kind:?}"));
        let flags = format!("--slots 1 --flash-attn off --kv-unified off --slot-save-path {}", saves.display());
        let start = async |n| TestWorker::start_model(&model(kind, 1), &format!("{flags} --block-size {n}")).await;
        // The checkpoint at the end of the prompt is after 17 blocks of 16 tokens.
        let first = prompt(1, 280);
        let tokens = first.as_array().expect("an array");
        let branches = [260, 275].map(|at| {
            let other = prompt(3, 60);
            json!([&tokens[..at], other.as_array().expect("an array")].concat())
        });
        let worker = start(16).await;
        compute(&worker, &first).await;
        worker.until("a slot shows the prompt", async |worker| holding(worker, 280).await.is_some()).await;
        assert_eq!(act(&worker, (0, "save"), "one.bin").await.0, 200);
        worker.stop().await.expect("a good end");

        let worker = start(32).await;
        let body = |prompt: &Value| json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
        for branch in &branches {
            let mut uncached = body(branch);
            uncached["cache_prompt"] = json!(false);
            let expected = worker.ask(COMPLETIONS, uncached).await["choices"].clone();
            worker.ask("/cache/clear", json!({})).await;
            assert_eq!(act(&worker, (0, "restore"), "one.bin").await.0, 200);
            // Another prompt moves the restored state to the store.
            compute(&worker, &prompt(7, 100)).await;
            assert_eq!(worker.ask(COMPLETIONS, body(branch)).await["choices"], expected, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn a_file_belongs_to_one_release_of_llama_cpp() {
    let saves = saves("release");
    let flags = format!("--slots 1 --flash-attn off --kv-unified off --slot-save-path {}", saves.display());
    let worker = TestWorker::start(&flags).await;
    compute(&worker, &prompt(1, 300)).await;
    assert_eq!(act(&worker, (0, "save"), "one.bin").await.0, 200);
    let summary = worker.get_json("/internal/v1/summary").await;
    let info: ModelInfo = serde_json::from_value(summary["model"].clone()).expect("a model");
    let (model, kv, block_size_tokens) = (info.fingerprint, info.kv_fingerprint, info.block_size_tokens);
    let of_any_release = Identity { model, kv, block_size_tokens };
    let of_this_release = Identity::new(model, &kv.to_string(), block_size_tokens);
    let read = |common| slot_file::read(&saves.join("one.bin"), SlotIdentity { common, n_streams: 1 });
    assert!(read(of_this_release).is_ok());
    assert!(matches!(read(of_any_release), Err(SlotFileError::Foreign { .. })));
}

#[tokio::test]
async fn a_file_that_is_damaged_or_of_another_model_is_refused_and_the_slot_is_unchanged() {
    let saves = saves("refused");
    let flags = format!("--slots 1 --flash-attn off --slot-save-path {}", saves.display());
    let worker = TestWorker::start(&flags).await;
    compute(&worker, &prompt(1, 300)).await;
    assert_eq!(act(&worker, (0, "save"), "good.bin").await.0, 200);
    let good = std::fs::read(saves.join("good.bin")).expect("it is there");
    let middle = good.len() / 2;
    let flipped: Vec<u8> = good.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == middle)).collect();
    std::fs::write(saves.join("flipped.bin"), flipped).expect("it can be written");
    std::fs::write(saves.join("cut.bin"), &good[..good.len() - 1]).expect("it can be written");
    std::fs::write(saves.join("text.bin"), "not a slot").expect("it can be written");
    for name in ["flipped.bin", "cut.bin", "text.bin"] {
        let (status, answer) = act(&worker, (0, "restore"), name).await;
        let error = &answer["error"];
        assert_eq!((status, &error["code"]), (400, &json!("unusable_file")), "{name}: {error}");
        assert_eq!(error["param"], "filename");
    }
    let (status, answer) = act(&worker, (0, "restore"), "none.bin").await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("file_not_found")));
    worker.until("the slot still has its tokens", async |worker| holding(worker, 300).await == Some(0)).await;

    let other = TestWorker::start_model(&model(Preset::Tiny, 2), &flags).await;
    let (status, answer) = act(&other, (0, "restore"), "good.bin").await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("another model")), "{answer}");
    let quantized = TestWorker::start(&format!("{flags} --cache-type-k q8_0")).await;
    let (status, answer) = act(&quantized, (0, "restore"), "good.bin").await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("another layout")), "{answer}");
    let small = TestWorker::start(&format!("{flags} --ctx-size 256")).await;
    let (status, answer) = act(&small, (0, "restore"), "good.bin").await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("unusable_file")), "{answer}");
}

#[tokio::test]
async fn actions_wait_for_a_busy_slot() {
    let saves = saves("busy");
    let worker = TestWorker::start(&format!("--slots 1 --slot-save-path {}", saves.display())).await;
    let running = worker.begin_long().await;
    let is_shown = async |worker: &TestWorker| worker.get_json("/slots").await[0]["is_processing"] == true;
    worker.until("the running slot is shown", is_shown).await;
    let saving = tokio::spawn(worker.post("/slots/0?action=save", &json!({"filename": "late.bin"})).send());
    let erasing = tokio::spawn(worker.post("/slots/0?action=erase", &json!({})).send());
    let n_decoded = worker.metric("decode_tokens_total").await;
    let goes_on = async |worker: &TestWorker| worker.metric("decode_tokens_total").await > n_decoded + 50.0;
    worker.until("the slot continues", goes_on).await;
    assert!(!saving.is_finished() && !erasing.is_finished(), "the slot is busy");
    drop(running);
    let saved = saving.await.expect("no panic").expect("a response");
    let saved: Value = saved.json().await.expect("JSON");
    // Either action may come first; if the slot was erased first, there is nothing to save.
    assert!(saved["n_saved"].as_u64() > Some(0) || saved["error"]["code"] == "slot_empty", "{saved}");
    let erased: Value = erasing.await.expect("no panic").expect("a response").json().await.expect("JSON");
    assert!(erased["n_erased"].as_u64() > Some(0), "{erased}");
}

#[tokio::test]
async fn unknown_slots_actions_and_files_are_refused() {
    let saves = saves("names");
    let worker = TestWorker::start(&format!("--slots 1 --slot-save-path {}", saves.display())).await;
    let file = json!({"filename": "a.bin"});
    let cases = [
        ("/slots/1?action=save", file.clone(), 400, "id_slot"),
        ("/slots/-1?action=save", file.clone(), 400, "id_slot"),
        ("/slots/x?action=erase", json!({}), 400, "id_slot"),
        ("/slots/0", file.clone(), 400, "action"),
        ("/slots/0?action=copy", file.clone(), 400, "action"),
        ("/slots/0?action=save", file, 400, "id_slot"),
        ("/slots/0?action=save", json!({}), 400, "filename"),
        ("/slots/0?action=save", json!({"filename": 7}), 400, "filename"),
        ("/slots/0?action=save", json!({"filename": ""}), 400, "filename"),
        ("/slots/0?action=restore", json!({"filename": "../a.bin"}), 400, "filename"),
        ("/slots/0?action=restore", json!({"filename": "/etc/passwd"}), 400, "filename"),
        ("/slots/0?action=restore", json!({"filename": "a\\b"}), 400, "filename"),
        ("/slots/0?action=restore", json!({"filename": ".."}), 400, "filename"),
        ("/slots/0?action=restore", json!({"filename": "a\u{0}b"}), 400, "filename"),
        ("/slots/0?action=restore", json!({"filename": "x".repeat(129)}), 400, "filename"),
    ];
    for (path, body, status, param) in cases {
        let (found, answer) = worker.try_ask(path, &body).await;
        assert_eq!((found, answer["error"]["param"].as_str()), (status, Some(param)), "{path} {body}: {answer}");
    }
    assert_eq!(std::fs::read_dir(&saves).expect("it is there").count(), 0, "nothing was written");
    assert_eq!(worker.ask("/slots/0?action=erase", json!({})).await, json!({"id_slot": 0, "n_erased": 0}));
}

#[tokio::test]
async fn without_a_folder_nothing_is_saved_or_restored() {
    let worker = TestWorker::start("--slots 1").await;
    for action in ["save", "restore"] {
        let (status, answer) = act(&worker, (0, action), "a.bin").await;
        assert_eq!((status, &answer["error"]["type"]), (501, &json!("not_supported_error")), "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("--slot-save-path")), "{answer}");
    }
    assert_eq!(act(&worker, (0, "erase"), "").await.0, 200);
}
