//! The tables: measurements beside goals, on the terminal and in a page between two markers.
//!
//! The figures are in `measured`, `throughput` and `state`, the verdicts in `goals`.

use std::collections::BTreeMap;

use super::contender::Contender;
use super::goals::Verdict;
use super::measured::Measured;
use super::scenario::Scenario;
use crate::table::Table;

/// Line of a page after which the tables begin.
pub const BEGIN: &str = "<!-- warmpath-bench worker: begin -->";
/// Line of a page before which the tables end.
pub const END: &str = "<!-- warmpath-bench worker: end -->";

/// Servers that have a column of [`reuse_row`].
const REUSE_COLUMNS: [Contender; 3] = [Contender::Worker, Contender::PeerChosen, Contender::PeerDefaults];

/// Returns an empty table for [`reuse_row`].
pub fn reuse_table() -> Table {
    let servers = REUSE_COLUMNS.map(Contender::name);
    Table::new(&[["scenario", "prompt tokens"].as_slice(), &servers, &["must reach", "reached"]].concat())
}

/// Returns the row of a reuse scenario: computed tokens, warm and cold TTFT of each server, and the worker's goals.
pub fn reuse_row(scenario: Scenario, measured: &BTreeMap<Contender, Measured>, verdicts: &[Verdict]) -> Vec<String> {
    let prompt_tokens = measured.values().next().map(|measured| measured.prompt_tokens.to_string());
    let cell = |contender: &Contender| {
        let Some(measured) = measured.get(contender) else { return String::new() };
        let cold = measured.cold_ttft_ms.map(|ms| format!(", {ms:.0}")).unwrap_or_default();
        format!("{}, {:.1}{cold}", measured.computed_tokens, measured.warm_ttft_ms)
    };
    let mut row = vec![scenario.name(), prompt_tokens.unwrap_or_default()];
    row.extend(REUSE_COLUMNS.iter().map(cell));
    row.extend([goals(verdicts), reached(verdicts)]);
    row
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
    fn each_server_has_a_cell_in_its_scenarios_row() {
        let measured = |computed_tokens, cold_ttft_ms| Measured {
            prompt_tokens: 100,
            computed_tokens,
            cold_ttft_ms,
            warm_ttft_ms: 2.04,
            ..Measured::default()
        };
        let measured = [
            (Contender::Worker, measured(3, Some(50.3))),
            (Contender::WorkerUncached, measured(100, None)),
            (Contender::PeerDefaults, measured(39, None)),
        ];
        let verdict = Verdict::at_least("reused", "96 %", (0.97, 0.96));
        let row = reuse_row(Scenario::SharedSystem8, &measured.into(), &[verdict]);
        let cells = ["3, 2.0, 50", "", "39, 2.0", "reused at least 96 %", "97.0 %: pass"];
        assert_eq!(row, [["shared-system-8", "100"].as_slice(), &cells].concat());
        assert_eq!(row.len(), reuse_table().header.len());
    }
}
