//! `warmpath-bench index`: speed and size of the router's prefix index beside other indexes, with checked results.
//!
//! Not here: routing. Each index gets the same fleet (`measure`, `workload`), and they take turns (`rounds`). Other
//! indexes are measured by programs of their own (`bench/peers`), so that their dependencies stay out of this build;
//! their rows are shown beside ours.

pub mod measure;
pub mod ours;
pub mod resync;
pub mod rounds;
pub mod workload;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use self::measure::{Row, Size};
use self::ours::Ours;
use self::resync::ResyncReport;
use self::rounds::Lead;
use crate::figures::{self, Figures, FiguresArgs, Measure, Unit};
use crate::table::{OutputArgs, Table};

/// Flags of `index`.
#[derive(Debug, Clone, clap::Args)]
pub struct IndexArgs {
    /// Fleet sizes.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 64, 256, 1000])]
    pub workers: Vec<u32>,
    /// Approximate number of blocks of each worker.
    #[arg(long, default_value_t = 8192)]
    pub blocks_per_worker: usize,
    /// Number of look-ups that are timed for each fleet size.
    #[arg(long, default_value_t = 200_000)]
    pub lookups: usize,
    /// Number of blocks that a resync replaces; 0 measures none.
    #[arg(long, default_value_t = 1_000_000)]
    pub resync_blocks: usize,
    /// Seed of the workers' blocks and of the look-ups.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Programs that measure other indexes, built by scripts/index-peers.sh.
    #[arg(long, value_name = "PROGRAM", value_delimiter = ',')]
    pub against: Vec<PathBuf>,
    /// Number of measurements of each index with each fleet size, in turn; the medians are reported.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Form of the output.
    #[command(flatten)]
    pub output: OutputArgs,
    /// File for the figures.
    #[command(flatten)]
    pub figures: FiguresArgs,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct IndexReport {
    /// Indexes by fleet size, ours first; each figure is the median of the rounds.
    pub rows: Vec<Row>,
    /// Our leads over the others, by fleet size and figure.
    pub leads: Vec<Lead>,
    /// The resync, if it was measured.
    pub resync: Option<ResyncReport>,
}

/// Output of a program that measures indexes, and of this one with `--json`.
#[derive(Deserialize)]
struct Told {
    rows: Vec<Row>,
}

/// Runs `warmpath-bench index` and prints the report.
///
/// Errors: a result differs from brute force; another program fails.
pub fn run(args: &IndexArgs) -> anyhow::Result<()> {
    let (mut rows, mut leads, mut figures) = (Vec::new(), Vec::new(), Figures::default());
    for &n_workers in &args.workers {
        if args.rounds == 1 && args.against.is_empty() {
            let row = measure(n_workers, args)?;
            collect(&row, &mut figures);
            rows.push(row);
            continue;
        }
        let by_index = measure_rounds(n_workers, args)?;
        by_index.iter().flatten().for_each(|row| collect(row, &mut figures));
        rows.extend(by_index.iter().filter_map(|rounds| rounds::medians(rounds)));
        let (ours, others) = by_index.split_first().context("no round was measured")?;
        leads.extend(rounds::leads(ours, others));
    }
    let resync = (args.resync_blocks > 0).then(|| resync::measure(args.resync_blocks, args.seed));
    args.figures.write(&figures)?;
    let report = IndexReport { rows, leads, resync };
    args.output.print(&report, &tables(&report))
}

/// Adds one round's figures of an index with one fleet size.
fn collect(row: &Row, figures: &mut Figures) {
    let of = figures::Row::of_size(("worker", row.n_workers as usize), row.index.as_str());
    let rate = |blocks_per_s: f64| [blocks_per_s / 1e6];
    figures.add(&of, Measure::lower("look-up p50", Unit::Ns), &[row.lookup_ns_p50 as f64]);
    figures.add(&of, Measure::lower("look-up p99", Unit::Ns), &[row.lookup_ns_p99 as f64]);
    for (name, blocks_per_s) in [
        ("stored", row.stored_blocks_per_s),
        ("removed", row.removed_blocks_per_s),
        ("replaced", row.replaced_blocks_per_s),
    ] {
        figures.add(&of, Measure::higher(name, Unit::MillionBlocksPerS), &rate(blocks_per_s));
    }
    figures.add(&of, Measure::lower("memory of a block", Unit::Bytes), &[row.bytes_per_block]);
}

/// Measures all indexes with one fleet size; returns the rounds of each, ours first.
///
/// Each program is started anew in each round, ours too, so that none runs in memory warmed by an earlier round.
fn measure_rounds(n_workers: u32, args: &IndexArgs) -> anyhow::Result<Vec<Vec<Row>>> {
    let ours = std::env::current_exe().context("finding this program")?;
    let mut by_index: Vec<Vec<Row>> = Vec::new();
    for _ in 0..args.rounds {
        let mut round =
            measure_apart(Command::new(&ours).args(["index", "--json", "--resync-blocks", "0"]), n_workers, args)?;
        for program in &args.against {
            round.extend(measure_apart(&mut Command::new(program), n_workers, args)?);
        }
        by_index.resize_with(round.len(), Vec::new);
        by_index.iter_mut().zip(round).for_each(|(rounds, row)| rounds.push(row));
    }
    Ok(by_index)
}

/// Measures our index with one fleet size.
///
/// Errors: a result differs from brute force.
pub fn measure(n_workers: u32, args: &IndexArgs) -> anyhow::Result<Row> {
    let &IndexArgs { blocks_per_worker, lookups, seed, .. } = args;
    let size = Size { n_workers, blocks_per_worker, n_lookups: lookups, seed };
    measure::measure("warmpath", size, || Ours::new(seed))
}

/// Runs a program that measures indexes.
fn measure_apart(command: &mut Command, n_workers: u32, args: &IndexArgs) -> anyhow::Result<Vec<Row>> {
    command.args(["--workers", &n_workers.to_string()]);
    command.args(["--blocks-per-worker", &args.blocks_per_worker.to_string()]);
    command.args(["--lookups", &args.lookups.to_string(), "--seed", &args.seed.to_string()]);
    let name = command.get_program().display().to_string();
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("running {name}"))?;
    anyhow::ensure!(output.status.success(), "{name} ended with {}", output.status);
    let told: Told = serde_json::from_slice(&output.stdout).with_context(|| format!("reading the rows of {name}"))?;
    Ok(told.rows)
}

fn tables(report: &IndexReport) -> String {
    let leads = (!report.leads.is_empty()).then(|| format!("\n\n{}", lead_table(&report.leads)));
    let resync = report.resync.as_ref().map(|resync| format!("\n\n{}", resync_table(resync)));
    format!("{}{}{}", row_table(&report.rows), leads.unwrap_or_default(), resync.unwrap_or_default())
}

fn row_table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "workers",
        "blocks",
        "claims",
        "index",
        "look-up p50 ns",
        "p99 ns",
        "stored/s",
        "removed/s",
        "replaced/s",
        "B/block",
        "checked",
    ]);
    let millions = |rate: f64| format!("{:.2}M", rate / 1e6);
    for row in rows {
        table.add([
            row.n_workers.to_string(),
            row.n_blocks.to_string(),
            row.n_claims.to_string(),
            row.index.clone(),
            row.lookup_ns_p50.to_string(),
            row.lookup_ns_p99.to_string(),
            millions(row.stored_blocks_per_s),
            millions(row.removed_blocks_per_s),
            millions(row.replaced_blocks_per_s),
            format!("{:.1}", row.bytes_per_block),
            row.n_checked.to_string(),
        ]);
    }
    table
}

/// Returns a table with one line per fleet size.
fn lead_table(leads: &[Lead]) -> Table {
    let lines: Vec<&[Lead]> = leads.chunk_by(|one, next| one.n_workers == next.n_workers).collect();
    let figures = lines.first().into_iter().copied().flatten().map(|lead| lead.figure);
    let header: Vec<&str> = std::iter::once("workers").chain(figures).collect();
    let mut table = Table::new(&header);
    for line in lines {
        let cells = line.iter().map(|lead| format!("{:.2} ({:.2}-{:.2})", lead.median, lead.lowest, lead.highest));
        table.add(line.first().map(|lead| lead.n_workers.to_string()).into_iter().chain(cells));
    }
    table
}

fn resync_table(resync: &ResyncReport) -> Table {
    let mut table = Table::new(&[
        "blocks of the view",
        "same view ms",
        "other view ms",
        "look-up p99 ns, quiet",
        "p99 ns, meanwhile",
        "longest ns",
        "look-ups",
    ]);
    table.add([
        resync.n_blocks.to_string(),
        format!("{:.1}", resync.same_ms),
        format!("{:.1}", resync.other_ms),
        resync.quiet_ns_p99.to_string(),
        resync.busy_ns_p99.to_string(),
        resync.busy_ns_max.to_string(),
        resync.n_busy.to_string(),
    ]);
    table
}

#[cfg(test)]
mod tests {
    use super::measure::Subject;
    use super::workload::Fleet;
    use super::*;

    fn args() -> IndexArgs {
        IndexArgs {
            workers: vec![3],
            blocks_per_worker: 400,
            lookups: 300,
            resync_blocks: 0,
            seed: 7,
            against: Vec::new(),
            rounds: 1,
            output: OutputArgs::default(),
            figures: FiguresArgs::default(),
        }
    }

    #[test]
    fn answers_agree_with_brute_force_and_everything_is_removed() {
        let row = measure(3, &args()).unwrap();
        assert_eq!(row.n_checked, 300);
        assert!(row.n_claims >= 3 * 400 && row.n_blocks <= row.n_claims);
        assert!(row.bytes_per_block > 8.0, "{row:?}");
        // No chain of dozens of blocks is looked up in less time than a few memory accesses.
        assert!(row.lookup_ns_p50 >= 20 && row.lookup_ns_p99 > row.lookup_ns_p50, "{row:?}");
        assert!(row_table(std::slice::from_ref(&row)).to_string().contains("look-up p50"));
        let mut figures = Figures::default();
        collect(&row, &mut figures);
        assert_eq!((figures.figures.len(), figures.figures[0].median), (6, row.lookup_ns_p50 as f64));
        assert_eq!((figures.figures[0].row.case.as_str(), figures.figures[0].row.size), ("3 workers", Some(3.0)));
    }

    #[test]
    fn a_wrong_answer_is_told() {
        let fleet = Fleet::random(2, 100, 1);
        let empty = Ours::new(1);
        let asked = &fleet.chains[0];
        assert!(Ours::read(empty.look_up(empty.ask(asked))).is_empty());
        assert!(!fleet.expected(asked).is_empty());
        // An index that ignores all changes.
        struct Deaf(Ours);
        impl Subject for Deaf {
            type Change = ours::Change;
            type Ask = <Ours as Subject>::Ask;
            type Answer = <Ours as Subject>::Answer;
            fn stored(&self, stretch: workload::Stretch, parent: Option<u64>, keys: &[u64]) -> Self::Change {
                self.0.stored(stretch, parent, keys)
            }
            fn removed(&self, stretch: workload::Stretch, keys: &[u64]) -> Self::Change {
                self.0.removed(stretch, keys)
            }
            fn apply(&mut self, _change: Self::Change) {}
            fn replace(&mut self, _worker: u32, _view: Vec<Self::Change>) {}
            fn routed(&self, _keys: &[u64]) {}
            fn ask(&self, keys: &[u64]) -> Self::Ask {
                self.0.ask(keys)
            }
            fn look_up(&self, ask: Self::Ask) -> Self::Answer {
                self.0.look_up(ask)
            }
            fn read(answer: Self::Answer) -> Vec<(u32, u32)> {
                Ours::read(answer)
            }
            fn bytes(&self) -> usize {
                self.0.bytes()
            }
        }
        let size = Size { n_workers: 2, blocks_per_worker: 100, n_lookups: 100, seed: 1 };
        let told = measure::measure("deaf", size, || Deaf(Ours::new(1))).unwrap_err();
        assert!(told.to_string().contains("brute force says"), "{told}");
    }

    #[test]
    fn a_resync_is_timed_while_prompts_are_looked_up() {
        let report = resync::measure(20_000, 1);
        assert!(report.same_ms > 0.0 && report.other_ms > 0.0);
        assert!(report.quiet_ns_p99 >= 20 && report.busy_ns_max >= report.busy_ns_p99, "{report:?}");
        assert!(resync_table(&report).to_string().contains("20000"));
    }

    #[test]
    fn a_program_that_fails_is_told() {
        let told = measure_apart(&mut Command::new("/does/not/exist"), 3, &args()).unwrap_err();
        assert!(format!("{told:#}").contains("/does/not/exist"));
    }
}
