//! Installation of a report's peers. A peer that cannot be installed is left out, and the report gives the reason.
//!
//! Not here: starting peers (`peers` of this crate), commands without a missing peer (`plan`).

use std::collections::BTreeSet;
use std::path::Path;

use indicatif::ProgressBar;

use super::part::Part;
use super::plan::{Available, OVERHEAD_MODEL};
use super::results::Skipped;
use super::runner::{self, Interrupts, Run};
use crate::model::{Preset, write_model};
use crate::peers::{Gateway, Program, ROOT};

/// Vocabulary of the model of `overhead`, which `make fixtures` fetches.
const OVERHEAD_VOCABULARY: &str = "target/fixtures/vocab/qwen2.gguf";

/// Fetches and builds the peers of these parts; returns the installed ones and the ones left out.
///
/// Errors: an interrupt; the log cannot be written.
pub async fn install(
    parts: &[Part],
    bar: &ProgressBar,
    interrupts: &mut Interrupts,
) -> anyhow::Result<(Available, Vec<Skipped>)> {
    let (mut available, mut skipped) = (Available::default(), Vec::new());
    for program in needed(parts) {
        bar.set_message(format!("installing {}", program.name()));
        match attempt(program.script().into(), interrupts).await? {
            Run::Succeeded => add(program, &mut available),
            Run::Failed(reason) => {
                bar.suspend(|| eprintln!("without {}: {reason}", program.name()));
                skipped.push(Skipped { what: program.name().to_owned(), reason });
            }
        }
    }
    available.has_overhead_model = parts.contains(&Part::Overhead) && make_overhead_model().is_ok();
    Ok((available, skipped))
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

fn add(program: Program, available: &mut Available) {
    match program {
        Program::Nginx | Program::Smg => {
            available.gateways.extend(Gateway::ALL.into_iter().filter(|gateway| gateway.program() == program));
        }
        Program::Wrk => available.has_wrk = true,
        Program::LlamaServer => available.has_llama_server = true,
        Program::Indexes => available.has_indexes = true,
    }
}

/// Runs a script with its output in a log.
async fn attempt(script: tokio::process::Command, interrupts: &mut Interrupts) -> anyhow::Result<Run> {
    let folder = tempfile::tempdir()?;
    runner::run(script, &folder.path().join("log"), interrupts.next()).await
}

/// Writes the model of `overhead`, made from its vocabulary.
fn make_overhead_model() -> anyhow::Result<()> {
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

    #[test]
    fn a_program_brings_its_gateways() {
        let mut available = Available::default();
        for program in needed(Part::value_variants()) {
            add(program, &mut available);
        }
        assert_eq!(available.gateways, Gateway::ALL);
        assert!(available.has_wrk && available.has_llama_server && available.has_indexes);
        let mut smg = Available::default();
        add(Program::Smg, &mut smg);
        assert_eq!(smg, Available { gateways: vec![Gateway::Smg], ..Available::default() });
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
