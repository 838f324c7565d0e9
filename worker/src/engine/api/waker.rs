//! Wakes of the engine thread, by threads that have changed something it waits for.
//!
//! A thread makes its change visible first and wakes afterwards. The engine thread clears the waker first and looks for
//! changes afterwards. So either the look sees the change, or a command for another look is in the queue: no wake is
//! lost, and the queue never has more wakes than threads that are just waking.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Waker of the engine thread; cheap to clone.
#[derive(Clone)]
pub struct Waker(Arc<WakerState>);

struct WakerState {
    /// Whether the thread will look for changes after the last wake.
    will_look: AtomicBool,
    send: Box<dyn Fn() + Send + Sync>,
}

impl Waker {
    /// Returns a waker that wakes with `send`, which must not block.
    ///
    /// `send` may drop the command if the thread's queue is full, because a thread with a command in its queue looks.
    pub(crate) fn new(send: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(WakerState { will_look: AtomicBool::new(false), send: Box::new(send) }))
    }

    /// Makes the thread look for the caller's earlier changes; never blocks.
    pub fn wake(&self) {
        if !self.0.will_look.swap(true, Ordering::AcqRel) {
            (self.0.send)();
        }
    }

    /// Records that the thread looks for changes from now on. Called by that thread, after it has taken its commands.
    pub(crate) fn clear(&self) {
        // A swap, because a store would not order the look after the changes of threads that found the flag set.
        self.0.will_look.swap(false, Ordering::AcqRel);
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Waker").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::{Receiver, sync_channel};
    use std::time::Duration;

    use super::*;

    /// Longest sleep of a thread that should have been woken.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn waker(queue_max: usize) -> (Waker, Receiver<()>) {
        let (commands, inbox) = sync_channel(queue_max);
        let send = move || {
            let _ = commands.try_send(());
        };
        (Waker::new(send), inbox)
    }

    #[test]
    fn many_wakes_before_a_look_are_one_command() {
        let (waker, inbox) = waker(8);
        (0..100).for_each(|_| waker.wake());
        assert_eq!(inbox.try_iter().count(), 1);
        waker.clear();
        waker.wake();
        assert_eq!(inbox.try_iter().count(), 1);
    }

    #[test]
    fn no_change_is_missed_even_with_the_smallest_queue() {
        const N_THREADS: u64 = 4;
        const N_CHANGES: u64 = 20_000;
        let (waker, inbox) = waker(1);
        let changes = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..N_THREADS {
                scope.spawn(|| {
                    for _ in 0..N_CHANGES {
                        changes.fetch_add(1, Ordering::Relaxed);
                        waker.wake();
                    }
                });
            }
            loop {
                inbox.recv_timeout(PATIENCE).expect("a wake for every change that was not seen");
                while inbox.try_recv().is_ok() {}
                waker.clear();
                if changes.load(Ordering::Relaxed) == N_THREADS * N_CHANGES {
                    break;
                }
            }
        });
    }
}
