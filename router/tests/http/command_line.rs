//! The environment of a service file or an image: every known variable, some of them empty.
//!
//! Not here: the meaning of the flags (`config`).

use std::process::Command;

#[test]
fn an_empty_variable_is_unset_and_the_last_of_two_flags_counts() {
    let known = ["WORKER", "WORKERS_FILE", "LISTEN", "POLICY", "QUEUE_MAX", "API_KEYS_FILE", "TLS_CERT", "CORS_ORIGIN"];
    let empty = known.map(|name| (format!("WARMPATH_{name}"), ""));
    let output = Command::new(env!("CARGO_BIN_EXE_warmpath-router"))
        .args(["--queue-max", "1", "--queue-max", "2"])
        .envs(empty)
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("no worker can be found"), "{said}");
}

#[test]
fn a_new_key_is_printed_whatever_the_variables_are() {
    let output = Command::new(env!("CARGO_BIN_EXE_warmpath-router"))
        .args(["new-key", "alice"])
        .env("WARMPATH_LISTEN", "0.0.0.0:8080")
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("alice"), "{output:?}");
}
