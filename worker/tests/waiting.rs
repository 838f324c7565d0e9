//! How a worker's threads wait: shortly by itself, as its user says where that is said.
//!
//! Not here: what that is worth (docs/tuning.md).

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::process::Command;

/// Returns what a worker that finds no model says of its threads, and its arguments and exit as it saw them.
fn says(environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath-worker"));
    command.args(["--model", "/nowhere/a model.gguf", "--log-format", "json"]);
    command.env_remove("GOMP_SPINCOUNT").env_remove("OMP_WAIT_POLICY").envs(environment.iter().copied());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("/nowhere/a model.gguf"), "the arguments are kept: {text}");
    let line = text.lines().find(|line| line.contains("threads_wait")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    line.pointer("/fields/threads_wait").or(line.get("threads_wait")).unwrap().as_str().unwrap().to_owned()
}

#[test]
fn threads_spin_shortly_unless_the_user_says_otherwise() {
    assert_eq!(says(&[]), "GOMP_SPINCOUNT=1000");
    assert_eq!(says(&[("GOMP_SPINCOUNT", "7")]), "GOMP_SPINCOUNT=7");
    assert_eq!(says(&[("OMP_WAIT_POLICY", "active")]), "OMP_WAIT_POLICY=active");
}
