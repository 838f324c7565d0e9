//! The lints that enforce the rules of CONTRIBUTING.md: they read every file and return each broken rule.
//!
//! Not here: rules that rustfmt, clippy, rustdoc, shellcheck and cargo-deny check already.
//!
//! Each rule is a function from a file's text to findings, so that a test with a bad sample shows that it can fail.

mod commits;
mod manifest;
mod page;
mod prose;
mod rust_source;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use commits::{check_commits, last_commits};
use manifest::{check_manifest, check_root_manifest};
use page::check_page;
use prose::{check_changelog, check_comments, check_sentences};
use rust_source::{check_rust_source, function_names, tuple_parameters};

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Path of the file, relative to the tree's root.
    pub path: PathBuf,
    /// Line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Description: which rule is broken and how.
    pub message: String,
}

impl Finding {
    /// Returns a finding.
    pub fn new(path: &Path, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}

/// Every text file of the tree that the lints read.
#[derive(Debug)]
pub struct Tree {
    /// Root of the tree.
    pub root: PathBuf,
    /// Files: path relative to the root, and text.
    pub files: Vec<(PathBuf, String)>,
}

/// Most parameters of the tree whose type has a tuple in it. A pair that a library hands over may stay one.
const TUPLE_PARAMETERS_MAX: usize = 4;

/// Extensions of the files that are read.
const ENDINGS: [&str; 6] = ["rs", "md", "toml", "sh", "py", "yml"];

impl Tree {
    /// Reads the tree at `root`, except build outputs and hidden folders.
    ///
    /// Errors: a file that cannot be read or is not UTF-8.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        let visible = |entry: &walkdir::DirEntry| {
            let name = entry.file_name().to_string_lossy();
            entry.depth() == 0 || !(name.starts_with('.') || entry.depth() == 1 && name == "target")
        };
        for entry in walkdir::WalkDir::new(root).sort_by_file_name().into_iter().filter_entry(visible) {
            let entry = entry?;
            let path = entry.path();
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            if entry.file_type().is_file() && ENDINGS.contains(&ending) {
                let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
                files.push((path.strip_prefix(root)?.to_owned(), text));
            }
        }
        Ok(Self { root: root.to_owned(), files })
    }

    /// Returns the files whose name ends in `.ending`.
    pub fn with_ending(&self, ending: &str) -> impl Iterator<Item = (&Path, &str)> {
        let matches = move |path: &Path| path.extension().is_some_and(|path_ending| path_ending == ending);
        self.files.iter().filter(move |(path, _)| matches(path)).map(|(path, text)| (path.as_path(), text.as_str()))
    }

    /// Returns all findings in the tree.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (path, text) in self.with_ending("rs") {
            findings.extend(check_rust_source(path, text));
            findings.extend(check_comments(path, text));
        }
        for (path, text) in self.with_ending("toml") {
            if path == Path::new("Cargo.toml") {
                findings.extend(check_root_manifest(path, text));
            } else if path.ends_with("Cargo.toml") {
                findings.extend(check_manifest(path, text));
            }
        }
        for (path, text) in self.with_ending("md") {
            findings.extend(check_page(path, text, self));
            findings.extend(check_sentences(path, text));
            if path == Path::new("CHANGELOG.md") {
                findings.extend(check_changelog(path, text));
            }
        }
        let known_names = self.known_names();
        for (path, text) in self.with_ending("rs") {
            findings.extend(check_not_here(path, text, &known_names));
        }
        for (path, text) in &self.files {
            findings.extend(check_mentions(path, text, self));
        }
        let tuples = self.with_ending("rs").flat_map(|(path, text)| tuple_parameters(path, text)).collect::<Vec<_>>();
        if tuples.len() > TUPLE_PARAMETERS_MAX {
            findings.extend(tuples);
        }
        findings.extend(check_commits(&last_commits(&self.root)));
        findings
    }

    /// Returns the text of the file at `path`, if it was read.
    pub fn text(&self, path: &Path) -> Option<&str> {
        self.files.iter().find(|(found, _)| found == path).map(|(_, text)| text.as_str())
    }

    /// Returns the names to which a comment may refer the reader: files and folders of Rust code, functions, crates.
    pub fn known_names(&self) -> BTreeSet<String> {
        let mut known_names: BTreeSet<String> =
            self.with_ending("rs").flat_map(|(_, text)| function_names(text)).collect();
        for (path, _) in self.with_ending("rs") {
            let parts = path.with_extension("");
            known_names.extend(parts.iter().filter_map(|part| part.to_str().map(str::to_owned)));
        }
        for (_, manifest) in self.with_ending("toml") {
            let words = manifest.split(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c)));
            known_names.extend(words.map(|word| word.replace('-', "_")));
        }
        known_names
    }

    /// Returns the names of every test function, in Rust and in Python.
    pub fn test_names(&self) -> BTreeSet<String> {
        let rust = self.with_ending("rs").flat_map(|(_, text)| function_names(text));
        let python = self.with_ending("py").flat_map(|(_, text)| {
            text.lines().filter_map(|line| {
                line.trim_start().strip_prefix("def ")?.split_once('(').map(|(name, _)| name.to_owned())
            })
        });
        rust.chain(python).collect()
    }
}

/// Returns references to pages under `docs` that do not exist; a decision may be referred to by its number alone.
fn check_mentions(path: &Path, text: &str, tree: &Tree) -> Vec<Finding> {
    const FOLDER: &str = "docs/";
    let mut findings = Vec::new();
    for (line_idx, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices(FOLDER) {
            let text_left = &line[at..];
            let end =
                text_left.find(|c: char| !(c.is_ascii_alphanumeric() || "-._/".contains(c))).unwrap_or(text_left.len());
            let name = text_left[..end].trim_end_matches('.');
            let last = name.rsplit('/').next().unwrap_or_default();
            let is_number = last.len() == 4 && last.bytes().all(|b| b.is_ascii_digit());
            if !is_number && !name.ends_with(".md") {
                continue;
            }
            let begins = |(file_path, _): &(PathBuf, String)| {
                file_path.to_str().is_some_and(|file_path| file_path.starts_with(name))
            };
            if !tree.files.iter().any(begins) {
                findings.push(Finding::new(path, line_idx + 1, format!("there is no {name}")));
            }
        }
    }
    findings
}

/// Returns the modules and functions that a file's header names after `Not here:` and that do not exist.
fn check_not_here(path: &Path, text: &str, known_names: &BTreeSet<String>) -> Vec<Finding> {
    const MARK: &str = "Not here:";
    let header: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let header = header.join(" ");
    let Some((_, after)) = header.split_once(MARK) else { return Vec::new() };
    let sentence = after.split(". ").next().unwrap_or_default();
    let is_name = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || "_:".contains(c));
    let names = sentence.split('`').skip(1).step_by(2).filter(is_name).flat_map(|word| word.split("::"));
    let missing = names.filter(|name| !["crate", "super", ""].contains(name) && !known_names.contains(*name));
    missing.map(|name| Finding::new(path, 1, format!("there is no module or function `{name}`"))).collect()
}

#[cfg(test)]
mod tests;
