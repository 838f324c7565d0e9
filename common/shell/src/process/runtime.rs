//! The runtime of a program's asynchronous work, and its end.
//!
//! Not here: signals, and what a program finishes before it ends (its `main`).

use std::future::Future;
use std::io;
use std::time::Duration;

/// Longest wait at the end of the program for blocking work that cannot be stopped: a model that is being loaded, the
/// look-up of a name.
///
/// Source: own choice: nobody waits for its result, but a program that ends beside it may crash.
const BLOCKING_WAIT_MAX: Duration = Duration::from_secs(1);

/// Runs `work` to its end on all processors, and ends whatever else runs then.
///
/// Errors: the system's, if it has no threads.
pub fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(work);
    // Dropping the runtime would wait for blocking work without limit, deaf to signals.
    runtime.shutdown_timeout(BLOCKING_WAIT_MAX);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_work_does_not_keep_the_program_from_ending() {
        let (begins, begun) = tokio::sync::oneshot::channel();
        let ended = block_on(async {
            tokio::task::spawn_blocking(|| {
                let _ = begins.send(());
                loop {
                    std::thread::park();
                }
            });
            begun.await.is_ok()
        });
        assert!(matches!(ended, Ok(true)));
    }
}
