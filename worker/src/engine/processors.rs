//! Processors of the machine: how long this process's threads wait for one.
//!
//! Only Linux reports the waits, for each thread.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// Folder with a folder of each thread of this process.
const THREADS_FOLDER: &str = "/proc/self/task";

/// Meter of the time that this process's threads were ready to run and waited for a processor, in sum.
#[derive(Debug, Default)]
pub(super) struct ProcessorWaits {
    /// Last value of each thread.
    threads: HashMap<u32, Duration>,
    total: Duration,
}

impl ProcessorWaits {
    /// Returns the sum since the first call; `None` if the system does not report it.
    ///
    /// Cost: some 10 µs for each thread. Source: proc(5), the second field of `schedstat`, in nanoseconds.
    pub(super) fn total(&mut self) -> Option<Duration> {
        let mut now = HashMap::new();
        for thread in Path::new(THREADS_FOLDER).read_dir().ok()?.flatten() {
            let Some(id) = thread.file_name().to_str().and_then(|id| id.parse().ok()) else { continue };
            // A thread may have ended.
            let Ok(text) = std::fs::read_to_string(thread.path().join("schedstat")) else { continue };
            let waited_ns = text.split_whitespace().nth(1)?.parse().ok()?;
            now.insert(id, Duration::from_nanos(waited_ns));
        }
        if now.is_empty() {
            return None;
        }
        let is_first = self.threads.is_empty();
        let since = |(id, time_waited): (&u32, &Duration)| {
            let before = self.threads.get(id).copied().unwrap_or_default();
            time_waited.saturating_sub(before)
        };
        let time_waited: Duration = now.iter().map(since).sum();
        self.total += if is_first { Duration::ZERO } else { time_waited };
        self.threads = now;
        Some(self.total)
    }
}

/// Returns the waits between two readings; `None` if the system does not report them.
pub(super) fn since(total: Option<Duration>, before: Option<Duration>) -> Option<Duration> {
    Some(total?.saturating_sub(before?))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn waits_of_threads_beyond_the_processors_are_counted() {
        let mut waits = ProcessorWaits::default();
        if waits.total().is_none() {
            // The system does not report them.
            return;
        }
        let until = Instant::now() + Duration::from_millis(300);
        let n_processors = std::thread::available_parallelism().unwrap().get();
        let waited = std::thread::scope(|scope| {
            for _ in 0..3 * n_processors {
                scope.spawn(|| while Instant::now() < until {});
            }
            std::thread::sleep(Duration::from_millis(200));
            waits.total().unwrap()
        });
        assert!(waited > Duration::from_millis(50), "{waited:?}");
        assert!(waits.total().unwrap() >= waited, "threads that have ended still count");
    }
}
