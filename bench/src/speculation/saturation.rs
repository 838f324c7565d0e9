//! Saturation: every slot is busy and as many requests wait, so that most of a worker's time goes to prompts and to
//! steps of many streams.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};

use super::rates::{Rates, print_table};
use super::tasks::Task;
use super::{ANSWER_TOKENS, Contender, names};

/// Requests in flight for each slot: one that runs and one that waits.
const IN_FLIGHT_PER_SLOT: usize = 2;
/// Answers of a round that count, in requests in flight. Source: own choice: the first and the last ones are a small
/// part.
const COUNTED_SHARES: usize = 3;

/// Measures every server and prints the table.
///
/// Errors: a server that does not answer.
pub(super) async fn run(contenders: &[Contender], (n_rounds, n_slots): (usize, u16)) -> anyhow::Result<()> {
    let mut rates = vec![Rates::default(); contenders.len()];
    for round in 0..n_rounds {
        for (contender, rates) in contenders.iter().zip(&mut rates) {
            let rate = measure(contender, (round, usize::from(n_slots))).await;
            rates.add("all tasks in turn", rate.with_context(|| contender.name.clone())?);
        }
        eprintln!("saturation, {n_slots} slots: round {} of {n_rounds}", round + 1);
    }
    print_table(&format!("Saturation, {n_slots} slots"), &names(contenders), &rates);
    Ok(())
}

/// Returns the rate of all answers as long as requests wait.
async fn measure(contender: &Contender, (round, n_slots): (usize, usize)) -> anyhow::Result<f64> {
    let n_in_flight = IN_FLIGHT_PER_SLOT * n_slots;
    let n_requests = n_in_flight * (COUNTED_SHARES + 1);
    let began = Instant::now();
    let asked = (round * n_requests..).take(n_requests).map(|nth| async move {
        let messages = Task::ALL[nth % Task::ALL.len()].messages(nth);
        let answer = contender.client.ask(&messages, ANSWER_TOKENS).await?;
        anyhow::Ok((began.elapsed(), answer.completion_tokens))
    });
    let ends: Vec<(Duration, u64)> = futures::stream::iter(asked).buffer_unordered(n_in_flight).try_collect().await?;
    Ok(rate(&ends[..n_requests - n_in_flight]))
}

/// Returns the tokens a second of answers, each with the time of its end, in their order.
fn rate(ends: &[(Duration, u64)]) -> f64 {
    let Some((last, _)) = ends.last().filter(|(last, _)| !last.is_zero()) else { return 0.0 };
    ends.iter().map(|(_, n_tokens)| *n_tokens as f64).sum::<f64>() / last.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_all_tokens_until_the_last_end() {
        let second = Duration::from_secs(1);
        assert_eq!(rate(&[(second, 30), (second * 2, 30), (second * 4, 100)]), 40.0);
        assert_eq!(rate(&[]), 0.0);
    }
}
