//! The tables: measurements beside goals, on the terminal and in a page between two markers.
//!
//! The figures are in `measured`, `throughput` and `state`, the verdicts in `goals`.

use std::collections::BTreeMap;

use comfy_table::{Table, presets};

use super::contender::Contender;
use super::goals::Verdict;
use super::measured::Measured;
use super::scenario::Scenario;

/// Line of a page after which the tables begin.
pub const BEGIN: &str = "<!-- warmpath-bench worker: begin -->";
/// Line of a page before which the tables end.
pub const END: &str = "<!-- warmpath-bench worker: end -->";

/// One table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    /// Column titles.
    pub header: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
}

impl Section {
    /// Returns an empty table with these columns.
    pub fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }

    /// Returns the table as Markdown.
    pub fn render(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(&self.header);
        table.add_rows(&self.rows);
        table.to_string()
    }
}

/// Column titles of [`reuse_rows`].
pub const REUSE_HEADER: [&str; 10] = [
    "scenario",
    "server",
    "prompt tokens",
    "computed",
    "reused",
    "TTFT cold ms",
    "TTFT warm ms",
    "warm/cold",
    "must reach",
    "reached",
];

/// Returns the rows of a reuse scenario: one per server, with the goals in the worker's.
pub fn reuse_rows(
    scenario: Scenario,
    measured: &BTreeMap<Contender, Measured>,
    verdicts: &[Verdict],
) -> Vec<Vec<String>> {
    let row = |(&contender, measured): (&Contender, &Measured)| {
        let verdicts = if contender == Contender::Worker { verdicts } else { &[] };
        let optional = |value: Option<String>| value.unwrap_or_default();
        vec![
            scenario.name().to_owned(),
            contender.name().to_owned(),
            measured.prompt_tokens.to_string(),
            measured.computed_tokens.to_string(),
            percent(measured.reused()),
            optional(measured.cold_ttft_ms.map(|ms| format!("{ms:.0}"))),
            format!("{:.1}", measured.warm_ttft_ms),
            optional(measured.warm_to_cold().map(percent)),
            goals(verdicts),
            reached(verdicts),
        ]
    };
    measured.iter().map(row).collect()
}

/// Returns the goals, in one cell.
pub fn goals(verdicts: &[Verdict]) -> String {
    verdicts.iter().map(|verdict| verdict.goal.clone()).collect::<Vec<_>>().join("; ")
}

/// Returns the values that were reached, in one cell.
pub fn reached(verdicts: &[Verdict]) -> String {
    let each = verdicts.iter().map(|verdict| format!("{}: {}", verdict.reached, verdict.word()));
    each.collect::<Vec<_>>().join("; ")
}

/// Returns a share as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
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

    #[test]
    fn a_second_run_replaces_the_first_ones_tables() {
        let page = "# Page\n\nwords\n";
        let once = splice(page, "| a |\n");
        assert_eq!(once, format!("# Page\n\nwords\n\n{BEGIN}\n\n| a |\n\n{END}\n"));
        let page = format!("{once}\nmore words\n");
        let twice = splice(&page, "| b |");
        assert_eq!(twice, format!("# Page\n\nwords\n\n{BEGIN}\n\n| b |\n\n{END}\n\nmore words\n"));
    }

    #[test]
    fn only_the_workers_row_shows_goals() {
        let measured = |computed_tokens| Measured { prompt_tokens: 100, computed_tokens, ..Measured::default() };
        let measured = [(Contender::Worker, measured(3)), (Contender::PeerBest, measured(39))].into();
        let verdict = Verdict::at_least("reused", "96 %", (0.97, 0.96));
        let rows = reuse_rows(Scenario::SharedSystem8, &measured, &[verdict]);
        let ends: Vec<_> = rows.iter().map(|row| (row[4].as_str(), row[8].as_str(), row[9].as_str())).collect();
        assert_eq!(ends, [("97.0 %", "reused at least 96 %", "97.0 %: pass"), ("61.0 %", "", "")]);
        assert!(rows.iter().all(|row| row.len() == REUSE_HEADER.len()));
    }

    #[test]
    fn a_table_is_markdown() {
        let mut section = Section::new(&["a", "b"]);
        section.rows.push(vec!["1".to_owned(), "2".to_owned()]);
        assert_eq!(section.render(), "| a | b |\n|---|---|\n| 1 | 2 |");
    }
}
