//! The answers of the mix of tasks, recorded from a worker and replayed with other times of steps.
//!
//! The worker drafts none of them, so they are the plain ones. They are kept in memory only. Not here: the replay
//! itself (`replay`).

use std::path::Path;

use anyhow::Context as _;
use futures::future::try_join_all;
use serde_json::{Value, json};
use warmpath_common::ids::Token;
use warmpath_common::openai::ChatPrompt;
use warmpath_prompt::{PromptMaker, PromptOptions};
use warmpath_worker_core::drafting::DraftLimits;
use warmpath_worker_core::drafting::step_costs::StepCosts;

use super::cost_curve::{CostCurve, shown};
use super::rates::Rates;
use super::replay::{Recorded, Replay, Replayed};
use super::tasks::Task;
use super::{ANSWER_TOKENS, Contender, LOAD_TIMEOUT};
use crate::client::Message;

/// Limits of drafts. Source: the worker's defaults.
const LIMITS: DraftLimits = DraftLimits { n_max: 31, n_min: 0 };
/// No drafts.
const NONE: DraftLimits = DraftLimits { n_max: 0, n_min: 0 };
/// Depth at which the times of steps are shown: the usual one in the tasks. Units: tokens.
const SHOWN_DEPTH: u32 = 650;

/// Recorded answers: those of each round and task, which run at the same time, in the order in which they were asked.
struct Recording(Vec<(Task, Vec<Recorded>)>);

/// Outcome of a replay with one curve.
struct Column {
    curve: String,
    plain: Rates,
    drafted: Rates,
    /// Drafted and accepted tokens of each task, in their order.
    counts: Vec<(usize, usize)>,
}

/// Records the answers of every task, replays them with each curve and prints the table.
///
/// Errors: a worker that does not answer, or whose self-test is needed and has no times.
pub(super) async fn run(
    worker: &Contender,
    model: &Path,
    (curves, n_rounds, n_streams): (&[CostCurve], usize, u16),
) -> anyhow::Result<()> {
    let api = Api::new(worker, model)?;
    let props = api.props().await?;
    let costs: Vec<StepCosts> = curves.iter().map(|curve| curve.costs(&props)).collect::<anyhow::Result<_>>()?;
    let recording = api.record(n_rounds, n_streams).await?;
    let columns: Vec<Column> =
        curves.iter().zip(&costs).map(|(curve, costs)| recording.replay(curve.to_string(), costs)).collect();
    for (curve, costs) in curves.iter().zip(&costs) {
        eprintln!("{curve}: time of a step by its tokens: {}", shown(costs, SHOWN_DEPTH));
    }
    print_table(n_streams, &columns);
    Ok(())
}

/// Requests whose tokens are known.
struct Api<'a> {
    http: reqwest::Client,
    worker: &'a Contender,
    prompts: PromptMaker,
}

impl<'a> Api<'a> {
    fn new(worker: &'a Contender, model: &Path) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().timeout(LOAD_TIMEOUT).build()?;
        Ok(Self { http, worker, prompts: PromptMaker::open(model, PromptOptions::default())? })
    }

    async fn props(&self) -> anyhow::Result<Value> {
        let url = format!("{}/props", self.worker.server.base_url());
        Ok(self.http.get(url).send().await?.error_for_status()?.json().await?)
    }

    async fn record(&self, n_rounds: usize, n_streams: u16) -> anyhow::Result<Recording> {
        let mut groups = Vec::new();
        for round in 0..n_rounds {
            for task in Task::ALL {
                let asked = task.of_round((round, n_streams)).map(|messages| self.answer(messages));
                groups.push((task, try_join_all(asked).await.with_context(|| task.name())?));
            }
            eprintln!("recorded round {} of {n_rounds}", round + 1);
        }
        Ok(Recording(groups))
    }

    /// Returns an answer with the tokens of its prompt.
    async fn answer(&self, messages: Vec<Message>) -> anyhow::Result<Recorded> {
        let chat: ChatPrompt = serde_json::from_value(json!({ "messages": messages }))?;
        let prompt = self.prompts.chat(&chat)?.tokens;
        let body = json!({
            "prompt": prompt, "n_predict": ANSWER_TOKENS, "temperature": 0, "return_tokens": true,
            "speculative.n_max": 0,
        });
        let url = format!("{}/completion", self.worker.server.base_url());
        let answer: Value = self.http.post(url).json(&body).send().await?.error_for_status()?.json().await?;
        let tokens = serde_json::from_value::<Vec<Token>>(answer["tokens"].clone());
        Ok(Recorded { prompt, answer: tokens.context("an answer without tokens")? })
    }
}

impl Recording {
    fn replay(&self, curve: String, costs: &StepCosts) -> Column {
        let (mut plain, mut drafted) = (Rates::default(), Rates::default());
        let (mut without, mut with) = (Replay::new(costs, NONE), Replay::new(costs, LIMITS));
        let mut counts = vec![(0, 0); Task::ALL.len()];
        for (idx, (task, answers)) in self.0.iter().enumerate() {
            plain.add(task.name(), without.run(answers).rate);
            let Replayed { rate, n_drafted, n_accepted } = with.run(answers);
            drafted.add(task.name(), rate);
            let count = &mut counts[idx % Task::ALL.len()];
            *count = (count.0 + n_drafted, count.1 + n_accepted);
        }
        Column { curve, plain, drafted, counts }
    }
}

impl Column {
    /// Returns the ratio of the rates with and without drafts, and the share of drafted tokens that were accepted, by
    /// row.
    fn cells(&self) -> Vec<String> {
        let all = self.counts.iter().fold((0, 0), |all, count| (all.0 + count.0, all.1 + count.1));
        let rates = self.plain.column().into_iter().zip(self.drafted.column());
        let cell = |((plain, drafted), (n_drafted, n_accepted)): ((f64, f64), &(usize, usize))| {
            let share = *n_accepted as f64 * 100.0 / (*n_drafted).max(1) as f64;
            format!("{:.2} ({share:.0} % of {n_drafted})", drafted / plain.max(f64::MIN_POSITIVE))
        };
        rates.zip(self.counts.iter().chain([&all])).map(cell).collect()
    }
}

#[expect(clippy::print_stdout, reason = "the table is the command's output")]
fn print_table(n_streams: u16, columns: &[Column]) {
    let Some(first) = columns.first() else { return };
    println!(
        "\nSimulated, {n_streams} at a time; the ratio to no drafts, and in brackets the accepted share of drafts:\n"
    );
    let curves: Vec<&str> = columns.iter().map(|column| column.curve.as_str()).collect();
    println!("| | {} |\n|---|{}", curves.join(" | "), "---|".repeat(columns.len()));
    let cells: Vec<Vec<String>> = columns.iter().map(Column::cells).collect();
    for (idx, name) in first.plain.names().enumerate() {
        let row: Vec<&str> = cells.iter().map(|cells| cells[idx].as_str()).collect();
        println!("| {name} | {} |", row.join(" | "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_the_ratios_and_the_accepted_shares() {
        let count_up = |from: Token, n: usize| -> Vec<Token> { (from..).take(n).collect() };
        let (prompt, answer) = (count_up(0, 100), count_up(1000, 65));
        let group = |task| (task, vec![Recorded { prompt: prompt.clone(), answer: answer.clone() }]);
        let recording = Recording(Task::ALL.into_iter().map(group).collect());
        let costs = "1:10,32:10"
            .parse::<CostCurve>()
            .and_then(|curve| curve.costs(&Value::Null).map_err(|error| error.to_string()));
        let cells = recording.replay("flat".to_owned(), &costs.expect("a curve")).cells();
        // Each answer after the first was given before: 64 tokens in two steps.
        assert_eq!(cells[..2], ["1.00 (0 % of 0)", "32.00 (100 % of 62)"]);
        assert_eq!(cells[12], "8.93 (100 % of 682)");
        assert_eq!(cells.len(), 13);
    }
}
