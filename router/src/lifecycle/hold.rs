//! A request whose model is being loaded: held until a worker is ready, up to a limit (`--wait`).
//!
//! Not here: the wait for the first look at all workers (`App::first_look`), the wait for room at a worker (`turn`).
//! The idea: whether a model is awaited is asked of the view again after each change of who is there. So a request is looked
//! at anew only when a worker may have come for it.

use std::time::Instant;

use super::IncomingRequest;
use crate::error::RequestError;
use crate::fleet::Changes;
use crate::http::state::App;

/// What a request hears of the fleet since it was last tried.
pub(super) struct Hold {
    changes: Changes,
}

impl Hold {
    /// Returns the hold of a request that has not been tried yet.
    pub(super) fn new(app: &App) -> Self {
        Self { changes: app.fleet.changes() }
    }

    /// Holds a request for which there was no worker as long as its model is awaited; returns whether it is worth trying again.
    ///
    /// Errors: `ShuttingDown`.
    pub(super) async fn until_changed(
        &mut self,
        app: &App,
        arrival: &mut IncomingRequest,
        name: Option<&str>,
    ) -> Result<bool, RequestError> {
        let (start, deadline) = (Instant::now(), arrival.at + app.requests.wait);
        if start >= deadline {
            return Ok(false);
        }
        let mut has_changed = self.changes.hear();
        let is_awaited = || app.fleet.view().is_awaited(name, arrival.shape.wanted(), Instant::now());
        if !is_awaited() {
            return Ok(has_changed);
        }
        tracing::debug!(request_id = %arrival.id, name, "request is held for a model that is being loaded");
        while is_awaited() {
            let change = tokio::time::timeout_at(deadline.into(), self.changes.come());
            has_changed = app.unless_draining(change).await?.is_ok();
            if !has_changed {
                break;
            }
        }
        arrival.queued_from = Instant::now();
        arrival.span.part("router.hold", (start, Instant::now()), Vec::new());
        Ok(has_changed)
    }
}
