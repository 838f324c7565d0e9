//! Rates of servers in rounds, and the table of their medians.

use crate::output::table::Table;
use crate::summary::median;

/// Name of the row that has all others together.
const ALL: &str = "all";

/// Rates of one server: for each row of the table those of the rounds. Units: tokens a second.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Rates(Vec<(String, Vec<f64>)>);

impl Rates {
    /// Adds the rate of a round; rows keep the order of their first rates.
    pub(super) fn add(&mut self, row: &str, rate: f64) {
        match self.0.iter_mut().find(|(name, _)| name == row) {
            Some((_, rates)) => rates.push(rate),
            None => self.0.push((row.to_owned(), vec![rate])),
        }
    }

    /// Returns the names of the rows, and last that of all together.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str()).chain([ALL])
    }

    /// Returns the medians of the rows, and last their mean as that of one run of all: a token of each takes its time.
    pub(super) fn column(&self) -> Vec<f64> {
        let mut medians: Vec<f64> = self.0.iter().map(|(_, rates)| median(rates).unwrap_or(0.0)).collect();
        let time: f64 = medians.iter().filter(|rate| **rate > 0.0).map(|rate| 1.0 / rate).sum();
        medians.push(if time > 0.0 { medians.len() as f64 / time } else { 0.0 });
        medians
    }
}

/// Prints a table with a column for each server; the first one is that without drafts.
#[expect(clippy::print_stdout, reason = "the tables are the command's output")]
pub(super) fn print_table(title: &str, servers: &[&str], rates: &[Rates]) {
    let Some(first) = rates.first() else { return };
    let columns: Vec<Vec<f64>> = rates.iter().map(Rates::column).collect();
    println!("\n{title}; tokens/s, and in brackets the ratio to the worker without drafts:\n");
    let mut table = Table::new(&[&[""], servers].concat());
    for (idx, name) in first.names().enumerate() {
        let plain = columns[0][idx].max(f64::MIN_POSITIVE);
        let cell = |column: &Vec<f64>| format!("{:.1} ({:.2})", column[idx], column[idx] / plain);
        table.add(std::iter::once(name.to_owned()).chain(columns.iter().map(cell)));
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_that_of_the_times_of_the_medians() {
        let mut rates = Rates::default();
        for (row, rate) in [("rewrite", 10.0), ("chat", 60.0), ("rewrite", 90.0), ("rewrite", 20.0)] {
            rates.add(row, rate);
        }
        assert_eq!(rates.names().collect::<Vec<_>>(), ["rewrite", "chat", "all"]);
        assert_eq!(rates.column(), [20.0, 60.0, 30.0]);
        assert_eq!(Rates::default().column(), [0.0]);
    }
}
