//! A plot as SVG, readable on light and dark pages.
//!
//! The list of plots is in `plots`. Colours are attributes with the value for light pages; a style sheet replaces them
//! for readers who prefer dark pages.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::{
    BindKeyPoints, Cartesian2d, ChartBuilder, ChartContext, Color, DrawingArea, IntoDrawingArea, IntoFont,
    IntoLogRange, LineSeries, PathElement, RGBColor, Ranged, SVGBackend, ShapeStyle, Text, TextStyle,
};

use super::plots::{Axis, Plot, Point, Scale, Series};

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
/// Most points of a line that are marked.
const MARKED_MAX: usize = 10;

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

/// Returns the plot as an SVG document.
///
/// Errors: the plot cannot be laid out.
pub fn svg(plot: &Plot) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&PAPER.light)?;
        let legend_height = draw_head(&root, plot)?;
        let area = root.margin(MARGIN + LINE + legend_height, MARGIN, MARGIN, 2 * MARGIN);
        let mut builder = ChartBuilder::on(&area);
        builder.x_label_area_size(44).y_label_area_size(60);
        let x = range(&plot.x, points(plot).map(|point| point.0));
        let y = range(&plot.y, points(plot).map(|point| point.1));
        let log_x = |x: Range<f64>| {
            let ticks = ticks(&x, &plot.series);
            x.log_scale().with_key_points(ticks)
        };
        let log_y = |y: Range<f64>| {
            let ticks = ticks(&y, &[]);
            y.log_scale().with_key_points(ticks)
        };
        match (plot.x.scale, plot.y.scale) {
            (Scale::Linear, Scale::Linear) => draw(builder.build_cartesian_2d(x, y)?, plot)?,
            (Scale::Linear, Scale::Log) => draw(builder.build_cartesian_2d(x, log_y(y))?, plot)?,
            (Scale::Log, Scale::Linear) => draw(builder.build_cartesian_2d(log_x(x), y)?, plot)?,
            (Scale::Log, Scale::Log) => draw(builder.build_cartesian_2d(log_x(x), log_y(y))?, plot)?,
        }
        root.present()?;
    }
    Ok(with_style(&text, &plot.title))
}

fn letters(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK.light)
}

fn line_style(idx: usize) -> ShapeStyle {
    LINES[idx % LINES.len()].light.filled().stroke_width(2)
}

fn points(plot: &Plot) -> impl Iterator<Item = Point> {
    plot.series.iter().flat_map(|series| shown_points(plot, series))
}

/// Returns the points that the axes can show: a logarithmic one has no 0.
fn shown_points<'a>(plot: &'a Plot, series: &'a Series) -> impl Iterator<Item = Point> + 'a {
    let is_shown = |axis: &Axis, value: f64| value.is_finite() && (axis.scale == Scale::Linear || value > 0.0);
    series.points.iter().copied().filter(move |point| is_shown(&plot.x, point.0) && is_shown(&plot.y, point.1))
}

/// Draws title and legend; returns the legend's height.
fn draw_head(root: &DrawingArea<SVGBackend<'_>, Shift>, plot: &Plot) -> anyhow::Result<i32> {
    root.draw(&Text::new(plot.title.as_str(), (MARGIN, MARGIN), letters(LETTERS.0)))?;
    let (mut left, mut top) = (MARGIN, MARGIN + LINE);
    for (idx, series) in plot.series.iter().enumerate() {
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

/// Returns the range of an axis: from 0 to a little more than the highest value, or just the values on a logarithmic
/// axis; percentages end at 100.
fn range(axis: &Axis, values: impl Iterator<Item = f64>) -> Range<f64> {
    let (lowest, highest) =
        values.fold((f64::MAX, 0.0_f64), |(lowest, highest), value| (lowest.min(value), highest.max(value)));
    match axis.scale {
        _ if highest <= 0.0 => 0.1..1.0,
        Scale::Linear if axis.label.ends_with('%') => 0.0..100.0,
        Scale::Linear => 0.0..highest * 1.05,
        Scale::Log if lowest < highest => lowest..highest,
        Scale::Log => lowest / 2.0..highest * 2.0,
    }
}

/// Returns the ticks of a logarithmic axis: the few values that all series have in common, or else 1, 2 and 5 of each
/// power of ten.
fn ticks(range: &Range<f64>, series: &[Series]) -> Vec<f64> {
    let values: Vec<Vec<f64>> =
        series.iter().map(|series| series.points.iter().map(|point| point.0).collect()).collect();
    if let Some(first) = values.first().filter(|first| first.len() <= MARKED_MAX)
        && values.iter().all(|values| values == first)
    {
        return first.clone();
    }
    let decades = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let ticks = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade)));
    ticks.filter(|tick| range.contains(tick)).collect()
}

/// Draws axes, grid and lines.
fn draw<X, Y>(mut chart: ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>, plot: &Plot) -> anyhow::Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc(plot.x.label.as_str())
        .y_desc(plot.y.label.as_str())
        .x_label_formatter(&|value| number(*value))
        .y_label_formatter(&|value| number(*value))
        .axis_style(INK.light)
        .bold_line_style(GRID.light)
        .light_line_style(GRID.light)
        .max_light_lines(1)
        .label_style(letters(LETTERS.1))
        .axis_desc_style(letters(LETTERS.1))
        .draw()?;
    for (idx, series) in plot.series.iter().enumerate() {
        let marks = if series.points.len() <= MARKED_MAX { 3 } else { 0 };
        let line = LineSeries::new(shown_points(plot, series), line_style(idx));
        chart.draw_series(line.point_size(marks))?;
    }
    Ok(())
}

/// Returns a value of an axis as text, without rounding errors.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the document with its title for screen readers and its colours on dark pages.
fn with_style(svg: &str, title: &str) -> String {
    let colours = [PAPER, INK, GRID].into_iter().chain(LINES);
    let rules: String = colours.map(|colour| colour.rule()).collect();
    let escaped_title = title.replace('&', "&amp;").replace('<', "&lt;");
    let style = format!(
        "<title>{escaped_title}</title>\n<style>\n@media (prefers-color-scheme: dark) {{\n{rules}}}\n</style>\n"
    );
    match svg.split_once(">\n") {
        Some((open, rest)) => format!("{open} role=\"img\">\n{style}{rest}"),
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

    use super::super::part::Part;
    use super::super::plots::plots;
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
    fn a_plot_is_a_document_with_its_series_labels_and_units() {
        for plot in plots(&results()) {
            let svg = svg(&plot).expect("it can be drawn");
            let document = Document::parse(&svg).expect("it is well-formed");
            assert_eq!(document.root_element().attribute("role"), Some("img"));
            let texts = texts(&document);
            let names = plot.series.iter().map(|series| &series.name);
            for expected in names.chain([&plot.title, &plot.x.label, &plot.y.label]) {
                assert!(texts.contains(expected), "no {expected} in {texts:?}");
            }
            // A line in the legend and one in the plot for each series.
            let strokes = strokes(&document);
            let expected: Vec<String> = ["#0969DA", "#BC4C00"].repeat(2).into_iter().map(str::to_owned).collect();
            assert_eq!(strokes, expected);
        }
    }

    #[test]
    fn every_colour_has_one_for_dark_pages() {
        let plot = plots(&results()).remove(0);
        let svg = svg(&plot).expect("it can be drawn");
        let document = Document::parse(&svg).expect("it is well-formed");
        let style = document.descendants().find(|node| node.has_tag_name("style"));
        let style = style.and_then(|node| node.text()).expect("it has a style sheet");
        let used = document.descendants().flat_map(|node| [node.attribute("fill"), node.attribute("stroke")]);
        for colour in used.flatten().filter(|colour| *colour != "none") {
            assert!(style.contains(&format!("[fill=\"{colour}\"]")), "{colour} has no colour on dark pages");
        }
    }

    #[test]
    fn strange_names_and_values_are_drawn_all_the_same() {
        let axis = |scale| Axis { label: "x < y & \"z\"".to_owned(), scale };
        for (x, y) in [(Scale::Linear, Scale::Log), (Scale::Log, Scale::Log), (Scale::Log, Scale::Linear)] {
            let series = |points: Vec<Point>| Series { name: "<b> & c".to_owned(), points };
            let points = vec![(0.0, 0.0), (1.0, 5.0), (1.0, f64::NAN), (2.0, 0.0)];
            let plot = Plot {
                part: Part::Index,
                file: "a.svg".to_owned(),
                title: "a & b".to_owned(),
                x: axis(x),
                y: axis(y),
                series: vec![series(points), series(Vec::new())],
            };
            let svg = svg(&plot).expect("it can be drawn");
            let document = Document::parse(&svg).expect("it is well-formed");
            assert!(texts(&document).contains(&"<b> & c".to_owned()));
        }
    }

    #[test]
    fn the_ticks_of_a_logarithmic_axis_are_its_sizes_or_round_numbers() {
        let series = |points: &[Point]| Series { name: String::new(), points: points.to_vec() };
        let (two, one) = (series(&[(8.0, 1.0), (64.0, 2.0)]), series(&[(8.0, 1.0)]));
        assert_eq!(ticks(&(8.0..64.0), &[two.clone(), two.clone()]), [8.0, 64.0]);
        assert_eq!(ticks(&(8.0..64.0), &[two, one]), [10.0, 20.0, 50.0]);
        assert_eq!(ticks(&(0.4..11.0), &[]), [0.5, 1.0, 2.0, 5.0, 10.0]);
    }

    #[test]
    fn numbers_on_axes_are_short() {
        assert_eq!([0.300_000_000_1, 100.0, 31.62, 0.0, 250.0].map(number), ["0.3", "100", "31.62", "0", "250"]);
    }
}
