//! Notice of a worker's loss, for the requests that wait for its response.
//!
//! If a worker hangs or the network drops its packets, its responses never fail by themselves. So each request that
//! waits for a response also waits for this notice.
//!
//! Not here: detection of a loss (`subscriber`, `stock`) and its report (`tracker`).

use tokio::sync::watch;

/// Sender of the notices of one worker's losses.
#[derive(Debug)]
pub(super) struct Losses(watch::Sender<()>);

/// Receiver of the notices of one worker's losses.
#[derive(Debug, Clone)]
pub struct Loss(watch::Receiver<()>);

impl Losses {
    /// Returns a sender that has sent no notice.
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(()))
    }

    /// Sends the notice; it is sent again as long as the worker stays lost.
    pub(super) fn notify(&self) {
        self.0.send_replace(());
    }

    /// Returns a receiver of notices from now on.
    pub(super) fn subscribe(&self) -> Loss {
        Loss(self.0.subscribe())
    }
}

impl Loss {
    /// Waits until the worker is lost, or lost again.
    pub async fn wait(&mut self) {
        // A worker that has left sends no further notice.
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
