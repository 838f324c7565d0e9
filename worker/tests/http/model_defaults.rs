//! Defaults of requests that a model's file sets: in every dialect, in `/props`, in the log; flags and fields precede
//! them.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use warmpath_bench::model::{Preset, write_model_with};
use warmpath_gguf::Value as Metadata;

use crate::harness::{TestWorker, folder, tiny, user};

/// Returns the tiny model with further metadata.
fn with_metadata(name: &str, metadata: &[(&str, Metadata<'_>)]) -> PathBuf {
    let path = folder().join(format!("{name}.gguf"));
    write_model_with(Preset::Tiny, 1, metadata, &path).expect("it is written");
    path
}

#[tokio::test]
async fn a_request_has_the_values_of_its_fields_else_of_flags_else_of_the_models_file() {
    let model = with_metadata(
        "model-defaults",
        &[
            ("general.sampling.temp", Metadata::F32(0.5)),
            ("general.sampling.top_k", Metadata::I32(7)),
            ("general.sampling.min_p", Metadata::F32(0.25)),
            ("general.sampling.penalty_last_n", Metadata::I32(8)),
            ("general.sampling.sequence", Metadata::Text("top_k;temperature")),
        ],
    );
    let worker = TestWorker::start_model(&model, "--slots 1 --predict 3 --top-k 9").await;
    let expected = json!({
        "temperature": 0.5, "top_k": 9, "min_p": 0.25, "repeat_last_n": 8, "samplers": ["top_k", "temperature"],
    });
    let check = |found: &Value, expected: &Value| {
        for (field, value) in expected.as_object().expect("an object") {
            assert_eq!(&found[field], value, "{field}: {found}");
        }
    };
    check(&worker.get_json("/props").await["default_generation_settings"]["params"], &expected);
    check(&worker.ask("/completion", json!({"prompt": "One"})).await["generation_settings"], &expected);
    let own = json!({"prompt": "One", "temperature": 0.75, "top_k": 3, "samplers": "k"});
    let own = worker.ask("/completion", own).await;
    check(&own["generation_settings"], &json!({"temperature": 0.75, "top_k": 3, "min_p": 0.25, "samplers": ["top_k"]}));
}

#[tokio::test]
async fn a_file_that_asks_for_the_likeliest_token_gets_it_in_every_dialect() {
    let model = with_metadata("greedy-default", &[("general.sampling.temp", Metadata::F32(0.0))]);
    let greedy = TestWorker::start_model(&model, "--slots 1").await;
    let plain = TestWorker::start_model(tiny(), "--slots 1").await;
    let chat = json!({"messages": user("One two three"), "max_tokens": 12});
    let bodies = [
        ("/v1/chat/completions", chat.clone(), "/choices/0/message/content"),
        ("/v1/messages", chat, "/content/0/text"),
        ("/v1/responses", json!({"input": "One two three", "max_output_tokens": 12}), "/output/0/content/0/text"),
        ("/v1/completions", json!({"prompt": "One two three", "max_tokens": 12}), "/choices/0/text"),
        ("/completion", json!({"prompt": "One two three", "n_predict": 12}), "/content"),
    ];
    for (path, body, text) in bodies {
        let mut asked = body.clone();
        asked["temperature"] = json!(0);
        let expected = plain.ask(path, asked).await.pointer(text).cloned();
        assert!(expected.as_ref().is_some_and(Value::is_string), "{path} has no text");
        assert_eq!(greedy.ask(path, body).await.pointer(text).cloned(), expected, "{path}");
    }
}

#[test]
fn the_log_names_the_defaults_of_the_file_and_those_that_cannot_be_used() {
    let model = with_metadata(
        "unusable-defaults",
        &[
            ("general.sampling.temp", Metadata::F32(f32::NAN)),
            ("general.sampling.top_k", Metadata::Text("many")),
            ("general.sampling.top_p", Metadata::F32(-0.5)),
            ("general.sampling.min_p", Metadata::F32(0.125)),
            ("general.sampling.mirostat_tau", Metadata::F32(4.0)),
            ("general.sampling.sequence", Metadata::Texts(&["top_k".to_owned()])),
        ],
    );
    let mut worker = Command::new(env!("CARGO_BIN_EXE_warmpath-worker"))
        .args(["--listen", "127.0.0.1:0", "--slots", "1", "--threads", "1", "--mirostat-ent", "3", "--model"])
        .arg(model)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut log = String::new();
    for line in BufReader::new(worker.stderr.take().expect("a pipe")).lines() {
        log.push_str(&line.expect("a text"));
        log.push('\n');
        if log.contains("sets defaults of requests") {
            break;
        }
    }
    worker.kill().expect("it can be stopped");
    worker.wait().expect("it ends");
    assert!(log.contains("min_p 0.125") && !log.contains("mirostat_tau 4"), "{log}");
    for (key, reason) in [
        ("temp", "NaN is not a number"),
        ("top_k", "many is not a number"),
        ("top_p", "0 to 1"),
        ("sequence", "a list"),
    ] {
        let is_told = |line: &str| line.contains(&format!("general.sampling.{key}")) && line.contains(reason);
        assert!(log.lines().any(is_told), "{key}: {log}");
    }
}
