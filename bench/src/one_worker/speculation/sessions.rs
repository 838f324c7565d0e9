//! Sessions of coding agents with the lengths of recorded requests: each is held once, and then once more as an agent
//! does that starts a task again.

use anyhow::Context as _;
use clap::ValueEnum as _;

use super::rates::{Rates, print_table};
use super::{Contender, names};
use crate::one_worker::agents::{Agent, ShortSession};

/// Length of the texts as a share of the recorded lengths. Source: own choice: a session fits into the context of a
/// slot.
const SCALE: f64 = 0.1;
/// Longest answer. Units: tokens.
const ANSWER_TOKENS: u32 = 128;

/// Measures the sessions of every agent with every server, one answer at a time, and prints the table.
///
/// Errors: a server that does not answer.
pub(super) async fn run(contenders: &[Contender], n_rounds: usize) -> anyhow::Result<()> {
    let mut rates = vec![Rates::default(); contenders.len()];
    for (round, seed) in (1..=n_rounds).zip(1..) {
        for &agent in Agent::value_variants() {
            let name = crate::output::names::name(agent);
            let session = ShortSession::new(agent, SCALE, seed);
            for time in ["first", "again"] {
                for (contender, rates) in contenders.iter().zip(&mut rates) {
                    let session_rates = session.hold(&contender.server.base_url(), ANSWER_TOKENS).await;
                    let rate = session_rates.with_context(|| format!("{}, {name}", contender.name))?;
                    rates.add(&format!("{name}, {time}"), rate);
                }
            }
        }
        eprintln!("sessions: round {round} of {n_rounds}");
    }
    print_table("Sessions of agents", &names(contenders), &rates);
    Ok(())
}
