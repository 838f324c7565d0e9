//! Installation of a report's peers. A peer that cannot be installed is left out, and the report gives the reason.
//!
//! Not here: starting peers (`peers` of this crate), commands without a missing peer (`plan`).

use std::collections::BTreeSet;
use std::path::Path;

use indicatif::ProgressBar;

use super::part::Part;
use super::plan::OVERHEAD_MODEL;
use super::results::Skipped;
use super::runner::{self, Interrupts, Run};
use crate::model::{Preset, write_model};
use crate::servers::peers::{Program, ROOT};

/// Vocabulary of the model of `overhead`, which `make fixtures` fetches.
const OVERHEAD_VOCABULARY: &str = "target/fixtures/vocab/qwen2.gguf";

/// Fetches and builds the peers of these parts; returns the installed ones and the ones left out.
///
/// Errors: an interrupt; the log cannot be written.
pub async fn install(
    parts: &[Part],
    bar: &ProgressBar,
    interrupts: &mut Interrupts,
) -> anyhow::Result<(BTreeSet<Program>, Vec<Skipped>)> {
    let (mut installed, mut skipped) = (BTreeSet::new(), Vec::new());
    for program in needed(parts) {
        bar.set_message(format!("installing {}", program.name()));
        match attempt(program.script().into(), interrupts).await? {
            Run::Succeeded => {
                installed.insert(program);
            }
            Run::Failed(reason) => {
                bar.suspend(|| eprintln!("without {}: {reason}", program.name()));
                skipped.push(Skipped { what: program.name().to_owned(), reason });
            }
        }
    }
    Ok((installed, skipped))
}

/// Returns the programs that these parts compare with or use.
fn needed(parts: &[Part]) -> BTreeSet<Program> {
    let of = |part: &Part| -> &[Program] {
        match part {
            Part::Fleets => &[Program::Nginx, Program::Smg, Program::LlamaServer],
            Part::Worker | Part::Throughput => &[Program::LlamaServer],
            Part::Overhead => &[Program::Nginx, Program::Smg, Program::Wrk],
            Part::Index => &[Program::Indexes],
            Part::Policies | Part::Routers | Part::Chaos => &[],
        }
    };
    parts.iter().flat_map(of).copied().collect()
}

/// Runs a script with its output in a log.
async fn attempt(script: tokio::process::Command, interrupts: &mut Interrupts) -> anyhow::Result<Run> {
    let folder = tempfile::tempdir()?;
    runner::run(script, &folder.path().join("log"), interrupts.next()).await
}

/// Writes the model of `overhead`, made from its vocabulary.
///
/// Errors: the vocabulary is missing, or the file cannot be written.
pub fn make_overhead_model() -> anyhow::Result<()> {
    let root = Path::new(ROOT);
    write_model(Preset::Tiny, 1, Some(&root.join(OVERHEAD_VOCABULARY)), &root.join(OVERHEAD_MODEL))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn parts_need_their_peers_and_nothing_else() {
        assert!(needed(&[Part::Policies, Part::Routers, Part::Chaos]).is_empty());
        assert_eq!(needed(&[Part::Worker, Part::Throughput]), [Program::LlamaServer].into());
        assert_eq!(needed(Part::value_variants()).len(), 5);
    }

    #[tokio::test]
    async fn a_peer_that_cannot_be_installed_has_the_reason_of_its_script() {
        let mut script = tokio::process::Command::new("sh");
        script.args(["-c", "echo fetching; echo 'No matching distribution found for smg' >&2; exit 1"]);
        let mut interrupts = Interrupts::listen().expect("signals can be caught");
        let run = attempt(script, &mut interrupts).await.expect("it ends");
        assert_eq!(run, Run::Failed("No matching distribution found for smg".to_owned()));
    }
}
