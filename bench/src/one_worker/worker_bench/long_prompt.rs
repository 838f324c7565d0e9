//! Waiting times beside a long prompt that runs alone on a server: of a short request for a free slot, of a cancelled
//! request's slot, of a query of the cache.
//!
//! Prompts beside streams are measured in `throughput`. All times are given in micro-batches, each a seventh of the
//! long prompt's own time, so the result is comparable between fast and slow machines.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::contender::{Contender, Programs, Running, Setup};
use super::goals::Verdict;
use super::outcome::Assessment;
use super::scenario::Scenario;
use super::shapes::Texts;
use crate::client::Answer;
use crate::output::figures::{Measure, Sample, Unit};
use crate::summary::median;

/// Number of slots of the servers.
const N_SLOTS: u16 = 4;
/// Context of a slot. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 8192;
/// Length of the long prompt: seven micro-batches. Units: tokens.
const LONG_TOKENS: u32 = 7 * UBATCH_TOKENS;
/// Size of a micro-batch, the default of all servers. Units: tokens.
const UBATCH_TOKENS: u32 = 512;
/// Length of the short prompt. Units: tokens.
const SHORT_TOKENS: u32 = 20;
/// Number of moments, evenly spread over a long prompt's time, at which something is requested; each uses a new long
/// prompt.
const N_MOMENTS: u64 = 3;
/// Time between two checks whether a slot is free.
const LOOK: Duration = Duration::from_millis(2);
/// Number of micro-batches that a short request may wait for in the median.
///
/// Source: own choice: half of the running one, its own pass, and as much again for a machine that does other work.
const SHORT_MAX: (&str, f64) = ("2x", 2.0);
/// Number of micro-batches after which a cancelled request's slot must be free in the median.
///
/// Source: own choice: half of the running one, and as much again.
const CANCELLED_MAX: (&str, f64) = ("1x", 1.0);

/// Waiting times beside the long prompt. Units: milliseconds.
#[derive(Debug, Clone, PartialEq)]
struct Waits {
    /// TTFT of the long prompt alone.
    alone_ms: f64,
    /// TTFT of a short request.
    short_ms: f64,
    /// Time until a cancelled request's slot is free.
    cancelled_ms: f64,
    /// Time until the response of `/cache`; absent if a server has none.
    cache_ms: Option<f64>,
}

/// Measures short requests, cancellations and looks at the cache at several moments of a long prompt.
///
/// Errors: a server that does not start, a request that fails.
pub async fn measure(programs: &Programs, contender: Contender, texts: Texts) -> anyhow::Result<Assessment> {
    let setup = Setup { n_slots: N_SLOTS, slot_context_tokens: SLOT_CONTEXT_TOKENS, ..Setup::default() };
    let server = programs.start(contender, &setup).await?;
    let mut beside = Beside { server: &server, texts, n_asked: 0, alone: Duration::ZERO };
    let alone_ms = beside.long().await?.ttft_ms;
    beside.alone = Duration::from_secs_f64(alone_ms / 1e3);
    let (mut short, mut cancelled, mut cache) = (Vec::new(), Vec::new(), Vec::new());
    for moment in 1..=N_MOMENTS {
        short.push(beside.short(moment).await?);
        cancelled.push(beside.cancelled(moment).await?);
        if !contender.is_peer() {
            cache.push(beside.cache(moment).await?);
        }
    }
    server.stop().await?;
    let (short_ms, cancelled_ms) = median(&short).zip(median(&cancelled)).context("there are moments")?;
    let waits = Waits { alone_ms, short_ms, cancelled_ms, cache_ms: median(&cache) };
    Ok(Assessment::of(Scenario::LongPrompt, contender, waits.samples(), waits.verdicts(contender)))
}

/// A server, and texts that it has not seen.
struct Beside<'a> {
    server: &'a Running,
    texts: Texts,
    n_asked: u64,
    alone: Duration,
}

impl Beside<'_> {
    async fn ask(&mut self, n_tokens: u32) -> anyhow::Result<Answer> {
        self.n_asked += 1;
        self.server.client.ask_exactly(&self.texts.user(self.n_asked, n_tokens), 1).await
    }

    async fn long(&mut self) -> anyhow::Result<Answer> {
        self.ask(LONG_TOKENS).await
    }

    /// Returns the time after the start of a long prompt at which something is requested.
    fn moment(&self, moment: u64) -> Duration {
        self.alone.mul_f64(moment as f64 / (N_MOMENTS + 1) as f64)
    }

    /// Runs `what` at a moment of a long prompt; returns its duration. Units: milliseconds.
    async fn beside_long(
        &mut self,
        moment: u64,
        what: impl AsyncFnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<f64> {
        let moment = self.moment(moment);
        let short_ttft = async {
            tokio::time::sleep(moment).await;
            let began = Instant::now();
            what().await?;
            anyhow::Ok(began.elapsed().as_secs_f64() * 1e3)
        };
        let (long, ms) = tokio::join!(self.long(), short_ttft);
        long?;
        ms
    }

    async fn short(&mut self, moment: u64) -> anyhow::Result<f64> {
        let (client, messages) = (&self.server.client, self.texts.user(1000 + moment, SHORT_TOKENS));
        self.beside_long(moment, async || client.ask_exactly(&messages, 1).await.map(drop)).await
    }

    async fn cache(&mut self, moment: u64) -> anyhow::Result<f64> {
        let server = self.server;
        self.beside_long(moment, async || server.cache().await.map(drop)).await
    }

    /// Cancels a long prompt and returns the time until its slot is free.
    async fn cancelled(&mut self, moment: u64) -> anyhow::Result<f64> {
        let moment = self.moment(moment);
        let given_up = tokio::time::timeout(moment, self.long()).await;
        anyhow::ensure!(given_up.is_err(), "the long prompt ended before it was given up");
        let began = Instant::now();
        while self.server.is_busy().await? {
            tokio::time::sleep(LOOK).await;
        }
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }
}

impl Waits {
    /// Returns a sample of each figure.
    fn samples(&self) -> Vec<Sample> {
        let cache = self.cache_ms.map(|ms| ("/cache", ms));
        let waits = [
            ("long prompt alone", self.alone_ms),
            ("short TTFT", self.short_ms),
            ("cancelled slot free", self.cancelled_ms),
        ];
        waits.into_iter().chain(cache).map(|(name, ms)| Measure::lower(name, Unit::Ms).sample(ms)).collect()
    }

    fn micro_batches(&self, ms: f64) -> f64 {
        ms * f64::from(LONG_TOKENS / UBATCH_TOKENS) / self.alone_ms
    }

    /// Returns the verdicts; none for other servers than the worker.
    fn verdicts(&self, contender: Contender) -> Vec<Verdict> {
        if contender != Contender::Worker {
            return Vec::new();
        }
        let verdict = |what: &str, ms, (goal, maximum)| {
            Verdict::at_most(&format!("{what} / micro-batch"), goal, self.micro_batches(ms), maximum)
        };
        vec![
            verdict("short TTFT", self.short_ms, SHORT_MAX),
            verdict("cancelled slot", self.cancelled_ms, CANCELLED_MAX),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_judged_by_the_time_of_a_micro_batch() {
        let waits = Waits { alone_ms: 7000.0, short_ms: 2100.0, cancelled_ms: 500.0, cache_ms: None };
        let passed: Vec<_> =
            waits.verdicts(Contender::Worker).into_iter().map(|verdict| (verdict.reached, verdict.passed)).collect();
        assert_eq!(passed, [("2.100x".to_owned(), false), ("0.500x".to_owned(), true)]);
        assert_eq!(waits.verdicts(Contender::PeerChosen), []);
    }
}
