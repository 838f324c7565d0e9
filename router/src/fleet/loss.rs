//! The news that a worker is lost, for whoever waits for its answer.
//!
//! Not here: how a loss is found out (`subscriber`, `stock`) and told (`tracker`). The idea: an answer of a worker that hangs, or
//! that a network has swallowed, never fails by itself. So everybody who waits for one listens here besides.

use tokio::sync::watch;

/// Tells of the losses of one worker.
#[derive(Debug)]
pub(super) struct Losses(watch::Sender<()>);

/// Hears of the losses of one worker.
#[derive(Debug, Clone)]
pub struct Loss(watch::Receiver<()>);

impl Losses {
    /// Returns what tells of no loss yet.
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(()))
    }

    /// Tells that the worker is lost; it is told again as long as the worker stays lost.
    pub(super) fn tell(&self) {
        self.0.send_replace(());
    }

    /// Returns what hears of losses from now on.
    pub(super) fn listen(&self) -> Loss {
        Loss(self.0.subscribe())
    }
}

impl Loss {
    /// Waits until the worker is lost, or lost once more.
    pub async fn come(&mut self) {
        // Nothing is told any more of a worker that has left.
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
