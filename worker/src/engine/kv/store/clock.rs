//! The store's clock, whose times are compared with those of files from earlier processes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Clock in milliseconds since 1970 that never goes back.
pub(super) struct Clock {
    started: Instant,
    started_ms: u64,
}

impl Clock {
    /// Returns the machine's clock from now on.
    pub(super) fn start() -> Self {
        Self { started: Instant::now(), started_ms: ms_since_1970(SystemTime::now()) }
    }

    /// Returns the time.
    pub(super) fn now_ms(&self) -> u64 {
        self.started_ms + to_ms(self.started.elapsed())
    }
}

/// Returns the time of a file's last use, or the current time if that is earlier: the machine's clock may have been
/// ahead when the file was used, or be behind now. State that was used in the future would never be evicted.
pub(super) fn past_ms(file_time: SystemTime, now_ms: u64) -> u64 {
    ms_since_1970(file_time).min(now_ms)
}

fn ms_since_1970(time: SystemTime) -> u64 {
    to_ms(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn to_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_file_is_never_later_than_the_clock() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        let day = Duration::from_secs(24 * 60 * 60);
        for (file_time, expected_ms) in [
            (now - Duration::from_secs(1), 999_000),
            (now, 1_000_000),
            (now + Duration::from_millis(1), 1_000_000),
            (now + day, 1_000_000),
            (UNIX_EPOCH - day, 0),
        ] {
            assert_eq!(past_ms(file_time, 1_000_000), expected_ms, "{file_time:?}");
        }
    }
}
