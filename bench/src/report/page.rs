//! The page of a report: the commands and the table of each part, and the plot of the fleets.

use super::compare::Comparison;
use super::part::Pace;
use super::plot;
use super::results::{PartResults, Results, Skipped};
use crate::output::table::Table;

/// Returns the page; `link` is the path of the results, relative to the page.
pub fn page(results: &Results, link: &str, comparison: Option<&Comparison>) -> String {
    let mut parts = vec![introduction(results, link)];
    parts.extend(comparison.map(|comparison| format!("## Changes\n\n{}", comparison.markdown())));
    parts.extend(results.parts.iter().map(section));
    if !results.skipped.is_empty() {
        parts.push(skipped(&results.skipped));
    }
    format!("{}\n", parts.join("\n\n"))
}

fn introduction(results: &Results, link: &str) -> String {
    let make = match results.pace {
        Pace::Full => "`make report`",
        Pace::Quick => "`make report QUICK=1`, with small loads and rough figures,",
    };
    let text = format!(
        "Written by {make} on {}; the same figures, with every sample, are in [{link}]({link}). A cell is the median of \
         the rounds and, in brackets, the lowest and the highest. All programs share one machine, and every round \
         starts them anew, so compare figures of one table only.",
        results.day(),
    );
    let mut table = Table::new(&["", ""]);
    table.rows.push(vec!["machine".to_owned(), results.machine.line()]);
    table.rows.extend(results.versions.iter().map(|(name, version)| vec![name.clone(), version.clone()]));
    format!("# Report\n\n{text}\n\n{table}")
}

fn section(part: &PartResults) -> String {
    let seeds = match (part.n_rounds, part.has_seeds) {
        (1, true) => "One round, with `--seed 1`.".to_owned(),
        (1, false) => "One round.".to_owned(),
        (n, true) => format!("{n} rounds, with `--seed 1` to `{n}`."),
        (n, false) => format!("{n} rounds."),
    };
    let mut text = format!("## {}\n\n{}\n\n{seeds}", part.part.title(), part.part.about().replace('\n', " "));
    text.push_str(&format!("\n\n```sh\n{}\n```", part.commands.join("\n")));
    if !part.figures.figures.is_empty() {
        let (case_title, subject_title) = part.part.row_titles();
        text.push_str(&format!("\n\n{}", part.figures.table(case_title, subject_title)));
    }
    let remarks = part.failures.iter().map(|failure| format!("- **Failed:** {failure}"));
    let remarks = remarks.chain(part.figures.notes.iter().map(|note| format!("- {note}")));
    let remarks: Vec<String> = remarks.map(|remark| remark.replace('\n', " ")).collect();
    if !remarks.is_empty() {
        text.push_str(&format!("\n\n{}", remarks.join("\n")));
    }
    if !part.figures.answers.is_empty() {
        text.push_str(&format!("\n\n![{}](images/{})", plot::TITLE, plot::FILE));
    }
    text
}

fn skipped(skipped_parts: &[Skipped]) -> String {
    let line = |skipped_part: &Skipped| format!("- {}: {}", skipped_part.what, skipped_part.reason.replace('\n', " "));
    format!("## Not measured\n\n{}", skipped_parts.iter().map(line).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::results;
    use super::*;

    #[test]
    fn every_part_has_its_commands_and_its_table_and_the_fleets_have_a_plot() {
        let results = results();
        let page = page(&results, "../bench/results/r.json", None);
        for expected in [
            "# Report\n\nWritten by `make report` on 2026-11-26; the same figures, with every sample, are in [../bench/results/r.json]",
            "| machine  | Acme CPU 9, 2 cores, 24 GiB, Debian 12, kernel 6.1.0 |",
            "## Fleets under load\n\nThree servers",
            "2 rounds, with `--seed 1` to `2`.\n\n```sh\nwarmpath-bench fleets --model made --slots 2\n```",
            "| fleet    | requests/s       | TTFT p50, ms  |",
            "| Warmpath | 6.50 (6.00-7.00) | 190 (180-200) |",
            "| SMG      | 4.00             |               |",
            "- llama-server gets --flash-attn off",
            "![Prefix hit ratio of each fleet over time](images/report-fleets-hit-ratio.svg)",
            "- **Failed:** index, round 1 of 1: out of memory",
            "## Not measured\n\n- wrk: no network",
        ] {
            assert!(page.contains(expected), "no {expected:?} in\n{page}");
        }
        assert!(!page.contains("## Changes") && !page.contains("routers-"), "{page}");
    }

    #[test]
    fn a_comparison_stands_before_the_parts() {
        let results = results();
        let comparison = super::super::compare::compare(&results, &results);
        let page = page(&results, "r.json", Some(&comparison));
        let [changes, fleets] = ["## Changes", "## Fleets"].map(|heading| page.find(heading).expect("it is there"));
        assert!(changes < fleets);
    }
}
