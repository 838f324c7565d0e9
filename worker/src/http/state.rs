//! What every handler can reach: the worker's phase, its name, its limits, its metrics.

use std::path::PathBuf;
use std::sync::Arc;

use axum::http::HeaderValue;
use tokio::sync::watch;

use crate::engine::EngineError;
use crate::error::RequestError;
use crate::metrics::Metrics;
use crate::serving::{Phase, Serving};

/// Is the handlers' state; cheap to clone.
#[derive(Clone)]
pub struct App {
    /// Is where the worker stands in its life.
    pub phase: watch::Receiver<Phase>,
    /// Is the worker's name, for the response header.
    pub worker: HeaderValue,
    /// Is the longest request body. Units: bytes.
    pub body_bytes_max: usize,
    /// Is the folder for the state of slots, where clients may save it.
    pub slot_save_path: Option<PathBuf>,
    /// Counts what happens.
    pub metrics: Arc<Metrics>,
}

impl App {
    /// Returns what a loaded worker answers from, to look at it.
    ///
    /// Errors: `Loading`.
    pub fn serving(&self) -> Result<Arc<Serving>, RequestError> {
        match &*self.phase.borrow() {
            Phase::Loading { percent } => Err(RequestError::Loading { percent: *percent }),
            Phase::Ready(serving) | Phase::Draining(serving) => Ok(Arc::clone(serving)),
        }
    }

    /// Returns what a loaded worker answers from, to begin something new with it.
    ///
    /// Errors: `Loading`; `Engine(Draining)` once the worker has been asked to stop.
    pub fn admitting(&self) -> Result<Arc<Serving>, RequestError> {
        match &*self.phase.borrow() {
            Phase::Draining(_) => Err(EngineError::Draining.into()),
            Phase::Loading { percent } => Err(RequestError::Loading { percent: *percent }),
            Phase::Ready(serving) => Ok(Arc::clone(serving)),
        }
    }
}
