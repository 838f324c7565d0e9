//! `warmpath-bench speculation`: the speed of answers with and without drafts, compared with llama-server's.
//!
//! All servers run at the same time and are asked in turn, task by task and round by round, so that a noisy machine
//! affects all of them; one of them computes at a time. What is asked is in `tasks` and in `agents`.

mod mix;
mod rates;
mod sessions;
mod tasks;

use clap::{Args, ValueEnum};

use crate::model::real::ModelChoice;
use crate::one_worker::worker_bench::contender::{self, Programs, Running, ServerArgs, Setup};
use crate::servers::peers;

/// Context of a slot. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 8192;
/// Longest answer. Units: tokens.
const ANSWER_TOKENS: u32 = 192;

/// Flags of `speculation`.
#[derive(Debug, Args)]
pub struct SpeculationArgs {
    #[command(flatten)]
    servers: ServerArgs,
    /// Draft model: a further worker drafts with it, and so does llama-server with the type draft-simple.
    #[arg(long, value_name = "FILE|NAME")]
    model_draft: Option<ModelChoice>,
    /// llama-server's types of drafts, each a server of its own.
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "ngram-simple,ngram-mod")]
    against_types: Vec<String>,
    /// Scenario to measure; may be repeated. The default is mix.
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<Scenario>,
    /// Numbers of requests at a time, and of slots.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    streams: Vec<u16>,
    /// Rounds of each task; each has texts of its own, and the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Scenario to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Twelve tasks, from answers that repeat their prompt to free ones.
    Mix,
    /// Sessions of coding agents, each held twice.
    Sessions,
}

/// A server that takes part.
struct Contender {
    name: String,
    server: Running,
}

/// Runs the scenarios and prints the tables.
///
/// Errors: a server that does not start or answer.
pub async fn run(args: &SpeculationArgs) -> anyhow::Result<()> {
    let mut programs = args.servers.programs()?;
    let n_rounds = args.rounds.max(1);
    for &n_streams in &args.streams {
        let n_streams = n_streams.max(1);
        let contenders = start(args, &mut programs, n_streams).await?;
        for scenario in args.scenarios() {
            match scenario {
                Scenario::Mix => mix::run(&contenders, n_rounds, n_streams).await?,
                Scenario::Sessions => sessions::run(&contenders, n_rounds).await?,
            }
        }
        for contender in contenders {
            contender.server.stop().await?;
        }
    }
    Ok(())
}

impl SpeculationArgs {
    fn scenarios(&self) -> &[Scenario] {
        if self.scenarios.is_empty() { &[Scenario::Mix] } else { &self.scenarios }
    }
}

/// Returns the names of servers, as tables have them.
fn names(contenders: &[Contender]) -> Vec<&str> {
    contenders.iter().map(|contender| contender.name.as_str()).collect()
}

/// Starts the servers; the first worker's self-test chooses the setting of llama-server.
async fn start(args: &SpeculationArgs, programs: &mut Programs, n_streams: u16) -> anyhow::Result<Vec<Contender>> {
    let draft = args.model_draft.as_ref().map(ModelChoice::file).transpose()?;
    let draft = draft.map_or(Vec::new(), |file| vec!["--model-draft".to_owned(), file.display().to_string()]);
    let flags = |spec_type: &str, draft: &[String]| [&["--spec-type".to_owned(), spec_type.to_owned()], draft].concat();
    let setup = Setup { n_slots: n_streams, slot_context_tokens: SLOT_CONTEXT_TOKENS, ..Setup::default() };
    let mut kinds = vec![("none", "none", &[][..]), ("auto", "auto", &[])];
    if !draft.is_empty() {
        kinds.push(("draft model", "auto", &draft));
    }
    let mut contenders = Vec::new();
    for (name, spec_type, draft) in kinds {
        let setup = Setup { worker_flags: flags(spec_type, draft), ..setup.clone() };
        let server = programs.start(contender::Contender::Worker, &setup).await?;
        contenders.push(Contender { name: format!("worker, {name}"), server });
    }
    programs.peer_chosen = peers::llama_server_chosen(&contenders[0].server.log())?.to_vec();
    for spec_type in args.against_types.iter().filter(|_| programs.peer.is_some()) {
        let draft = if spec_type.contains("draft-simple") { &draft[..] } else { &[] };
        let setup = Setup { peer_flags: flags(spec_type, draft), ..setup.clone() };
        let server = programs.start(contender::Contender::PeerChosen, &setup).await?;
        contenders.push(Contender { name: format!("llama-server, {spec_type}"), server });
    }
    Ok(contenders)
}
