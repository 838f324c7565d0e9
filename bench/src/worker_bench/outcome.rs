//! The outcome of a run: its tables by kind, its verdicts, and what could not be measured.
//!
//! The figures are made in the other modules. A scenario shows its table as soon as it is measured; the page gets all
//! tables at the end.

use super::contender::Contender;
use super::goals::Verdict;
use super::scenario::Scenario;
use crate::figures::Figures;
use crate::table::Table;

/// Line of a page after which the tables begin.
const BEGIN: &str = "<!-- warmpath-bench worker: begin -->";
/// Line of a page before which the tables end.
const END: &str = "<!-- warmpath-bench worker: end -->";

/// Everything that was measured so far.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Figures, each kind with the line above its table.
    tables: Vec<(&'static str, Figures)>,
    /// Verdicts.
    verdicts: Vec<(Scenario, Verdict)>,
    /// Missing measurements, with the reasons.
    failures: Vec<String>,
}

impl Outcome {
    /// Prints the figures of a scenario and the verdicts on it, and keeps both.
    pub fn add(&mut self, title: &'static str, figures: Figures, scenario: Scenario, verdicts: Vec<Verdict>) {
        table(&figures).print();
        for verdict in &verdicts {
            eprintln!("  {}: {} ({})", verdict.word(), verdict.reached, verdict.goal);
        }
        self.verdicts.extend(verdicts.into_iter().map(|verdict| (scenario, verdict)));
        match self.tables.iter_mut().find(|(known, _)| *known == title) {
            Some((_, known)) => known.merge(figures),
            None => self.tables.push((title, figures)),
        }
    }

    /// Returns the figures of all scenarios.
    pub fn figures(&self) -> Figures {
        let mut all = Figures::default();
        self.tables.iter().for_each(|(_, figures)| all.merge(figures.clone()));
        all
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
        let mut goals = Table::new(&["scenario", "goal of the worker", "reached", ""]);
        for (scenario, verdict) in &self.verdicts {
            let Verdict { goal, reached, .. } = verdict.clone();
            goals.add([scenario.name(), goal, reached, verdict.word().to_owned()]);
        }
        let titled_table = |(title, figures): &(&str, Figures)| format!("{title}\n\n{}\n\n", table(figures));
        let tables: String = self.tables.iter().map(titled_table).collect();
        let first_lines = self.failures.iter().filter_map(|failure| failure.lines().next());
        let failures = first_lines.map(|line| format!("\n\nNot measured: {line}")).collect::<String>();
        format!("{tables}{goals}\n\n{}{failures}", self.summary())
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

/// Returns figures as a table with a row for each scenario and server.
fn table(figures: &Figures) -> Table {
    figures.table("scenario", "server")
}

/// Returns `page` with `tables` between the two markers, which are added at its end where it has none.
pub fn splice(page: &str, tables: &str) -> String {
    let between = format!("{BEGIN}\n\n{}\n\n{END}", tables.trim_end());
    match (page.find(BEGIN), page.find(END)) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}{between}{}", &page[..begin], &page[end + END.len()..])
        }
        _ => format!("{}\n\n{between}\n", page.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Measure, Row, Unit};

    #[test]
    fn the_page_has_one_table_of_a_kind_the_goals_and_what_was_not_measured() {
        let mut outcome = Outcome::default();
        assert_eq!(outcome.summary(), "Goals reached: 0 of 0.");
        for (scenario, share) in [(Scenario::Shared4k, 0.98), (Scenario::Tenants6x4, 0.74)] {
            let mut figures = Figures::default();
            let row = Row::new(scenario.name(), Contender::Worker.name());
            figures.add(&row, Measure::higher("reused", Unit::Share), &[share]);
            let verdict = Verdict::at_least("reused", "93 %", share, 0.93);
            outcome.add("Reuse:", figures, scenario, vec![verdict]);
        }
        let error = anyhow::anyhow!("it did not start; its log:\nlines");
        outcome.fail(Scenario::Restart, Contender::Worker, &error);
        let page = "Reuse:

| scenario    | server          | reused, % |
|-------------|-----------------|-----------|
| shared-4k   | warmpath-worker | 98.0      |
| tenants-6x4 | warmpath-worker | 74.0      |

| scenario    | goal of the worker   | reached |        |
|-------------|----------------------|---------|--------|
| shared-4k   | reused at least 93 % | 98.0 %  | pass   |
| tenants-6x4 | reused at least 93 % | 74.0 %  | missed |

Goals reached: 1 of 2.

Missed: tenants-6x4: 74.0 %, reused at least 93 % wanted.

Not measured: restart with warmpath-worker: it did not start; its log:";
        assert_eq!(outcome.page(), page);
        assert_eq!(outcome.figures().figures.len(), 2);
    }

    #[test]
    fn a_second_run_replaces_the_first_ones_tables() {
        let page = "# Page\n\nwords\n";
        let once = splice(page, "| a |\n");
        assert_eq!(once, format!("# Page\n\nwords\n\n{BEGIN}\n\n| a |\n\n{END}\n"));
        let page = format!("{once}\nmore words\n");
        let twice = splice(&page, "| b |");
        assert_eq!(twice, format!("# Page\n\nwords\n\n{BEGIN}\n\n| b |\n\n{END}\n\nmore words\n"));
    }
}
