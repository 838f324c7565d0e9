//! Prefill and decode throughput, for several numbers of sequences, context lengths and idle conversations.
//!
//! Reuse is measured in `traffic`. The servers run side by side, with those of one kind busy at a time, and take turns
//! round by round, so that the ratios compare the same moment. Each prefill round has new prompts; all decode rounds
//! have the same ones.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use futures::future::try_join_all;

use super::contender::{Contender, Programs, Running, Setup};
use super::goals::Verdict;
use super::outcome::Assessment;
use super::shapes::Texts;
use crate::client::Answer;
use crate::output::figures::{Figures, Measure, Row, Unit};
use crate::summary::median;

/// One combination to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Number of sequences that run at once.
    pub n_sequences: u32,
    /// Length of each prompt. Units: tokens.
    pub context_tokens: u32,
    /// Number of idle conversations of that length that the server has cached.
    pub n_idle: u32,
    /// Number of servers of each kind that share the processors and run that many sequences each, in decode only.
    pub n_servers: usize,
    /// Servers to compare with.
    pub against: Against,
}

/// llama-server's settings that a throughput is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// The better of both settings in each phase: the self-test's choice may be the slower one at prefill.
    Better,
    /// The setting that the self-test chose, in decode only.
    ChosenInDecode,
    /// The defaults, in decode only.
    DefaultsInDecode,
}

impl Against {
    fn contenders(self) -> &'static [Contender] {
        match self {
            Self::Better => &[Contender::PeerChosen, Contender::PeerDefaults],
            Self::ChosenInDecode => &[Contender::PeerChosen],
            Self::DefaultsInDecode => &[Contender::PeerDefaults],
        }
    }

    /// Returns the required share of the peer's throughput, and its text.
    ///
    /// Source: 0.98 of the better setting counts as noise.
    fn goal(self) -> (&'static str, f64) {
        match self {
            Self::Better | Self::ChosenInDecode => ("0.98x", 0.98),
            Self::DefaultsInDecode => ("3x", 3.0),
        }
    }
}

/// Combinations that are measured.
pub const LOADS: [Load; 9] = [
    load(1, 256),
    load(4, 256),
    load(8, 256),
    load(1, 4000),
    load(4, 4000),
    load(8, 4000),
    Load { n_idle: 7, against: Against::ChosenInDecode, ..load(1, 2000) },
    Load { n_servers: 2, against: Against::ChosenInDecode, ..load(1, 256) },
    Load { against: Against::DefaultsInDecode, ..load(8, 2000) },
];

const fn load(n_sequences: u32, context_tokens: u32) -> Load {
    Load { n_sequences, context_tokens, n_idle: 0, n_servers: 1, against: Against::Better }
}

/// Number of slots of the servers: the maximum number of sequences, including idle ones.
const N_SLOTS: u16 = 8;
/// Context of a slot. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 5120;
/// Length of each response while decode is measured. Units: tokens.
const DECODE_TOKENS: u32 = 64;
/// Number of decode rounds.
const DECODE_ROUNDS: u32 = 5;
/// Approximate number of prompt tokens that each server computes for one load; short prompts get more rounds.
const PREFILL_TOKENS: u32 = 16_000;
/// Maximum number of prefill rounds.
const PREFILL_ROUNDS_MAX: u32 = 6;

impl Load {
    fn prefill_rounds(self) -> u64 {
        match self.against {
            Against::Better => {
                (PREFILL_TOKENS / (self.n_sequences * self.context_tokens)).clamp(1, PREFILL_ROUNDS_MAX).into()
            }
            Against::ChosenInDecode | Against::DefaultsInDecode => 1,
        }
    }

    fn describe(self) -> String {
        let sequences = format!("{} x {} tokens", self.n_sequences, self.context_tokens);
        match (self.n_idle, self.n_servers) {
            (0, 1) => sequences,
            (0, n_servers) => format!("{sequences} at each of {n_servers} servers"),
            (n_idle, _) => format!("{sequences}, {n_idle} idle beside"),
        }
    }
}

/// Rates of one server under one load, by round. Units: tokens a second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rates {
    /// Prompt tokens computed per second.
    pub prefill: Vec<f64>,
    /// Tokens generated per second by all sequences together.
    pub decode: Vec<f64>,
}

/// Measures every server under `load`.
///
/// Errors: a server that does not start, a request that fails.
pub async fn measure(programs: &Programs, texts: Texts, load: Load) -> anyhow::Result<Assessment> {
    let mut contenders = vec![Contender::Worker];
    contenders.extend(load.against.contenders().iter().filter(|_| programs.peer.is_some()));
    let setup = Setup { n_slots: N_SLOTS, slot_context_tokens: SLOT_CONTEXT_TOKENS, ..Setup::default() };
    let mut servers = BTreeMap::new();
    for contender in contenders {
        let mut of_kind = Vec::new();
        for _ in 0..load.n_servers {
            let server = programs.start(contender, &setup).await?;
            if let Some(setting) = server.settled() {
                eprintln!("  {}: {} has settled on {setting}", load.describe(), contender.name());
            }
            of_kind.push(server);
        }
        servers.insert(contender, of_kind);
    }
    let under = Under { load, texts };
    let mut rates: BTreeMap<Contender, Rates> = BTreeMap::new();
    for (&contender, servers) in &servers {
        for server in servers {
            under.fill_idle(server).await?;
            rates.entry(contender).or_default().prefill.push(under.prefill(server, 0).await?);
        }
    }
    for _ in 0..DECODE_ROUNDS {
        for (&contender, servers) in &servers {
            rates.entry(contender).or_default().decode.push(under.decode(servers).await?);
        }
    }
    for round in 1..load.prefill_rounds() {
        for (&contender, servers) in &servers {
            rates.entry(contender).or_default().prefill.push(under.prefill(&servers[0], round).await?);
        }
    }
    for server in servers.into_values().flatten() {
        server.stop().await?;
    }
    Ok(Assessment { figures: figures(load, &rates), verdicts: verdicts(load, &rates) })
}

/// A load and its texts.
#[derive(Debug, Clone, Copy)]
struct Under {
    load: Load,
    texts: Texts,
}

impl Under {
    async fn fill_idle(&self, server: &Running) -> anyhow::Result<()> {
        for idle in 0..self.load.n_idle {
            let messages = self.texts.user(90_000 + u64::from(idle), self.load.context_tokens);
            server.client.ask_exactly(&messages, 1).await?;
        }
        Ok(())
    }

    async fn ask(&self, server: &Running, round: u64, n_tokens: u32) -> anyhow::Result<Vec<Streamed>> {
        let requests = (0..self.load.n_sequences).map(|sequence| {
            let messages = self.texts.user(round * 100 + u64::from(sequence), self.load.context_tokens);
            Streamed::of(async move { server.client.ask_exactly(&messages, n_tokens).await })
        });
        try_join_all(requests).await
    }

    async fn prefill(&self, server: &Running, round: u64) -> anyhow::Result<f64> {
        let start = Instant::now();
        let answers = self.ask(server, round, 1).await?;
        let computed_tokens = answers.iter().map(|Streamed { answer, .. }| answer.prompt_tokens - answer.cached_tokens);
        Ok(computed_tokens.sum::<u64>() as f64 / start.elapsed().as_secs_f64())
    }

    async fn decode(&self, servers: &[Running]) -> anyhow::Result<f64> {
        let ask = async || {
            let answers = try_join_all(servers.iter().map(|server| self.ask(server, 0, DECODE_TOKENS))).await?;
            Ok(answers.into_iter().flatten().collect())
        };
        measured_together(ask).await
    }
}

/// A response, and when it was requested.
#[derive(Debug, Clone)]
pub(super) struct Streamed {
    sent: Instant,
    answer: Answer,
}

/// Share of the time between the earliest and the latest token in which all responses must be running.
///
/// Source: own choice: they start within a few steps of each other, and have as many tokens each.
const TOGETHER_MIN: f64 = 0.75;

/// Maximum number of attempts at a round in which all responses run together.
///
/// Source: own choice: on a machine with other tenants a pause separates the responses of a round now and then.
const ATTEMPTS_MAX: u32 = 5;

/// Returns the decode rate of the responses to `ask`, which is called again while they do not run together.
///
/// Errors: a failed request; responses that run apart at every attempt.
pub(super) async fn measured_together(ask: impl AsyncFn() -> anyhow::Result<Vec<Streamed>>) -> anyhow::Result<f64> {
    for _ in 0..ATTEMPTS_MAX {
        if let Some(rate) = decode_rate(&ask().await?) {
            return Ok(rate);
        }
    }
    bail!("the responses did not run together in {ATTEMPTS_MAX} attempts: the machine is too busy")
}

/// Returns the sum of the responses' own rates while they run together: the cost of the steps, without that of the
/// start.
///
/// Units: tokens a second. `None` if they did not run together, or have only one token each.
fn decode_rate(answers: &[Streamed]) -> Option<f64> {
    let spans: Vec<(Instant, Instant)> = answers.iter().map(Streamed::span).collect::<Option<_>>()?;
    let (first, all_began) = (spans.iter().map(|span| span.0).min()?, spans.iter().map(|span| span.0).max()?);
    let (one_ended, last) = (spans.iter().map(|span| span.1).min()?, spans.iter().map(|span| span.1).max()?);
    let together = one_ended.saturating_duration_since(all_began).as_secs_f64();
    let own_rates = answers.iter().filter_map(|Streamed { answer, .. }| answer.tpot_ms).map(|tpot_ms| 1e3 / tpot_ms);
    (together >= TOGETHER_MIN * last.duration_since(first).as_secs_f64()).then(|| own_rates.sum())
}

impl Streamed {
    /// Sends a request now and returns its response.
    pub(super) async fn of(request: impl Future<Output = anyhow::Result<Answer>>) -> anyhow::Result<Self> {
        let sent_at = Instant::now();
        Ok(Self { sent: sent_at, answer: request.await? })
    }

    /// Returns the times of the first and the last token; `None` for a response of one token.
    fn span(&self) -> Option<(Instant, Instant)> {
        let n_behind = self.answer.completion_tokens.saturating_sub(1);
        let first = self.sent + Duration::from_secs_f64(self.answer.ttft_ms / 1e3);
        Some((first, first + Duration::from_secs_f64(self.answer.tpot_ms? * n_behind as f64 / 1e3)))
    }
}

/// Returns the verdicts on the compared phases of a load.
fn verdicts(load: Load, rates: &BTreeMap<Contender, Rates>) -> Vec<Verdict> {
    let (goal, minimum) = load.against.goal();
    let phases = if load.against == Against::Better { &[Phase::Prefill, Phase::Decode][..] } else { &[Phase::Decode] };
    let verdict = |phase: &Phase| {
        let rate = |contender: &Contender| rates.get(contender).and_then(|rates| median(phase.of(rates)));
        let fastest = load.against.contenders().iter().filter_map(rate).max_by(f64::total_cmp)?;
        let ratio = rate(&Contender::Worker)? / fastest;
        Some(Verdict::at_least(&format!("{}, {}", load.describe(), phase.name()), goal, ratio, minimum))
    };
    phases.iter().filter_map(verdict).collect()
}

/// Returns the rates of every server and round.
fn figures(load: Load, rates: &BTreeMap<Contender, Rates>) -> Figures {
    let mut figures = Figures::default();
    for (contender, rates) in rates {
        let row = Row::new(load.describe(), contender.name());
        for phase in [Phase::Prefill, Phase::Decode] {
            figures.add(&row, Measure::higher(phase.name(), Unit::TokensPerS), phase.of(rates));
        }
    }
    figures
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Prefill,
    Decode,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    fn of(self, rates: &Rates) -> &[f64] {
        match self {
            Self::Prefill => &rates.prefill,
            Self::Decode => &rates.decode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_worker::worker_bench::measured;

    fn rates(prefill: f64, decode: f64) -> Rates {
        Rates { prefill: vec![prefill], decode: vec![decode, 0.0, decode * 2.0] }
    }

    /// Returns a function of the TTFT whose responses are requested at the same time, with eight tokens 5 ms apart.
    fn streamed() -> impl Fn(f64) -> Streamed + Copy {
        let sent = Instant::now();
        move |ttft_ms| Streamed { sent, answer: measured::tests::answer(100, 99, ttft_ms) }
    }

    #[test]
    fn answers_that_follow_each_other_are_not_counted_together() {
        let streamed = streamed();
        let at_once = decode_rate(&[streamed(10.0), streamed(15.0)]).expect("they run together");
        assert!((at_once - 400.0).abs() < 1.0, "{at_once}");
        assert_eq!(decode_rate(&[streamed(10.0), streamed(45.0)]), None);
        assert_eq!(decode_rate(&[]), None);
    }

    #[tokio::test]
    async fn a_round_whose_answers_run_apart_is_measured_again() {
        let streamed = streamed();
        let n_asked = std::cell::Cell::new(0);
        let together_at = |attempt| {
            n_asked.set(0);
            let n_asked = &n_asked;
            async move || {
                n_asked.set(n_asked.get() + 1);
                Ok(vec![streamed(10.0), streamed(if n_asked.get() < attempt { 45.0 } else { 15.0 })])
            }
        };
        assert!(measured_together(together_at(2)).await.is_ok());
        assert_eq!(n_asked.get(), 2);
        assert!(measured_together(together_at(ATTEMPTS_MAX + 1)).await.is_err());
        assert_eq!(n_asked.get(), ATTEMPTS_MAX);
    }

    #[test]
    fn short_prompts_get_more_rounds() {
        assert_eq!(LOADS.map(Load::prefill_rounds), [6, 6, 6, 4, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn each_phase_is_compared_with_the_setting_that_is_faster_in_it() {
        let rates = [
            (Contender::Worker, rates(97.0, 99.0)),
            (Contender::PeerChosen, rates(90.0, 100.0)),
            (Contender::PeerDefaults, rates(100.0, 80.0)),
        ];
        let rates = rates.into();
        let verdicts = verdicts(LOADS[1], &rates);
        let passed: Vec<_> = verdicts.iter().map(|verdict| (verdict.reached.as_str(), verdict.passed)).collect();
        assert_eq!(passed, [("0.970x", false), ("0.990x", true)]);
        let figures = figures(LOADS[1], &rates);
        let found: Vec<_> = figures.figures.iter().map(|figure| (figure.samples.len(), figure.median)).collect();
        assert_eq!(found, [(1, 97.0), (3, 99.0), (1, 90.0), (3, 100.0), (1, 100.0), (3, 80.0)]);
        assert_eq!(figures.figures[2].row, Row::new("4 x 256 tokens", "llama-server, chosen"));
    }

    #[test]
    fn the_defaults_must_be_beaten_threefold_in_decode() {
        let rates = [(Contender::Worker, rates(1.0, 290.0)), (Contender::PeerDefaults, rates(1.0, 100.0))].into();
        let verdicts = verdicts(LOADS[8], &rates);
        assert_eq!((verdicts.len(), verdicts[0].passed, verdicts[0].reached.as_str()), (1, false, "2.900x"));
    }

    #[test]
    fn without_a_peer_there_is_no_verdict() {
        assert_eq!(verdicts(LOADS[0], &[(Contender::Worker, rates(1.0, 1.0))].into()), []);
    }
}
