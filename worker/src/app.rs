//! The state of a worker that every handler can access: its phase, its name, its limits, its metrics.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::http::HeaderValue;
use tokio::sync::watch;
use warmpath_shell::body::BodyLimits;
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::hosts::AllowedHosts;
use warmpath_shell::image_urls::ImageUrls;
use warmpath_shell::listen::Connections;
use warmpath_shell::trace::Tracer;

use crate::engine::EngineError;
use crate::error::RequestError;
use crate::kv_transfer::StateFetcher;
use crate::loaded_model::LoadedModel;
use crate::loaded_model::generator::Generator;
use crate::metrics::Metrics;

/// Phase of a worker.
#[derive(Clone)]
pub enum Phase {
    /// The model is being downloaded.
    Downloading {
        /// Downloaded share, 0 to 100.
        percent: u8,
    },
    /// The model is loading.
    Loading {
        /// Loaded share, 0 to 100.
        percent: u8,
    },
    /// Requests are accepted.
    Ready(LoadedModel),
    /// Running responses finish, and no new requests are accepted.
    Draining(LoadedModel),
}

/// State of the handlers; cheap to clone.
#[derive(Clone)]
pub struct App {
    /// Phase of the worker.
    pub phase: watch::Receiver<Phase>,
    /// Name of the worker, for the response header.
    pub worker: HeaderValue,
    /// Start of the worker. Units: seconds since 1970.
    pub started_s: u64,
    /// Names under which clients may request the model, including those of its adapters; known before it is loaded.
    pub names: Arc<[String]>,
    /// Limits on the bodies of requests.
    pub bodies: Arc<BodyLimits>,
    /// Connections of clients.
    pub connections: Arc<Connections>,
    /// Host names by which clients may address this worker.
    pub allowed_hosts: Arc<AllowedHosts>,
    /// Host names by which probes and scrapers may address the admin listener.
    pub admin_allowed_hosts: Arc<AllowedHosts>,
    /// Folder for saved slots; `None` if clients may not save them.
    pub slot_save_path: Option<PathBuf>,
    /// Accepted tokens; `None` if no token is required.
    pub tokens: Option<Arc<FleetTokens>>,
    /// Fetcher of KV state from other workers; `None` if none is exchanged.
    pub transfers: Option<Arc<StateFetcher>>,
    /// Fetcher of images that requests name by URL; `None` if none are fetched.
    pub image_urls: Option<Arc<ImageUrls>>,
    /// Tracer.
    pub tracer: Tracer,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Kinds of left-out tools and parts that have been logged. The lock is held for one insertion.
    pub left_out_logged: Arc<Mutex<BTreeSet<&'static str>>>,
}

impl App {
    /// Returns the loaded worker, of either kind, for inspection.
    ///
    /// Errors: `Downloading`, `Loading`.
    pub fn loaded_model(&self) -> Result<LoadedModel, RequestError> {
        match &*self.phase.borrow() {
            Phase::Downloading { percent } => Err(RequestError::Downloading { percent: *percent }),
            Phase::Loading { percent } => Err(RequestError::Loading { percent: *percent }),
            Phase::Ready(loaded_model) | Phase::Draining(loaded_model) => Ok(loaded_model.clone()),
        }
    }

    /// Returns the loaded worker, of either kind, for new work.
    ///
    /// Errors: `Downloading`, `Loading`; `Engine(Draining)` once the worker shuts down.
    pub fn open_model(&self) -> Result<LoadedModel, RequestError> {
        match &*self.phase.borrow() {
            Phase::Draining(_) => Err(EngineError::Draining.into()),
            _ => self.loaded_model(),
        }
    }

    /// Returns the state of a generating worker, for inspection.
    ///
    /// Errors: `Downloading`, `Loading`; `NotEnabled` if the worker embeds.
    pub fn generator(&self) -> Result<Arc<Generator>, RequestError> {
        self.loaded_model()?.generator()
    }

    /// Returns the state of a generating worker, for new work.
    ///
    /// Errors: like [`Self::generator`]; `Engine(Draining)` once the worker shuts down.
    pub fn open_generator(&self) -> Result<Arc<Generator>, RequestError> {
        self.open_model()?.generator()
    }
}
