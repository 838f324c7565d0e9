//! Figures: the results of a measurement, in the one form that subcommands write and `report` collects.
//!
//! A subcommand with `--figures FILE` writes them there. A figure has a row and a column of a table, and a sample for
//! each round. Samples of the same figure from several processes can be put together.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::output::table::Table;
use crate::summary::median;

/// Flag of every subcommand whose figures `report` collects.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct FiguresArgs {
    /// File to which the figures are written as JSON, in the form that `report` collects.
    #[arg(long, value_name = "FILE")]
    figures: Option<PathBuf>,
}

impl FiguresArgs {
    /// Prints the figures as a table, with titles for the columns of case and subject, prints their notes, and writes
    /// them to the file, if one is given.
    ///
    /// Errors: the file cannot be written.
    pub fn show(&self, figures: &Figures, case_title: &str, subject_title: &str) -> anyhow::Result<()> {
        figures.table(case_title, subject_title).print();
        figures.notes.iter().for_each(|note| eprintln!("{note}"));
        self.write(figures)
    }

    /// Writes the figures to the file, if one is given.
    ///
    /// Errors: the file cannot be written.
    pub fn write(&self, figures: &Figures) -> anyhow::Result<()> {
        let Some(path) = &self.figures else { return Ok(()) };
        let text = serde_json::to_string_pretty(figures)?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

/// Unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Milliseconds.
    #[serde(rename = "ms")]
    Ms,
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Ns,
    /// Share of a whole, from 0 to 1.
    #[serde(rename = "share")]
    Share,
    /// Tokens.
    #[serde(rename = "tokens")]
    Tokens,
    /// Tokens per second.
    #[serde(rename = "tokens/s")]
    TokensPerS,
    /// Requests per second.
    #[serde(rename = "requests/s")]
    RequestsPerS,
    /// Millions of blocks per second.
    #[serde(rename = "million blocks/s")]
    MillionBlocksPerS,
    /// Bytes.
    #[serde(rename = "bytes")]
    Bytes,
    /// Terabytes.
    #[serde(rename = "TB")]
    Terabytes,
    /// Value divided by another of the same unit.
    #[serde(rename = "ratio")]
    Ratio,
    /// Number of things.
    #[serde(rename = "count")]
    Count,
}

impl Unit {
    /// Returns the unit in the header of a table; empty for counts and ratios.
    pub fn label(self) -> &'static str {
        match self {
            Self::Ms => "ms",
            Self::Ns => "ns",
            Self::Share => "%",
            Self::Tokens => "tokens",
            Self::TokensPerS => "tokens/s",
            Self::RequestsPerS => "requests/s",
            Self::MillionBlocksPerS => "million blocks/s",
            Self::Bytes => "bytes",
            Self::Terabytes => "TB",
            Self::Count | Self::Ratio => "",
        }
    }

    /// Returns a value without its unit; shares as percentages.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Share => format!("{:.1}", value * 100.0),
            Self::Tokens | Self::Count => format!("{value:.0}"),
            _ if value.abs() >= 100.0 => format!("{value:.0}"),
            _ if value.abs() >= 10.0 => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        }
    }

    /// Returns whether the machine's speed decides the value.
    pub fn is_timed(self) -> bool {
        match self {
            Self::Ms | Self::Ns | Self::TokensPerS | Self::RequestsPerS | Self::MillionBlocksPerS => true,
            Self::Share | Self::Tokens | Self::Bytes | Self::Terabytes | Self::Ratio | Self::Count => false,
        }
    }
}

/// Direction in which a value is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// The higher one.
    Higher,
    /// The lower one.
    Lower,
}

/// Row of a figure: what was measured, and under which circumstances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Scenario or size; empty if there is only one.
    pub case: String,
    /// Server, fleet, index or policy.
    pub subject: String,
}

impl Row {
    /// Returns the row of `subject` in a case.
    pub fn new(case: impl Into<String>, subject: impl Into<String>) -> Self {
        Self { case: case.into(), subject: subject.into() }
    }

    /// Returns the row of `subject` with a number of things, such as 8 `worker`s.
    pub fn of_size(thing: &str, n: usize, subject: impl Into<String>) -> Self {
        Self::new(format!("{n} {thing}{}", if n == 1 { "" } else { "s" }), subject)
    }
}

/// Column of a figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// Name, such as `TTFT p50`.
    pub name: String,
    /// Unit.
    pub unit: Unit,
    /// Direction in which a value is better.
    pub better: Better,
}

impl Measure {
    /// Returns a measure of which the lower value is better.
    pub fn lower(name: &str, unit: Unit) -> Self {
        Self { name: name.to_owned(), unit, better: Better::Lower }
    }

    /// Returns a measure of which the higher value is better.
    pub fn higher(name: &str, unit: Unit) -> Self {
        Self { name: name.to_owned(), unit, better: Better::Higher }
    }

    /// Returns a sample of the measure.
    pub fn sample(self, value: f64) -> Sample {
        Sample { measure: self, value }
    }

    /// Returns the title of the column, with the unit.
    fn title(&self) -> String {
        let label = self.unit.label();
        if self.name.ends_with(label) { self.name.clone() } else { format!("{}, {label}", self.name) }
    }
}

/// Value of a measure in one round.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The measure.
    pub measure: Measure,
    /// Value, in the measure's unit.
    pub value: f64,
}

/// Lowest and highest sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Lowest sample.
    pub lowest: f64,
    /// Highest sample.
    pub highest: f64,
}

/// A measured value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Row.
    #[serde(flatten)]
    pub row: Row,
    /// Column.
    #[serde(flatten)]
    pub measure: Measure,
    /// Median of the samples.
    pub median: f64,
    /// Spread of the samples.
    pub spread: Spread,
    /// Value of each round; at least one.
    pub samples: Vec<f64>,
}

impl Figure {
    /// Returns the figure of at least one sample.
    fn of(row: Row, measure: Measure, samples: Vec<f64>) -> Option<Self> {
        let spread = Spread {
            lowest: samples.iter().copied().reduce(f64::min)?,
            highest: samples.iter().copied().reduce(f64::max)?,
        };
        Some(Self { median: median(&samples)?, spread, row, measure, samples })
    }

    /// Returns the median, followed by the spread if there is one.
    pub fn cell(&self) -> String {
        let show = |value| self.measure.unit.show(value);
        let [median, lowest, highest] = [self.median, self.spread.lowest, self.spread.highest].map(show);
        if lowest == highest { median } else { format!("{median} ({lowest}-{highest})") }
    }

    /// Returns whether both are the same figure, of one run or of two.
    pub fn is_same(&self, other: &Self) -> bool {
        let key = |figure: &Self| (figure.row.case.clone(), figure.row.subject.clone(), figure.measure.name.clone());
        key(self) == key(other)
    }
}

/// Answer of a fleet under load, for the plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// Fleet.
    pub fleet: String,
    /// Time from the start of the load to the end of the answer. Units: seconds.
    pub at_s: f64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens that were reused.
    pub cached_tokens: u64,
}

/// Everything that a measurement found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Figures, in the order of the table.
    pub figures: Vec<Figure>,
    /// Answers of fleets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<Answered>,
    /// Remarks for the reader, such as what was left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Figures {
    /// Adds the samples of a figure; none if there are no samples. A sample that is no number is dropped.
    pub fn add(&mut self, row: &Row, measure: Measure, samples: &[f64]) {
        let samples = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
        self.take(Figure::of(row.clone(), measure, samples));
    }

    /// Adds a sample of each of several figures of a row.
    pub fn add_samples(&mut self, row: &Row, samples: impl IntoIterator<Item = Sample>) {
        samples.into_iter().for_each(|sample| self.add(row, sample.measure, &[sample.value]));
    }

    /// Returns a table with a row for each case and subject, and a column for each measure.
    pub fn table(&self, case_title: &str, subject_title: &str) -> Table {
        let mut rows: Vec<&Row> = Vec::new();
        let mut measures: Vec<&Measure> = Vec::new();
        for figure in &self.figures {
            if !rows.iter().any(|row| (&row.case, &row.subject) == (&figure.row.case, &figure.row.subject)) {
                rows.push(&figure.row);
            }
            if !measures.iter().any(|measure| measure.name == figure.measure.name) {
                measures.push(&figure.measure);
            }
        }
        let has_cases = rows.iter().any(|row| !row.case.is_empty());
        let titles = has_cases.then_some(case_title).into_iter().chain([subject_title]).map(str::to_owned);
        let header = titles.chain(measures.iter().map(|measure| measure.title()));
        let row = |row: &Row| {
            let figure_named =
                |name: &str| self.figures.iter().find(|figure| figure.row == *row && figure.measure.name == name);
            let cells =
                measures.iter().map(|measure| figure_named(&measure.name).map(Figure::cell).unwrap_or_default());
            has_cases.then(|| row.case.clone()).into_iter().chain([row.subject.clone()]).chain(cells).collect()
        };
        Table { header: header.collect(), rows: rows.into_iter().map(row).collect() }
    }

    /// Adds the results of a further round.
    pub fn merge(&mut self, other: Self) {
        other.figures.into_iter().for_each(|figure| self.take(Some(figure)));
        self.answers.extend(other.answers);
        for note in other.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// Reads the file that a subcommand has written.
    ///
    /// Errors: it cannot be read, or is none.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("reading the figures in {}", path.display()))
    }

    fn take(&mut self, figure: Option<Figure>) {
        let Some(figure) = figure else { return };
        match self.figures.iter_mut().find(|other| other.is_same(&figure)) {
            None => self.figures.push(figure),
            Some(other) => {
                let samples = [other.samples.as_slice(), &figure.samples].concat();
                if let Some(merged_figure) = Figure::of(figure.row, figure.measure, samples) {
                    *other = merged_figure;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_figure_from_several_rounds_are_put_together() {
        let (row, measure) = (Row::of_size("worker", 8, "warmpath"), Measure::lower("look-up p50", Unit::Ns));
        let mut figures = Figures::default();
        for samples in [[4.0, 1.0].as_slice(), &[f64::NAN], &[]] {
            let mut round = Figures { notes: vec!["quiet".to_owned()], ..Figures::default() };
            round.add(&row, measure.clone(), samples);
            figures.merge(round);
        }
        figures.add(&row, measure.clone(), &[3.0]);
        let [figure] = figures.figures.as_slice() else { panic!("{figures:?}") };
        assert_eq!((figure.median, figure.samples.as_slice()), (3.0, [4.0, 1.0, 3.0].as_slice()));
        assert_eq!(figure.spread, Spread { lowest: 1.0, highest: 4.0 });
        assert_eq!((figure.row.case.as_str(), figures.notes.len()), ("8 workers", 1));
        figures.add(&Row::of_size("worker", 1, "warmpath"), measure, &[3.0]);
        assert_eq!((figures.figures.len(), figures.figures[1].row.case.as_str()), (2, "1 worker"));
    }

    #[test]
    fn the_file_of_a_subcommand_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("figures.json");
        let mut figures = Figures { notes: vec!["a".to_owned()], ..Figures::default() };
        figures.add(&Row::new("", "Warmpath"), Measure::higher("prefix hit ratio", Unit::Share), &[0.25, 0.5]);
        figures.answers.push(Answered { fleet: "Warmpath".to_owned(), at_s: 1.5, prompt_tokens: 10, cached_tokens: 5 });
        FiguresArgs { figures: Some(path.clone()) }.write(&figures).expect("it is written");
        assert_eq!(Figures::read(&path).expect("it is read"), figures);
        FiguresArgs::default().write(&figures).expect("nothing is written");
    }

    #[test]
    fn values_have_three_digits_in_their_unit() {
        let shown = [(Unit::Ms, 190.4), (Unit::Ms, 17.84), (Unit::Ns, 5.126), (Unit::Share, 0.915), (Unit::Count, 3.0)];
        let shown: Vec<String> = shown.into_iter().map(|(unit, value)| unit.show(value)).collect();
        assert_eq!(shown, ["190", "17.8", "5.13", "91.5", "3"]);
    }
}
