//! A request whose model is loading, or that a host can load, held until a worker is ready, up to a limit (`--wait`).
//!
//! After each change of the fleet the view shows whether the model is still expected. The request is retried only when
//! a worker for it may have joined. While it is held because of a host, it counts in the demand for its model.
//!
//! Not here: the wait for the first contact with all workers (`App::first_contact`), the wait for capacity at a worker
//! (`queue`), the demand (`fleet::hosts`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::FleetView;
use warmpath_router_core::hosts::ModelRefusal;

use super::keepalive::Keepalive;
use super::request::IncomingRequest;
use crate::app::App;
use crate::config::{LOADING_COMMENT_AFTER, SWAP_NOTICE_MAX};
use crate::error::RequestError;
use crate::fleet::Changes;
use crate::prompt::body::Delivery;

/// Time for which a request has waited for its model: written while the request is held, read where its answer tells
/// the time. Units: nanoseconds.
#[derive(Debug, Clone, Default)]
pub struct ModelWait(Arc<AtomicU64>);

impl ModelWait {
    /// Returns the time so far.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn add(&self, wait: Duration) {
        self.0.fetch_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// A request's receiver of changes in the fleet since its last try.
pub(super) struct Hold {
    changes: Changes,
    comments: Keepalive,
}

impl Hold {
    /// Returns the receiver of a request that has not been tried yet, and whose client gets comments.
    pub(super) fn new(app: &App, comments: &Keepalive) -> Self {
        Self { changes: app.fleet.changes(), comments: comments.clone() }
    }

    /// Waits while a request's model is expected and no worker serves it; returns whether a retry is worthwhile.
    /// `tried` returns the workers that have refused the request.
    ///
    /// Errors: `ShuttingDown`.
    pub(super) async fn until_changed(
        &mut self,
        app: &App,
        request: &mut IncomingRequest,
        name: Option<&str>,
        delivery: Delivery,
        tried: impl Fn(&FleetView) -> Vec<WorkerIdx>,
    ) -> Result<bool, RequestError> {
        let (start, deadline) = (Instant::now(), request.at + app.requests.wait);
        let (autoload, wanted) = (request.autoload, request.endpoint.wanted());
        if start >= deadline {
            if app.fleet.view().awaits_host(name, autoload, start, &[]) {
                // The model is loaded for the next try of the client.
                if let Some(demand) = app.fleet.demand(name, autoload, request.at) {
                    demand.end();
                }
            }
            return Ok(false);
        }
        let mut has_changed = self.changes.take();
        let limit = || {
            let (view, now) = (app.fleet.view(), Instant::now());
            if view.is_awaited(name, wanted, now) || view.awaits_host(name, autoload, now, &[]) {
                return Some(deadline);
            }
            // A worker that has just refused the request may be about to leave, which its host reports.
            let may_leave = view.awaits_host(name, autoload, now, &tried(&view));
            may_leave.then_some(deadline.min(start + SWAP_NOTICE_MAX))
        };
        let Some(mut until) = limit() else { return Ok(has_changed) };
        tracing::debug!(request_id = %request.id, name, "request is held for a model that is being loaded");
        let view = app.fleet.view();
        let awaits_host = view.awaits_host(name, autoload, start, &tried(&view));
        drop(view);
        let mut demand = None;
        let mut comment_at = (awaits_host && delivery == Delivery::Stream).then(|| start + LOADING_COMMENT_AFTER);
        loop {
            if demand.is_none() {
                demand = app.fleet.demand(name, autoload, request.at);
            }
            // The stream's head comes early, because a load takes long.
            let next = comment_at.map_or(until, |at| at.min(until));
            let change = tokio::time::timeout_at(next.into(), self.changes.wait());
            has_changed = app.unless_draining(change).await?.is_ok();
            if !has_changed && comment_at.take_if(|at| *at < until).is_some() {
                self.comments.signal();
                continue;
            }
            if !has_changed {
                break;
            }
            match limit() {
                Some(limit) if Instant::now() < limit => until = limit,
                Some(_) => {
                    has_changed = false;
                    break;
                }
                None => break,
            }
        }
        if let Some(demand) = demand {
            demand.end();
        }
        if awaits_host {
            app.metrics.model_waits.inc();
            app.metrics.model_wait.observe(start.elapsed().as_secs_f64());
        }
        request.model_wait.add(start.elapsed());
        request.queued_from = Instant::now();
        request.span.part("router.hold", start, Instant::now(), Vec::new());
        Ok(has_changed)
    }

    /// Returns why the hosts do not serve a request that is not held any longer; `None` if they are not the reason.
    pub(super) fn refusal(app: &App, request: &IncomingRequest, name: Option<&str>) -> Option<ModelRefusal> {
        app.fleet.view().host_refusal(name, request.autoload, Instant::now())
    }
}
