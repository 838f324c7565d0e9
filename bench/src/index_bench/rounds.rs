//! The result of several rounds of the index benchmark: the median of each figure, and our lead over the best other
//! index.
//!
//! Measuring is in `measure`. The indexes take turns in every round, so that other work of the machine affects all of
//! them. A lead is computed in each round; its median and its range are reported.

use serde::Serialize;

use super::measure::Row;
use crate::summary::median;

/// A figure of a row, larger where it is better.
type Figure = fn(&Row) -> f64;

/// Figures in which indexes are compared.
const FIGURES: [(&str, Figure); 6] = [
    ("look-up p50", |row| 1e9 / row.lookup_ns_p50 as f64),
    ("look-up p99", |row| 1e9 / row.lookup_ns_p99 as f64),
    ("stored", |row| row.stored_blocks_per_s),
    ("removed", |row| row.removed_blocks_per_s),
    ("replaced", |row| row.replaced_blocks_per_s),
    ("blocks/B", |row| 1.0 / row.bytes_per_block),
];

/// Ratio of our index to the best other one, in one figure with one fleet size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lead {
    /// Number of workers.
    pub n_workers: u32,
    /// Name of the figure.
    pub figure: &'static str,
    /// Name of the index with the best median.
    pub other: String,
    /// Ratio in the round that was worst for ours.
    pub lowest: f64,
    /// Median over the rounds.
    pub median: f64,
    /// Ratio in the round that was best for ours.
    pub highest: f64,
}

/// Returns the medians of one index's rounds; `None` without rounds.
pub fn medians(rounds: &[Row]) -> Option<Row> {
    let of = |figure: Figure| median(&rounds.iter().map(figure).collect::<Vec<_>>());
    Some(Row {
        lookup_ns_p50: of(|row| row.lookup_ns_p50 as f64)? as u64,
        lookup_ns_p99: of(|row| row.lookup_ns_p99 as f64)? as u64,
        stored_blocks_per_s: of(|row| row.stored_blocks_per_s)?,
        removed_blocks_per_s: of(|row| row.removed_blocks_per_s)?,
        replaced_blocks_per_s: of(|row| row.replaced_blocks_per_s)?,
        bytes_per_block: of(|row| row.bytes_per_block)?,
        ..rounds.first()?.clone()
    })
}

/// Returns our lead in each figure over that one of `others` which is best in it; all have the same rounds.
pub fn leads(ours: &[Row], others: &[Vec<Row>]) -> Vec<Lead> {
    FIGURES.iter().filter_map(|&(name, figure)| lead(name, figure, (ours, others))).collect()
}

fn lead(name: &'static str, figure: Figure, (ours, others): (&[Row], &[Vec<Row>])) -> Option<Lead> {
    let by_median = |other: &&Vec<Row>| medians(other).map_or(0.0, |row| figure(&row));
    let best = others.iter().max_by(|one, other| by_median(one).total_cmp(&by_median(other)))?;
    let ratios: Vec<f64> = ours.iter().zip(best).map(|(ours, best)| figure(ours) / figure(best)).collect();
    Some(Lead {
        n_workers: ours.first()?.n_workers,
        figure: name,
        other: best.first()?.index.clone(),
        lowest: ratios.iter().copied().reduce(f64::min)?,
        median: median(&ratios)?,
        highest: ratios.iter().copied().reduce(f64::max)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(index: &str, lookup_ns: u64, rate: f64) -> Row {
        Row {
            index: index.to_owned(),
            n_workers: 8,
            n_blocks: 100,
            n_claims: 120,
            lookup_ns_p50: lookup_ns,
            lookup_ns_p99: 2 * lookup_ns,
            stored_blocks_per_s: rate,
            removed_blocks_per_s: 2.0 * rate,
            replaced_blocks_per_s: 3.0 * rate,
            bytes_per_block: 20.0,
            n_checked: 10,
        }
    }

    #[test]
    fn the_median_of_each_figure_is_told() {
        let told = medians(&[row("a", 100, 5.0), row("a", 300, 1.0), row("a", 200, 9.0)]).unwrap();
        assert_eq!((told.index.as_str(), told.lookup_ns_p50, told.lookup_ns_p99), ("a", 200, 400));
        assert_eq!((told.stored_blocks_per_s, told.replaced_blocks_per_s), (5.0, 15.0));
        assert!(medians(&[]).is_none());
    }

    #[test]
    fn a_lead_is_over_the_best_other_in_each_figure() {
        let ours = [row("ours", 100, 6.0), row("ours", 100, 8.0), row("ours", 100, 4.0)];
        let slow = vec![row("reads", 150, 1.0), row("reads", 150, 1.0), row("reads", 150, 1.0)];
        let fast = vec![row("writes", 900, 2.0), row("writes", 900, 4.0), row("writes", 900, 8.0)];
        let leads = leads(&ours, &[slow, fast]);
        assert_eq!(leads.iter().map(|lead| lead.figure).collect::<Vec<_>>(), FIGURES.map(|(name, _)| name));
        assert_eq!((leads[0].other.as_str(), leads[0].median), ("reads", 1.5));
        let stored = &leads[2];
        assert_eq!((stored.other.as_str(), stored.lowest, stored.median, stored.highest), ("writes", 0.5, 2.0, 3.0));
    }

    #[test]
    fn without_others_there_is_no_lead() {
        assert_eq!(leads(&[row("ours", 100, 6.0)], &[]), []);
    }
}
