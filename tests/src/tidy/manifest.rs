//! The rules for manifests: known build profiles, shared lints, and which crate may use which.

use std::path::Path;

use super::Finding;

/// Crates of the tree that each crate may use; dependencies point one way.
const MAY_USE: [(&str, &[&str]); 19] = [
    ("warmpath-common", &[]),
    ("warmpath-gguf", &["warmpath-common"]),
    ("warmpath-llama-chat", &[]),
    ("warmpath-tokenizer", &["warmpath-common"]),
    ("warmpath-prompt", &["warmpath-common", "warmpath-gguf", "warmpath-llama-chat", "warmpath-tokenizer"]),
    ("warmpath-router-core", &["warmpath-common"]),
    ("warmpath-shell", &["warmpath-common"]),
    (
        "warmpath-router",
        &["warmpath-common", "warmpath-gguf", "warmpath-prompt", "warmpath-router-core", "warmpath-shell"],
    ),
    ("warmpath-host-core", &["warmpath-common"]),
    ("warmpath-cli", &["warmpath-common", "warmpath-host-core", "warmpath-shell"]),
    ("warmpath-worker-core", &["warmpath-common"]),
    ("warmpath-worker-output", &["warmpath-common"]),
    ("warmpath-constraint", &["warmpath-common", "warmpath-worker-output"]),
    (
        "warmpath-worker",
        &[
            "warmpath-common",
            "warmpath-constraint",
            "warmpath-gguf",
            "warmpath-llama-chat",
            "warmpath-prompt",
            "warmpath-shell",
            "warmpath-worker-core",
            "warmpath-worker-output",
        ],
    ),
    ("warmpath-demo", &["warmpath-common", "warmpath-gguf", "warmpath-tokenizer"]),
    (
        "warmpath-bench",
        &[
            "warmpath-common",
            "warmpath-gguf",
            "warmpath-host-core",
            "warmpath-prompt",
            "warmpath-router-core",
            "warmpath-router",
            "warmpath-worker-core",
            "warmpath-worker",
            "warmpath-demo",
        ],
    ),
    (
        "warmpath-fuzz",
        &[
            "warmpath-common",
            "warmpath-gguf",
            "warmpath-prompt",
            "warmpath-router-core",
            "warmpath-router",
            "warmpath-constraint",
            "warmpath-worker-core",
            "warmpath-worker",
        ],
    ),
    (
        "warmpath-tests",
        &[
            "warmpath-common",
            "warmpath-gguf",
            "warmpath-prompt",
            "warmpath-router-core",
            "warmpath-router",
            "warmpath-worker-core",
            "warmpath-worker",
            "warmpath-bench",
        ],
    ),
    // Shares source files with warmpath-bench and nothing else: it is built separately.
    ("warmpath-bench-peers", &[]),
];

/// Pure crates.
const PURE: [&str; 6] = [
    "warmpath-common",
    "warmpath-host-core",
    "warmpath-router-core",
    "warmpath-tokenizer",
    "warmpath-worker-core",
    "warmpath-worker-output",
];
/// External crates that a pure crate may use: none of them does IO, reads a clock or runs async code.
const PURE_MAY_USE: [&str; 13] = [
    "arc-swap",
    "blake3",
    "fancy-regex",
    "hashbrown",
    "memchr",
    "postcard",
    "rand",
    "schemars",
    "serde",
    "serde_json",
    "serde_path_to_error",
    "thiserror",
    "triomphe",
];

/// Returns the rules that the manifest of a crate at `path` breaks.
pub(super) fn check_manifest(path: &Path, text: &str) -> Vec<Finding> {
    let manifest: toml::Table = match text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![Finding::new(path, 0, format!("does not parse: {error}"))],
    };
    let mut findings = Vec::new();
    let mut find = |message: String| findings.push(Finding::new(path, 0, message));
    let inherits_lints = manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
    if inherits_lints != Some(true) {
        find("does not take the workspace's lints".to_owned());
    }
    let name = manifest.get("package").and_then(|package| package.get("name")).and_then(toml::Value::as_str);
    let Some(name) = name else { return findings };
    let Some((_, may_use)) = MAY_USE.iter().find(|(known, _)| *known == name) else {
        find(format!("`{name}` is not in the table of crates that may use each other"));
        return findings;
    };
    for used in dependencies(&manifest) {
        let outside = !used.starts_with("warmpath-");
        if !outside && !may_use.contains(&used.as_str()) {
            find(format!("`{name}` may not use `{used}`: dependencies point one way"));
        }
        if outside && PURE.contains(&name) && !PURE_MAY_USE.contains(&used.as_str()) {
            find(format!("`{name}` is pure and may not use `{used}`"));
        }
    }
    findings
}

/// Profiles of the workspace: that of demo and tests, that of builds for use, and that of releases, which are built
/// elsewhere and once.
const PROFILES: [&str; 3] = ["dev", "release", "dist"];

/// Returns the rules that the workspace's manifest breaks.
pub(super) fn check_root_manifest(path: &Path, text: &str) -> Vec<Finding> {
    let manifest: toml::Table = match text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![Finding::new(path, 0, format!("does not parse: {error}"))],
    };
    let profiles = manifest.get("profile").and_then(toml::Value::as_table);
    let others = profiles.into_iter().flatten().filter(|(name, _)| !PROFILES.contains(&name.as_str()));
    others
        .map(|(name, _)| Finding::new(path, 0, format!("profile `{name}`: each profile compiles llama.cpp again")))
        .collect()
}

/// Returns the names of the crates that production code depends on, on any platform.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let of = |table: Option<&toml::Value>| -> Vec<String> {
        table.and_then(toml::Value::as_table).into_iter().flatten().map(|(name, _)| name.clone()).collect()
    };
    let mut names = of(manifest.get("dependencies"));
    for (_, platform) in manifest.get("target").and_then(toml::Value::as_table).into_iter().flatten() {
        names.extend(of(platform.get("dependencies")));
    }
    names
}
