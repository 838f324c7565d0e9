//! The versions of the programs that a report measures.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::servers::peers::{Program, ROOT};

/// Lock file of this program.
const LOCKED: &str = include_str!("../../../Cargo.lock");
/// Lock file of the programs that measure other indexes.
const LOCKED_INDEXES: &str = include_str!("../../peers/Cargo.lock");

/// Returns the versions of Warmpath, of llama.cpp and of the peers that were measured.
pub fn versions(peers: &BTreeSet<Program>) -> BTreeMap<String, String> {
    let of_program = |program: &Program| Some((program.name().to_owned(), program_version(program.version()?)?));
    let mut versions: BTreeMap<String, String> = peers.iter().filter_map(of_program).collect();
    let mut add = |name: &str, version: Option<String>| {
        versions.insert(name.to_owned(), version.unwrap_or_else(|| "unknown".to_owned()));
    };
    add("Warmpath", Some(format!("{}, {}", env!("CARGO_PKG_VERSION"), commit())));
    add("llama.cpp", locked(LOCKED, "llama-cpp-sys-2").map(|version| format!("that of llama-cpp-sys-2 {version}")));
    if peers.contains(&Program::Indexes) {
        for name in ["kv-index", "dynamo-kv-router"] {
            add(name, locked(LOCKED_INDEXES, name));
        }
    }
    versions
}

/// Returns the commit of the source tree, and whether files differ from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(ROOT).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "--short=10", "HEAD"]), git(&["status", "--porcelain", "--untracked-files=no"])) {
        (Some(commit), Some(changed)) if changed.is_empty() => format!("commit {commit}"),
        (Some(commit), _) => format!("commit {commit}, modified"),
        (None, _) => "unknown commit".to_owned(),
    }
}

/// Returns the first line with a digit that a program prints of its version.
fn program_version(mut command: Command) -> Option<String> {
    // wrk ends with an error after its version.
    let output = command.output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| line.contains(|c: char| c.is_ascii_digit()))?;
    Some(line.split("Copyright").next().unwrap_or(line).trim().to_owned())
}

/// Returns the version of a crate in a lock file.
fn locked(lock: &str, name: &str) -> Option<String> {
    let (_, version) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    version.split('"').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_crates_are_those_of_the_lock_files() {
        let versions = versions(&[Program::Indexes].into());
        assert!(versions["Warmpath"].starts_with(env!("CARGO_PKG_VERSION")), "{versions:?}");
        assert!(versions["llama.cpp"].starts_with("that of llama-cpp-sys-2 0."), "{versions:?}");
        assert_eq!(versions["kv-index"], "2.0.0");
        assert_eq!(locked(LOCKED, "no-such-crate"), None);
    }

    #[test]
    fn a_programs_version_is_its_first_line_with_a_number() {
        let version_of = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            program_version(command)
        };
        assert_eq!(
            version_of("echo 'nginx version: nginx/1.22.1' >&2").as_deref(),
            Some("nginx version: nginx/1.22.1")
        );
        assert_eq!(
            version_of("echo 'wrk 4.1.0 [epoll] Copyright (C) 2012'; exit 1").as_deref(),
            Some("wrk 4.1.0 [epoll]")
        );
        assert_eq!(version_of("echo none"), None);
    }
}
