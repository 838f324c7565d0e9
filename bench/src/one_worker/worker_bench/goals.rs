//! The goals of each scenario, and whether they were reached.
//!
//! Not here: measuring (the scenarios' modules). Shares and ratios are fixed goals. Counts of tokens depend on the
//! texts, so they are compared with the better of llama-server's settings in the same run.
//! Source: the table of goals that the prompt-state cache was built for.

use std::collections::BTreeMap;

use super::contender::Contender;
use super::measured::Measured;
use super::scenario::Scenario;

/// One goal and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The goal.
    pub goal: String,
    /// The value that was reached.
    pub reached: String,
    /// Whether the goal was reached.
    pub passed: bool,
}

impl Verdict {
    /// Returns the verdict for a share or ratio that must be at least `goal`.
    pub fn at_least(what: &str, goal: &str, value: f64, minimum: f64) -> Self {
        Self { goal: format!("{what} at least {goal}"), reached: shown(value, goal), passed: value >= minimum }
    }

    /// Returns the verdict for a share or ratio that must be at most `goal`.
    pub fn at_most(what: &str, goal: &str, value: f64, maximum: f64) -> Self {
        Self { goal: format!("{what} at most {goal}"), reached: shown(value, goal), passed: value <= maximum }
    }

    /// Returns `pass` or `missed`.
    pub fn word(&self) -> &'static str {
        if self.passed { "pass" } else { "missed" }
    }
}

/// Returns `value` in the unit of its goal: as a percentage or as a factor.
fn shown(value: f64, goal: &str) -> String {
    if goal.ends_with('%') { format!("{:.1} %", value * 100.0) } else { format!("{value:.3}x") }
}

/// Time by which the first token of a repeated prompt may take longer than a decode step. Units: milliseconds.
const REPEAT_MS_MAX: f64 = 3.0;

/// Returns the verdicts on the worker in a reuse scenario; none where it was not measured.
pub fn judge(scenario: Scenario, by_contender: &BTreeMap<Contender, Measured>) -> Vec<Verdict> {
    let Some(worker) = by_contender.get(&Contender::Worker) else { return Vec::new() };
    let share = |goal: &str, minimum: f64| vec![Verdict::at_least("reused", goal, worker.reused(), minimum)];
    match scenario {
        Scenario::ExactRepeat => vec![Verdict {
            goal: format!("warm TTFT at most one step + {REPEAT_MS_MAX:.0} ms"),
            reached: format!("{:.1} ms, a step takes {:.1}", worker.warm_ttft_ms, worker.step_ms),
            passed: worker.warm_ttft_ms <= worker.step_ms + REPEAT_MS_MAX,
        }],
        Scenario::GrownPrompt => {
            let ratio = worker.worst_round_to_cold().unwrap_or(f64::INFINITY);
            let rounds = Verdict::at_most("warm/cold in every round", "4 %", ratio, 0.04);
            no_more_computed(by_contender, worker).into_iter().chain([rounds]).collect()
        }
        Scenario::SixTurnChat => {
            let without_cache = by_contender.get(&Contender::WorkerUncached);
            let faster = without_cache.map(|without_cache| without_cache.warm_ttft_ms_mean / worker.warm_ttft_ms_mean);
            let faster = faster.map(|ratio| Verdict::at_least("TTFT faster than uncached", "1.31x", ratio, 1.31));
            no_more_computed(by_contender, worker).into_iter().chain(faster).collect()
        }
        Scenario::SharedSystem8 => {
            let ratio = worker.warm_to_cold().unwrap_or(f64::INFINITY);
            share("96 %", 0.96).into_iter().chain([Verdict::at_most("warm/cold", "0.7x", ratio, 0.7)]).collect()
        }
        Scenario::Interleaved12 => no_more_computed(by_contender, worker).into_iter().collect(),
        Scenario::Shared4k => share("96.9 %", 0.969),
        Scenario::HotAfterFlood | Scenario::HotAfterFloodTight => share("97.6 %", 0.976),
        Scenario::Tenants6x4 => share("93 %", 0.93),
        _ => Vec::new(),
    }
}

/// Returns whether the worker computed no more tokens than the better of llama-server's settings.
fn no_more_computed(by_contender: &BTreeMap<Contender, Measured>, worker: &Measured) -> Option<Verdict> {
    let peers = by_contender.iter().filter(|(contender, _)| contender.is_peer());
    let fewest = peers.map(|(_, peer)| peer.computed_tokens).min()?;
    Some(Verdict {
        goal: format!("at most {fewest} tokens computed"),
        reached: worker.computed_tokens.to_string(),
        passed: worker.computed_tokens <= fewest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(scenario: Scenario, measured: &[(Contender, Measured)], expected: &[(&str, bool)]) {
        let verdicts = judge(scenario, &measured.iter().cloned().collect());
        let short: Vec<_> = verdicts.iter().map(|verdict| (verdict.reached.as_str(), verdict.passed)).collect();
        assert_eq!(short, expected, "{scenario:?}: {verdicts:?}");
    }

    fn computed(prompt_tokens: u64, computed_tokens: u64) -> Measured {
        Measured { prompt_tokens, computed_tokens, ..Measured::default() }
    }

    #[test]
    fn shares_are_checked_against_fixed_goals() {
        check(Scenario::Shared4k, &[(Contender::Worker, computed(1000, 31))], &[("96.9 %", true)]);
        check(Scenario::Shared4k, &[(Contender::Worker, computed(1000, 32))], &[("96.8 %", false)]);
        check(Scenario::Tenants6x4, &[(Contender::Worker, computed(100, 7))], &[("93.0 %", true)]);
        check(Scenario::HotAfterFlood, &[(Contender::Worker, computed(1000, 25))], &[("97.5 %", false)]);
    }

    #[test]
    fn counts_are_compared_with_the_better_peer() {
        let peers = [(Contender::PeerChosen, computed(900, 40)), (Contender::PeerDefaults, computed(900, 30))];
        let with = |worker| [vec![(Contender::Worker, worker)], peers.to_vec()].concat();
        check(Scenario::Interleaved12, &with(computed(900, 30)), &[("30", true)]);
        check(Scenario::Interleaved12, &with(computed(900, 31)), &[("31", false)]);
        check(Scenario::Interleaved12, &[(Contender::Worker, computed(900, 30))], &[]);
    }

    #[test]
    fn every_round_of_a_grown_prompt_counts() {
        let grown = |worst| Measured {
            cold_ttft_ms: Some(100.0),
            round_ttft_ms: vec![1.0, worst, 2.0],
            warm_ttft_ms: 2.0,
            ..Measured::default()
        };
        check(Scenario::GrownPrompt, &[(Contender::Worker, grown(4.0))], &[("4.0 %", true)]);
        check(Scenario::GrownPrompt, &[(Contender::Worker, grown(5.0))], &[("5.0 %", false)]);
    }

    #[test]
    fn a_repeated_prompt_may_take_a_step_and_three_milliseconds() {
        let repeat = |warm_ttft_ms| Measured { warm_ttft_ms, step_ms: 5.0, ..Measured::default() };
        check(Scenario::ExactRepeat, &[(Contender::Worker, repeat(8.0))], &[("8.0 ms, a step takes 5.0", true)]);
        check(Scenario::ExactRepeat, &[(Contender::Worker, repeat(8.1))], &[("8.1 ms, a step takes 5.0", false)]);
    }

    #[test]
    fn a_chat_is_compared_with_the_cache_off() {
        let chat = |warm_ttft_ms_mean| Measured { warm_ttft_ms_mean, ..Measured::default() };
        let both = [(Contender::Worker, chat(10.0)), (Contender::WorkerUncached, chat(15.0))];
        check(Scenario::SixTurnChat, &both, &[("1.500x", true)]);
    }

    #[test]
    fn users_at_once_must_share_and_be_faster() {
        let worker = Measured { cold_ttft_ms: Some(100.0), warm_ttft_ms: 80.0, ..computed(100, 3) };
        check(Scenario::SharedSystem8, &[(Contender::Worker, worker)], &[("97.0 %", true), ("0.800x", false)]);
    }
}
