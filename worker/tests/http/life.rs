//! A worker's start and end: refused starts, draining.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use axum::Router;
use axum::routing::get;
use futures::StreamExt;
use reqwest::StatusCode;
use serde_json::json;
use tokio::net::TcpListener;
use warmpath_bench::model::cache::cached_projector;
use warmpath_bench::model::projector::Reads;
use warmpath_bench::model::quantize::{WeightType, quantize};
use warmpath_bench::model::{Preset, write_split_model};

use crate::harness::{PATIENCE, TestWorker, events, folder, model, tiny};
use crate::program::Program;

fn run_to_end(model: &Path) -> Output {
    run_to_end_with(model, &[])
}

fn run_to_end_with(model: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmpath-worker"))
        .args(["--listen", "127.0.0.1:0", "--model"])
        .arg(model)
        .args(flags)
        .output()
        .expect("the worker runs")
}

/// Runs a worker that must not start; returns its log.
fn refused(model: &Path, flags: &[&str]) -> String {
    let output = run_to_end_with(model, flags);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{flags:?}: {log}");
    assert!(!log.contains("self-test"), "{flags:?} is refused before the self-test: {log}");
    log
}

#[test]
fn a_model_that_does_not_fit_into_memory_is_refused_before_loading_with_the_numbers() {
    for preset in [Preset::Tiny, Preset::TinySwa, Preset::TinyHybrid] {
        let model = model(preset, 1);
        for flags in ["--ctx-size 2000000000", "--ctx-size 4294967295 --cache-type-k q8_0 --slots 200"] {
            let log = refused(&model, &flags.split(' ').collect::<Vec<_>>());
            for says in ["are available", "(--ctx-size", "(--cache-ram)", "--ctx-size ", " would fit"] {
                assert!(log.contains(says), "{preset:?} {flags}: {log}");
            }
        }
        let log = refused(&model, &["--cache-ram", "1000000000"]);
        assert!(log.contains("no --ctx-size would fit"), "{log}");
    }
    let projector = cached_projector(Preset::Tiny, 1, Reads::Images, &folder()).expect("it can be made");
    let flags = ["--mmproj", projector.to_str().expect("a path"), "--cache-ram", "1000000000"];
    let log = refused(&model(Preset::Tiny, 1), &flags);
    assert!(log.contains("MiB for images and audio (--mmproj)"), "{log}");
}

#[test]
fn an_embedding_or_reranking_model_that_does_not_fit_into_memory_is_refused_before_loading_with_the_numbers() {
    for (preset, flag) in
        [(Preset::TinyEmbed, "--embedding"), (Preset::Tiny, "--embedding"), (Preset::TinyRank, "--rerank")]
    {
        let log = refused(&model(preset, 1), &[flag, "--batch-size", "1000000000", "--ubatch-size", "1000000000"]);
        for says in [
            "are available",
            "for computing 1000000000 tokens",
            "(--ctx-size, --ubatch-size",
            "reduce --ctx-size or --ubatch-size",
        ] {
            assert!(log.contains(says), "{preset:?}: {log}");
        }
    }
}

#[test]
fn a_folder_that_cannot_hold_state_is_refused_before_loading() {
    let file = folder().join("not-a-folder");
    std::fs::write(&file, "a file").expect("the file is written");
    for path in [file.clone(), file.join("below")] {
        let log = refused(tiny(), &["--cache-disk", &path.display().to_string()]);
        assert!(log.contains("cache folder") && log.contains("not-a-folder"), "{log}");
        assert!(!log.contains("listening on"), "the worker already listens: {log}");
    }
}

#[test]
fn a_context_with_too_few_tokens_per_slot_is_refused() {
    let log = refused(tiny(), &["-c", "100", "--slots", "8"]);
    assert!(log.contains("100 tokens for 8 slots are 12 per slot") && log.contains("set 2048 or more"), "{log}");
}

#[tokio::test]
async fn a_model_is_downloaded_and_stored_before_it_is_served() {
    let router =
        Router::new().route("/tiny.gguf", get(|| async { std::fs::read(tiny()).expect("the model is there") }));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let host = tokio::spawn(async move { axum::serve(listener, router).await });
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("kept.gguf");
    let flags = format!("--model-url http://{address}/tiny.gguf --slots 1 --ctx-size 512");
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2});
    for more in ["", "--offline"] {
        let worker = TestWorker::start_model(&place, &format!("{flags} {more}")).await;
        assert_eq!(worker.try_ask("/v1/chat/completions", &chat).await.0, 200);
        let props = worker.get_json("/props").await;
        assert_eq!(props["model_path"], json!(place));
        let kv_cache = props["memory"]["kv_cache_bytes"].as_u64();
        assert!(kv_cache.is_some_and(|bytes| bytes > 0), "{props}");
        worker.stop().await.expect("it served");
        host.abort();
    }
}

#[test]
fn a_wrong_file_of_a_split_model_and_missing_files_are_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = write_split_model(Preset::Tiny, 1, &folder.path().join("m"), 3).expect("the model is written");
    let later = folder.path().join("m-00002-of-00003.gguf");
    let log = refused(&later, &[]);
    assert!(log.contains("is file 2 of 3 of a split model") && log.contains(&first.display().to_string()), "{log}");
    std::fs::remove_file(&later).expect("it is there");
    let log = refused(&first, &[]);
    assert!(log.contains("missing in its folder: m-00002-of-00003.gguf"), "{log}");
}

#[test]
fn a_model_that_cannot_be_served_is_named_and_the_worker_exits_with_an_error() {
    let whole = std::fs::read(tiny()).expect("the model can be read");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder().join(name);
        std::fs::write(&path, bytes).expect("the file is written");
        path
    };
    let mut wrong_version = whole.clone();
    wrong_version[4..8].copy_from_slice(&77_u32.to_le_bytes());
    let cases = [
        (folder().join("missing.gguf"), "No such file"),
        (write("empty.gguf", b""), ""),
        (write("text.gguf", b"this is not a model, it is a text of some length"), "GGUF"),
        (write("truncated.gguf", &whole[..whole.len() / 2]), "truncated"),
        (write("header-cut.gguf", &whole[..100]), ""),
        (write("version.gguf", &wrong_version), "version"),
    ];
    for (path, says) in cases {
        let output = run_to_end(&path);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{}: {log}", path.display());
        assert!(log.contains(&path.display().to_string()), "{} is not named: {log}", path.display());
        assert!(log.contains(says), "{}: {log}", path.display());
    }
}

/// Returns a worker's log until it is ready.
fn log_until_ready(model: &Path, flags: &[&str]) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_warmpath-worker"))
        .args(["--listen", "127.0.0.1:0", "--slots", "2", "--threads", "1"])
        .args(flags)
        .arg("--model")
        .arg(model)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the worker starts");
    let lines = BufReader::new(child.stderr.take().expect("there is a log")).lines().map_while(Result::ok);
    let mut log = Vec::new();
    for line in lines {
        let is_ready = line.contains(" ready ");
        log.push(line);
        if is_ready {
            break;
        }
    }
    child.kill().and_then(|()| child.wait()).expect("the worker ends");
    log.join("\n")
}

#[test]
fn a_warning_names_a_better_type_for_weights_that_the_processor_computes_slowly() {
    let folder = tempfile::tempdir().expect("a folder");
    let quantized = |weight_type| {
        let path = folder.path().join(format!("{weight_type:?}.gguf"));
        quantize(tiny(), weight_type, &path).expect("llama.cpp quantizes it");
        path
    };
    // Without repacking, no processor has a kernel for batches of this type.
    let flags = ["--no-repack", "--flash-attn", "off", "--kv-unified", "off", "--n-gpu-layers", "0"];
    let warned = log_until_ready(&quantized(WeightType::Q4_1), &flags);
    assert!(warned.contains("weights=\"Q4_1\"") && warned.contains("Q4_0 or Q8_0"), "{warned}");
    let better = log_until_ready(&quantized(WeightType::Q4_0), &flags);
    assert!(!better.contains("weights="), "{better}");
}

#[test]
fn a_warning_has_the_numbers_of_a_context_longer_than_the_model_was_trained_for() {
    let log = |ctx_size| log_until_ready(tiny(), &["--ctx-size", ctx_size]);
    let warned = log("65536");
    for says in ["WARN", "trained for 8192 tokens", "ctx_size=65536", "--ctx-size 16384 does", "rope scaling"] {
        assert!(warned.contains(says), "{says}: {warned}");
    }
    assert!(!log("16384").contains("trained for"));
}

/// Asks a program to end, as an operating system does.
fn terminate(program: &Program) {
    let status = Command::new("kill").args(["-TERM", &program.child.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
}

async fn exit_code(program: &mut Program) -> Option<i32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = program.child.try_wait().expect("the child can be waited for") {
            return status.code();
        }
        assert!(Instant::now() < deadline, "the worker does not end");
        tokio::task::yield_now().await;
    }
}

async fn until_status(program: &Program, path: &str, status: u16) {
    let deadline = Instant::now() + PATIENCE;
    let url = format!("{}{path}", program.base);
    while reqwest::get(&url).await.is_ok_and(|response| response.status().as_u16() != status) {
        assert!(Instant::now() < deadline, "{path} never became {status}");
    }
}

#[tokio::test]
async fn sigterm_stops_admission_and_lets_streams_finish() {
    let mut program = Program::start(tiny(), &["--ctx-size", "4096", "--drain-timeout", "60"]);
    until_status(&program, "/readyz", 200).await;
    let body = json!({"prompt": "It goes on", "stream": true, "ignore_eos": true, "max_tokens": 3000});
    let client = reqwest::Client::new();
    let url = format!("{}/v1/completions", program.base);
    let running = client.post(&url).body(body.to_string()).send().await.expect("a response");
    let mut stream = running.bytes_stream();
    let mut text = stream.next().await.expect("there is a first text").expect("the stream is whole").to_vec();

    terminate(&program);
    until_status(&program, "/readyz", 503).await;
    let refused = client.post(&url).body(r#"{"prompt": "more"}"#).send().await.expect("a response");
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));

    while let Some(chunk) = stream.next().await {
        text.extend_from_slice(&chunk.expect("the stream is whole"));
    }
    let events = events(&String::from_utf8(text).expect("events are text"));
    assert_eq!(events.last(), Some(&json!("[DONE]")), "the stream had its end");
    assert_eq!(events[events.len() - 2]["timings"]["predicted_n"], 3000);
    assert_eq!(exit_code(&mut program).await, Some(0));
}

#[tokio::test]
async fn a_stream_that_is_longer_than_the_drain_timeout_ends_with_an_error() {
    let worker = TestWorker::start("--slots 1 --drain-timeout 0.05").await;
    let mut running = worker.begin_long().await;
    worker.ask_to_stop();
    let mut text = Vec::new();
    while let Some(chunk) = running.next().await {
        text.extend_from_slice(&chunk.expect("the stream is whole"));
    }
    let events = events(&String::from_utf8(text).expect("events are text"));
    assert_eq!(events.last().map(|event| &event["error"]["code"]), Some(&json!("draining")));
    worker.stop().await.expect("it was asked to stop");
}

/// Starts the worker's program at a free address, with a log that cannot be written.
fn start_mute(address: &str, log: Stdio) -> Program {
    let child = Command::new(env!("CARGO_BIN_EXE_warmpath-worker"))
        .args(["--listen", address, "--slots", "1", "--threads", "1", "--model"])
        .arg(tiny())
        .env("RUST_LOG", "trace")
        .stderr(log)
        .spawn()
        .expect("the worker starts");
    Program { child, base: format!("http://{address}") }
}

#[tokio::test]
async fn a_worker_whose_log_cannot_be_written_loads_and_answers() {
    for log in ["full", "closed", "stalled"] {
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.expect("a port is free").to_string();
        let stderr = match log {
            "full" => std::fs::File::options().write(true).open("/dev/full").expect("Linux has it").into(),
            _ => Stdio::piped(),
        };
        let mut program = start_mute(&address, stderr);
        // A pipe without a reader is full after 64 KiB.
        let _unread = program.child.stderr.take().filter(|_| log == "stalled");
        let client = reqwest::Client::new();
        let deadline = Instant::now() + PATIENCE;
        while !client.get(format!("{}/readyz", program.base)).send().await.is_ok_and(|ready| ready.status() == 200) {
            assert!(program.child.try_wait().expect("it can be waited for").is_none(), "{log}: the worker ended");
            assert!(Instant::now() < deadline, "{log}: the worker is not ready");
            tokio::task::yield_now().await;
        }
        for _ in 0..20 {
            let url = format!("{}/v1/completions", program.base);
            let answer = client.post(url).body(r#"{"prompt": "more", "max_tokens": 2}"#).send().await;
            assert_eq!(answer.expect("an answer").status(), StatusCode::OK, "{log}");
        }
        if log != "stalled" {
            let metrics = client.get(format!("{}/metrics", program.base)).send().await.expect("an answer");
            let text = metrics.text().await.expect("text");
            let lost = text.lines().find_map(|line| line.strip_prefix("warmpath_worker_log_lines_lost_total "));
            assert_ne!(lost, Some("0"), "{log}");
            assert!(lost.is_some(), "{text}");
        }
        terminate(&program);
        assert_eq!(exit_code(&mut program).await, Some(0), "{log}");
    }
}

#[tokio::test]
async fn a_cache_folder_that_another_worker_uses_is_refused_before_loading() {
    let cache = folder().join(format!("reserved-{}", std::process::id()));
    let flags = format!("--cache-ram 8 --cache-disk {} --flash-attn off --kv-unified off", cache.display());
    let flags: Vec<&str> = flags.split(' ').collect();
    let worker = TestWorker::start(&flags.join(" ")).await;
    // `TestWorker` adds the model and the number of threads, which do not change the stored state.
    let log = refused(tiny(), &flags);
    assert!(log.contains("in use by another worker") && log.contains("--cache-disk"), "{log}");
    assert!(!log.contains("loading"), "{log}");
    let other = format!("{} --cache-type-k q8_0", flags.join(" "));
    TestWorker::start(&other).await.stop().await.expect("another layout has a folder of its own");
    worker.stop().await.expect("a good end");
    TestWorker::start(&flags.join(" ")).await.stop().await.expect("the folder is free again");
}
