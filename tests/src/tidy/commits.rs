//! The rules for commits: the subjects of the last ones are short, and all but small ones have a body.

use std::path::Path;
use std::process::Command;

use super::Finding;

/// Longest subject of a commit. Units: characters.
const SUBJECT_CHARS_MAX: usize = 72;

/// Most changed lines of a commit without a body. Source: own choice: mended sentences of some files.
const LINES_WITHOUT_BODY_MAX: u64 = 100;

/// Number of commits that are checked: those of a change that is about to be pushed, and some before them.
const COMMITS_CHECKED: &str = "-20";

/// Separators of commits and of their parts in the log.
const COMMIT: char = '\u{1e}';
const PART: char = '\u{1f}';

/// One commit of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Commit {
    pub(super) subject: String,
    pub(super) has_body: bool,
    /// Number of added and removed lines; 0 for a commit whose parents are not in the repository.
    pub(super) n_lines: u64,
}

/// Returns the last commits, the latest first; none where the tree is no repository.
pub(super) fn last_commits(root: &Path) -> Vec<Commit> {
    let format = format!("--format={COMMIT}%s{PART}%P{PART}%b{PART}");
    let args = ["log", COMMITS_CHECKED, "--no-merges", "--shortstat", &format];
    let output = Command::new("git").arg("-C").arg(root).args(args).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else { return Vec::new() };
    read_log(&String::from_utf8_lossy(&output.stdout))
}

/// Returns the commits of a log in the form that [`last_commits`] requests.
pub(super) fn read_log(log: &str) -> Vec<Commit> {
    let read_commit = |commit: &str| {
        let mut parts = commit.split(PART);
        let (subject, parents, body) = (parts.next()?, parts.next()?, parts.next()?);
        let changes = parts.next()?.split(',').skip(1).filter_map(|change| change.split_whitespace().next());
        let n_lines = changes.filter_map(|n| n.parse::<u64>().ok()).sum();
        // A shallow clone shows its first commit as if it had added every file.
        let n_lines = if parents.is_empty() { 0 } else { n_lines };
        Some(Commit { subject: subject.to_owned(), has_body: !body.trim().is_empty(), n_lines })
    };
    log.split(COMMIT).filter_map(read_commit).collect()
}

/// Returns the rules that these commits break.
pub(super) fn check_commits(commits: &[Commit]) -> Vec<Finding> {
    let mut messages = Vec::new();
    for Commit { subject, has_body, n_lines } in commits {
        if subject.chars().count() > SUBJECT_CHARS_MAX {
            messages.push(format!("the subject has more than {SUBJECT_CHARS_MAX} characters: {subject}"));
        }
        if !has_body && *n_lines > LINES_WITHOUT_BODY_MAX {
            messages.push(format!("a commit of {n_lines} lines has no body: {subject}"));
        }
    }
    messages.into_iter().map(|message| Finding::new(Path::new(".git"), 0, message)).collect()
}
