//! Errors of `warmpath` for invalid command lines. Running fleets are tested in `tests/tests/system/serve.rs`.

use std::process::{Command, Output};

fn warmpath(flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmpath")).args(flags).output().expect("the program runs")
}

#[track_caller]
fn check_refused(flags: &[&str], code: i32, said: &str) {
    let output = warmpath(flags);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(said), "{flags:?}: {text}");
    assert_eq!(output.status.code(), Some(code), "{flags:?}: {text}");
}

#[test]
fn wrong_command_lines_are_refused_with_advice() {
    check_refused(&[], 2, "Usage: warmpath [OPTIONS] <COMMAND>");
    check_refused(&["serve", "--workers", "none"], 2, "--workers <N>");
    check_refused(&["serve", "--workers", "0"], 1, "--workers must be at least 1");
    check_refused(&["serve", "--bin-dir", "/nowhere"], 1, "/nowhere/warmpath-worker does not exist");
    check_refused(&["status", "--admin", "http://127.0.0.1:1"], 1, "no router responds at http://127.0.0.1:1");
    check_refused(&["capacity", "--admin", "http://127.0.0.1:1"], 1, "no router responds at http://127.0.0.1:1");
    check_refused(&["capacity", "--hit-ratio", "80"], 2, "must be from 0 to 1");
}

#[test]
fn capacity_asks_no_router_if_every_value_is_given() {
    let load = ["--requests-per-s", "2", "--prompt-tokens", "2000", "--answer-tokens", "200", "--hit-ratio", "0.8"];
    let rates = ["--prefill-rate", "1500", "--decode-rate", "400", "--admin", "http://127.0.0.1:1"];
    let output = warmpath(&[&["capacity"], &load[..], &rates[..]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("2.00 requests/s need 3 workers"), "{text}");
}

#[test]
fn help_shows_where_the_flags_of_workers_and_router_are_listed() {
    let output = warmpath(&["serve", "--help"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("warmpath-worker --help"), "{text}");
}
