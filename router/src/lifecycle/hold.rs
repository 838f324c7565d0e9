//! A request whose model is loading, held until a worker is ready, up to a limit (`--wait`).
//!
//! After each change of the fleet the view shows whether the model is still expected. The request is retried only when
//! a worker for it may have joined. Not here: the wait for the first contact with all workers (`App::first_contact`),
//! the wait for capacity at a worker (`queue`).

use std::time::Instant;

use super::request::IncomingRequest;
use crate::app::App;
use crate::error::RequestError;
use crate::fleet::Changes;

/// A request's receiver of changes in the fleet since its last try.
pub(super) struct Hold {
    changes: Changes,
}

impl Hold {
    /// Returns the receiver of a request that has not been tried yet.
    pub(super) fn new(app: &App) -> Self {
        Self { changes: app.fleet.changes() }
    }

    /// Waits while a request's model is expected and no worker serves it; returns whether a retry is worthwhile.
    ///
    /// Errors: `ShuttingDown`.
    pub(super) async fn until_changed(
        &mut self,
        app: &App,
        request: &mut IncomingRequest,
        name: Option<&str>,
    ) -> Result<bool, RequestError> {
        let (start, deadline) = (Instant::now(), request.at + app.requests.wait);
        if start >= deadline {
            return Ok(false);
        }
        let mut has_changed = self.changes.take();
        let is_awaited = || app.fleet.view().is_awaited(name, request.endpoint.wanted(), Instant::now());
        if !is_awaited() {
            return Ok(has_changed);
        }
        tracing::debug!(request_id = %request.id, name, "request is held for a model that is being loaded");
        while is_awaited() {
            let change = tokio::time::timeout_at(deadline.into(), self.changes.wait());
            has_changed = app.unless_draining(change).await?.is_ok();
            if !has_changed {
                break;
            }
        }
        request.queued_from = Instant::now();
        request.span.part("router.hold", start, Instant::now(), Vec::new());
        Ok(has_changed)
    }
}
