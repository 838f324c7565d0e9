//! `warmpath-bench agents`: the reuse of coding agents' prompts, step by step, compared with llama-server on the same
//! model.
//!
//! Requests have the sizes of recorded ones and change in the same places, with texts of our own. The common prefix of
//! each prompt with earlier ones is counted in the model's tokens, so that a server's reuse can be compared with the
//! possible reuse. Not here: the requests that agents send (`shape`), how a conversation becomes requests (`session`),
//! one request and its answer (`asked`).

mod asked;
mod prefix;
mod session;
mod shape;

use std::collections::BTreeMap;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde_json::Value;
use warmpath_prompt::PromptOptions;

use self::asked::{DialectClient, MeasuredAnswer};
use self::prefix::Prefixes;
use self::session::{Request, Session, Step};
use self::shape::Shape;
use crate::one_worker::worker_bench::contender::{Contender, ServerArgs, Setup};
use crate::output::figures::{Figures, FiguresArgs, Measure, Row, Sample, Unit};
use crate::output::names;
use crate::summary::hit_ratio;

/// Command line of `agents`.
#[derive(Debug, Args)]
pub struct AgentsArgs {
    #[command(flatten)]
    servers: ServerArgs,
    /// Agent whose requests are sent; may be repeated. The default is all agents.
    #[arg(long = "shape", value_name = "AGENT")]
    shapes: Vec<Agent>,
    /// Running router or server to ask, instead of a worker that is started.
    #[arg(long, value_name = "URL", conflicts_with = "against")]
    url: Option<String>,
    /// Questions of the user in the first project.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    questions: u32,
    /// Tokens of each answer.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    answer_tokens: u32,
    /// Length of texts as a share of the recorded lengths; use less than 1 for a small model.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    scale: f64,
    /// Start the worker with --tools-first; with --url, expect the server to have that flag.
    #[arg(long)]
    tools_first: bool,
    /// Slots of each server.
    #[arg(long, default_value_t = 2)]
    slots: u16,
    /// Context of a slot, in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 32768)]
    slot_ctx: u32,
    /// Seed of all texts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    figures: FiguresArgs,
}

/// Agent whose requests were recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Agent {
    /// Claude Code 2.1, `/v1/messages`.
    ClaudeCode,
    /// Codex CLI, `/v1/responses`.
    Codex,
    /// opencode, `/v1/chat/completions`.
    Opencode,
    /// qwen-code 0.15, `/v1/chat/completions`.
    QwenCode,
    /// aider, `/v1/chat/completions`.
    Aider,
}

/// The requests of a short session of an agent, for loads of mixed requests.
pub(crate) struct ShortSession {
    session: Session,
    plan: Vec<Request>,
}

impl ShortSession {
    /// Returns a session with two questions, whose texts have this share of the recorded lengths.
    pub(crate) fn new(agent: Agent, scale: f64, seed: u64) -> Self {
        let session = Session { shape: Shape::of(agent).scaled(scale), seed, questions: 2 };
        Self { plan: session.plan(), session }
    }

    /// Returns the number of requests.
    pub(crate) fn n_requests(&self) -> usize {
        self.plan.len()
    }

    /// Returns path and body of the request that follows these answers.
    pub(crate) fn request(&self, answers: &[String], answer_tokens: u32) -> (&'static str, Value) {
        let body = self.session.body(&self.plan[answers.len()], answers, answer_tokens);
        (self.session.shape.dialect.path(), body)
    }

    /// Holds the session with the server at `url`, one request after the other; returns the rate at which the tokens
    /// after the first of each answer came.
    ///
    /// Units: tokens a second. Errors: a request that fails.
    pub(crate) async fn hold(&self, url: &str, answer_tokens: u32) -> anyhow::Result<f64> {
        let api = DialectClient::new(url, self.session.shape.dialect)?;
        let (mut answers, mut n_tokens, mut took_ms) = (Vec::new(), 0, 0.0);
        while answers.len() < self.n_requests() {
            let (_, body) = self.request(&answers, answer_tokens);
            let answer = api.ask(&body).await?;
            n_tokens += answer.completion_tokens.saturating_sub(1);
            took_ms += answer.after_first_ms;
            answers.push(answer.text);
        }
        Ok(if took_ms > 0.0 { n_tokens as f64 * 1e3 / took_ms } else { 0.0 })
    }
}

/// Sums of the requests of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum {
    n_requests: u32,
    prompt_tokens: u64,
    /// Tokens of the longest common prefix with an earlier prompt of the run.
    shared_tokens: u64,
    cached_tokens: u64,
    ttft_ms: f64,
}

/// Sends the requests of each agent to each server and prints the reuse.
///
/// Errors: a server that does not start; a request that fails is shown in the table.
pub async fn run(args: &AgentsArgs) -> anyhow::Result<()> {
    anyhow::ensure!(args.scale > 0.0 && args.scale <= 1.0, "--scale must be above 0 and at most 1");
    let options = PromptOptions { tools_first: args.tools_first, ..PromptOptions::default() };
    let prefixes = Prefixes::open(&args.servers.model.file()?, options)?;
    let agents = if args.shapes.is_empty() { Agent::value_variants() } else { &args.shapes };
    let mut figures = Figures::default();
    for &agent in agents {
        let session =
            Session { shape: Shape::of(agent).scaled(args.scale), seed: args.seed, questions: args.questions };
        for (server, outcome) in compare(args, &session, &prefixes).await? {
            let name = names::name(agent);
            match outcome {
                Ok(sums) => {
                    for (step, sum) in sums {
                        let row = Row::new(format!("{name}: {}", step.name()), server.as_str());
                        figures.add_samples(&row, sum.samples());
                    }
                }
                Err(error) => eprintln!("{name}, {server}: {error:#}"),
            }
        }
    }
    anyhow::ensure!(!figures.figures.is_empty(), "no agent's requests were answered");
    args.figures.show(&figures, "agent asks for", "server")
}

type Outcome = anyhow::Result<BTreeMap<Step, Sum>>;

/// Returns the outcome of a session on each server, by the server's name.
async fn compare(args: &AgentsArgs, session: &Session, prefixes: &Prefixes) -> anyhow::Result<Vec<(String, Outcome)>> {
    if let Some(url) = &args.url {
        return Ok(vec![(url.clone(), hold(args, session, prefixes, url).await)]);
    }
    let programs = args.servers.programs()?;
    let (n_slots, slot_context_tokens) = (args.slots, args.slot_ctx);
    let worker_flags = args.tools_first.then(|| "--tools-first".to_owned()).into_iter().collect();
    let setup = Setup { n_slots, slot_context_tokens, worker_flags, ..Setup::default() };
    let peer = programs.peer.is_some().then_some(Contender::PeerDefaults);
    let mut outcomes = Vec::new();
    for contender in [Contender::Worker].into_iter().chain(peer) {
        let server = programs.start(contender, &setup).await?;
        outcomes.push((contender.name().to_owned(), hold(args, session, prefixes, &server.base_url()).await));
        server.stop().await?;
    }
    Ok(outcomes)
}

/// Holds a session with one server.
async fn hold(args: &AgentsArgs, session: &Session, prefixes: &Prefixes, url: &str) -> Outcome {
    let api = DialectClient::new(url, session.shape.dialect)?;
    let mut sums: BTreeMap<Step, Sum> = BTreeMap::new();
    let mut earlier = prefixes.none_yet();
    let mut answers = Vec::new();
    for request in session.plan() {
        let body = session.body(&request, &answers, args.answer_tokens);
        let shared_tokens = earlier.shared(&body, session.shape.dialect)?;
        let answer = api.ask(&body).await.with_context(|| format!("{:?}", request.step))?;
        sums.entry(request.step).or_default().add(&answer, shared_tokens);
        answers.push(answer.text);
    }
    Ok(sums)
}

impl Sum {
    fn add(&mut self, answer: &MeasuredAnswer, shared_tokens: u64) {
        self.n_requests += 1;
        self.prompt_tokens += answer.prompt_tokens;
        self.shared_tokens += shared_tokens;
        self.cached_tokens += answer.cached_tokens;
        self.ttft_ms += answer.ttft_ms;
    }

    fn samples(&self) -> [Sample; 6] {
        let tokens = |name, n_tokens: u64| Measure::higher(name, Unit::Tokens).sample(n_tokens as f64);
        let share = hit_ratio(self.prompt_tokens, self.cached_tokens);
        let ttft_ms_mean = self.ttft_ms / f64::from(self.n_requests.max(1));
        [
            Measure::higher("requests", Unit::Count).sample(f64::from(self.n_requests)),
            tokens("prompt", self.prompt_tokens),
            tokens("in an earlier prompt", self.shared_tokens),
            tokens("reused", self.cached_tokens),
            Measure::higher("of the prompt", Unit::Share).sample(share),
            Measure::lower("TTFT mean", Unit::Ms).sample(ttft_ms_mean),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_sums_of_its_requests() {
        let mut sum = Sum::default();
        for (prompt_tokens, cached_tokens, ttft_ms) in [(900, 0, 30.0), (1100, 1000, 10.0)] {
            let asked = MeasuredAnswer { prompt_tokens, cached_tokens, ttft_ms, ..MeasuredAnswer::default() };
            sum.add(&asked, cached_tokens);
        }
        let values = sum.samples().map(|sample| sample.value);
        assert_eq!(values, [2.0, 2000.0, 1000.0, 1000.0, 0.5, 20.0]);
    }
}
