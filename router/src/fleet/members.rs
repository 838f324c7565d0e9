//! The members of the fleet: what the shell keeps of each worker, and the task that lets workers join and leave.
//!
//! Not here: finding them (`discovery`), who gets which place and when it leaves (the core's `membership`).
//! The idea: a member stands at its place until another joins there; whoever asks for it meanwhile finds it, also after it
//! has left. Its follower is ended before its place is told to be empty, so nothing of it comes behind that.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::task::JoinHandle;
use url::Url;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::membership::{Change, Membership};

use super::client::WorkerClient;
use super::loss::{Loss, Losses};
use super::stock::Stock;
use super::subscriber::{Closed, FleetEvents};
use super::tracker::StaleReports;
use super::{Fleet, Report, stock, subscriber};
use crate::config::{FleetConfig, MEMBERSHIP_PAUSE, WorkerAddress, WorkerApi};
use crate::discovery::Discovered;

/// Longest name that a worker may give itself. Units: bytes.
///
/// Source: own choice: twice the longest name of a Kubernetes pod's label.
const SHOWN_NAME_BYTES_MAX: usize = 128;

/// Is one worker, as far as requests need it besides the view.
pub struct Member {
    /// Is its URL, up to the paths of its API.
    pub url: Url,
    /// Name by which clients know it; it tells nobody where the worker is.
    shown_name: ArcSwap<String>,
    /// Connects to it.
    pub client: WorkerClient,
    /// Is the stock server that it is; absent for a Warmpath worker.
    pub stock: Option<Arc<Stock>>,
    /// Tells that the view of its blocks cannot be trusted.
    pub(super) distrusts: StaleReports,
    losses: Losses,
    /// Says when it was last heard, in milliseconds after the fleet's start; 0 means never.
    heard_ms: AtomicU64,
}

impl Member {
    fn new(worker: WorkerIdx, address: &WorkerAddress, client: WorkerClient) -> Arc<Self> {
        let kind = if address.api == WorkerApi::OpenAi { "stock" } else { "worker" };
        Arc::new(Self {
            url: address.url.clone(),
            shown_name: ArcSwap::from_pointee(format!("{kind}-{}", worker.0)),
            client,
            stock: (address.api == WorkerApi::OpenAi).then(Arc::default),
            distrusts: StaleReports::default(),
            losses: Losses::new(),
            heard_ms: AtomicU64::new(0),
        })
    }

    /// Returns the name by which clients know the worker: the one that it gives itself, or that of its kind and place.
    pub fn shown_name(&self) -> Arc<String> {
        self.shown_name.load_full()
    }

    /// Takes the name that the worker gives itself, unless it could be an address.
    pub(super) fn named(&self, name: &str) {
        if is_shown_name(name) && **self.shown_name.load() != name {
            self.shown_name.store(Arc::new(name.to_owned()));
        }
    }

    /// Returns the worker's URL, its name for operators.
    pub fn name(&self) -> String {
        self.url.as_str().trim_end_matches('/').to_owned()
    }

    /// Returns what hears that the worker is lost.
    pub fn loss(&self) -> Loss {
        self.losses.listen()
    }

    /// Tells whoever waits for the worker's answers that it is lost.
    pub(super) fn lost(&self) {
        self.losses.tell();
    }

    /// Records that it was heard so long after the fleet's start.
    pub(super) fn heard(&self, after_start: Duration) {
        let elapsed_ms = u64::try_from(after_start.as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(elapsed_ms.max(1), Ordering::Relaxed);
    }

    /// Returns how long after the fleet's start it was last heard; absent if it never was.
    pub(super) fn last_heard(&self) -> Option<Duration> {
        let heard_ms = self.heard_ms.load(Ordering::Relaxed);
        (heard_ms > 0).then(|| Duration::from_millis(heard_ms))
    }
}

/// Returns whether clients may see a name that a worker gives itself: it is short, plain, and no address.
fn is_shown_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=SHOWN_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain) && name.parse::<IpAddr>().is_err()
}

/// Lets workers join and leave for as long as the router runs.
pub async fn keep(fleet: Arc<Fleet>, found: Arc<Discovered>, config: FleetConfig, outbox: FleetEvents) {
    let membership = Membership::new(config.membership);
    let mut keeper =
        Keeper { fleet, config, outbox, membership, followers: HashMap::new(), n_refused: 0, has_surveyed: false };
    while keeper.look(&found).await.is_ok() {
        tokio::select! {
            () = found.changed() => {}
            () = tokio::time::sleep(MEMBERSHIP_PAUSE) => {}
        }
    }
}

struct Keeper {
    fleet: Arc<Fleet>,
    config: FleetConfig,
    outbox: FleetEvents,
    membership: Membership<WorkerAddress>,
    followers: HashMap<WorkerIdx, Follower>,
    /// Is how many workers got no place at the last look.
    n_refused: usize,
    /// Whether what every source found first has been let in.
    has_surveyed: bool,
}

/// Ends the task that it stands for when it is dropped.
struct Follower(JoinHandle<()>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Keeper {
    async fn look(&mut self, found: &Discovered) -> Result<(), Closed> {
        let fleet = &self.fleet;
        let is_complete = found.is_complete();
        let is_idle = |worker| fleet.ledger().n_in_flight(worker) == 0;
        let update = self.membership.update(&found.all(), Instant::now(), is_idle);
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
                Change::Joined { worker, address } => self.join(worker, &address).await?,
                Change::Leaving { worker } => self.outbox.tell(Report::Leaving { worker }).await?,
                Change::Stayed { worker } => self.outbox.tell(Report::Stayed { worker }).await?,
                Change::Left { worker } => self.leave(worker).await?,
            }
        }
        if is_complete && !std::mem::replace(&mut self.has_surveyed, true) {
            self.outbox.tell(Report::Surveyed).await?;
        }
        Ok(())
    }

    async fn join(&mut self, worker: WorkerIdx, address: &WorkerAddress) -> Result<(), Closed> {
        let member = Member::new(worker, address, self.fleet.clients.of(address));
        self.fleet.seat(worker, &member);
        self.outbox.tell(Report::Joined { worker }).await?;
        let (fleet, outbox) = (Arc::clone(&self.fleet), self.outbox.clone());
        let follower = match &member.stock {
            Some(stock) => tokio::spawn(stock::follow(fleet, worker, Arc::clone(stock), outbox)),
            None => {
                // The stream begins on a connection of its own: one that requests have left behind may be about to end.
                let client = self.fleet.clients.of(address);
                tokio::spawn(subscriber::follow(fleet, worker, client, outbox))
            }
        };
        self.followers.insert(worker, Follower(follower));
        Ok(())
    }

    async fn leave(&mut self, worker: WorkerIdx) -> Result<(), Closed> {
        if let Some(mut follower) = self.followers.remove(&worker) {
            follower.0.abort();
            // What it has told stands in the channel before what is told below.
            let _ = (&mut follower.0).await;
        }
        self.outbox.tell(Report::Left { worker }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
