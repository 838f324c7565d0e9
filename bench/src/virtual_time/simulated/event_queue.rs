//! Events of a simulation in virtual time, in the order in which they happen.

use std::collections::BTreeMap;

/// Scheduled events: the earliest comes first; of several at one time, the one that was scheduled first.
#[derive(Debug)]
pub struct EventQueue<T, E> {
    /// Events by their time and by the number of events that were scheduled before.
    events: BTreeMap<(T, u64), E>,
    n_scheduled: u64,
}

impl<T: Ord, E> Default for EventQueue<T, E> {
    fn default() -> Self {
        Self { events: BTreeMap::new(), n_scheduled: 0 }
    }
}

impl<T: Ord, E> EventQueue<T, E> {
    /// Schedules an event.
    pub fn schedule(&mut self, at: T, event: E) {
        self.events.insert((at, self.n_scheduled), event);
        self.n_scheduled += 1;
    }

    /// Removes the next event and returns it with its time; `None` if there is none.
    pub fn pop(&mut self) -> Option<(T, E)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }

    /// Removes the next event if its time is at most `end`, and returns it with its time.
    pub fn pop_until(&mut self, end: &T) -> Option<(T, E)> {
        let next = self.events.first_entry().filter(|next| next.key().0 <= *end)?;
        let ((at, _), event) = next.remove_entry();
        Some((at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_scheduling() {
        let mut queue = EventQueue::default();
        for (at, event) in [(2, 'b'), (1, 'z'), (2, 'a'), (3, 'c')] {
            queue.schedule(at, event);
        }
        assert_eq!(queue.pop_until(&0), None);
        assert_eq!([queue.pop_until(&2), queue.pop_until(&2)], [Some((1, 'z')), Some((2, 'b'))]);
        queue.schedule(2, 'd');
        assert_eq!(
            [queue.pop_until(&2), queue.pop_until(&2), queue.pop_until(&2)],
            [Some((2, 'a')), Some((2, 'd')), None]
        );
        assert_eq!([queue.pop(), queue.pop()], [Some((3, 'c')), None]);
    }
}
