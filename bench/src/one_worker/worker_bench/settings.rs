//! The regret of the worker's self-test: how much longer a typical request takes with the setting that it chooses than
//! with the fastest one, and how often it chooses the same.
//!
//! Workers with each setting run side by side and take turns, so that a noisy machine affects all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;

use super::contender::{Contender, Programs, Running, Setup};
use super::goals::Verdict;
use super::outcome::Assessment;
use super::shapes::Texts;
use super::throughput::{Streamed, measured_together};
use crate::client::Message;
use crate::output::figures::{Figures, Measure, Row, Unit};
use crate::summary::median;

/// Starts of a worker without a remembered result.
const STARTS: usize = 10;
/// Starts of which the same setting must be chosen.
const SAME_MIN: usize = 9;
/// Longest time of a request with the chosen setting, relative to the fastest setting.
const REGRET: (&str, f64) = ("1.05x", 1.05);

/// Text in the log of a worker whose self-test chose nothing, because the machine was busy.
const NO_RESULT: &str = "the self-test has no result";

/// Slots of each worker.
const N_SLOTS: u16 = 4;
/// Context of a slot. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 4096;
/// Length of each new prompt. Units: tokens.
const PROMPT_TOKENS: u32 = 2048;
/// Tokens that a question adds to a prompt, without those between two messages.
const QUESTION_TOKENS: u32 = 48;
/// Tokens that a long turn adds, as an agent's tool results or a document.
const LONG_TURN_TOKENS: u32 = 512;
/// Length of each response while decode is measured. Units: tokens.
const ANSWER_TOKENS: u32 = 64;
/// Number of rounds.
const ROUNDS: u64 = 3;

/// A setting of attention and buffer: the flags that set it, and its name in a worker's log.
const SETTINGS: [([&str; 3], &str); 4] = [
    (["--flash-attn", "off", "--no-kv-unified"], "flash_attn=false kv_unified=false"),
    (["--flash-attn", "on", "--no-kv-unified"], "flash_attn=true kv_unified=false"),
    (["--flash-attn", "off", "--kv-unified"], "flash_attn=false kv_unified=true"),
    (["--flash-attn", "on", "--kv-unified"], "flash_attn=true kv_unified=true"),
];

/// Times of a worker with one setting, by round. Units: milliseconds.
#[derive(Debug, Clone, Default, PartialEq)]
struct Times {
    /// A new prompt.
    cold: Vec<f64>,
    /// A question behind a cached prompt.
    question: Vec<f64>,
    /// A long turn behind a cached prompt.
    long_turn: Vec<f64>,
    /// A token of a single response.
    decode_one: Vec<f64>,
    /// A token of one of as many responses as slots, which run together.
    decode_all: Vec<f64>,
}

impl Times {
    /// Returns the time of a typical request: one prompt in ten is new, half of the turns are long, and of 128 tokens
    /// half are decoded alone.
    ///
    /// Source: the mix that the self-test estimates, `docs/decisions/0011-buffer-self-test.md`.
    fn request_ms(&self) -> Option<f64> {
        let decode = 0.5 * median(&self.decode_one)? + 0.5 * median(&self.decode_all)? / f64::from(N_SLOTS);
        let turn = 0.5 * median(&self.question)? + 0.5 * median(&self.long_turn)?;
        Some(128.0 * decode + turn + 0.1 * median(&self.cold)?)
    }

    fn phases(&self) -> [(&'static str, &[f64]); 5] {
        [
            ("cold", &self.cold),
            ("question", &self.question),
            ("long turn", &self.long_turn),
            ("token of one", &self.decode_one),
            ("token of all", &self.decode_all),
        ]
    }
}

/// What was chosen and measured.
#[derive(Debug, Clone, Default, PartialEq)]
struct Regret {
    /// Number of starts that chose a setting, by its name.
    chosen: BTreeMap<String, usize>,
    /// Times, by the setting's name.
    times: BTreeMap<&'static str, Times>,
}

/// Starts workers that choose, then measures one with each setting.
///
/// Errors: a worker that does not start, a request that fails.
pub async fn measure(programs: &Programs, texts: Texts) -> anyhow::Result<Assessment> {
    let setup = Setup { n_slots: N_SLOTS, slot_context_tokens: SLOT_CONTEXT_TOKENS, ..Setup::default() };
    let mut regret = Regret::default();
    let mut n_busy = 0;
    while regret.n_starts() < STARTS {
        let programs = Programs { self_test_cache: Arc::new(tempfile::tempdir()?), ..programs.clone() };
        let server = programs.start(Contender::Worker, &setup).await?;
        let setting = server.settled().context("the worker's log does not say on what it has settled")?;
        let is_busy = server.log().contains(NO_RESULT);
        server.stop().await?;
        if is_busy {
            n_busy += 1;
            ensure!(n_busy < STARTS, "the machine is too busy for the self-test");
        } else {
            *regret.chosen.entry(setting).or_default() += 1;
        }
    }
    let mut servers = Vec::new();
    for (flags, name) in SETTINGS {
        let worker_flags = flags.map(str::to_owned).to_vec();
        let setup = Setup { worker_flags, ..setup.clone() };
        servers.push((name, programs.start(Contender::Worker, &setup).await?));
    }
    for round in 0..ROUNDS {
        for (name, server) in &servers {
            measure_round(server, texts, round, regret.times.entry(name).or_default()).await?;
        }
    }
    for (_, server) in servers {
        server.stop().await?;
    }
    Ok(Assessment { figures: regret.figures(), verdicts: regret.verdicts() })
}

/// Adds the times of a round. Each slot holds a prompt while tokens are decoded; one slot gets a new one each round.
async fn measure_round(server: &Running, texts: Texts, round: u64, times: &mut Times) -> anyhow::Result<()> {
    let mut prompts = vec![texts.text(100 + round, PROMPT_TOKENS)];
    prompts.extend((1..u64::from(N_SLOTS)).map(|slot| texts.text(slot, PROMPT_TOKENS)));
    let mut prompts: Vec<_> = prompts.into_iter().map(|text| vec![Message::new("user", text)]).collect();
    let first_token = async |messages: &Vec<Message>| anyhow::Ok(server.client.ask_exactly(messages, 1).await?.ttft_ms);
    for prompt in &prompts[1..] {
        first_token(prompt).await?;
    }
    let prompt = &mut prompts[0];
    times.cold.push(first_token(prompt).await?);
    let turns = [(QUESTION_TOKENS, &mut times.question), (LONG_TURN_TOKENS, &mut times.long_turn)];
    for (idx, (n_tokens, turn_times)) in turns.into_iter().enumerate() {
        prompt.push(Message::new("assistant", "Go on."));
        prompt.push(Message::new("user", texts.text(200 + 10 * round + idx as u64, n_tokens)));
        turn_times.push(first_token(prompt).await?);
    }
    let answer_alone = server.client.ask_exactly(&prompts[0], ANSWER_TOKENS).await?;
    times.decode_one.push(answer_alone.tpot_ms.context("an answer of one token")?);
    let ask = async |prompt: &Vec<Message>| Streamed::of(server.client.ask_exactly(prompt, ANSWER_TOKENS)).await;
    let tokens_per_s = measured_together(async || try_join_all(prompts.iter().map(ask)).await).await?;
    times.decode_all.push(1e3 * f64::from(N_SLOTS) / tokens_per_s);
    Ok(())
}

impl Regret {
    /// Returns the time of a request with a setting, relative to the fastest setting.
    fn of(&self, setting: &str) -> Option<f64> {
        let fastest = self.times.values().filter_map(Times::request_ms).reduce(f64::min)?;
        Some(self.times.get(setting)?.request_ms()? / fastest)
    }

    fn n_starts(&self) -> usize {
        self.chosen.values().sum()
    }

    /// Returns the mean over all starts.
    fn mean(&self) -> Option<f64> {
        let sum: Option<f64> = self.chosen.iter().map(|(name, &n)| Some(self.of(name)? * n as f64)).sum();
        Some(sum? / self.n_starts() as f64)
    }

    /// Returns the verdicts.
    fn verdicts(&self) -> Vec<Verdict> {
        let n_same = self.chosen.values().max().copied().unwrap_or_default();
        let (goal, maximum) = REGRET;
        let regret = self.mean().map(|mean| Verdict::at_most("regret", goal, mean, maximum));
        let share = |n: usize| n as f64 / STARTS as f64;
        let same = Verdict::at_least("starts with the same setting", "90 %", share(n_same), share(SAME_MIN));
        regret.into_iter().chain([same]).collect()
    }

    /// Returns the starts and the times of every setting.
    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        for (name, times) in &self.times {
            let row = Row::new("settings", *name);
            let n_chosen = self.chosen.get(*name).copied().unwrap_or_default();
            figures.add(&row, Measure::higher("chosen", Unit::Count), &[n_chosen as f64]);
            for (phase, times) in times.phases() {
                figures.add(&row, Measure::lower(phase, Unit::Ms), times);
            }
            figures.add(&row, Measure::lower("request", Unit::Ms), times.request_ms().as_slice());
            figures.add(&row, Measure::lower("of the fastest", Unit::Share), self.of(name).as_slice());
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns times by which a request takes `128 * ms + 30` milliseconds.
    fn times(ms: f64) -> Times {
        let (cold, question, long_turn) = (vec![100.0], vec![10.0], vec![30.0]);
        Times { cold, question, long_turn, decode_one: vec![ms], decode_all: vec![4.0 * ms] }
    }

    fn regret(chosen: &[(&str, usize)]) -> Regret {
        let names = SETTINGS.map(|(_, name)| name);
        let times = names.into_iter().zip([times(1.0), times(1.1), times(2.0), times(3.0)]).collect();
        Regret { chosen: chosen.iter().map(|&(name, n)| (name.to_owned(), n)).collect(), times }
    }

    #[test]
    fn the_regret_is_the_mean_over_all_starts() {
        let (best, second) = (SETTINGS[0].1, SETTINGS[1].1);
        assert_eq!(regret(&[(best, 10)]).mean(), Some(1.0));
        let both = regret(&[(best, 9), (second, 1)]).mean().expect("all is measured");
        assert!((both - (9.0 + (30.0 + 1.1 * 128.0) / 158.0) / 10.0).abs() < 1e-9, "{both}");
        assert_eq!(regret(&[("unknown", 1)]).mean(), None);
    }

    #[test]
    fn a_start_that_chooses_a_slow_setting_or_two_that_choose_another_miss_the_goals() {
        let [best, second, slow, _] = SETTINGS.map(|(_, name)| name);
        let passed = |chosen: &[(&str, usize)]| {
            regret(chosen).verdicts().iter().map(|verdict| verdict.passed).collect::<Vec<_>>()
        };
        assert_eq!(passed(&[(best, 9), (second, 1)]), [true, true]);
        assert_eq!(passed(&[(best, 8), (second, 2)]), [true, false]);
        assert_eq!(passed(&[(best, 9), (slow, 1)]), [false, true]);
    }
}
