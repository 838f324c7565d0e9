//! The members of the fleet: the shell's state of each worker, and the task that adds and removes workers.
//!
//! A member stays at its index until another worker takes the index, so a late reader still finds it after it has left.
//! Its subscription ends before the index is reported as free, so no report of the subscription arrives later.
//!
//! Not here: discovery, and the rules for indexes and leaving (the core's `membership`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use url::Url;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::membership::{Membership, MembershipChange};

use super::client::WorkerClient;
use super::stock::Stock;
use super::subscriber::{Closed, FleetEvents};
use super::tracker::StaleReports;
use super::{Fleet, TrackerMessage, stock, subscriber};
use crate::config::{FleetConfig, MEMBERSHIP_PAUSE, WorkerAddress, WorkerApi};
use crate::discovery::Discovered;

/// Longest name that a worker may give itself. Units: bytes.
///
/// Source: own choice: twice the longest name of a Kubernetes pod's label.
const SHOWN_NAME_BYTES_MAX: usize = 128;

/// The shell's state of one worker.
pub struct Member {
    /// URL of the worker, with the path prefix of its API.
    pub url: Url,
    /// Name shown to clients; it does not reveal the worker's address.
    shown_name: ArcSwap<String>,
    /// Client for its API.
    pub client: WorkerClient,
    /// State of the stock server; `None` for a Warmpath worker.
    pub stock: Option<Arc<Stock>>,
    /// Notice that the view of its blocks cannot be trusted.
    pub stale_reports: StaleReports,
    /// Notice that the worker has just become ready, so that its stream is opened at once.
    pub(super) reconnect: Notify,
    /// Sender of the notices that the worker is lost; they are sent again as long as it stays lost.
    losses: watch::Sender<()>,
    /// Time of its last message, in milliseconds after the fleet's start; 0 means never.
    last_message_ms: AtomicU64,
}

impl Member {
    /// Returns the state of a worker that has sent nothing yet.
    pub fn new(worker: WorkerIdx, address: &WorkerAddress, client: WorkerClient) -> Arc<Self> {
        let kind = if address.api == WorkerApi::OpenAi { "stock" } else { "worker" };
        Arc::new(Self {
            url: address.url.clone(),
            shown_name: ArcSwap::from_pointee(format!("{kind}-{}", worker.0)),
            client,
            stock: (address.api == WorkerApi::OpenAi).then(Arc::default),
            stale_reports: StaleReports::default(),
            reconnect: Notify::new(),
            losses: watch::Sender::new(()),
            last_message_ms: AtomicU64::new(0),
        })
    }

    /// Returns the name shown to clients: the worker's own, or one made of its kind and index.
    pub fn shown_name(&self) -> Arc<String> {
        self.shown_name.load_full()
    }

    /// Records the name that the worker gives itself, unless it could be an address.
    pub(super) fn named(&self, name: &str) {
        if is_shown_name(name) && **self.shown_name.load() != name {
            self.shown_name.store(Arc::new(name.to_owned()));
        }
    }

    /// Returns the worker's URL, its name for operators.
    pub fn name(&self) -> String {
        self.url.as_str().trim_end_matches('/').to_owned()
    }

    /// Returns a receiver of the worker's losses from now on.
    pub fn loss(&self) -> Loss {
        Loss(self.losses.subscribe())
    }

    /// Notifies the requests that wait for the worker's responses that it is lost.
    pub(super) fn lost(&self) {
        self.losses.send_replace(());
    }

    /// Records a message, received at this time after the fleet's start.
    pub(super) fn record_message(&self, after_start: Duration) {
        let elapsed_ms = u64::try_from(after_start.as_millis()).unwrap_or(u64::MAX);
        self.last_message_ms.store(elapsed_ms.max(1), Ordering::Relaxed);
    }

    /// Returns the time of its last message after the fleet's start; `None` if there was none.
    pub(super) fn last_message(&self) -> Option<Duration> {
        let last_message_ms = self.last_message_ms.load(Ordering::Relaxed);
        (last_message_ms > 0).then(|| Duration::from_millis(last_message_ms))
    }
}

/// Returns whether clients may see a worker's own name: it is short, plain, and no address.
fn is_shown_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=SHOWN_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain) && name.parse::<IpAddr>().is_err()
}

/// Adds and removes workers as long as the router runs.
pub async fn keep(fleet: Arc<Fleet>, discovered: Arc<Discovered>, config: FleetConfig, outbox: FleetEvents) {
    let membership = Membership::new(config.membership);
    let mut keeper =
        Keeper { fleet, config, outbox, membership, subscriptions: HashMap::new(), n_refused: 0, has_surveyed: false };
    while keeper.look(&discovered).await.is_ok() {
        remove_ended(&mut keeper.subscriptions).await;
        tokio::select! {
            () = discovered.changed() => {}
            () = tokio::time::sleep(MEMBERSHIP_PAUSE) => {}
        }
    }
}

struct Keeper {
    fleet: Arc<Fleet>,
    config: FleetConfig,
    outbox: FleetEvents,
    membership: Membership<WorkerAddress>,
    subscriptions: HashMap<WorkerIdx, SubscriptionTask>,
    /// Number of workers without an index at the last comparison.
    n_refused: usize,
    /// Whether all workers of the first discovery have been added.
    has_surveyed: bool,
}

/// A task that ends when this is dropped.
struct SubscriptionTask(JoinHandle<()>);

impl SubscriptionTask {
    /// Waits for the end of the task. Panics: if the task has panicked, so that `Server::panicked` notices it.
    async fn end(mut self) {
        if let Err(error) = (&mut self.0).await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

impl Drop for SubscriptionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Removes the tasks that have ended by themselves. Panics: if one of them has panicked.
async fn remove_ended(subscriptions: &mut HashMap<WorkerIdx, SubscriptionTask>) {
    let ended_subscriptions: Vec<_> =
        subscriptions.extract_if(|_, subscription| subscription.0.is_finished()).collect();
    for (_, subscription) in ended_subscriptions {
        subscription.end().await;
    }
}

impl Keeper {
    async fn look(&mut self, discovered: &Discovered) -> Result<(), Closed> {
        let fleet = &self.fleet;
        let is_complete = discovered.is_complete();
        let is_idle = |worker| fleet.ledger().sent.n_in_flight(worker) == 0;
        let update = self.membership.update(&discovered.all(), Instant::now(), is_idle);
        if update.n_refused > self.n_refused {
            tracing::error!(
                refused = update.n_refused,
                workers_max = self.config.membership.workers_max,
                "too many workers were found"
            );
        }
        self.n_refused = update.n_refused;
        for change in update.changes {
            match change {
                MembershipChange::Joined { worker, address } => self.join(worker, &address).await?,
                MembershipChange::Leaving { worker } => self.outbox.tell(TrackerMessage::Leaving { worker }).await?,
                MembershipChange::Stayed { worker } => self.outbox.tell(TrackerMessage::Stayed { worker }).await?,
                MembershipChange::Left { worker } => self.leave(worker).await?,
            }
        }
        if is_complete && !std::mem::replace(&mut self.has_surveyed, true) {
            self.outbox.tell(TrackerMessage::Surveyed).await?;
        }
        Ok(())
    }

    async fn join(&mut self, worker: WorkerIdx, address: &WorkerAddress) -> Result<(), Closed> {
        let member = Member::new(worker, address, self.fleet.clients.of(address));
        self.fleet.seat(worker, &member);
        self.outbox.tell(TrackerMessage::Joined { worker }).await?;
        let (fleet, outbox) = (Arc::clone(&self.fleet), self.outbox.clone());
        let subscription = match &member.stock {
            Some(stock) => tokio::spawn(stock::follow(fleet, worker, Arc::clone(stock), outbox)),
            None => {
                // The stream gets a new connection: a pooled one may be about to close.
                let client = self.fleet.clients.of(address);
                tokio::spawn(subscriber::follow(fleet, worker, client, outbox))
            }
        };
        self.subscriptions.insert(worker, SubscriptionTask(subscription));
        Ok(())
    }

    async fn leave(&mut self, worker: WorkerIdx) -> Result<(), Closed> {
        if let Some(subscription) = self.subscriptions.remove(&worker) {
            subscription.0.abort();
            // Its reports are in the channel before the report below.
            subscription.end().await;
        }
        self.outbox.tell(TrackerMessage::Left { worker }).await
    }
}

/// Receiver of the notices of one worker's losses, for the requests that wait for its response.
///
/// If a worker hangs or the network drops its packets, its responses never fail by themselves.
#[derive(Debug, Clone)]
pub struct Loss(watch::Receiver<()>);

impl Loss {
    /// Waits until the worker is lost, or lost again.
    pub async fn wait(&mut self) {
        // A worker that has left sends no further notice.
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_subscription_that_panics_is_noticed_and_one_that_ends_is_not() {
        let ended = async |subscription: JoinHandle<()>| {
            while !subscription.is_finished() {
                tokio::task::yield_now().await;
            }
            HashMap::from([(WorkerIdx(0), SubscriptionTask(subscription))])
        };
        let mut subscriptions = ended(tokio::spawn(async {})).await;
        remove_ended(&mut subscriptions).await;
        assert!(subscriptions.is_empty());
        let mut subscriptions = ended(tokio::spawn(async { panic!("a bug") })).await;
        let noticed = tokio::spawn(async move { remove_ended(&mut subscriptions).await });
        assert!(noticed.await.expect_err("the task has panicked").is_panic());
    }

    #[test]
    fn a_name_that_could_be_an_address_is_not_shown() {
        for name in ["worker-1", "0000000000000001", "pod-0.workers", "a", &"a".repeat(SHOWN_NAME_BYTES_MAX)] {
            assert!(is_shown_name(name), "{name}");
        }
        for name in [
            "",
            "10.0.0.5",
            "::1",
            "host:8081",
            "http://a",
            "a b",
            "z\u{fc}rich",
            &"a".repeat(SHOWN_NAME_BYTES_MAX + 1),
        ] {
            assert!(!is_shown_name(name), "{name}");
        }
    }
}
