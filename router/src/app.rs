//! The router's state, which every handler can access: its parts, the limit on running requests, and the shutdown.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use warmpath_shell::body::{BodyLimits, BodyRoom, Sender};
use warmpath_shell::hosts::AllowedHosts;
use warmpath_shell::image_urls::ImageUrls;
use warmpath_shell::listen::Connections;
use warmpath_shell::trace::Tracer;

use crate::config::RequestConfig;
use crate::conversations::RecentConversations;
use crate::decision_history::DecisionHistory;
use crate::endpoint::EndpointKind;
use crate::error::RequestError;
use crate::fleet::{Fleet, Unready};
use crate::keys::{ApiKey, KeyPlace, Keys};
use crate::metrics::Metrics;
use crate::prompt::PromptPool;
use crate::queue::RequestQueue;
use crate::retries::Retries;

/// State that every handler can access.
#[derive(Clone)]
pub struct App {
    /// The fleet.
    pub fleet: Arc<Fleet>,
    /// Limits on requests.
    pub requests: Arc<RequestConfig>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Tracer.
    pub tracer: Tracer,
    /// Pool for the work before a choice: parsing, rendering, tokenizing.
    pub preparing: Arc<PromptPool>,
    /// Recent decisions and counters, for the fleet page.
    pub recent: Arc<DecisionHistory>,
    /// Start of the router. Units: seconds since 1970.
    pub started_s: u64,
    /// Queues of requests that no worker can start yet.
    pub queue: Arc<RequestQueue>,
    /// Budget of retries.
    pub retries: Arc<Retries>,
    /// Recent conversations.
    pub conversations: Arc<RecentConversations>,
    places: Arc<Semaphore>,
    /// Signal to shut down.
    pub draining: CancellationToken,
    /// End of the time in which running responses may finish.
    pub cut_off: CancellationToken,
    /// API keys that clients must present; `None` if no key is required.
    pub keys: Option<Arc<Keys>>,
    /// Limits on the bodies of requests.
    pub bodies: Arc<BodyLimits>,
    /// Limits on connections and host names, and the way to images' hosts.
    pub resources: HttpResources,
}

/// Limits on connections and host names, and the way to images' hosts.
#[derive(Clone)]
pub struct HttpResources {
    /// Connections of clients.
    pub connections: Arc<Connections>,
    /// Host names of the router.
    pub hosts: Arc<Hosts>,
    /// Fetcher of images that requests name by URL; `None` if none are fetched.
    pub image_urls: Option<Arc<ImageUrls>>,
}

/// Host names of the router.
pub struct Hosts {
    /// Names that clients may use.
    pub clients: AllowedHosts,
    /// Names that operators may use.
    pub operators: AllowedHosts,
}

/// Place of a request among the running ones; it is free again when this is dropped.
pub struct RequestPlace {
    metrics: Arc<Metrics>,
    _permit: OwnedSemaphorePermit,
    _of_key: KeyPlace,
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
    }
}

impl App {
    /// Returns the state of a router that has served nothing yet.
    pub fn new(
        fleet: Arc<Fleet>,
        requests: RequestConfig,
        keys: Option<Arc<Keys>>,
        metrics: Arc<Metrics>,
        tracer: Tracer,
        resources: HttpResources,
    ) -> Self {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let bodies = Arc::new(BodyLimits {
            bytes_max: requests.body_bytes_max,
            timeout: requests.body_timeout,
            room: BodyRoom::new(requests.body_memory_bytes_max),
        });
        Self {
            fleet,
            tracer,
            bodies,
            resources,
            preparing: Arc::default(),
            recent: Arc::default(),
            started_s: started.as_secs(),
            queue: Arc::new(RequestQueue::new(requests.queue_max, Arc::clone(&metrics))),
            retries: Arc::new(Retries::new(requests.retry_budget, Arc::clone(&metrics))),
            conversations: Arc::new(RecentConversations::new(Arc::clone(&metrics))),
            places: Arc::new(Semaphore::new(requests.requests_max.min(Semaphore::MAX_PERMITS))),
            draining: CancellationToken::new(),
            cut_off: CancellationToken::new(),
            keys,
            requests: Arc::new(requests),
            metrics,
        }
    }

    /// Returns a place for a request that has arrived whole, with the key it presented.
    ///
    /// Errors: `RateLimited` if the key has its maximum of requests, `RequestsFull` if every place is taken.
    pub fn place(&self, key: Option<&ApiKey>) -> Result<RequestPlace, RequestError> {
        let of_key = key.map(ApiKey::place).transpose()?.unwrap_or_default();
        let full = |_| RequestError::RequestsFull {
            requests_max: self.requests.requests_max,
            retry_after: self.fleet.capacity_forecast(None).retry_after(1),
        };
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(full)?;
        self.metrics.in_flight.inc();
        Ok(RequestPlace { metrics: Arc::clone(&self.metrics), _permit: permit, _of_key: of_key })
    }

    /// Returns a body with data in place of the URLs of images, if images are fetched.
    ///
    /// Errors: `Field` if an image cannot be fetched; `Refused` if they are too long; `ShuttingDown`.
    pub async fn with_images(
        &self,
        body: Bytes,
        endpoint: EndpointKind,
        sender: &Sender,
    ) -> Result<Bytes, RequestError> {
        match self.resources.image_urls.as_ref().filter(|_| endpoint.may_have_images()) {
            Some(image_urls) => Ok(self.unless_draining(image_urls.inline(body, &self.bodies, sender)).await??),
            None => Ok(body),
        }
    }

    /// Waits until all workers of the first discovery have been contacted and their vocabularies are loaded, for a
    /// limited time after the start.
    ///
    /// Errors: `ShuttingDown` if the router shuts down before.
    pub async fn first_contact(&self) -> Result<(), RequestError> {
        self.unless_draining(self.fleet.first_contact()).await
    }

    /// Waits for a future while no response has begun yet.
    ///
    /// Errors: `ShuttingDown` if the router shuts down before.
    pub async fn unless_draining<T>(&self, waiting: impl Future<Output = T>) -> Result<T, RequestError> {
        self.draining.run_until_cancelled(waiting).await.ok_or(RequestError::ShuttingDown)
    }

    /// Signals that the router is shutting down.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Returns the reason why the router cannot send requests to workers; `None` if it can.
    pub fn unready(&self) -> Option<Unready> {
        if self.draining.is_cancelled() {
            return Some(Unready::plain("the router is shutting down"));
        }
        self.fleet.unready()
    }

    /// Returns the reason why clients should not connect to the router; `None` if there is none.
    ///
    /// A router that would hold their requests for a worker that is loading (`--wait`) is ready for clients: if every
    /// router of a Kubernetes Service were unready, connections to it would be refused.
    pub fn unready_for_clients(&self) -> Option<Unready> {
        let holds = !self.draining.is_cancelled() && !self.requests.wait.is_zero() && self.fleet.can_only_hold();
        if holds { None } else { self.unready() }
    }
}
