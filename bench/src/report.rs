//! `warmpath-bench report`: runs all benchmarks and writes their figures, with commands and spreads, as one page with
//! a plot and as JSON.
//!
//! The measurements are other subcommands, each run in a fresh process, round by round (`plan`, `runner`); their
//! figures are collected in `results` and shown by `page` and `plot`. Not here: the measurements.

pub mod compare;
pub mod machine;
pub mod page;
pub mod part;
pub mod peers;
pub mod plan;
pub mod plot;
pub mod results;
pub mod runner;
pub mod versions;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use self::compare::Comparison;
use self::machine::Machine;
use self::part::{Pace, Part};
use self::plan::Step;
use self::results::{PartResults, Results, Skipped};
use self::runner::{Interrupts, Run};
use crate::output::figures::Figures;
use crate::servers::peers::ROOT;

/// Flags of `report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Shorten everything: five minutes instead of thirty, with rough figures.
    #[arg(long)]
    quick: bool,
    /// Parts to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::DEFAULT)]
    parts: Vec<Part>,
    /// Model of workers and fleets: a GGUF file, `smollm2` (SmolLM2-135M-Instruct, fetched once) or `made` (made by
    /// code).
    #[arg(long, value_name = "FILE|NAME", default_value = "made", value_parser = plan::model_name)]
    model: String,
    /// Earlier results to compare with; regressions and improvements are printed and written to the page.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Results to show instead of measuring.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "parts", "model"])]
    from: Option<PathBuf>,
    /// Folder of the page, its plot and its results. The default is target/report; the results of a full report in
    /// which no command failed go to bench/results.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Name of the page.
const PAGE: &str = "report.md";
/// Folder of pages, of logs, and of the results of reports that are not full ones.
const FOLDER: &str = "target/report";

/// Measures, or reads results, and writes the page.
///
/// Errors: no figure was measured; a command failed, or an interrupt ended the measurements, which the page reports
/// too; a file cannot be read or written.
pub async fn run(args: &ReportArgs) -> anyhow::Result<()> {
    // Read first: a wrong file is reported before half an hour of measurements.
    let old = args.compare.as_deref().map(Results::read).transpose()?;
    let (results, path) = match &args.from {
        Some(path) => (Results::read(path)?, path.clone()),
        None => {
            let results = measure(args).await?;
            let path = folders(args.out.as_deref(), &results).results.join(results.file_name());
            results.write(&path)?;
            (results, path)
        }
    };
    let comparison = old.as_ref().map(|old| compare::compare(old, &results));
    let page = write_page(&folders(args.out.as_deref(), &results).page, &results, &path, comparison.as_ref())?;
    announce(&page, &path, comparison.as_ref());
    let failures: Vec<&str> = results.parts.iter().flat_map(|part| &part.failures).map(String::as_str).collect();
    ensure!(args.from.is_some() || failures.is_empty(), "not everything could be measured: {}", failures.join("; "));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the comparison is the command's output")]
fn announce(page: &Path, results: &Path, comparison: Option<&Comparison>) {
    if let Some(comparison) = comparison {
        println!("{}", comparison.markdown());
    }
    eprintln!("wrote {} and {}", page.display(), results.display());
}

/// Folders of a report's files.
struct Folders {
    page: PathBuf,
    results: PathBuf,
}

fn folders(out: Option<&Path>, results: &Results) -> Folders {
    let root = Path::new(ROOT).canonicalize().unwrap_or_else(|_| ROOT.into());
    match out {
        Some(out) => Folders { page: out.to_owned(), results: out.to_owned() },
        None if results.is_whole() => Folders { page: root.join(FOLDER), results: root.join("bench/results") },
        None => Folders { page: root.join(FOLDER), results: root.join(FOLDER) },
    }
}

/// Writes page and plot into `folder`; returns the page's path.
///
/// Errors: a file cannot be written.
fn write_page(
    folder: &Path,
    results: &Results,
    path: &Path,
    comparison: Option<&Comparison>,
) -> anyhow::Result<PathBuf> {
    let images = folder.join("images");
    std::fs::create_dir_all(&images).with_context(|| format!("creating {}", images.display()))?;
    for part in results.parts.iter().filter(|part| !part.figures.answers.is_empty()) {
        let file = images.join(plot::FILE);
        std::fs::write(&file, plot::svg(&plot::series(part))?)
            .with_context(|| format!("writing {}", file.display()))?;
    }
    let page = folder.join(PAGE);
    let text = page::page(results, &results_link(folder, path), comparison);
    std::fs::write(&page, text).with_context(|| format!("writing {}", page.display()))?;
    Ok(page)
}

/// Returns the path of the results as seen from the page.
fn results_link(folder: &Path, path: &Path) -> String {
    let beside = path.parent().and_then(|parent| parent.canonicalize().ok());
    if beside.is_some() && beside == folder.canonicalize().ok() {
        return path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    }
    path.display().to_string()
}

/// Measures every part and returns the results; an interrupt ends the measurements.
///
/// Errors: no figure was measured; an interrupt before the first command.
async fn measure(args: &ReportArgs) -> anyhow::Result<Results> {
    let mut interrupts = Interrupts::listen()?;
    let pace = if args.quick { Pace::Quick } else { Pace::Full };
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}, {elapsed}")?);

    // What can be measured here: parts without their peers or machine are left out, with the reason.
    let mut parts = args.parts.clone();
    parts.sort();
    parts.dedup();
    let (peers, mut skipped) = peers::install(&parts, &bar, &mut interrupts).await?;
    let has_overhead_model = parts.contains(&Part::Overhead) && peers::make_overhead_model().is_ok();
    let plan = plan::Plan { pace, peers, has_overhead_model, model: args.model.clone() };
    parts.retain(|&part| match plan.obstacle(part) {
        None => true,
        Some(reason) => {
            skipped.push(Skipped { what: part.title().to_owned(), reason: reason.to_owned() });
            false
        }
    });
    let mut results = Results {
        format: results::FORMAT,
        date: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        pace,
        machine: Machine::read()?,
        versions: versions::versions(&plan.peers),
        parts: parts.iter().map(|&part| plan.empty_results(part)).collect(),
        skipped,
    };

    // Each command has a process of its own, and all take turns, so that a noisy minute harms no single part. The first
    // step that cannot run ends the report, which still shows the figures so far.
    let steps = plan.steps(&parts);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {elapsed}")?);
    bar.set_length(steps.len() as u64);
    for (idx, step) in steps.iter().enumerate() {
        bar.set_position(idx as u64);
        bar.set_message(step.name());
        let part = results.parts.iter_mut().find(|part| part.part == step.part).context("every step has its part")?;
        let began = Instant::now();
        let outcome = match run_step(idx, step, &mut interrupts).await {
            Ok(outcome) => outcome,
            Err(error) => {
                part.failures.push(format!("{} of {} steps were not run: {error:#}", steps.len() - idx, steps.len()));
                break;
            }
        };
        let line = take(part, step, outcome);
        bar.suspend(|| eprintln!("{:4.0} s  {line}", began.elapsed().as_secs_f64()));
    }
    bar.finish_and_clear();
    results.parts.retain(|part| !part.figures.figures.is_empty() || !part.failures.is_empty());
    let n_figures: usize = results.parts.iter().map(|part| part.figures.figures.len()).sum();
    let failures = results.parts.iter().flat_map(|part| &part.failures).cloned().collect::<Vec<_>>().join("; ");
    ensure!(n_figures > 0, "nothing was measured; {failures}");
    Ok(results)
}

/// Result of a step: its figures, if there are any, and the reason if it failed.
struct StepOutcome {
    figures: Option<Figures>,
    failure: Option<String>,
}

/// Runs a step in a fresh process.
///
/// Errors: an interrupt; a folder cannot be written. A process that fails is no error but a failure of the outcome.
async fn run_step(idx: usize, step: &Step, interrupts: &mut Interrupts) -> anyhow::Result<StepOutcome> {
    let logs = Path::new(ROOT).join(FOLDER).join("logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    let folder = tempfile::tempdir()?;
    let (file, log) = (folder.path().join("figures.json"), format!("{idx:02}-{}.log", step.part));
    let mut command = tokio::process::Command::new(std::env::current_exe().context("finding this program")?);
    command.args(&step.args).arg("--figures").arg(&file).current_dir(ROOT);
    let run = runner::run(command, &logs.join(&log), interrupts.next()).await?;
    let (figures, reason) = match (run, Figures::read(&file)) {
        (Run::Succeeded, Ok(figures)) => (Some(figures), None),
        (Run::Succeeded, Err(error)) => (None, Some(format!("{error:#}"))),
        // A failed process may have written the figures that it could measure.
        (Run::Failed(reason), figures) => (figures.ok(), Some(reason)),
    };
    let failure = reason.map(|reason| format!("{}: {reason} ({FOLDER}/logs/{log})", step.name()));
    Ok(StepOutcome { figures, failure })
}

/// Adds the outcome of a step to its part's results; returns a line for the terminal.
fn take(part: &mut PartResults, step: &Step, outcome: StepOutcome) -> String {
    part.figures.merge(outcome.figures.unwrap_or_default());
    let line = outcome.failure.clone().unwrap_or_else(|| step.name());
    part.failures.extend(outcome.failure);
    line
}

#[cfg(test)]
mod tests;
