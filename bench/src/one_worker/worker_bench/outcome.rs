//! The outcome of a run: its figures, its verdicts, and what could not be measured.
//!
//! The figures are made in the other modules. A scenario shows its table as soon as it is measured.

use super::contender::Contender;
use super::goals::Verdict;
use super::scenario::Scenario;
use crate::output::figures::{Figures, Row, Sample};

/// Figures of servers in a scenario, and whether the worker reached its goals.
#[derive(Debug, Default)]
pub struct Assessment {
    /// Figures.
    pub figures: Figures,
    /// Verdicts.
    pub verdicts: Vec<Verdict>,
}

impl Assessment {
    /// Returns the assessment of one server.
    pub fn of(scenario: Scenario, contender: Contender, samples: Vec<Sample>, verdicts: Vec<Verdict>) -> Self {
        let mut figures = Figures::default();
        figures.add_samples(&row(scenario, contender), samples);
        Self { figures, verdicts }
    }
}

/// Returns the row of a server in a scenario.
pub fn row(scenario: Scenario, contender: Contender) -> Row {
    Row::new(scenario.name(), contender.name())
}

/// Everything that was measured so far.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Figures of all scenarios.
    pub figures: Figures,
    /// Missing measurements, with the reasons.
    pub failures: Vec<String>,
    verdicts: Vec<(Scenario, Verdict)>,
}

impl Outcome {
    /// Prints the figures of a scenario, the verdicts on it and its failures, and keeps all.
    pub fn add(&mut self, scenario: Scenario, assessments: Vec<anyhow::Result<Assessment>>) {
        let mut figures = Figures::default();
        let n_verdicts = self.verdicts.len();
        for assessment in assessments {
            match assessment {
                Ok(assessment) => {
                    figures.merge(assessment.figures);
                    self.verdicts.extend(assessment.verdicts.into_iter().map(|verdict| (scenario, verdict)));
                }
                Err(error) => {
                    eprintln!("  {error:#}");
                    self.failures.push(format!("{error:#}"));
                }
            }
        }
        figures.table("scenario", "server").print();
        for (_, verdict) in &self.verdicts[n_verdicts..] {
            eprintln!("  {}: {} ({})", verdict.word(), verdict.reached, verdict.goal);
        }
        self.figures.merge(figures);
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
    use crate::output::figures::{Measure, Unit};

    #[test]
    fn the_outcome_has_all_figures_the_missed_goals_and_what_was_not_measured() {
        let mut outcome = Outcome::default();
        assert_eq!(outcome.summary(), "Goals reached: 0 of 0.");
        for (scenario, share) in [(Scenario::Shared4k, 0.98), (Scenario::Tenants6x4, 0.74)] {
            let samples = vec![Measure::higher("reused", Unit::Share).sample(share)];
            let verdict = Verdict::at_least("reused", "93 %", share, 0.93);
            let assessment = Assessment::of(scenario, Contender::Worker, samples, vec![verdict]);
            outcome.add(scenario, vec![Ok(assessment)]);
        }
        outcome.add(Scenario::Restart, vec![Err(anyhow::anyhow!("it did not start"))]);
        let missed = "Goals reached: 1 of 2.\n\nMissed: tenants-6x4: 74.0 %, reused at least 93 % wanted.";
        assert_eq!(outcome.summary(), missed);
        assert_eq!(outcome.failures, ["it did not start"]);
        assert_eq!(outcome.figures.figures.len(), 2);
        assert_eq!(outcome.figures.figures[1].row, row(Scenario::Tenants6x4, Contender::Worker));
    }
}
