//! What every handler can reach: the worker's phase, its name, its limits, its metrics.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::http::HeaderValue;
use tokio::sync::watch;
use warmpath_shell::body::BodyLimits;
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::hosts::AllowedHosts;
use warmpath_shell::listen::Connections;
use warmpath_shell::trace::Tracer;

use crate::engine::EngineError;
use crate::error::RequestError;
use crate::metrics::Metrics;
use crate::served::Served;
use crate::serving::{Phase, Serving};

/// Is the handlers' state; cheap to clone.
#[derive(Clone)]
pub struct App {
    /// Is where the worker stands in its life.
    pub phase: watch::Receiver<Phase>,
    /// Is the worker's name, for the response header.
    pub worker: HeaderValue,
    /// Names under which clients may ask for the model, those of its adapters included; known before it is loaded.
    pub names: Arc<[String]>,
    /// Limits on the bodies of requests.
    pub bodies: Arc<BodyLimits>,
    /// Connections of clients.
    pub connections: Arc<Connections>,
    /// Names by which clients may call this worker.
    pub allowed_hosts: Arc<AllowedHosts>,
    /// Names by which probes and scrapers may at their own address.
    pub admin_allowed_hosts: Arc<AllowedHosts>,
    /// Is the folder for the state of slots, where clients may save it.
    pub slot_save_path: Option<PathBuf>,
    /// Is the tokens of which a request must present one; absent where everybody may ask.
    pub tokens: Option<Arc<FleetTokens>>,
    /// Makes traces.
    pub tracer: Tracer,
    /// Counts what happens.
    pub metrics: Arc<Metrics>,
    /// Kinds of tools that are left out, as far as the log has told of them. Guards the set for one insertion.
    pub left_out_logged: Arc<Mutex<BTreeSet<&'static str>>>,
}

impl App {
    /// Returns a loaded worker, whatever it computes, to look at it.
    ///
    /// Errors: `Downloading`, `Loading`.
    pub fn served(&self) -> Result<Served, RequestError> {
        match &*self.phase.borrow() {
            Phase::Downloading { percent } => Err(RequestError::Downloading { percent: *percent }),
            Phase::Loading { percent } => Err(RequestError::Loading { percent: *percent }),
            Phase::Ready(served) | Phase::Draining(served) => Ok(served.clone()),
        }
    }

    /// Returns a loaded worker, whatever it computes, to begin something new with it.
    ///
    /// Errors: `Downloading`, `Loading`; `Engine(Draining)` once the worker has been asked to stop.
    pub fn open(&self) -> Result<Served, RequestError> {
        match &*self.phase.borrow() {
            Phase::Draining(_) => Err(EngineError::Draining.into()),
            _ => self.served(),
        }
    }

    /// Returns what a worker that generates answers from, to look at it.
    ///
    /// Errors: `Downloading`, `Loading`; `NotEnabled` where the worker embeds.
    pub fn serving(&self) -> Result<Arc<Serving>, RequestError> {
        self.served()?.generator()
    }

    /// Returns what a worker that generates answers from, to begin something new with it.
    ///
    /// Errors: as [`Self::serving`]; `Engine(Draining)` once the worker has been asked to stop.
    pub fn admitting(&self) -> Result<Arc<Serving>, RequestError> {
        self.open()?.generator()
    }
}
