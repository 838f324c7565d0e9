//! The mix of tasks: each is asked of every server in turn, round by round.

use anyhow::Context as _;
use futures::future::try_join_all;

use super::rates::{Rates, print_table};
use super::tasks::Task;
use super::{ANSWER_TOKENS, Contender, names};
use crate::client::Answer;

/// Measures every task on every server and prints the table.
///
/// Errors: a server that does not answer.
pub(super) async fn run(contenders: &[Contender], n_rounds: usize, n_streams: u16) -> anyhow::Result<()> {
    let mut rates = vec![Rates::default(); contenders.len()];
    for round in 0..n_rounds {
        for task in Task::ALL {
            for (contender, rates) in contenders.iter().zip(&mut rates) {
                rates.add(task.name(), measure(contender, task, round, n_streams).await?);
            }
        }
        eprintln!("{n_streams} at a time: round {} of {n_rounds}", round + 1);
    }
    print_table(&format!("Tasks, {n_streams} at a time"), &names(contenders), &rates);
    Ok(())
}

/// Asks for the answers of a round at the same time and returns their rate.
async fn measure(contender: &Contender, task: Task, round: usize, n_streams: u16) -> anyhow::Result<f64> {
    let requests = task
        .of_round(round, n_streams)
        .map(|messages| async move { contender.server.client.ask(&messages, ANSWER_TOKENS).await });
    let answers = try_join_all(requests).await.with_context(|| format!("{}, {}", contender.name, task.name()))?;
    Ok(rate(&answers))
}

/// Returns the tokens a second of answers that ran at the same time.
fn rate(answers: &[Answer]) -> f64 {
    answers.iter().filter_map(|answer| answer.tpot_ms).filter(|ms| *ms > 0.0).map(|ms| 1e3 / ms).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_requests_at_the_same_time_add_up() {
        let answer = crate::inputs::testing::answer(10, 0, 5.0);
        let answers = [Some(10.0), Some(20.0), None].map(|tpot_ms| Answer { tpot_ms, ..answer.clone() });
        assert_eq!(rate(&answers), 150.0);
    }
}
