//! What every handler may reach, and the places of the requests that are being answered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use warmpath_router_core::diagnostics::prefix_breaks::Conversations;
use warmpath_router_core::overload::retry::RetryBudget;
use warmpath_shell::body::{BodyLimits, BodyRoom};
use warmpath_shell::hosts::AllowedHosts;
use warmpath_shell::listen::Connections;
use warmpath_shell::trace::Tracer;

use crate::config::RequestConfig;
use crate::decision_history::DecisionHistory;
use crate::error::RequestError;
use crate::fleet::{Fleet, Unready};
use crate::keys::{Key, KeyPlace, Keys};
use crate::lifecycle::queue::RequestQueue;
use crate::metrics::Metrics;
use crate::prompt::PromptPool;

/// Is what every handler may reach.
#[derive(Clone)]
pub struct App {
    /// Is the fleet.
    pub fleet: Arc<Fleet>,
    /// Bounds requests.
    pub requests: Arc<RequestConfig>,
    /// Is the metrics.
    pub metrics: Arc<Metrics>,
    /// Makes traces.
    pub tracer: Tracer,
    /// Bounds the work before a choice.
    pub preparing: Arc<PromptPool>,
    /// Is what people can look at of the last hour.
    pub recent: Arc<DecisionHistory>,
    /// Is when the router started. Units: seconds since 1970.
    pub started_s: u64,
    /// Is the lines of requests that no worker can start yet.
    pub turns: Arc<RequestQueue>,
    /// Guards what repetitions may still cost; held for one deposit or one withdrawal, never across `.await`.
    retries: Arc<Mutex<RetryBudget>>,
    /// Guards the recent conversations; held for one comparison, never across `.await`.
    conversations: Arc<Mutex<Conversations>>,
    places: Arc<Semaphore>,
    /// The order to shut down.
    pub draining: CancellationToken,
    /// The end of the time in which running answers may finish.
    pub cut_off: CancellationToken,
    /// Is the keys that clients must present; absent where everybody may ask.
    pub keys: Option<Arc<Keys>>,
    /// Limits on the bodies of requests.
    pub bodies: Arc<BodyLimits>,
    /// What stands between the network and the routes.
    pub doors: Doors,
}

/// What stands between the network and the routes.
#[derive(Clone)]
pub struct Doors {
    /// Connections of clients.
    pub connections: Arc<Connections>,
    /// Names by which the router may be called.
    pub hosts: Arc<Hosts>,
}

/// Names by which the router may be called.
pub struct Hosts {
    /// Those that clients may use.
    pub clients: AllowedHosts,
    /// Those that operators may use.
    pub operators: AllowedHosts,
}

/// Is a request's place among those that are being answered; it is free again when this is dropped.
pub struct Place {
    metrics: Arc<Metrics>,
    _permit: OwnedSemaphorePermit,
    _of_key: KeyPlace,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
    }
}

impl App {
    /// Returns the state of a router that has answered nothing.
    pub fn new(
        fleet: Arc<Fleet>,
        requests: RequestConfig,
        (keys, metrics, tracer): (Option<Arc<Keys>>, Arc<Metrics>, Tracer),
        doors: Doors,
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
            doors,
            preparing: Arc::default(),
            recent: Arc::default(),
            started_s: started.as_secs(),
            turns: Arc::new(RequestQueue::new(requests.queue_max, Arc::clone(&metrics))),
            retries: Arc::new(Mutex::new(RetryBudget::new(requests.retry_budget, Instant::now()))),
            conversations: Arc::default(),
            places: Arc::new(Semaphore::new(requests.requests_max.min(Semaphore::MAX_PERMITS))),
            draining: CancellationToken::new(),
            cut_off: CancellationToken::new(),
            keys,
            requests: Arc::new(requests),
            metrics,
        }
    }

    /// Returns a place for one more request of a key, where keys are asked for; it has arrived whole.
    ///
    /// Errors: `RateLimited` where the key has as many as it may, `RequestsFull` where every place is taken.
    pub fn place(&self, key: Option<&Key>) -> Result<Place, RequestError> {
        let of_key = key.map(Key::place).transpose()?.unwrap_or_default();
        let full = |_| RequestError::RequestsFull {
            requests_max: self.requests.requests_max,
            retry_after: self.fleet.capacity_forecast(None).retry_after(1),
        };
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(full)?;
        self.metrics.in_flight.inc();
        Ok(Place { metrics: Arc::clone(&self.metrics), _permit: permit, _of_key: of_key })
    }

    /// Waits until every worker that was found first has been looked at, for a while after the start at most.
    ///
    /// Errors: `ShuttingDown` where the router is told to end before.
    pub async fn first_look(&self) -> Result<(), RequestError> {
        self.unless_draining(self.fleet.first_look()).await
    }

    /// Waits for what has no answer to a request begun yet.
    ///
    /// Errors: `ShuttingDown` where the router is told to end before.
    pub async fn unless_draining<T>(&self, waiting: impl Future<Output = T>) -> Result<T, RequestError> {
        self.draining.run_until_cancelled(waiting).await.ok_or(RequestError::ShuttingDown)
    }

    /// Adds to the budget of repetitions what a new request brings.
    pub fn deposit_retry(&self) {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner).deposit();
    }

    /// Takes one repetition out of the budget; returns whether there was one.
    pub fn withdraw_retry(&self) -> bool {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner).withdraw(Instant::now())
    }

    /// Returns the recent conversations.
    pub fn conversations(&self) -> MutexGuard<'_, Conversations> {
        self.conversations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that the router is shutting down.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Returns why no client should be sent here, or `None` where the router serves.
    pub fn unready(&self) -> Option<Unready> {
        if self.draining.is_cancelled() {
            return Some(Unready::plain("the router is shutting down"));
        }
        self.fleet.unready()
    }
}
