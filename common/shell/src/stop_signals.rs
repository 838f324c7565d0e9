//! The signals that stop a program: SIGTERM, and SIGINT (Ctrl-C).
//!
//! Not here: what a program does at the first one and at a second one (its `main`).

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals, from [`StopSignals::listen`] on.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Installs the signal handlers, so that the signals no longer end the process by themselves.
    ///
    /// Errors: the operating system refuses.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal; returns immediately if one came since the last call.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
