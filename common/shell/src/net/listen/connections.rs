//! The connections to one listener: their number, their silence, and which one is displaced.
//!
//! Sockets are in `listen`.
//!
//! A connection counts as silent while the server waits for its client to send something.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Shortest silence that is recorded while a body arrives.
///
/// Source: own choice: bodies arrive in thousands of pieces, and each record takes the lock.
const SILENCE_STEP: Duration = Duration::from_millis(500);

/// Connections to one listener.
#[derive(Debug)]
pub struct Connections {
    connections_max: usize,
    /// State of the open connections. The lock is held for one entry, never across `.await`.
    table: Mutex<OpenConnections>,
    n_refused: AtomicU64,
    n_displaced: AtomicU64,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    by_number: HashMap<u64, Open>,
    /// Connections whose client has to send something, by the start of its silence.
    silent: BTreeSet<(Instant, u64)>,
}

#[derive(Debug)]
struct Open {
    silent_since: Option<Instant>,
    displaced: Arc<Notify>,
}

/// Result of a new connection.
#[derive(Debug)]
pub(super) enum Accepted {
    /// The connection is accepted.
    Seat(Seat),
    /// The limit is reached.
    Full,
}

impl Connections {
    /// Returns the state of a listener without connections, which may have `connections_max` at a time.
    pub fn new(connections_max: usize) -> Arc<Self> {
        let table = Mutex::default();
        Arc::new(Self { connections_max, table, n_refused: AtomicU64::new(0), n_displaced: AtomicU64::new(0) })
    }

    /// Returns how many connections are open.
    pub fn n_open(&self) -> usize {
        self.table().by_number.len()
    }

    /// Returns how many connections have been refused.
    pub fn n_refused(&self) -> u64 {
        self.n_refused.load(Ordering::Relaxed)
    }

    /// Returns how many connections have been displaced.
    pub fn n_displaced(&self) -> u64 {
        self.n_displaced.load(Ordering::Relaxed)
    }

    /// Adds a connection from `address`; if the limit is reached, a silent connection is displaced.
    pub(super) fn enter(connections: &Arc<Self>, address: IpAddr) -> Accepted {
        let mut table = connections.table();
        let is_full = table.by_number.len() >= connections.connections_max;
        if is_full && !connections.displace(&mut table) {
            connections.n_refused.fetch_add(1, Ordering::Relaxed);
            return Accepted::Full;
        }
        let (number, displaced) = (table.next, Arc::new(Notify::new()));
        table.next += 1;
        table.by_number.insert(number, Open { silent_since: None, displaced: Arc::clone(&displaced) });
        table.set_silence(number, Some(Instant::now()));
        drop(table);
        let connections = Arc::clone(connections);
        let recorded_at = Mutex::new(Instant::now());
        Accepted::Seat(Seat {
            connections,
            number,
            address,
            displaced,
            recorded_at,
            has_answered: AtomicBool::new(false),
        })
    }

    /// Closes the connection whose client has been silent for longest, if there is one.
    pub(super) fn displace_one(&self) {
        self.displace(&mut self.table());
    }

    fn displace(&self, table: &mut OpenConnections) -> bool {
        let Some((_, number)) = table.silent.first().copied() else { return false };
        if let Some(connection) = table.leave(number) {
            connection.displaced.notify_one();
            self.n_displaced.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn table(&self) -> MutexGuard<'_, OpenConnections> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    /// Records the start of a client's silence; `None` if the server does not wait for the client.
    fn set_silence(&mut self, number: u64, silent_since: Option<Instant>) {
        let Some(connection) = self.by_number.get_mut(&number) else { return };
        let before = std::mem::replace(&mut connection.silent_since, silent_since);
        if let Some(before) = before {
            self.silent.remove(&(before, number));
        }
        if let Some(since) = silent_since {
            self.silent.insert((since, number));
        }
    }

    fn leave(&mut self, number: u64) -> Option<Open> {
        self.set_silence(number, None);
        self.by_number.remove(&number)
    }
}

/// Seat of one connection; freed when this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    connections: Arc<Connections>,
    number: u64,
    address: IpAddr,
    displaced: Arc<Notify>,
    /// Last time at which bytes from the client were recorded. The lock is held for one comparison, never across
    /// `.await`.
    recorded_at: Mutex<Instant>,
    has_answered: AtomicBool,
}

impl Seat {
    /// Returns the client's address.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns once the connection is displaced.
    pub(super) async fn displaced(&self) {
        self.displaced.notified().await;
    }

    /// Returns whether a request has been answered on this connection.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Records that the client has to send something now.
    pub(super) fn await_client(&self) {
        self.connections.table().set_silence(self.number, Some(Instant::now()));
    }

    /// Records that bytes of the client have arrived.
    pub(super) fn client_sent(&self) {
        let mut recorded_at = self.recorded_at.lock().unwrap_or_else(PoisonError::into_inner);
        if recorded_at.elapsed() >= SILENCE_STEP {
            *recorded_at = Instant::now();
            drop(recorded_at);
            self.await_client();
        }
    }

    /// Records that the connection does not wait for the client.
    pub(super) fn await_server(&self) {
        self.connections.table().set_silence(self.number, None);
    }

    /// Records that a response is complete.
    pub(super) fn answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
        self.await_client();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.table().leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn enter(connections: &Arc<Connections>) -> Option<Seat> {
        match Connections::enter(connections, HERE) {
            Accepted::Seat(seat) => Some(seat),
            Accepted::Full => None,
        }
    }

    fn is_displaced(connections: &Connections, seat: &Seat) -> bool {
        !connections.table().by_number.contains_key(&seat.number)
    }

    #[test]
    fn the_client_that_has_been_silent_for_longest_is_displaced() {
        let all = Connections::new(3);
        let seats: Vec<_> = (0..3).map(|_| enter(&all).expect("there is room")).collect();
        seats[0].await_server();
        seats[1].answered();
        let _fourth = enter(&all).expect("the third is silent");
        assert_eq!(seats.iter().map(|seat| is_displaced(&all, seat)).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!((all.n_open(), all.n_displaced(), all.n_refused()), (3, 1, 0));
    }

    #[test]
    fn a_connection_is_refused_while_all_others_are_being_answered() {
        let all = Connections::new(2);
        let seats: Vec<_> = (0..2).map(|_| enter(&all).expect("there is room")).collect();
        seats.iter().for_each(Seat::await_server);
        assert!(enter(&all).is_none());
        assert_eq!((all.n_open(), all.n_refused()), (2, 1));
        drop(seats);
        assert!(enter(&all).is_some());
    }

    proptest! {
        #[test]
        fn the_table_of_connections_stays_consistent(
            steps in prop::collection::vec((0..5u8, any::<prop::sample::Index>()), 1..80),
            max in 1..6usize,
        ) {
            let all = Connections::new(max);
            let mut seats: Vec<Seat> = Vec::new();
            for (step, which) in steps {
                match (step, seats.len()) {
                    (0, _) | (_, 0) => seats.extend(enter(&all)),
                    (1, n) => drop(seats.swap_remove(which.index(n))),
                    (2, n) => seats[which.index(n)].await_server(),
                    (3, n) => seats[which.index(n)].answered(),
                    (_, n) => seats[which.index(n)].await_client(),
                }
                let table = all.table();
                let silent = table.by_number.iter().filter_map(|(number, open)| Some((open.silent_since?, *number)));
                prop_assert_eq!(silent.collect::<BTreeSet<_>>(), table.silent.clone());
                prop_assert!(table.by_number.len() <= max);
            }
        }
    }
}
