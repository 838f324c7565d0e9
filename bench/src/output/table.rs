//! Results as text: tables in Markdown, or JSON.
//!
//! Not here: figures for the report (`figures`).

use std::fmt;

use comfy_table::presets;
use serde::Serialize;

/// Flag of every subcommand that prints its results as tables or as JSON.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct OutputArgs {
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

impl OutputArgs {
    /// Prints the results.
    ///
    /// Errors: the results cannot be written as JSON.
    #[expect(clippy::print_stdout, reason = "the results are the command's output")]
    pub fn print(&self, results: &impl Serialize, tables: &impl fmt::Display) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(results)?);
        } else {
            println!("{tables}");
        }
        Ok(())
    }
}

/// One table; it is displayed as Markdown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Column titles.
    pub header: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns an empty table with these columns.
    pub fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }

    /// Prints the table.
    #[expect(clippy::print_stdout, reason = "the table is a command's output")]
    pub fn print(&self) {
        println!("{self}");
    }

    /// Adds a row.
    pub fn add(&mut self, row: impl IntoIterator<Item = String>) {
        self.rows.push(row.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(&self.header);
        table.add_rows(&self.rows);
        table.fmt(f)
    }
}

/// Returns a share as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_markdown() {
        let mut table = Table::new(&["a", "b"]);
        table.add(["1".to_owned(), "2".to_owned()]);
        assert_eq!(table.to_string(), "| a | b |\n|---|---|\n| 1 | 2 |");
    }
}
