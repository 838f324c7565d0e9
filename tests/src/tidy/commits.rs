//! The rule for commits: the subjects of the last ones are short.

use std::path::Path;
use std::process::Command;

use super::Finding;

/// Longest subject of a commit. Units: characters.
const SUBJECT_CHARS_MAX: usize = 72;

/// Number of commits that are checked: those of a change that is about to be pushed, and some before them.
const COMMITS_CHECKED: &str = "-20";

/// Returns the subjects of the last commits, the latest first; none where the tree is no repository.
pub(super) fn last_subjects(root: &Path) -> Vec<String> {
    let output = Command::new("git").arg("-C").arg(root).args(["log", COMMITS_CHECKED, "--format=%s"]).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Returns the rules that these subjects of commits break.
pub(super) fn check_subjects(subjects: &[String]) -> Vec<Finding> {
    let long = subjects.iter().filter(|subject| subject.chars().count() > SUBJECT_CHARS_MAX);
    let message = |subject: &String| format!("the subject has more than {SUBJECT_CHARS_MAX} characters: {subject}");
    long.map(|subject| Finding::new(Path::new(".git"), 0, message(subject))).collect()
}
