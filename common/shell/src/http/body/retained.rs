//! Bodies that are needed only if a worker fails: they give up their memory where new bodies need it.
//!
//! They are no part of their senders' shares, so a client with many open streams can send as much as one without. The
//! longest body goes first: that ends the fewest failovers, and a sender of huge bodies loses its own. Not here: which
//! bodies are retained.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::{BodyRoom, Sender, Taken};

/// A body that is needed only if a worker fails. It is dropped with this, or when a new body needs its memory.
#[derive(Debug)]
pub struct RetainedBody {
    room: Arc<BodyRoom>,
    key: RetainedKey,
}

impl RetainedBody {
    /// Returns a body as a retained one; it has a claim of this sender.
    pub fn new(room: &Arc<BodyRoom>, sender: Sender, body: Bytes) -> Self {
        let key = room.taken().retain(sender, body);
        Self { room: Arc::clone(room), key }
    }

    /// Returns the body, which counts for its sender again; `None` if its memory was needed.
    pub fn take(self) -> Option<Bytes> {
        self.room.taken().release(self.key)
    }
}

impl Drop for RetainedBody {
    fn drop(&mut self) {
        let body = self.room.taken().release(self.key);
        // The lock is free again: the body's claim takes it.
        drop(body);
    }
}

/// Memory of a retained body that its sender does not account for, and a number that no other has.
type RetainedKey = (usize, u64);

/// All retained bodies.
#[derive(Default)]
pub(super) struct RetainedBodies {
    /// Bodies with their senders, the longest last.
    bodies: BTreeMap<RetainedKey, (Sender, Bytes)>,
    n_bytes: usize,
    next_idx: u64,
}

impl RetainedBodies {
    /// Returns the memory of all of them. Units: bytes.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes
    }
}

impl Taken {
    /// Moves a body from its sender's share to the retained ones.
    fn retain(&mut self, sender: Sender, body: Bytes) -> RetainedKey {
        let n_of_sender = self.by_sender.get(&sender).copied().unwrap_or(0);
        let key = (body.len().min(n_of_sender), self.retained.next_idx);
        self.remove_from(&sender, key.0);
        self.retained.next_idx += 1;
        self.retained.n_bytes += key.0;
        self.retained.bodies.insert(key, (sender, body));
        key
    }

    /// Moves a body back to its sender's share and returns it; `None` if it is not retained any more.
    fn release(&mut self, key: RetainedKey) -> Option<Bytes> {
        let (sender, body) = self.retained.bodies.remove(&key)?;
        self.retained.n_bytes -= key.0;
        *self.by_sender.entry(sender).or_default() += key.0;
        Some(body)
    }

    /// Returns the retained bodies that have to be dropped so that all memory is within `bytes_max`.
    pub(super) fn release_beyond(&mut self, bytes_max: usize) -> Vec<Bytes> {
        let mut n_beyond = self.n_bytes.saturating_sub(bytes_max);
        let mut released_bodies = Vec::new();
        while n_beyond > 0
            && let Some((&key, _)) = self.retained.bodies.last_key_value()
        {
            n_beyond = n_beyond.saturating_sub(key.0);
            released_bodies.extend(self.release(key));
        }
        released_bodies
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::http::body::BodyError;

    fn sender(n: u8) -> Sender {
        Sender::Address(IpAddr::from([10, 0, 0, n]))
    }

    fn body(room: &Arc<BodyRoom>, who: u8, n_bytes: usize) -> Result<Bytes, BodyError> {
        BodyRoom::claimed(room, &sender(who), Bytes::from(vec![who; n_bytes]))
    }

    fn retained(room: &Arc<BodyRoom>, who: u8, n_bytes: usize) -> RetainedBody {
        RetainedBody::new(room, sender(who), body(room, who, n_bytes).expect("there is room"))
    }

    #[test]
    fn retained_bodies_are_no_part_of_their_senders_share() {
        let room = BodyRoom::new(300);
        let all: Vec<_> = (0..3).map(|_| retained(&room, 1, 100)).collect();
        assert_eq!(room.n_bytes(), 300);
        let new = body(&room, 1, 100).expect("a retained one is dropped");
        assert_eq!(room.n_bytes(), 300);
        assert_eq!(body(&room, 1, 1), Err(BodyError::NoRoom), "the share is full");
        let taken: Vec<_> = all.into_iter().filter_map(RetainedBody::take).collect();
        assert_eq!(taken, vec![vec![1_u8; 100]; 2]);
        drop((new, taken));
        assert_eq!(room.n_bytes(), 0);
    }

    #[test]
    fn the_longest_is_dropped_first() {
        let room = BodyRoom::new(1000);
        let (short, long) = (retained(&room, 1, 100), retained(&room, 1, 300));
        let fits = |(who, n_bytes)| body(&room, who, n_bytes).expect("there is room");
        let new = [(2, 300), (3, 230), (4, 150)].map(fits);
        assert_eq!(room.n_bytes(), 780);
        assert_eq!((long.take(), short.take().map(|body| body.len())), (None, Some(100)));
        drop(new);
        assert_eq!(room.n_bytes(), 0);
    }

    proptest! {
        #[test]
        fn all_memory_is_bounded_and_no_body_is_refused_for_a_retained_one(
            steps in prop::collection::vec((0..3u8, 0..5u8, 0..400usize), 1..100),
        ) {
            const ROOM: usize = 1000;
            let room = BodyRoom::new(ROOM);
            let mut active: Vec<(u8, Bytes)> = Vec::new();
            let mut retained: Vec<(u8, RetainedBody)> = Vec::new();
            for (who, step, n_bytes) in steps {
                match step {
                    0 | 1 => {
                        let n_active: usize = active.iter().map(|(_, body)| body.len()).sum();
                        let of_sender = active.iter().filter(|(of, _)| *of == who);
                        let n_of_sender: usize = of_sender.map(|(_, body)| body.len()).sum();
                        let n_left = ROOM.saturating_sub(n_active + n_bytes);
                        let made = body(&room, who, n_bytes);
                        prop_assert_eq!(made.is_ok(), n_bytes == 0 || 2 * (n_of_sender + n_bytes) <= n_left);
                        active.extend(made.ok().map(|body| (who, body)));
                    }
                    2 if !active.is_empty() => {
                        let (who, body) = active.swap_remove(n_bytes % active.len());
                        retained.push((who, RetainedBody::new(&room, sender(who), body)));
                    }
                    3 if !retained.is_empty() => {
                        let (who, body) = retained.swap_remove(n_bytes % retained.len());
                        active.extend(body.take().map(|body| (who, body)));
                    }
                    _ => drop(active.pop()),
                }
                prop_assert!(room.n_bytes() <= ROOM);
            }
            drop((active, retained));
            prop_assert_eq!(room.n_bytes(), 0);
            prop_assert!(room.taken().by_sender.is_empty());
        }
    }
}
