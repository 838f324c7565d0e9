//! The loop that starts requests, open or closed.
//!
//! Not here: the requests and their results (the callers). Time is tokio's, so tests need not wait. In an open loop
//! each request has its intended start, whatever the server does, and latencies count from it: if a request starts late
//! because a stalled server occupies every place, it has waited like its user. Otherwise a stall would delay the
//! requests that would show it (coordinated omission).

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// A request and its intended start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned<P> {
    /// Time from the start of the load; `None` for as soon as a place is free (closed loop).
    pub at: Option<Duration>,
    /// Content of the request.
    pub prompt: P,
}

/// Limits of a load.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of requests that run at once; at least 1.
    pub places: usize,
    /// Time after which no request starts.
    pub duration: Duration,
}

/// Starts every request at its time and waits until all have ended; `ask` gets each with its intended start.
///
/// Errors: a request panics; the running ones are aborted.
pub async fn drive<P, A>(
    planned_requests: impl Iterator<Item = Planned<P>>,
    limits: Limits,
    ask: impl Fn(P, Instant) -> A,
) -> anyhow::Result<()>
where
    A: Future<Output = ()> + Send + 'static,
{
    let start = Instant::now();
    let places = Arc::new(Semaphore::new(limits.places));
    let mut running = JoinSet::new();
    for Planned { at, prompt } in planned_requests {
        if let Some(at) = at {
            sleep_until(start + at.min(limits.duration)).await;
        }
        let place = Arc::clone(&places).acquire_owned().await.context("the semaphore is never closed")?;
        let at = at.unwrap_or_else(|| start.elapsed());
        if at >= limits.duration {
            break;
        }
        let asking = ask(prompt, start + at);
        running.spawn(async move {
            asking.await;
            drop(place);
        });
        // Ended requests are removed here, so that their number does not grow.
        while let Some(task_result) = running.try_join_next() {
            task_result?;
        }
    }
    while let Some(task_result) = running.join_next().await {
        task_result?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Milliseconds of a request: intended start, start, end.
    type Times = (u128, u128, u128);

    /// Returns the times of requests to a server that needs `took_ms` for each, in the order of their ends.
    async fn times(at_ms: &[Option<u64>], limits: Limits, took_ms: u64) -> Vec<Times> {
        let began = Instant::now();
        let ended = Arc::new(Mutex::new(Vec::new()));
        let planned = at_ms.iter().map(|at| Planned { at: at.map(Duration::from_millis), prompt: () });
        let ask = |(), intended: Instant| {
            let ended = Arc::clone(&ended);
            async move {
                let start = Instant::now();
                tokio::time::sleep(Duration::from_millis(took_ms)).await;
                let times = [intended, start, Instant::now()].map(|at| (at - began).as_millis());
                ended.lock().expect("nobody panics").push(times.into());
            }
        };
        drive(planned, limits, ask).await.expect("no request panics");
        ended.lock().expect("nobody panics").clone()
    }

    const ENDLESS: Duration = Duration::MAX;

    #[tokio::test(start_paused = true)]
    async fn an_open_loop_starts_requests_at_their_times_whatever_the_server_does() {
        let limits = Limits { places: 100, duration: ENDLESS };
        let at_ms = [Some(0), Some(10), Some(20)];
        assert_eq!(times(&at_ms, limits, 5000).await, [(0, 0, 5000), (10, 10, 5010), (20, 20, 5020)]);
    }

    #[tokio::test(start_paused = true)]
    async fn latency_of_a_delayed_request_counts_from_its_intended_start() {
        let limits = Limits { places: 1, duration: ENDLESS };
        let at_ms = [Some(0), Some(10), Some(20), Some(4000)];
        let expected = [(0, 0, 1000), (10, 1000, 2000), (20, 2000, 3000), (4000, 4000, 5000)];
        assert_eq!(times(&at_ms, limits, 1000).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_loop_starts_a_request_when_another_ends() {
        let limits = Limits { places: 2, duration: ENDLESS };
        let expected = [(0, 0, 1000), (0, 0, 1000), (1000, 1000, 2000), (1000, 1000, 2000), (2000, 2000, 3000)];
        assert_eq!(times(&[None; 5], limits, 1000).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_starts_after_the_duration_and_the_running_ones_end() {
        let limits = Limits { places: 1, duration: Duration::from_millis(1500) };
        assert_eq!(times(&[None; 5], limits, 1000).await, [(0, 0, 1000), (1000, 1000, 2000)]);
        // Requests planned before that time start nevertheless, although late.
        let at_ms = [Some(0), Some(10), Some(1499), Some(1500)];
        let expected = [(0, 0, 1000), (10, 1000, 2000), (1499, 2000, 3000)];
        assert_eq!(times(&at_ms, limits, 1000).await, expected);
    }
}
