//! TTFT of a prompt whose prefix only a busy worker holds, against one that is computed.
//!
//! In each round one worker computes a prefix and then decodes long answers in all of its slots. Two requests follow:
//! one with this prefix, and, directly to an idle worker, one with a prefix of the same length that no worker holds.
//! Not here: fleets that change (`changes`), transfers in virtual time (`sim`).

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::task::JoinSet;

use super::FleetsArgs;
use crate::client::{Answer, ChatClient, Message};
use crate::fleet::Fleet;
use crate::inputs::prompts::words;
use crate::output::figures::{Figures, Measure, Row, Unit};
use crate::summary::hit_ratio;
use crate::whole_fleet::chat_load::Shape;

/// Longest time until the router reports a worker's slots as busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two checks of the router's view. Source: own choice: much shorter than an answer.
const BUSY_POLL: Duration = Duration::from_millis(20);
/// Tokens of the answers that keep a worker busy: more than are generated while a round lasts.
///
/// Source: own choice: half of a slot's context.
const BUSY_TOKENS: u32 = 2000;
/// Share of the prompt that must have been reused for a request to count as fetched.
///
/// Source: own choice: with a prefix of 2,000 tokens, the question and the last block are less than a tenth.
const FETCHED_SHARE: f64 = 0.9;

/// Runs the rounds and prints their results.
///
/// Errors: a process that does not start, a request that fails.
pub(super) async fn run(args: &FleetsArgs) -> anyhow::Result<()> {
    ensure!(args.fleet.n_workers() > 1, "state is only fetched in a fleet of at least two workers");
    let fleet = Fleet::start(args.fleet.spec(args.transfer_flags())?).await?;
    let (row, mut figures) = (Row::new("", "Warmpath"), Figures::default());
    for round in 0..args.rounds.max(1) {
        let measurement = measure(&args.shape, &fleet, round).await;
        let (holder, held, computed) = measurement.with_context(|| format!("in round {}", round + 1))?;
        let hit_ratio_held = hit_ratio(held.prompt_tokens, held.cached_tokens);
        let is_fetched = held.worker.is_some_and(|worker| worker != holder) && hit_ratio_held >= FETCHED_SHARE;
        let samples = [
            Measure::higher("reused", Unit::Share).sample(hit_ratio_held),
            Measure::higher("fetched", Unit::Share).sample(f64::from(u8::from(is_fetched))),
            Measure::lower("TTFT", Unit::Ms).sample(held.ttft_ms),
            Measure::lower("TTFT computed", Unit::Ms).sample(computed.ttft_ms),
            Measure::lower("ratio", Unit::Share).sample(held.ttft_ms / computed.ttft_ms),
        ];
        figures.add_samples(&row, samples);
    }
    args.figures.show(&figures, "", "fleet")
}

/// Returns the worker that holds a prefix, and the answers with this prefix and with a new one.
async fn measure(shape: &Shape, fleet: &Fleet, round: u64) -> anyhow::Result<(String, Answer, Answer)> {
    let router = ChatClient::new(&fleet.router.base_url(), None)?;
    let seed = shape.seed * 1_000_000 + round * 1_000;
    let chat = |prefix: u64, question: u64| {
        let system = Message::new("system", words(seed + prefix, shape.system_words));
        [system, Message::new("user", words(seed + question, shape.user_words))]
    };
    let first = router.ask_exactly(&chat(1, 2), shape.answer_tokens).await?;
    let holder = first.worker.clone().context("the response names no worker")?;
    let holder_idx = fleet.worker_idx(&holder).context("an unknown worker")?;
    let idle = ChatClient::new(&fleet.workers[(holder_idx + 1) % fleet.workers.len()].base_url(), None)?;
    let busy = occupy(fleet, holder_idx, &holder, seed).await?;
    let (with_prefix, without_prefix) = (chat(1, 3), chat(4, 5));
    // The order alternates, so that neither is always the first on an idle worker.
    let (with_prefix, without_prefix) = if round.is_multiple_of(2) {
        let with_prefix = router.ask_exactly(&with_prefix, shape.answer_tokens).await?;
        (with_prefix, idle.ask_exactly(&without_prefix, shape.answer_tokens).await?)
    } else {
        let without_prefix = idle.ask_exactly(&without_prefix, shape.answer_tokens).await?;
        (router.ask_exactly(&with_prefix, shape.answer_tokens).await?, without_prefix)
    };
    drop(busy);
    Ok((holder, with_prefix, without_prefix))
}

/// Starts a long answer in each slot of a worker and waits until the router reports all slots as busy. The answers end
/// when the returned tasks are dropped.
///
/// Errors: a request fails, or the router does not report the slots as busy in time.
async fn occupy(
    fleet: &Fleet,
    worker_idx: usize,
    worker: &str,
    seed: u64,
) -> anyhow::Result<JoinSet<anyhow::Result<Answer>>> {
    let client = ChatClient::new(&fleet.workers[worker_idx].base_url(), None)?;
    let mut tasks = JoinSet::new();
    let http = reqwest::Client::builder().no_proxy().build()?;
    let n_slots = slots(&http, fleet, worker).await?.1;
    for slot in 0..n_slots as u64 {
        let client = client.clone();
        tasks.spawn(async move {
            let question = Message::new("user", words(seed + 100 + slot, 8));
            client.ask_exactly(&[question], BUSY_TOKENS).await
        });
    }
    let all_busy = async {
        while slots(&http, fleet, worker).await?.0 < n_slots {
            if let Some(task_result) = tasks.try_join_next() {
                task_result??;
            }
            tokio::time::sleep(BUSY_POLL).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(BUSY_TIMEOUT, all_busy)
        .await
        .context("the router has not reported all slots as busy in time")??;
    Ok(tasks)
}

/// Returns the number of busy slots that the router reports for a worker, and the number of all its slots.
async fn slots(http: &reqwest::Client, fleet: &Fleet, worker: &str) -> anyhow::Result<(usize, usize)> {
    let view = fleet.router.fleet_state(http).await?;
    let mut workers = view["workers"].as_array().into_iter().flatten();
    let worker_view =
        workers.find(|worker_view| worker_view["name"] == worker).context("the router does not know it")?;
    let n_busy = worker_view["load"]["busy_slots"].as_array().map_or(0, Vec::len);
    Ok((n_busy, usize::try_from(worker_view["model"]["n_slots"].as_u64().context("a number of slots")?)?))
}
