//! How long a worker's threads spin while they wait: shortly by default, or as the user sets it.
//!
//! Not here: the effect (docs/tuning.md).

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::process::Command;

/// Runs a worker with a missing model; returns its log about its threads and arguments, and its exit status.
fn says(environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath-worker"));
    command.args(["--model", "/nowhere/a model.gguf", "--log-format", "json"]);
    command.env_remove("GOMP_SPINCOUNT").env_remove("OMP_WAIT_POLICY").envs(environment.iter().copied());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("/nowhere/a model.gguf"), "the arguments were lost: {text}");
    let line = text.lines().find(|line| line.contains("threads_wait")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    line.pointer("/fields/threads_wait").or(line.get("threads_wait")).unwrap().as_str().unwrap().to_owned()
}

#[test]
fn threads_spin_shortly_unless_the_user_sets_it() {
    let spins: u32 = says(&[]).strip_prefix("GOMP_SPINCOUNT=").unwrap().parse().unwrap();
    assert!((1..=35_000).contains(&spins), "35 microseconds of this processor: {spins}");
    assert_eq!(says(&[("GOMP_SPINCOUNT", "7")]), "GOMP_SPINCOUNT=7");
    assert_eq!(says(&[("OMP_WAIT_POLICY", "active")]), "OMP_WAIT_POLICY=active");
}
