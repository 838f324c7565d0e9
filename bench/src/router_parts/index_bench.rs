//! `warmpath-bench index`: speed and size of the router's prefix index beside other indexes, with checked results.
//!
//! Not here: routing. Each index gets the same fleet (`measure`, `workload`), and they take turns, round by round.
//! Other indexes are measured by programs of their own (`bench/peers`), so that their dependencies stay out of this
//! build; their rows are shown beside ours.

pub mod measure;
pub mod ours;
pub mod workload;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use self::measure::{Row, Size};
use self::ours::Ours;
use crate::output::figures::{self, Figures, FiguresArgs, Measure, Unit};
use crate::output::table::OutputArgs;

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

/// Output of a program that measures indexes, and of this one with `--json`.
#[derive(Serialize, Deserialize)]
struct Report {
    /// Each index with each fleet size, once a round.
    rows: Vec<Row>,
}

/// Runs `warmpath-bench index` and prints the report.
///
/// Errors: a result differs from brute force; another program fails.
pub fn run(args: &IndexArgs) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for &n_workers in &args.workers {
        if args.rounds == 1 && args.against.is_empty() {
            rows.push(measure(n_workers, args)?);
        } else {
            rows.extend(measure_rounds(n_workers, args)?);
        }
    }
    let mut figures = Figures::default();
    rows.iter().for_each(|row| collect(row, &mut figures));
    args.figures.write(&figures)?;
    args.output.print(&Report { rows }, &figures.table("fleet", "index"))
}

/// Adds one round's figures of an index with one fleet size.
fn collect(row: &Row, figures: &mut Figures) {
    let of = figures::Row::of_size("worker", row.n_workers as usize, row.index.as_str());
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

/// Measures all indexes with one fleet size, round by round, ours first.
///
/// Each program is started anew in each round, ours too, so that none runs in memory warmed by an earlier round.
fn measure_rounds(n_workers: u32, args: &IndexArgs) -> anyhow::Result<Vec<Row>> {
    let ours = std::env::current_exe().context("finding this program")?;
    let mut rows = Vec::new();
    for _ in 0..args.rounds {
        rows.extend(measure_apart(Command::new(&ours).args(["index", "--json"]), n_workers, args)?);
        for program in &args.against {
            rows.extend(measure_apart(&mut Command::new(program), n_workers, args)?);
        }
    }
    Ok(rows)
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
    let report: Report =
        serde_json::from_slice(&output.stdout).with_context(|| format!("reading the rows of {name}"))?;
    Ok(report.rows)
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
        let mut figures = Figures::default();
        collect(&row, &mut figures);
        assert_eq!((figures.figures.len(), figures.figures[0].median), (6, row.lookup_ns_p50 as f64));
        assert_eq!(figures.figures[0].row.case, "3 workers");
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
    fn a_program_that_fails_is_told() {
        let told = measure_apart(&mut Command::new("/does/not/exist"), 3, &args()).unwrap_err();
        assert!(format!("{told:#}").contains("/does/not/exist"));
    }
}
