//! The outcome of a run: its tables by kind, its verdicts, and what could not be measured.
//!
//! The figures are in the other modules. A scenario shows its table as soon as it is measured; the page gets all tables
//! at the end.

use super::contender::Contender;
use super::goals::Verdict;
use super::scenario::Scenario;
use crate::figures::{Figures, Measure, Row};
use crate::table::Table;

/// Everything that was measured so far.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Tables, each with its title.
    tables: Vec<(&'static str, Table)>,
    /// Verdicts.
    verdicts: Vec<(Scenario, Verdict)>,
    /// Missing measurements, with the reasons.
    failures: Vec<String>,
    /// Figures of all scenarios.
    pub figures: Figures,
}

impl Outcome {
    /// Prints a table and keeps its rows, below those of earlier tables of the same title.
    #[expect(clippy::print_stdout, reason = "the tables are the command's output")]
    pub fn show(&mut self, title: &'static str, table: Table) {
        println!("{table}");
        match self.tables.iter_mut().find(|(known, _)| *known == title) {
            Some((_, known)) => known.rows.extend(table.rows),
            None => self.tables.push((title, table)),
        }
    }

    /// Prints and keeps the verdicts on a scenario.
    pub fn judge(&mut self, scenario: Scenario, verdicts: Vec<Verdict>) {
        for verdict in &verdicts {
            eprintln!("  {}: {} ({})", verdict.word(), verdict.reached, verdict.goal);
        }
        self.verdicts.extend(verdicts.into_iter().map(|verdict| (scenario, verdict)));
    }

    /// Keeps the figures of a server in a scenario, one sample each.
    pub fn record(
        &mut self,
        scenario: Scenario,
        contender: Contender,
        measures: impl IntoIterator<Item = (Measure, f64)>,
    ) {
        let row = Row::new(scenario.name(), contender.name());
        for (measure, value) in measures {
            self.figures.add(&row, measure, &[value]);
        }
    }

    /// Prints and keeps the failure to measure a server.
    pub fn fail(&mut self, scenario: Scenario, contender: Contender, error: &anyhow::Error) {
        let failure = format!("{} with {}: {error:#}", scenario.name(), contender.name());
        eprintln!("  {failure}");
        self.failures.push(failure);
    }

    /// Returns what could not be measured.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Returns all tables as Markdown, the summary, and the first line of each failure.
    pub fn page(&self) -> String {
        let tables = self.tables.iter().map(|(title, table)| format!("{title}\n\n{table}\n\n"));
        let first_lines = self.failures.iter().filter_map(|failure| failure.lines().next());
        let failures = first_lines.map(|line| format!("\n\nNot measured: {line}"));
        tables.collect::<String>() + &self.summary() + &failures.collect::<String>()
    }

    /// Returns how many goals were reached, and which were missed.
    pub fn summary(&self) -> String {
        let n_reached = self.verdicts.iter().filter(|(_, verdict)| verdict.passed).count();
        let mut text = format!("Goals reached: {n_reached} of {}.", self.verdicts.len());
        for (scenario, verdict) in self.verdicts.iter().filter(|(_, verdict)| !verdict.passed) {
            text.push_str(&format!("\n\nMissed: {}: {}, {} wanted.", scenario.name(), verdict.reached, verdict.goal));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts_goals_and_names_those_missed() {
        let mut outcome = Outcome::default();
        assert_eq!(outcome.summary(), "Goals reached: 0 of 0.");
        outcome.judge(Scenario::Shared4k, vec![Verdict::at_least("reused", "96.9 %", (0.98, 0.969))]);
        outcome.judge(Scenario::Tenants6x4, vec![Verdict::at_least("reused", "93 %", (0.74, 0.93))]);
        let missed = "Missed: tenants-6x4: 74.0 %, reused at least 93 % wanted.";
        assert_eq!(outcome.summary(), format!("Goals reached: 1 of 2.\n\n{missed}"));
    }

    #[test]
    fn tables_of_one_title_become_one() {
        let mut outcome = Outcome::default();
        for cell in ["1", "2"] {
            let mut table = Table::new(&["a"]);
            table.rows.push(vec![cell.to_owned()]);
            outcome.show("Numbers:", table);
        }
        let error = anyhow::anyhow!("it did not start; its log:\nlines");
        outcome.fail(Scenario::Restart, Contender::Worker, &error);
        let page = "Numbers:\n\n| a |\n|---|\n| 1 |\n| 2 |\n\nGoals reached: 0 of 0.";
        let failure = "Not measured: restart with warmpath-worker: it did not start; its log:";
        assert_eq!(outcome.page(), format!("{page}\n\n{failure}"));
    }
}
