//! Comparison of two reports: figures that are worse or better by more than noise.
//!
//! A figure has changed if the samples of the two runs do not overlap and the medians differ by more than the noise of
//! the unit. With one sample per run, only the second condition applies.

use clap::ValueEnum as _;

use super::part::Part;
use super::results::{PartResults, Results};
use crate::output::figures::{Better, Figure};
use crate::output::table::Table;

/// Largest relative difference of two medians that counts as noise: of times and rates, and of other figures.
///
/// Source: docs/benchmarks.md: the same decode rate went from 0.951x to 1.091x between two runs on one machine. Counts
/// and shares depend on the order of requests only.
const NOISE: (f64, f64) = (0.10, 0.02);

/// Kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The new value is worse.
    Regression,
    /// The new value is better.
    Improvement,
}

/// A figure that has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureChange {
    /// Part.
    pub part: Part,
    /// Kind.
    pub kind: Kind,
    /// Figure of the earlier run.
    pub old: Figure,
    /// The same figure of the later run.
    pub new: Figure,
}

/// Result of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Day of the earlier run.
    pub day: String,
    /// Reasons why the figures may differ without a change of the programs.
    pub warnings: Vec<String>,
    /// Figures that have changed, regressions first.
    pub changes: Vec<FigureChange>,
    /// Number of figures that have not changed.
    pub n_same: usize,
    /// Figures of the earlier run only.
    pub missing: Vec<String>,
    /// Figures of the later run only.
    pub added: Vec<String>,
}

/// Compares two runs.
pub fn compare(old: &Results, new: &Results) -> Comparison {
    let mut comparison = Comparison {
        day: old.day().to_owned(),
        warnings: warnings(old, new),
        changes: Vec::new(),
        n_same: 0,
        missing: Vec::new(),
        added: Vec::new(),
    };
    for &part in Part::value_variants() {
        comparison.compare_part(part, old.part(part), new.part(part));
    }
    comparison.changes.sort_by_key(|change| change.kind == Kind::Improvement);
    comparison
}

fn warnings(old: &Results, new: &Results) -> Vec<String> {
    let mut warnings = Vec::new();
    if old.machine != new.machine {
        let (old, new) = (old.machine.line(), new.machine.line());
        warnings.push(format!("The machines differ: {old}; now {new}."));
    }
    if old.pace != new.pace {
        warnings.push("One of the reports is a quick one, with smaller loads.".to_owned());
    }
    for (old, new) in old.parts.iter().filter_map(|old| Some((old, new.part(old.part)?))) {
        if old.commands != new.commands {
            warnings.push(format!("The commands of `{}` differ.", old.part));
        }
    }
    let peers = old.versions.iter().filter(|(name, _)| *name != "Warmpath");
    let changed_versions =
        peers.filter_map(|(name, old)| Some((name, old, new.versions.get(name)?))).filter(|(_, old, new)| old != new);
    warnings.extend(changed_versions.map(|(name, old, new)| format!("{name} was {old} and is {new}.")));
    warnings
}

/// Returns the kind of change; `None` if the samples overlap or the difference is noise.
fn change(old: &Figure, new: &Figure) -> Option<Kind> {
    let noise = if new.measure.unit.is_timed() { NOISE.0 } else { NOISE.1 };
    let is_disjoint = new.spread.lowest > old.spread.highest || new.spread.highest < old.spread.lowest;
    let (lower, higher) = (old.median.min(new.median), old.median.max(new.median));
    if !is_disjoint || higher <= lower * (1.0 + noise) {
        return None;
    }
    let is_better = match new.measure.better {
        Better::Higher => new.median > old.median,
        Better::Lower => new.median < old.median,
    };
    Some(if is_better { Kind::Improvement } else { Kind::Regression })
}

impl Comparison {
    fn compare_part(&mut self, part: Part, old: Option<&PartResults>, new: Option<&PartResults>) {
        let figures =
            |results: Option<&PartResults>| results.map_or(Vec::new(), |results| results.figures.figures.clone());
        let (old, new) = (figures(old), figures(new));
        for old in &old {
            let Some(new) = new.iter().find(|new| new.is_same(old)) else {
                self.missing.push(name(part, old));
                continue;
            };
            match change(old, new) {
                None => self.n_same += 1,
                Some(kind) => self.changes.push(FigureChange { part, kind, old: old.clone(), new: new.clone() }),
            }
        }
        let added_figures = new.iter().filter(|new| !old.iter().any(|old| old.is_same(new)));
        self.added.extend(added_figures.map(|new| name(part, new)));
    }

    /// Returns the comparison as Markdown, without a heading.
    pub fn markdown(&self) -> String {
        let count = |kind| self.changes.iter().filter(|change| change.kind == kind).count();
        let (n_worse, n_better) = (count(Kind::Regression), count(Kind::Improvement));
        let mut text = format!(
            "Compared with {}: {n_worse} figures are worse, {n_better} are better, {} are the same within the \
             spread of both runs.\n",
            self.day, self.n_same,
        );
        for warning in &self.warnings {
            text.push_str(&format!("\n- **Warning:** {warning}"));
        }
        for (figures, which) in
            [(&self.missing, "measured in the earlier run only"), (&self.added, "measured in the later run only")]
        {
            if !figures.is_empty() {
                text.push_str(&format!("\n- {} figures were {which}, such as {}.", figures.len(), figures[0]));
            }
        }
        if !self.changes.is_empty() {
            let mut table = Table::new(&["", "figure", "then", "now", "ratio"]);
            table.rows = self.changes.iter().map(FigureChange::row).collect();
            text.push_str(&format!("\n\n{table}"));
        }
        text.trim_end().to_owned()
    }
}

impl FigureChange {
    fn row(&self) -> Vec<String> {
        let kind = match self.kind {
            Kind::Regression => "**worse**",
            Kind::Improvement => "better",
        };
        let ratio = self.new.median / self.old.median;
        let ratio = if ratio.is_finite() { format!("{ratio:.2}") } else { String::new() };
        let label = self.new.measure.unit.label();
        let figure = format!("{} {label}", name(self.part, &self.new)).trim_end().to_owned();
        vec![kind.to_owned(), figure, self.old.cell(), self.new.cell(), ratio]
    }
}

fn name(part: Part, figure: &Figure) -> String {
    let row = [figure.row.case.as_str(), &figure.row.subject].into_iter().filter(|text| !text.is_empty());
    format!("{part}: {}: {}", row.collect::<Vec<_>>().join(", "), figure.measure.name)
}

#[cfg(test)]
mod tests {
    use super::super::part::Pace;
    use super::super::tests::{results, results_of};
    use super::*;
    use crate::output::figures::{Figures, Measure, Row, Unit};

    fn figure(measure: Measure, samples: &[f64]) -> Figure {
        let mut figures = Figures::default();
        figures.add(&Row::new("", "Warmpath"), measure, samples);
        figures.figures.remove(0)
    }

    #[test]
    fn a_change_is_apart_from_all_samples_and_larger_than_noise() {
        let ttft = |samples: &[f64]| figure(Measure::lower("TTFT p50", Unit::Ms), samples);
        let rate = |samples: &[f64]| figure(Measure::higher("requests/s", Unit::RequestsPerS), samples);
        let hits = |samples: &[f64]| figure(Measure::higher("hit ratio", Unit::Share), samples);
        let broken = |sample| figure(Measure::lower("broken invariants", Unit::Count), &[sample]);
        for (old, new, expected) in [
            (ttft(&[100.0, 110.0, 120.0]), ttft(&[130.0, 140.0, 150.0]), Some(Kind::Regression)),
            (ttft(&[130.0, 140.0, 150.0]), ttft(&[100.0, 110.0, 120.0]), Some(Kind::Improvement)),
            (rate(&[5.0]), rate(&[4.0]), Some(Kind::Regression)),
            (rate(&[4.0]), rate(&[5.0]), Some(Kind::Improvement)),
            // One sample of the new run is as good as one of the old run.
            (ttft(&[100.0, 110.0, 120.0]), ttft(&[120.0, 140.0, 150.0]), None),
            // The samples do not overlap, but the difference is noise.
            (ttft(&[100.0]), ttft(&[109.0]), None),
            (ttft(&[100.0]), ttft(&[111.0]), Some(Kind::Regression)),
            (hits(&[0.95]), hits(&[0.94]), None),
            (hits(&[0.95]), hits(&[0.90]), Some(Kind::Regression)),
            (broken(0.0), broken(1.0), Some(Kind::Regression)),
            (broken(1.0), broken(0.0), Some(Kind::Improvement)),
            (broken(0.0), broken(0.0), None),
        ] {
            assert_eq!(change(&old, &new), expected, "{old:?} and {new:?}");
        }
    }

    #[test]
    fn a_report_is_the_same_as_itself() {
        let comparison = compare(&results(), &results());
        assert_eq!((comparison.changes.len(), comparison.warnings.len()), (0, 0));
        assert_eq!((comparison.missing.len(), comparison.added.len()), (0, 0));
        assert!(comparison.n_same > 3);
        assert!(comparison.markdown().starts_with("Compared with 2026-11-26: 0 figures are worse, 0 are better,"));
    }

    #[test]
    fn regressions_come_first_and_missing_rows_are_named() {
        let p50 = |ms| (Row::new("", "Warmpath"), Measure::lower("TTFT p50", Unit::Ms), vec![ms]);
        let p99 = |ms| (Row::new("", "Warmpath"), Measure::lower("TTFT p99", Unit::Ms), vec![ms]);
        let p95 = (Row::new("", "SMG"), Measure::lower("TTFT p95", Unit::Ms), vec![1.0]);
        let old = results_of(Part::Fleets, vec![p50(200.0), p99(100.0), p95.clone()]);
        let added = (Row::new("", "nginx"), p95.1, p95.2);
        let comparison = compare(&old, &results_of(Part::Fleets, vec![p50(100.0), p99(250.0), added]));
        let kinds: Vec<Kind> = comparison.changes.iter().map(|change| change.kind).collect();
        assert_eq!(kinds, [Kind::Regression, Kind::Improvement]);
        assert_eq!(comparison.missing, ["fleets: SMG: TTFT p95"]);
        assert_eq!(comparison.added, ["fleets: nginx: TTFT p95"]);
        let text = comparison.markdown();
        assert!(
            text.contains("1 figures were measured in the earlier run only, such as fleets: SMG: TTFT p95."),
            "{text}"
        );
        assert!(text.contains("| **worse** | fleets: Warmpath: TTFT p99 ms | 100  | 250 | 2.50  |"), "{text}");
    }

    #[test]
    fn what_makes_runs_incomparable_is_a_warning() {
        let old = results();
        let mut new = results();
        new.machine.n_cores = 64;
        new.pace = Pace::Quick;
        new.parts[0].commands[0].push_str(" --slots 9");
        new.versions.insert("SMG".to_owned(), "2.0.0".to_owned());
        new.versions.insert("Warmpath".to_owned(), "0.2.0".to_owned());
        let warnings = compare(&old, &new).warnings;
        assert_eq!(warnings.len(), 4, "{warnings:?}");
        assert!(warnings[0].starts_with("The machines differ: Acme CPU 9, 2 cores"), "{warnings:?}");
        assert!(warnings[1].contains("quick") && warnings[2].contains("`fleets`"), "{warnings:?}");
        assert_eq!(warnings[3], "SMG was 1.13.0 and is 2.0.0.");
    }
}
