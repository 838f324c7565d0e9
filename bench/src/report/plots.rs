//! The plots of a report and their figures. Drawing is in `chart`.

use super::part::Part;
use super::results::{PartResults, Results};
use crate::figures::Answered;

/// Number of points on the time axis of the hit ratio.
const TIME_BINS: usize = 20;

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From 0.
    Linear,
    /// Logarithmic.
    Log,
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// Label, with its unit.
    pub label: String,
    /// Scale.
    pub scale: Scale,
}

/// Point of a line, as plotters takes it: its place on the horizontal and on the vertical axis.
pub type Point = (f64, f64);

/// A line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points, from left to right.
    pub points: Vec<Point>,
}

/// A plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// Part to which it belongs.
    pub part: Part,
    /// Name of its file.
    pub file: String,
    /// Title.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines; at least one.
    pub series: Vec<Series>,
}

/// Returns the plots for which there are figures.
pub fn plots(results: &Results) -> Vec<Plot> {
    let mut plots = Vec::new();
    for part in &results.parts {
        match part.part {
            Part::Fleets => plots.extend([ttft(part), hits_over_time(part)]),
            Part::Index => plots.push(look_ups(part)),
            Part::Routers => plots.extend([hits_by_routers(part), ttft_by_routers(part)]),
            Part::Worker | Part::Throughput | Part::Overhead | Part::Policies | Part::Chaos => {}
        }
    }
    plots.retain(|plot| plot.series.iter().any(|series| series.points.len() > 1));
    plots
}

fn axis(label: &str, scale: Scale) -> Axis {
    Axis { label: label.to_owned(), scale }
}

fn plot(part: Part, what: &str, title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Plot {
    Plot { part, file: format!("report-{part}-{what}.svg"), title: title.to_owned(), x, y, series }
}

fn ttft(part: &PartResults) -> Plot {
    let (x, y) = (axis("TTFT, ms", Scale::Log), axis("answers, %", Scale::Linear));
    let series = by_fleet(part, |answers| {
        let mut ttft_ms: Vec<f64> = answers.iter().map(|answer| answer.ttft_ms).collect();
        distribution(&mut ttft_ms)
    });
    plot(part.part, "ttft", "TTFT of each fleet", x, y, series)
}

fn hits_over_time(part: &PartResults) -> Plot {
    let (x, y) =
        (axis("time since the start of the load, s", Scale::Linear), axis("prefix hit ratio, %", Scale::Linear));
    let end_s = part.figures.answers.iter().map(|answer| answer.at_s).fold(0.0, f64::max);
    let series = by_fleet(part, |answers| ratio_over_time(answers, end_s));
    plot(part.part, "hit-ratio", "Prefix hit ratio of each fleet over time", x, y, series)
}

fn look_ups(part: &PartResults) -> Plot {
    let (x, y) = (axis("workers", Scale::Log), axis("look-up p50, ns", Scale::Log));
    plot(part.part, "look-ups", "Cost of a look-up by the fleet's size", x, y, by_size(part, "look-up p50", 1.0))
}

fn hits_by_routers(part: &PartResults) -> Plot {
    let (x, y) = (axis("routers", Scale::Log), axis("prefix hit ratio, %", Scale::Linear));
    let series = by_size(part, "prefix hit ratio", 100.0);
    plot(part.part, "hit-ratio", "Prefix hit ratio by the number of routers", x, y, series)
}

fn ttft_by_routers(part: &PartResults) -> Plot {
    let (x, y) = (axis("routers", Scale::Log), axis("TTFT p99, s", Scale::Linear));
    plot(part.part, "ttft", "TTFT p99 by the number of routers", x, y, by_size(part, "TTFT p99", 1e-3))
}

/// Returns a line for each fleet, in the order of the table.
fn by_fleet(part: &PartResults, points: impl Fn(&[&Answered]) -> Vec<Point>) -> Vec<Series> {
    let mut fleets: Vec<&str> = Vec::new();
    for answer in &part.figures.answers {
        if !fleets.contains(&answer.fleet.as_str()) {
            fleets.push(&answer.fleet);
        }
    }
    let line = |fleet: &str| {
        let answers: Vec<&Answered> = part.figures.answers.iter().filter(|answer| answer.fleet == fleet).collect();
        Series { name: fleet.to_owned(), points: points(&answers) }
    };
    fleets.into_iter().map(line).collect()
}

/// Returns a line for each subject: a measure's medians, multiplied by `factor`, over the sizes of its cases.
fn by_size(part: &PartResults, measure: &str, factor: f64) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for figure in part.figures.figures.iter().filter(|figure| figure.measure.name == measure) {
        let Some(size) = figure.row.size else { continue };
        let point = (size, figure.median * factor);
        match series.iter_mut().find(|series| series.name == figure.row.subject) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name: figure.row.subject.clone(), points: vec![point] }),
        }
    }
    series.iter_mut().for_each(|series| series.points.sort_by(|one, other| one.0.total_cmp(&other.0)));
    series
}

/// Returns the share of the values, in percent, that are at most each of them.
fn distribution(values: &mut [f64]) -> Vec<Point> {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len() as f64;
    values.iter().enumerate().map(|(idx, &value)| (value, (idx + 1) as f64 / n * 100.0)).collect()
}

/// Returns the hit ratio, in percent, of the answers that ended in each part of the time until `end_s`.
fn ratio_over_time(answers: &[&Answered], end_s: f64) -> Vec<Point> {
    let bin_s = end_s / TIME_BINS as f64;
    let ratio = |bin: usize| {
        let is_in = |answer: &&&Answered| ((answer.at_s / bin_s).ceil() as usize).clamp(1, TIME_BINS) == bin + 1;
        let sums = answers
            .iter()
            .filter(is_in)
            .fold((0, 0), |(prompt, cached), answer| (prompt + answer.prompt_tokens, cached + answer.cached_tokens));
        (sums.0 > 0).then(|| ((bin as f64 + 0.5) * bin_s, sums.1 as f64 / sums.0 as f64 * 100.0))
    };
    (0..TIME_BINS).filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::results;
    use super::*;

    #[test]
    fn there_is_a_line_for_each_fleet_and_index() {
        let plots = plots(&results());
        let found: Vec<_> = plots.iter().map(|plot| (plot.file.as_str(), plot.series.len())).collect();
        let expected =
            [("report-fleets-ttft.svg", 2), ("report-fleets-hit-ratio.svg", 2), ("report-index-look-ups.svg", 2)];
        assert_eq!(found, expected);
        let look_ups = &plots[2].series[0];
        assert_eq!(
            (look_ups.name.as_str(), look_ups.points.as_slice()),
            ("warmpath", [(8.0, 471.0), (64.0, 452.0)].as_slice())
        );
    }

    #[test]
    fn a_distribution_ends_at_all_answers() {
        assert_eq!(distribution(&mut [3.0, 1.0, 2.0, 2.0]), [(1.0, 25.0), (2.0, 50.0), (2.0, 75.0), (3.0, 100.0)]);
        assert_eq!(distribution(&mut []), []);
    }

    #[test]
    fn the_hit_ratio_of_each_time_is_weighted_by_tokens() {
        let answered = |at_s, prompt_tokens, cached_tokens| Answered {
            fleet: "Warmpath".to_owned(),
            at_s,
            ttft_ms: 1.0,
            prompt_tokens,
            cached_tokens,
        };
        let answers = [answered(0.5, 900, 0), answered(1.0, 100, 100), answered(20.0, 100, 50)];
        let points = ratio_over_time(&answers.iter().collect::<Vec<_>>(), 20.0);
        assert_eq!(points, [(0.5, 10.0), (19.5, 50.0)]);
    }
}
