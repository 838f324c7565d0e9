//! Workers listed in a file, one URL per line, read again every second.
//!
//! The file is polled, not watched, so the update of a Kubernetes ConfigMap, a rename over the file and a write into it
//! look the same. A file that is missing or invalid changes nothing. Neither does a half-written file: a list counts
//! once two polls have seen it, and an empty list counts only if the file contains `none`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use warmpath_shell::files::{self, FileFailure};

use super::source::{Source, staying};
use crate::config::{WORKERS_FILE_BYTES_MAX, WorkerAddress, WorkerUrlError, worker_address};
use crate::metrics::Metrics;

/// Line that declares that there are no workers.
const NONE: &str = "none";

/// Consecutive polls that must see a new list before it counts.
///
/// Source: own choice: a program rewrites a file within milliseconds, and a poll comes every second.
const SETTLED_POLLS: u32 = 2;

/// Consecutive polls that must see a new list without a final newline if the last list had one.
///
/// Source: own choice: long enough to notice a rewrite that stalled, short enough for an editor that omits the last
/// newline.
const CUT_POLLS: u32 = 30;

/// Reason why a file of workers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("it cannot be read")]
    Read(#[source] std::io::Error),
    /// The file is too long.
    #[error("it has more than {WORKERS_FILE_BYTES_MAX} bytes")]
    TooLong,
    /// A line is no worker's URL.
    #[error("line {line}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// Reason.
        #[source]
        source: WorkerUrlError,
    },
    /// The file contains `none` and lists workers.
    #[error("it contains `{NONE}` and lists workers")]
    Contradiction,
    /// The file listed workers and is now empty without `none`.
    #[error("it lists no worker any more; for a fleet without workers write a line `{NONE}`")]
    Emptied,
    /// The file ends in the middle of a line, as a half-written file does.
    #[error("its last line has no line end, as if it were being written")]
    Cut,
}

/// Content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerList {
    workers: Vec<WorkerAddress>,
    says_none: bool,
    ends_whole: bool,
}

/// Returns the content of a file; empty lines and text after `#` are ignored.
///
/// Errors: `Read`, `TooLong`, `Line`, `Contradiction`.
pub fn read(path: &Path) -> Result<WorkerList, FileError> {
    let text = std::fs::read_to_string(path).map_err(FileError::Read)?;
    if text.len() > WORKERS_FILE_BYTES_MAX {
        return Err(FileError::TooLong);
    }
    let lines = text.lines().enumerate().map(|(idx, line)| (idx + 1, line.split('#').next().unwrap_or("").trim()));
    let (mut workers, mut says_none) = (Vec::new(), false);
    for (line, text) in lines.filter(|(_, line)| !line.is_empty()) {
        if text == NONE {
            says_none = true;
        } else {
            workers.push(worker_address(text).map_err(|source| FileError::Line { line, source })?);
        }
    }
    if says_none && !workers.is_empty() {
        return Err(FileError::Contradiction);
    }
    Ok(WorkerList { workers, says_none, ends_whole: text.ends_with('\n') })
}

/// The list in force, and the candidate for the next one.
struct Followed {
    current: WorkerList,
    /// A different list, and the number of consecutive polls that have seen it.
    next: Option<(WorkerList, u32)>,
}

impl Followed {
    /// Records the result of a poll; returns the workers if they changed.
    ///
    /// Errors: `Emptied`, `Cut`: the last list stays in force.
    fn see(&mut self, seen: WorkerList) -> Result<Option<&[WorkerAddress]>, FileError> {
        if seen.workers == self.current.workers {
            (self.current, self.next) = (seen, None);
            return Ok(None);
        }
        if seen.workers.is_empty() && !seen.says_none {
            self.next = None;
            return Err(FileError::Emptied);
        }
        let n_looks = match self.next.take() {
            Some((before, n_looks)) if before == seen => n_looks + 1,
            _ => 1,
        };
        let is_cut = self.current.ends_whole && !seen.ends_whole;
        if n_looks < if is_cut { CUT_POLLS } else { SETTLED_POLLS } {
            self.next = Some((seen, n_looks));
            return if is_cut { Err(FileError::Cut) } else { Ok(None) };
        }
        self.current = seen;
        Ok(Some(&self.current.workers))
    }
}

/// Follows a file as long as the router runs.
pub(super) async fn watch(path: PathBuf, source: Source, first: WorkerList, metrics: Arc<Metrics>) {
    if first.workers.is_empty() && !first.says_none {
        tracing::warn!(path = %path.display(), "workers file lists no worker");
    }
    source.set(first.workers.iter().cloned().map(staying).collect());
    let mut file_follower = Followed { current: first, next: None };
    let poll = || {
        if let Some(workers) = file_follower.see(read(&path)?)? {
            tracing::info!(path = %path.display(), n_workers = workers.len(), "workers file has changed");
            source.set(workers.iter().cloned().map(staying).collect());
        }
        Ok::<_, FileError>(())
    };
    let report = |FileFailure { reason, is_new }| {
        metrics.discovery_failures.with_label_values(&["file"]).inc();
        if is_new {
            tracing::error!(path = %path.display(), %reason, "workers file cannot be used; its last content stays in force");
        }
    };
    files::watch(poll, report).await;
}

#[cfg(test)]
mod tests {
    use warmpath_shell::chain;

    use super::*;

    fn read_text(text: &str) -> Result<WorkerList, FileError> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("it can be written");
        read(file.path())
    }

    fn urls(workers: &[WorkerAddress]) -> Vec<&str> {
        workers.iter().map(|worker| worker.url.as_str()).collect()
    }

    #[test]
    fn lists_workers_with_comments_and_empty_lines() {
        let listing = read_text("# ours\nhttp://a:1\n\n  openai+http://b:2  # theirs\n").expect("a good file");
        assert_eq!(urls(&listing.workers), ["http://a:1/", "http://b:2/"]);
        assert!(read_text("").expect("an empty list").workers.is_empty());
        assert!(read_text("none # scaled down\n").expect("a good file").says_none);
    }

    #[test]
    fn names_the_line_that_is_wrong() {
        let error = read_text("http://a:1\nhttps//b\n").expect_err("a broken line");
        assert_eq!(chain(&error), "line 2: it is not a URL");
        let error = read(Path::new("/nonexistent/workers")).expect_err("no file");
        assert!(matches!(error, FileError::Read(_)), "{error:?}");
        assert!(matches!(read_text(&"#".repeat(WORKERS_FILE_BYTES_MAX + 1)), Err(FileError::TooLong)));
        assert!(matches!(read_text("http://a:1\nnone\n"), Err(FileError::Contradiction)));
    }

    /// Polls the texts one after the other, beginning with a list of two workers; returns the result of each poll.
    fn follow(texts: &[&str]) -> Vec<String> {
        let current = read_text("http://a:1\nhttp://b:2\n").expect("a good file");
        let mut followed = Followed { current, next: None };
        let mut see = |text: &&str| match read_text(text).and_then(|seen| Ok(followed.see(seen)?.map(<[_]>::to_vec))) {
            Ok(None) => "stands".to_owned(),
            Ok(Some(workers)) => urls(&workers).join(" "),
            Err(error) => chain(&error),
        };
        texts.iter().map(&mut see).collect()
    }

    #[test]
    fn a_new_list_counts_once_it_was_read_twice() {
        let new = "http://a:1\nhttp://c:3\n";
        assert_eq!(follow(&[new, new, new]), ["stands", "http://a:1/ http://c:3/", "stands"]);
        let between = "http://a:1\n";
        assert_eq!(follow(&[between, new, between, new]), ["stands"; 4], "the file is still being written");
    }

    #[test]
    fn an_emptied_file_is_ignored_unless_it_contains_none() {
        let emptied = "it lists no worker any more; for a fleet without workers write a line `none`";
        assert_eq!(follow(&["", "# nothing\n\n", ""]), [emptied; 3]);
        assert_eq!(follow(&["none\n", "none\n", "", "\n"]), ["stands", "", "stands", "stands"]);
    }

    #[test]
    fn a_truncated_file_is_ignored_for_a_while() {
        let cut = "http://a:1\nhttp://b";
        let mut expected = vec!["its last line has no line end, as if it were being written"; CUT_POLLS as usize - 1];
        expected.push("http://a:1/ http://b/");
        assert_eq!(follow(&vec![cut; CUT_POLLS as usize]), expected);
        // A list that only lacks its last newline is the same list.
        assert_eq!(follow(&["http://a:1\nhttp://b:2"]), ["stands"]);
    }
}
