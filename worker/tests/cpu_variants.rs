//! Results of `warmpath-worker check-cpu-variant` for libraries that are not usable sets of CPU kernels.
//!
//! The tests compile faulty libraries; a C compiler exists, because llama.cpp needs one. Not here: usable sets, which
//! only a build for container images has (`make test-image`).

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn library(folder: &Path, source: &str) -> PathBuf {
    let (c, so) = (folder.join("bad.c"), folder.join("libggml-cpu-bad.so"));
    std::fs::write(&c, source).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&so, &c]).status().unwrap();
    assert!(built.success());
    so
}

fn check(source: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let library = library(folder.path(), source);
    Command::new(env!("CARGO_BIN_EXE_warmpath-worker")).arg("check-cpu-variant").arg(library).output().unwrap()
}

fn says(source: &str) -> String {
    let output = check(source);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_set_for_another_processor_is_not_a_fault() {
    assert_eq!(says("int ggml_backend_score(void) { return 0; }"), r#"{"finding":"other_processor"}"#);
}

#[test]
fn reports_why_a_library_is_not_a_backend() {
    let no_score = says("int something_else;");
    assert!(no_score.contains("broken") && no_score.contains("ggml_backend_score"), "{no_score}");
    let empty = says("int ggml_backend_score(void) { return 9; } void *ggml_backend_init(void) { return 0; }");
    assert!(empty.contains("broken") && empty.contains("did not load"), "{empty}");
}

#[test]
fn kernels_that_the_processor_cannot_run_kill_only_the_process_that_tries_them() {
    use std::os::unix::process::ExitStatusExt as _;
    let output = check("int ggml_backend_score(void) { __builtin_trap(); }");
    assert!(output.status.signal().is_some() && output.stdout.is_empty(), "{output:?}");
}
