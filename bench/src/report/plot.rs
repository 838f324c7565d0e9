//! The plot of a report as SVG, readable on light and dark pages: the prefix hit ratio of each fleet over time.
//!
//! Colours are attributes with the value for light pages; a style sheet replaces them for readers who prefer dark
//! pages.

use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Color, DrawingArea, IntoDrawingArea, IntoFont, LineSeries, PathElement, RGBColor, SVGBackend,
    ShapeStyle, Text, TextStyle,
};

use super::results::PartResults;
use crate::output::figures::Answered;

/// Name of the plot's file.
pub const FILE: &str = "report-fleets-hit-ratio.svg";
/// Title of the plot.
pub const TITLE: &str = "Prefix hit ratio of each fleet over time";
/// Labels of the horizontal and of the vertical axis.
const LABELS: [&str; 2] = ["time since the start of the load, s", "prefix hit ratio, %"];
/// Number of points on the time axis.
const TIME_BINS: usize = 20;

/// Size of a plot. Units: pixels.
const SIZE: (u32, u32) = (800, 440);
/// Space around it. Units: pixels.
const MARGIN: i32 = 12;
/// Height of the title, and of a line of the legend. Units: pixels.
const LINE: i32 = 22;
/// Sizes of the title's and of all other letters. Units: pixels.
const LETTERS: (i32, i32) = (16, 13);
/// Estimated width of a letter. Units: pixels.
const LETTER_WIDTH: i32 = 7;
/// Length of a line in the legend. Units: pixels.
const SAMPLE: i32 = 24;

/// A colour on light and on dark pages.
struct Colour {
    light: RGBColor,
    dark: &'static str,
}

const fn colour(light: RGBColor, dark: &'static str) -> Colour {
    Colour { light, dark }
}

const PAPER: Colour = colour(RGBColor(255, 255, 255), "#0d1117");
const INK: Colour = colour(RGBColor(31, 35, 40), "#e6edf3");
const GRID: Colour = colour(RGBColor(209, 217, 224), "#3d444d");
/// Colours of lines, used in turn.
const LINES: [Colour; 6] = [
    colour(RGBColor(9, 105, 218), "#4493f8"),
    colour(RGBColor(188, 76, 0), "#db6d28"),
    colour(RGBColor(26, 127, 55), "#3fb950"),
    colour(RGBColor(130, 80, 223), "#ab7df8"),
    colour(RGBColor(207, 34, 46), "#f85149"),
    colour(RGBColor(89, 99, 110), "#9198a1"),
];

/// Point of a line, as plotters takes it: seconds since the start, and percent.
type Point = (f64, f64);

/// A line of the plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points, from left to right.
    pub points: Vec<Point>,
}

/// Returns a line for each fleet whose answers the results have, in the order of the table.
pub fn series(part: &PartResults) -> Vec<Series> {
    let answers = &part.figures.answers;
    let end_s = answers.iter().map(|answer| answer.at_s).fold(0.0, f64::max);
    let mut lines: Vec<Series> = Vec::new();
    for Answered { fleet, .. } in answers {
        if !lines.iter().any(|line| line.name == *fleet) {
            let of_fleet: Vec<&Answered> = answers.iter().filter(|answer| answer.fleet == *fleet).collect();
            lines.push(Series { name: fleet.clone(), points: ratio_over_time(&of_fleet, end_s) });
        }
    }
    lines
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

/// Returns the plot of these lines as an SVG document.
///
/// Errors: the plot cannot be laid out.
pub fn svg(series: &[Series]) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&PAPER.light)?;
        let legend_height = draw_head(&root, series)?;
        let area = root.margin(MARGIN + LINE + legend_height, MARGIN, MARGIN, 2 * MARGIN);
        let end_s = series.iter().flat_map(|series| &series.points).map(|point| point.0).fold(1.0, f64::max);
        let mut builder = ChartBuilder::on(&area);
        builder.x_label_area_size(44).y_label_area_size(60);
        let mut chart = builder.build_cartesian_2d(0.0..end_s * 1.05, 0.0..100.0)?;
        chart
            .configure_mesh()
            .x_desc(LABELS[0])
            .y_desc(LABELS[1])
            .x_label_formatter(&|value| number(*value))
            .y_label_formatter(&|value| number(*value))
            .axis_style(INK.light)
            .bold_line_style(GRID.light)
            .light_line_style(GRID.light)
            .max_light_lines(1)
            .label_style(letters(LETTERS.1))
            .axis_desc_style(letters(LETTERS.1))
            .draw()?;
        for (idx, series) in series.iter().enumerate() {
            chart.draw_series(LineSeries::new(series.points.iter().copied(), line_style(idx)))?;
        }
        root.present()?;
    }
    Ok(with_style(&text))
}

fn letters(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK.light)
}

fn line_style(idx: usize) -> ShapeStyle {
    LINES[idx % LINES.len()].light.filled().stroke_width(2)
}

/// Draws title and legend; returns the legend's height.
fn draw_head(root: &DrawingArea<SVGBackend<'_>, Shift>, series: &[Series]) -> anyhow::Result<i32> {
    root.draw(&Text::new(TITLE, (MARGIN, MARGIN), letters(LETTERS.0)))?;
    let (mut left, mut top) = (MARGIN, MARGIN + LINE);
    for (idx, series) in series.iter().enumerate() {
        let n_letters = i32::try_from(series.name.chars().count())?;
        let width = SAMPLE + 3 * LETTER_WIDTH + n_letters * LETTER_WIDTH;
        if left > MARGIN && left + width > SIZE.0 as i32 - MARGIN {
            (left, top) = (MARGIN, top + LINE);
        }
        let middle = top + LINE / 2;
        root.draw(&PathElement::new(vec![(left, middle), (left + SAMPLE, middle)], line_style(idx)))?;
        let at = (left + SAMPLE + LETTER_WIDTH, middle - LETTERS.1 / 2);
        root.draw(&Text::new(series.name.as_str(), at, letters(LETTERS.1)))?;
        left += width;
    }
    Ok(top + LINE - (MARGIN + LINE) + MARGIN)
}

/// Returns a value of an axis as text, without rounding errors.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the document with its title for screen readers and its colours on dark pages.
fn with_style(svg: &str) -> String {
    let colours = [PAPER, INK, GRID].into_iter().chain(LINES);
    let rules: String = colours.map(|colour| colour.rule()).collect();
    let style =
        format!("<title>{TITLE}</title>\n<style>\n@media (prefers-color-scheme: dark) {{\n{rules}}}\n</style>\n");
    match svg.split_once(">\n") {
        Some((open, behind)) => format!("{open} role=\"img\">\n{style}{behind}"),
        None => svg.to_owned(),
    }
}

impl Colour {
    /// Returns the rule that replaces the light colour by the dark one.
    fn rule(&self) -> String {
        let RGBColor(red, green, blue) = self.light;
        let (light, dark) = (format!("#{red:02X}{green:02X}{blue:02X}"), self.dark);
        format!("[fill=\"{light}\"] {{ fill: {dark} }} [stroke=\"{light}\"] {{ stroke: {dark} }}\n")
    }
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, Node};

    use super::super::tests::results;
    use super::*;

    fn texts(document: &Document<'_>) -> Vec<String> {
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        texts.map(|node| node.text().unwrap_or_default().trim().to_owned()).collect()
    }

    /// Returns the strokes of the lines with more than two points, in order: the legend's have two.
    fn strokes(document: &Document<'_>) -> Vec<String> {
        let is_line = |node: &Node<'_, '_>| {
            let points = node.attribute("points").unwrap_or_default();
            node.has_tag_name("polyline") && node.attribute("stroke-width") == Some("2") && !points.is_empty()
        };
        let lines = document.descendants().filter(is_line);
        lines.map(|node| node.attribute("stroke").unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn a_plot_is_a_document_with_its_fleets_labels_and_units() {
        let svg = svg(&series(&results().parts[0])).expect("it can be drawn");
        let document = Document::parse(&svg).expect("it is well-formed");
        assert_eq!(document.root_element().attribute("role"), Some("img"));
        let texts = texts(&document);
        for expected in ["Warmpath", "SMG", TITLE, LABELS[0], LABELS[1]] {
            assert!(texts.iter().any(|text| text == expected), "no {expected} in {texts:?}");
        }
        // A line in the legend and one in the plot for each fleet.
        assert_eq!(strokes(&document), ["#0969DA", "#BC4C00"].repeat(2));
    }

    #[test]
    fn every_colour_has_one_for_dark_pages() {
        let svg = svg(&series(&results().parts[0])).expect("it can be drawn");
        let document = Document::parse(&svg).expect("it is well-formed");
        let style = document.descendants().find(|node| node.has_tag_name("style"));
        let style = style.and_then(|node| node.text()).expect("it has a style sheet");
        let used = document.descendants().flat_map(|node| [node.attribute("fill"), node.attribute("stroke")]);
        for colour in used.flatten().filter(|colour| *colour != "none") {
            assert!(style.contains(&format!("[fill=\"{colour}\"]")), "{colour} has no colour on dark pages");
        }
    }

    #[test]
    fn strange_names_and_missing_points_are_drawn_all_the_same() {
        let lines = [vec![(0.0, 0.0), (1.0, 5.0)], Vec::new()];
        let lines = lines.map(|points| Series { name: "<b> & c".to_owned(), points });
        let svg = svg(&lines).expect("it can be drawn");
        let document = Document::parse(&svg).expect("it is well-formed");
        assert!(texts(&document).contains(&"<b> & c".to_owned()));
    }

    #[test]
    fn numbers_on_axes_are_short() {
        assert_eq!([0.300_000_000_1, 100.0, 31.62, 0.0, 250.0].map(number), ["0.3", "100", "31.62", "0", "250"]);
    }

    #[test]
    fn the_hit_ratio_of_each_time_is_weighted_by_tokens() {
        let answered = |at_s, prompt_tokens, cached_tokens| Answered {
            fleet: "Warmpath".to_owned(),
            at_s,
            prompt_tokens,
            cached_tokens,
        };
        let answers = [answered(0.5, 900, 0), answered(1.0, 100, 100), answered(20.0, 100, 50)];
        let points = ratio_over_time(&answers.iter().collect::<Vec<_>>(), 20.0);
        assert_eq!(points, [(0.5, 10.0), (19.5, 50.0)]);
    }
}
