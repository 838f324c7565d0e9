//! Results as text: tables and wrapped lines in Markdown, or JSON.
//!
//! Not here: figures for the report (`figures`).

use std::fmt;

use comfy_table::presets;
use serde::Serialize;

/// Longest line of text and of commands on a page. Units: characters.
pub const LINE_CHARS_MAX: usize = 120;

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

/// Returns the text with lines wrapped at the limit; tables and single long words are not wrapped.
pub fn wrapped(text: &str) -> String {
    let lines = text.lines().map(|line| if line.starts_with('|') { line.to_owned() } else { wrapped_line(line) });
    lines.collect::<Vec<_>>().join("\n")
}

fn wrapped_line(line: &str) -> String {
    let indent = if line.starts_with("- ") { "  " } else { "" };
    let (mut wrapped, mut n_chars) = (String::new(), 0);
    for word in line.split(' ') {
        let n_word = word.chars().count();
        if n_chars > 0 && n_chars + 1 + n_word > LINE_CHARS_MAX {
            wrapped.push('\n');
            wrapped.push_str(indent);
            n_chars = indent.len();
        } else if !wrapped.is_empty() {
            wrapped.push(' ');
            n_chars += 1;
        }
        wrapped.push_str(word);
        n_chars += n_word;
    }
    wrapped
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
    #[test]
    fn long_lines_are_wrapped() {
        let words = "word ".repeat(60);
        let text = wrapped(&format!("- {}\n| {words} |", words.trim_end()));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].starts_with("  word") && lines[3].len() > 300);
        assert_eq!(text.replace("\n  ", " "), format!("- {}\n| {words} |", words.trim_end()));
    }
}
