//! Files that may change while the program runs; they are read every second.
//!
//! Not here: reading and parsing their content.
//!
//! Files are polled, not watched, so that a mounted Secret, a rename over a file and a write to it are handled alike. A
//! missing or invalid file changes nothing, is counted, and is logged once.

use std::time::Duration;

/// Pause between two reads of a file.
///
/// Source: own choice: a small file costs some microseconds.
pub const POLL_PAUSE: Duration = Duration::from_secs(1);

/// A failed read.
#[derive(Debug)]
pub struct FileFailure {
    /// Reason.
    pub reason: String,
    /// Whether the previous read succeeded or failed for another reason.
    pub is_new: bool,
}

/// Calls `read_files` every second for as long as the future is polled, and `on_failure` for each error.
pub async fn watch<E: std::error::Error>(
    mut read_files: impl FnMut() -> Result<(), E>,
    mut on_failure: impl FnMut(FileFailure),
) {
    let mut last = String::new();
    loop {
        tokio::time::sleep(POLL_PAUSE).await;
        match read_files() {
            Ok(()) => last.clear(),
            Err(error) => {
                let reason = crate::chain(&error);
                let is_new = reason != last;
                last.clone_from(&reason);
                on_failure(FileFailure { reason, is_new });
            }
        }
    }
}
