//! Files that change while the program runs: looked at every second.
//!
//! Not here: what they hold. The idea: files are read, not watched: a mounted Secret, a rename over a file and a write into it
//! then look alike. A file that is gone or wrong changes nothing, counts, and is said once.

use std::time::Duration;

/// Is the pause between two looks at a file.
///
/// Source: own choice: a small file costs some microseconds.
pub const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Is a look that failed.
#[derive(Debug)]
pub struct Failure {
    /// Says why.
    pub reason: String,
    /// Says that the look before did not fail for the same reason.
    pub is_new: bool,
}

/// Looks every second for as long as it is polled, and tells each look that fails.
pub async fn watch<E: std::error::Error>(mut look: impl FnMut() -> Result<(), E>, mut failed: impl FnMut(Failure)) {
    let mut last = String::new();
    loop {
        tokio::time::sleep(LOOK_PAUSE).await;
        match look() {
            Ok(()) => last.clear(),
            Err(error) => {
                let reason = crate::chain(&error);
                let is_new = reason != last;
                last.clone_from(&reason);
                failed(Failure { reason, is_new });
            }
        }
    }
}
