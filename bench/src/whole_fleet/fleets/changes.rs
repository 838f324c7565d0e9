//! The reuse while a worker joins, and while all workers restart one after the other.
//!
//! Conversations run all the time. Workers have no disk tier, so a worker that restarts holds nothing. Both changes
//! run with and without KV state from other workers, each with a fleet of its own. Not here: the transfer of a single
//! prefix (`transfer`), the same questions in virtual time (`sim`).

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::FleetsArgs;
use crate::client::{Answer, ChatClient};
use crate::fleet::{Fleet, FleetSpec};
use crate::output::figures::{Figures, Measure, Row, Unit};
use crate::summary;
use crate::whole_fleet::chat_load::{Shape, converse};

/// Longest time for a worker to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(180);

/// Share of the others' hit ratio at which a new worker counts as warm.
///
/// Source: the goal for transfers.
const WARM_SHARE: f64 = 0.9;

/// Time over which the hit ratio of a new worker is averaged. Source: own choice: some requests of each worker.
const WINDOW: Duration = Duration::from_secs(5);

/// A response and the time of its end.
type Sample = (Duration, Answer);

/// Makes both changes with and without transfers and prints the results.
///
/// Errors: a process that does not start or end.
pub(super) async fn run(args: &FleetsArgs) -> anyhow::Result<()> {
    ensure!(args.fleet.n_workers() > 1, "the fleet needs at least two workers");
    let mut figures = Figures::default();
    for (transfers, worker_flag) in [("off", Some("--no-kv-transfer")), ("on", None)] {
        let mut spec = args.fleet.spec(Vec::new())?;
        spec.worker_args.extend(worker_flag.map(str::to_owned));
        measure(args, spec, &Row::new("", transfers), &mut figures).await?;
    }
    args.figures.show(&figures, "", "transfers")
}

async fn measure(args: &FleetsArgs, spec: FleetSpec, row: &Row, figures: &mut Figures) -> anyhow::Result<()> {
    let (before, after) = (Duration::from_secs(args.before), Duration::from_secs(args.after));
    // The first change: a worker joins under load. It was part of the fleet's start, so that it has its place and name.
    let mut fleet = Fleet::start(spec.clone()).await?;
    let new = fleet.workers.len() - 1;
    fleet.workers[new].kill().await?;
    let load = Load::start(&fleet, &args.shape)?;
    tokio::time::sleep(before).await;
    fleet.restart_worker(new).await?;
    let joined_at = load.started.elapsed();
    tokio::time::sleep(after).await;
    let (samples, mut n_failed) = load.end().await;

    // How soon the new worker reuses as much as the others, whose caches were filled before.
    let name = format!("worker-{new}");
    let is_new = |(_, answer): &&Sample| answer.worker.as_ref() == Some(&name);
    let of = |from: Duration, to: Duration| {
        let within = move |(at, _): &&Sample| (joined_at + from..joined_at + to).contains(at);
        samples.iter().filter(within)
    };
    let others_hit_ratio = hit_ratio(of(Duration::ZERO, after).filter(|sample| !is_new(sample)));
    let new_hit_ratio = hit_ratio(of(Duration::ZERO, Duration::from_secs(10)).filter(is_new));
    let is_warm = |from: &u64| {
        let (from, to) = (Duration::from_secs(*from), Duration::from_secs(*from) + WINDOW);
        let new_hit_ratio = hit_ratio(of(from, to).filter(is_new));
        new_hit_ratio.zip(others_hit_ratio).is_some_and(|(new, others)| new >= WARM_SHARE * others)
    };
    let warm_after_s = (0..args.after.saturating_sub(WINDOW.as_secs())).find(is_warm);
    let warm_after_ms = warm_after_s.map(|from| from as f64 * 1e3);
    drop(fleet);

    // The second change, with a new fleet: every worker restarts, one after the other.
    let mut fleet = Fleet::start(spec).await?;
    let load = Load::start(&fleet, &args.shape)?;
    tokio::time::sleep(before).await;
    let restarts = span(load.started, restart_all(&mut fleet)).await?;
    tokio::time::sleep(after).await;
    let (samples, n_failed_here) = load.end().await;
    n_failed += n_failed_here;
    let within = |time: Range<Duration>| hit_ratio(samples.iter().filter(move |(at, _)| time.contains(at)));
    // The first half of the load fills the caches.
    let before_hit_ratio = within(restarts.start / 2..restarts.start);
    let hit_ratios = [
        ("hit ratio of the others", others_hit_ratio),
        ("of the new worker in 10 s", new_hit_ratio),
        ("before the restarts", before_hit_ratio),
        ("during them", within(restarts)),
    ];
    for (name, hit_ratio) in hit_ratios {
        figures.add(row, Measure::higher(name, Unit::Share), hit_ratio.as_slice());
    }
    figures.add(row, Measure::lower("warm after", Unit::Ms), warm_after_ms.as_slice());
    figures.add(row, Measure::lower("failed", Unit::Count), &[n_failed as f64]);
    Ok(())
}

async fn restart_all(fleet: &mut Fleet) -> anyhow::Result<()> {
    for worker in 0..fleet.workers.len() {
        fleet.workers[worker].terminate(END_TIMEOUT).await?;
        fleet.restart_worker(worker).await?;
    }
    Ok(())
}

/// Returns when `change` begins and ends, as time from `start`.
///
/// Errors: those of the change.
async fn span(start: Instant, change: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<Range<Duration>> {
    let begins = start.elapsed();
    change.await?;
    Ok(begins..start.elapsed())
}

/// Returns the hit ratio of responses; `None` if there are none.
fn hit_ratio<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<f64> {
    let (cached, prompt) = samples
        .fold((0, 0), |(cached, prompt), (_, answer)| (cached + answer.cached_tokens, prompt + answer.prompt_tokens));
    (prompt > 0).then(|| summary::hit_ratio(prompt, cached))
}

/// Conversations that run until they are stopped; when one ends, a new one of the same tenant follows.
struct Load {
    started: Instant,
    /// Responses and the number of failures. The lock is held for one push.
    results: Arc<Mutex<(Vec<Sample>, usize)>>,
    tasks: JoinSet<()>,
}

impl Load {
    fn start(fleet: &Fleet, shape: &Shape) -> anyhow::Result<Self> {
        let client = ChatClient::new(&fleet.router.base_url(), None)?;
        let mut load = Self { started: Instant::now(), results: Arc::default(), tasks: JoinSet::new() };
        let corpus = Arc::new(shape.text.corpus()?);
        for lane in 0..shape.concurrency.max(1) {
            let (client, shape, results, started) =
                (client.clone(), shape.clone(), Arc::clone(&load.results), load.started);
            let corpus = Arc::clone(&corpus);
            load.tasks.spawn(async move {
                let lock_results = || results.lock().unwrap_or_else(PoisonError::into_inner);
                for user in lane * 10_000.. {
                    let add = |answer| lock_results().0.push((started.elapsed(), answer));
                    let (clients, tenant) = (std::slice::from_ref(&client), lane % shape.tenants.max(1));
                    let conversation = converse(&shape, &corpus, clients, tenant, user, add).await;
                    lock_results().1 += usize::from(conversation.is_err());
                }
            });
        }
        Ok(load)
    }

    async fn end(mut self) -> (Vec<Sample>, usize) {
        self.tasks.shutdown().await;
        std::mem::take(&mut *self.results.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::testing::answer;

    #[tokio::test(start_paused = true)]
    async fn a_change_lasts_no_longer_than_its_steps() {
        let started = Instant::now();
        let wait = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        wait(60).await;
        let change = async {
            wait(10).await;
            Ok(())
        };
        let restarts = span(started, change).await.expect("the change succeeds");
        wait(30).await;
        assert_eq!(restarts, Duration::from_secs(60)..Duration::from_secs(70));
    }

    #[test]
    fn a_time_without_responses_has_no_hit_ratio() {
        let sample = (Duration::ZERO, answer(10, 9, 1.0));
        assert_eq!(hit_ratio([&sample].into_iter()), Some(0.9));
        assert_eq!(hit_ratio(std::iter::empty()), None);
    }
}
