//! Turns at the processors for work that may take long, such as tokenizing.
//!
//! Work runs on a thread of its own while it has a turn, and there is one turn for each processor. Between two portions
//! it gives its turn, if that has lasted a while, to the work that has waited longest, and queues for another turn. So
//! short work waits for at most a turn and a portion of long work.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

/// Most pieces of work that pause at a time, since each blocks a thread; further pieces do not pause.
///
/// Source: own choice, an eighth of tokio's threads for blocking work; work that has a turn needs one of these threads,
/// too.
const PAUSES_MAX: usize = 64;

/// Shortest turn while other work waits.
///
/// Source: own choice: many times what it takes to change threads, and less than a client notices.
const TURN_MIN: Duration = Duration::from_millis(2);

/// Turns at the machine's processors.
#[derive(Debug, Clone)]
pub struct Processors {
    turns: Arc<Semaphore>,
    pauses: Arc<Semaphore>,
}

/// Right to use one processor, until it is dropped.
#[derive(Debug)]
struct ProcessorPermit {
    processors: Processors,
    /// Absent while another turn is awaited.
    permit: Option<OwnedSemaphorePermit>,
    since: Instant,
    runtime: Handle,
}

impl Processors {
    /// Returns the processors that this process may use, all of them free.
    pub fn all() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, std::num::NonZero::get), PAUSES_MAX)
    }

    fn new(n_processors: usize, pauses_max: usize) -> Self {
        let semaphore = |n| Arc::new(Semaphore::new(n));
        Self { turns: semaphore(n_processors), pauses: semaphore(pauses_max) }
    }

    /// Returns how many processors are free.
    pub fn n_free(&self) -> usize {
        self.turns.available_permits()
    }

    /// Returns the result of `work`, which runs on a thread for long work once there is a processor for it.
    ///
    /// The work gets a function to call between two of its portions: it gives the turn to other work, and returns
    /// whether the caller has gone. Errors: if the work panics. Panics: outside a tokio runtime.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(Box<dyn Fn() -> bool>) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let turn = RefCell::new(self.turn().await);
        let cancellation = CancellationToken::new();
        let _caller = cancellation.clone().drop_guard();
        let is_cancelled = move || {
            if !cancellation.is_cancelled() {
                turn.borrow_mut().give_way();
            }
            cancellation.is_cancelled()
        };
        tokio::task::spawn_blocking(move || work(Box::new(is_cancelled))).await
    }

    /// Waits for a processor.
    async fn turn(&self) -> ProcessorPermit {
        let permit = Arc::clone(&self.turns).acquire_owned().await.ok();
        ProcessorPermit { processors: self.clone(), permit, since: Instant::now(), runtime: Handle::current() }
    }
}

impl ProcessorPermit {
    /// Gives the turn, if it has lasted [`TURN_MIN`], to work that already waits; blocks the thread until this work
    /// gets another turn.
    ///
    /// Panics: in an asynchronous task, which must not block.
    fn give_way(&mut self) {
        let Processors { turns, pauses } = &self.processors;
        if turns.available_permits() > 0 || self.since.elapsed() < TURN_MIN {
            return;
        }
        let Ok(_pause) = pauses.try_acquire() else { return };
        drop(self.permit.take());
        self.permit = self.runtime.block_on(Arc::clone(turns).acquire_owned()).ok();
        self.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::poll;
    use tokio::task::spawn_blocking;

    use super::*;

    #[tokio::test]
    async fn long_work_lets_short_work_run_first_and_continues_after_it() {
        let processors = Processors::new(1, 1);
        let mut long = processors.turn().await;
        let is_over = Arc::new(AtomicBool::new(false));
        let must_end = Arc::clone(&is_over);
        let works = spawn_blocking(move || {
            while !must_end.load(Ordering::Relaxed) {
                long.give_way();
            }
            long.permit.is_some()
        });
        for _ in 0..100 {
            drop(processors.turn().await);
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(works.await.expect("no panic"), "it gets another turn");
        assert_eq!((processors.n_free(), processors.pauses.available_permits()), (1, 1));
    }

    #[tokio::test]
    async fn work_does_not_pause_while_too_many_others_do() {
        let processors = Processors::new(1, 0);
        let mut long = processors.turn().await;
        let mut waiter = pin!(processors.turn());
        assert!(poll!(waiter.as_mut()).is_pending());
        let gave_way = spawn_blocking(move || {
            long.since -= TURN_MIN;
            long.give_way();
            long
        });
        let long = gave_way.await.expect("no panic");
        assert!(poll!(waiter.as_mut()).is_pending(), "no thread was blocked for it");
        drop(long);
        waiter.await;
    }

    #[tokio::test]
    async fn a_turn_that_has_just_begun_is_kept() {
        let processors = Processors::new(1, 1);
        let mut short = processors.turn().await;
        short.since += Duration::from_secs(3600);
        let mut waiter = pin!(processors.turn());
        assert!(poll!(waiter.as_mut()).is_pending());
        // In a task it would block, and panic.
        short.give_way();
        assert!(poll!(waiter.as_mut()).is_pending());
        drop(short);
        waiter.await;
    }
}
