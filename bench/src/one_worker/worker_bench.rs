//! `warmpath-bench worker`: the worker's prompt-state cache, compared with llama-server on the same model and with its
//! goals.
//!
//! The servers are in `contender`, the requests in `traffic`, `shapes`, `throughput`, `long_prompt` and `state`,
//! figures and goals in `measured` and `goals`, tables in `outcome`. Only ratios within one run count. In
//! every scenario the servers take turns, pass by pass, so that a noisy machine affects all of them.

pub mod constrained;
pub mod contender;
pub mod goals;
pub mod long_prompt;
pub mod measured;
pub mod outcome;
pub mod scenario;
pub mod settings;
pub mod shapes;
pub mod state;
pub mod throughput;
pub mod traffic;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Args, ValueEnum as _};

use self::contender::{Contender, Programs, ServerArgs, Setup};
use self::measured::Measured;
use self::outcome::{Assessment, Outcome};
use self::scenario::Scenario;
use self::shapes::Texts;
use self::traffic::{Pass, Traffic};
use crate::client::Message;
use crate::inputs::prompts::words;
use crate::output::figures::{Figures, FiguresArgs};
use crate::servers::peers;

/// Flags of `worker`.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    #[command(flatten)]
    servers: ServerArgs,
    /// Scenario to run; may be repeated. The default is all scenarios.
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<Scenario>,
    /// Passes of every reuse scenario, each on a fresh server with other texts; throughput has rounds of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: u64,
    /// Seed of all texts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    figures: FiguresArgs,
}

/// Context of a slot, large enough for the longest scenario's prompts and responses. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 8192;

/// Runs the scenarios and prints their tables.
///
/// A missed goal is reported and is not an error, since this is a measurement. Errors: a server that does not start or
/// respond; the other scenarios are run and shown nevertheless.
pub async fn run(args: &WorkerArgs) -> anyhow::Result<()> {
    let mut programs = args.servers.programs()?;
    let (tokens_per_word, log) = tokens_per_word(&programs).await.context("counting the tokens of a word")?;
    programs.peer_chosen = peers::llama_server_chosen(&log)?.to_vec();
    eprintln!("{} gets {}", Contender::PeerChosen.name(), programs.peer_chosen.join(" "));
    let bench = Bench { programs, tokens_per_word, seed: args.seed, repeat: args.repeat.max(1) };
    let scenarios =
        if args.scenarios.is_empty() { Scenario::value_variants().to_vec() } else { args.scenarios.clone() };
    let mut outcome = Outcome::default();
    for scenario in scenarios {
        bench.run(scenario, &mut outcome).await;
    }
    eprintln!("{}", outcome.summary());
    args.figures.write(&outcome.figures)?;
    let failures = &outcome.failures;
    anyhow::ensure!(failures.is_empty(), "not everything could be measured: {}", failures.join("; "));
    Ok(())
}

/// Returns the number of tokens per word of our texts in the model's vocabulary, and the log of the worker that counted
/// them.
async fn tokens_per_word(programs: &Programs) -> anyhow::Result<(f64, String)> {
    let setup = Setup { n_slots: traffic::N_SLOTS, slot_context_tokens: SLOT_CONTEXT_TOKENS, ..Setup::default() };
    let server = programs.start(Contender::Worker, &setup).await?;
    eprintln!("{} has settled on {}", Contender::Worker.name(), server.settled().unwrap_or_default());
    let (few, many) = (10, 510);
    let mut prompt_tokens = Vec::new();
    for n_words in [few, many] {
        let answer = server.client.ask_exactly(&[Message::new("user", words(0, n_words))], 1).await?;
        prompt_tokens.push(answer.prompt_tokens as f64);
    }
    let log = server.log();
    server.stop().await?;
    Ok(((prompt_tokens[1] - prompt_tokens[0]) / (many - few) as f64, log))
}

/// State that every scenario needs.
#[derive(Debug)]
struct Bench {
    programs: Programs,
    tokens_per_word: f64,
    seed: u64,
    repeat: u64,
}

impl Bench {
    /// Runs a scenario, shows its table and adds it to the outcome.
    async fn run(&self, scenario: Scenario, outcome: &mut Outcome) {
        let start = Instant::now();
        eprintln!("{} ...", scenario.name());
        let (programs, texts, mut assessments) = (&self.programs, self.texts(0), Vec::new());
        match scenario {
            Scenario::Throughput => {
                for load in throughput::LOADS {
                    assessments.push(throughput::measure(programs, texts, load).await);
                }
            }
            Scenario::Constrained => {
                for n in constrained::SEQUENCES {
                    assessments.push(constrained::measure(programs, texts, n).await);
                }
            }
            Scenario::Settings => assessments.push(settings::measure(programs, texts).await),
            Scenario::LongPrompt | Scenario::Restart | Scenario::SharedRam50 => {
                for contender in self.contenders(scenario) {
                    let assessment = match scenario {
                        Scenario::LongPrompt => long_prompt::measure(programs, contender, texts).await,
                        Scenario::Restart => state::restart(programs, contender, texts).await,
                        _ => state::footprint(programs, contender, texts).await,
                    };
                    assessments.push(assessment.context(contender.name()));
                }
            }
            _ => assessments = self.reuse(scenario).await,
        }
        let named = |assessment: anyhow::Result<Assessment>| assessment.with_context(|| scenario.name());
        outcome.add(scenario, assessments.into_iter().map(named).collect());
        eprintln!("  {:.0} s", start.elapsed().as_secs_f64());
    }

    /// Returns the texts of a pass.
    fn texts(&self, pass_idx: u64) -> Texts {
        Texts { seed: self.seed * 1000 + pass_idx, tokens_per_word: self.tokens_per_word }
    }

    /// Returns the servers that take part in a scenario.
    fn contenders(&self, scenario: Scenario) -> Vec<Contender> {
        let mut contenders = scenario.contenders();
        contenders.retain(|contender| !contender.is_peer() || self.programs.peer.is_some());
        contenders
    }

    async fn reuse(&self, scenario: Scenario) -> Vec<anyhow::Result<Assessment>> {
        let mut passes: BTreeMap<Contender, Vec<Pass>> = BTreeMap::new();
        let mut assessments = Vec::new();
        for pass_idx in 0..self.repeat {
            for contender in self.contenders(scenario) {
                match self.pass(scenario, contender, pass_idx).await {
                    Ok(pass) => passes.entry(contender).or_default().push(pass),
                    Err(error) => assessments.push(Err(error.context(contender.name()))),
                }
            }
        }
        let mut figures = Figures::default();
        for (contender, passes) in &passes {
            for pass in passes {
                let of_pass = Measured::of(std::slice::from_ref(pass));
                figures.add_samples(&outcome::row(scenario, *contender), of_pass.samples());
            }
        }
        let by_contender = passes.iter().map(|(&contender, passes)| (contender, Measured::of(passes))).collect();
        if !measured::same_prompts(&by_contender) {
            eprintln!("  the servers' answers differ, and so do the prompts that contain them");
        }
        let verdicts = goals::judge(scenario, &by_contender);
        assessments.push(Ok(Assessment { figures, verdicts }));
        assessments
    }

    async fn pass(&self, scenario: Scenario, contender: Contender, pass_idx: u64) -> anyhow::Result<Pass> {
        let cache_ram_mib = (scenario == Scenario::HotAfterFloodTight).then(|| self.third_of_the_flood_mib());
        let setup = Setup {
            n_slots: traffic::N_SLOTS,
            slot_context_tokens: SLOT_CONTEXT_TOKENS,
            cache_ram_mib: cache_ram_mib.transpose()?,
            ..Setup::default()
        };
        let server = self.programs.start(contender, &setup).await?;
        let traffic = Traffic { client: &server.client, texts: self.texts(pass_idx) };
        let pass = traffic.run(scenario).await?;
        server.stop().await?;
        Ok(pass)
    }

    /// Returns the RAM limit that holds a third of the flood's KV state. Units: MiB.
    fn third_of_the_flood_mib(&self) -> anyhow::Result<u64> {
        let flood_tokens = u64::from(traffic::FLOOD_PROMPTS * traffic::FLOOD_PROMPT_TOKENS);
        Ok((flood_tokens * state::kv_token_bytes(&self.programs.model)? / 3).div_ceil(1 << 20))
    }
}
