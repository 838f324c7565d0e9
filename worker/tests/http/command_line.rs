//! Common command lines and environments: those of llama-server, those of service files.
//!
//! Not here: llama-server's flags one by one (`config::llama_server`).

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, tiny};

/// Runs the program with these arguments and variables and a missing model; returns its exit code and log.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let output: Output = Command::new(env!("CARGO_BIN_EXE_warmpath-worker"))
        .args(["--listen", "127.0.0.1:0", "--model"])
        .arg(folder().join("there-is-no-such.gguf"))
        .args(arguments)
        .envs(variables.iter().copied())
        .output()
        .expect("the program runs");
    assert!(output.stdout.is_empty(), "the program printed something besides the log");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Checks that a start fails only because of the missing model, and returns the log.
#[track_caller]
fn check_taken(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let (code, log) = run(arguments, variables);
    assert!(code == Some(1) && log.contains("there-is-no-such.gguf"), "{arguments:?} {variables:?}: {log}");
    log
}

#[track_caller]
fn check_refused(arguments: &[&str], variables: &[(&str, &str)], says: &str) {
    let (code, log) = run(arguments, variables);
    assert!(code == Some(2) && log.contains(says), "{arguments:?} {variables:?}: {log}");
}

#[test]
fn flags_of_llama_server_that_change_nothing_are_logged_and_others_are_named() {
    let log = check_taken(&["--jinja", "--metrics", "--slots", "-cb", "--swa-full", "-cram", "64", "-v"], &[]);
    for flag in ["--jinja", "--metrics", "--slots", "-cb", "--swa-full", "-v"] {
        assert!(log.contains(flag), "{flag} is not logged: {log}");
    }
    check_refused(&["-dr", "user/model"], &[], "--hf-repo");
    check_refused(&["-ag"], &[], "-ag");
    check_refused(&["--rpc", "a:1"], &[], "start a worker on each machine");
    check_refused(&["--port", "8080"], &[], "--listen ADDR:PORT");
    check_refused(&["--no-such-flag"], &[], "--no-such-flag");
    check_refused(&["--no-such-flag"], &[], "docs/migration.md");
    check_refused(&["-dr", "user/model"], &[], "docs/migration.md");
}

#[test]
fn devices_are_listed_without_a_model_and_a_missing_one_is_refused_with_the_available_ones() {
    let listed = Command::new(env!("CARGO_BIN_EXE_warmpath-worker")).arg("--list-devices").output().expect("it runs");
    let lines = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.status.success() && lines.starts_with("Available devices:\n"), "{lines}");
    assert!(lines.lines().any(|line| line.starts_with("  CPU: ") && line.ends_with(" MiB free)")), "{lines}");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath-worker"));
        command.args(["--listen", "127.0.0.1:0", "--model"]).arg(tiny()).args(arguments);
        let output = command.output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, log) = run(&["--device", "Nowhere0"]);
    assert!(
        code == Some(1) && log.contains("--device Nowhere0: no such device; this build and machine have "),
        "{log}"
    );
    assert!(log.contains("CPU ("), "{log}");
    let (code, log) = run(&["--override-tensor", "blk=Nowhere0"]);
    assert!(code == Some(1) && log.contains("there is no buffer Nowhere0; the buffers are "), "{log}");
}

#[test]
fn the_last_value_of_a_repeated_flag_counts() {
    check_taken(&["--queue-max", "1", "--queue-max", "7"], &[]);
    check_taken(&["--embedding", "--embedding", "-c", "64", "-c", "128"], &[]);
    check_refused(&["--queue-max", "1", "--queue-max", "x"], &[], "'x'");
}

#[test]
fn variables_may_be_empty_and_switches_accept_the_usual_words() {
    let empty = [
        "CTX_SIZE",
        "SLOTS",
        "CACHE_DISK",
        "EMBEDDING",
        "LORA",
        "ALIAS",
        "NAME",
        "FLASH_ATTN",
        "FLEET_TOKEN_FILE",
        "TLS_CERT",
    ];
    let empty: Vec<(String, &str)> = empty.iter().map(|name| (format!("WARMPATH_{name}"), "")).collect();
    let empty: Vec<(&str, &str)> = empty.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    check_taken(&[], &empty);
    for word in ["1", "0", "true", "false", "yes", "no", "on", "off", "TRUE", "No"] {
        check_taken(&[], &[("WARMPATH_DISABLE_PREFIX_CACHE", word), ("WARMPATH_CONTEXT_SHIFT", word)]);
    }
    check_refused(&[], &[("WARMPATH_DISABLE_PREFIX_CACHE", "maybe")], "maybe");
    for (name, value) in [("LLAMA_ARG_CTX_SIZE", "4096"), ("LLAMA_API_KEY", "secret")] {
        let log = check_taken(&[], &[(name, value)]);
        assert!(log.contains(name) && log.contains("not read") && !log.contains(value), "{log}");
    }
}

#[tokio::test]
async fn a_slot_has_no_more_than_its_limit() {
    let worker = TestWorker::start("--slots 2 --ctx-size 2048 --kv-unified-per-slot 300").await;
    let props = worker.get_json("/props").await;
    assert_eq!((&props["default_generation_settings"]["n_ctx"], &props["total_slots"]), (&json!(300), &json!(2)));
    let whole = worker.ask("/completion", json!({"prompt": "One", "ignore_eos": true})).await;
    let n_tokens = whole["tokens_evaluated"].as_u64().zip(whole["tokens_predicted"].as_u64()).map(|(p, n)| p + n);
    // The last token is not computed, so it needs no cell.
    assert_eq!((n_tokens, &whole["stop_type"]), (Some(301), &json!("limit")), "{whole}");
    let (status, refused) = worker.try_ask("/completion", &json!({"prompt": vec![1; 400]})).await;
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 400 && message.contains("--kv-unified-per-slot 512"), "{refused}");
    let log = check_taken(&["-c", "2048", "--slots", "2", "--kv-unified-per-slot", "1500"], &[]);
    assert!(log.contains("has no effect") && log.contains("share=1024"), "{log}");
}

#[tokio::test]
async fn llama_server_s_sampling_flags_are_the_defaults_of_requests() {
    let flags = "--slots 1 --temp 0.5 --samplers top_k;temperature --top-k 7 --typical 0.5 --top-nsigma 2 --repeat-last-n 8 \
                 --dry-multiplier 0.5 --dry-sequence-breaker none --xtc-probability 0.25 --mirostat-ent 4 --predict 5";
    let worker = TestWorker::start(flags).await;
    let expected = json!({
        "temperature": 0.5, "samplers": ["top_k", "temperature"], "top_k": 7, "typical_p": 0.5, "top_n_sigma": 2.0,
        "repeat_last_n": 8, "dry_multiplier": 0.5, "dry_sequence_breakers": [], "xtc_probability": 0.25,
        "mirostat_tau": 4.0, "n_predict": 5,
    });
    let check = |found: &Value| {
        for (field, value) in expected.as_object().expect("an object") {
            assert_eq!(&found[field], value, "{field}: {found}");
        }
    };
    check(&worker.get_json("/props").await["default_generation_settings"]["params"]);
    check(&worker.ask("/completion", json!({"prompt": "One two"})).await["generation_settings"]);
    let own = worker.ask("/completion", json!({"prompt": "One two", "top_k": 3, "samplers": "k"})).await;
    assert_eq!(
        (&own["generation_settings"]["top_k"], &own["generation_settings"]["samplers"]),
        (&json!(3), &json!(["top_k"]))
    );
    assert_eq!(own["generation_settings"]["typical_p"], 0.5);
}

#[tokio::test]
async fn schemas_and_tools_override_a_default_that_ignores_the_end() {
    let worker = TestWorker::start("--slots 1 --ignore-eos --predict 200").await;
    let going_on = async |body: Value| {
        let answer = worker.ask("/completion", body).await;
        answer["generation_settings"]["ignore_eos"].as_bool().expect("a boolean")
    };
    assert!(going_on(json!({"prompt": "One", "n_predict": 2})).await);
    assert!(!going_on(json!({"prompt": "One", "n_predict": 2, "ignore_eos": false})).await);
    assert!(!going_on(json!({"prompt": "One", "json_schema": {"type": "boolean"}})).await);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools, "max_tokens": 2});
    worker.ask("/v1/chat/completions", chat.clone()).await;
    let mut own = chat;
    own["ignore_eos"] = json!(true);
    let (status, refused) = worker.try_ask("/v1/chat/completions", &own).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("ignore_eos")), "{refused}");
}
