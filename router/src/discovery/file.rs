//! Workers listed in a file, one URL a line; it is read again every second.
//!
//! The idea: the file is read, not watched: a Kubernetes ConfigMap, a rename over it and a write into it then look alike. A
//! file that is gone or wrong changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use warmpath_shell::files::{self, Failure};

use super::{Source, staying};
use crate::config::{WORKERS_FILE_BYTES_MAX, WorkerAddress, WorkerUrlError, worker_address};
use crate::metrics::Metrics;

/// Says why a file of workers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("it cannot be read")]
    Read(#[source] std::io::Error),
    /// It is too long.
    #[error("it has more than {WORKERS_FILE_BYTES_MAX} bytes")]
    TooLong,
    /// A line is no worker.
    #[error("line {line}")]
    Line {
        /// Is the line's number, from 1.
        line: usize,
        /// Says what is wrong with it.
        #[source]
        source: WorkerUrlError,
    },
}

/// Returns the workers that a file lists; empty lines and what follows `#` do not count.
///
/// Errors: every [`FileError`].
pub fn read(path: &Path) -> Result<Vec<WorkerAddress>, FileError> {
    let text = std::fs::read_to_string(path).map_err(FileError::Read)?;
    if text.len() > WORKERS_FILE_BYTES_MAX {
        return Err(FileError::TooLong);
    }
    let lines = text.lines().enumerate().map(|(idx, line)| (idx + 1, line.split('#').next().unwrap_or("").trim()));
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(line, text)| worker_address(text).map_err(|source| FileError::Line { line, source }))
        .collect()
}

/// Follows a file for as long as the router runs.
pub(super) async fn watch(path: PathBuf, source: Source, (first, metrics): (Vec<WorkerAddress>, Arc<Metrics>)) {
    let mut current = first;
    source.set(current.iter().cloned().map(staying).collect());
    let look = || {
        let workers = read(&path)?;
        if workers != current {
            current = workers;
            source.set(current.iter().cloned().map(staying).collect());
        }
        Ok::<_, FileError>(())
    };
    let tell = |Failure { reason, is_new }| {
        metrics.discovery_failures.with_label_values(&["file"]).inc();
        if is_new {
            tracing::error!(path = %path.display(), %reason, "workers file cannot be used; its last content stands");
        }
    };
    files::watch(look, tell).await;
}

#[cfg(test)]
mod tests {
    use warmpath_shell::chain;

    use super::*;

    fn read_text(text: &str) -> Result<Vec<WorkerAddress>, FileError> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("it can be written");
        read(file.path())
    }

    #[test]
    fn lists_workers_with_comments_and_empty_lines() {
        let workers = read_text("# ours\nhttp://a:1\n\n  openai+http://b:2  # theirs\n").expect("a good file");
        let urls: Vec<_> = workers.iter().map(|worker| worker.url.as_str()).collect();
        assert_eq!(urls, ["http://a:1/", "http://b:2/"]);
        assert_eq!(read_text("").expect("nobody is there yet"), []);
    }

    #[test]
    fn names_the_line_that_is_wrong() {
        let error = read_text("http://a:1\nhttps//b\n").expect_err("a broken line");
        assert_eq!(chain(&error), "line 2: it is no URL");
        let error = read(Path::new("/nonexistent/workers")).expect_err("no file");
        assert!(matches!(error, FileError::Read(_)), "{error:?}");
        assert!(matches!(read_text(&"#".repeat(WORKERS_FILE_BYTES_MAX + 1)), Err(FileError::TooLong)));
    }
}
