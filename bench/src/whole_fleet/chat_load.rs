//! A load of conversations: many users of several tenants chat with a fleet at once.
//!
//! A single request is measured in `client` and summed up in `summary`; `fleets` compares fleets under this load.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use indicatif::{ProgressBar, ProgressStyle};

use crate::client::{Answer, ChatClient, Message};
use crate::inputs::corpora::{Corpus, TextKind};
use crate::output::figures::{Answered, Figures, Measure, Row, Unit};
use crate::summary::Summary;

/// Shape of the conversations.
#[derive(Debug, Clone, Args)]
pub struct Shape {
    /// Tenants, each with a system prompt of its own.
    #[arg(long, default_value_t = 3)]
    pub tenants: usize,
    /// Conversations of each tenant.
    #[arg(long, default_value_t = 6)]
    pub users: usize,
    /// Turns of each conversation.
    #[arg(long, default_value_t = 4)]
    pub turns: usize,
    /// Kind of the system prompts' and users' text. Real text has more tokens than as many made words.
    #[arg(long, value_enum, default_value_t = TextKind::Made)]
    pub text: TextKind,
    /// Words of a system prompt; of real text, seven bytes for each.
    #[arg(long, default_value_t = 600)]
    pub system_words: usize,
    /// Words of a user's message, as above.
    #[arg(long, default_value_t = 30)]
    pub user_words: usize,
    /// Tokens of an answer.
    #[arg(long, default_value_t = 32)]
    pub answer_tokens: u32,
    /// Conversations that run at the same time.
    #[arg(long, default_value_t = 6)]
    pub concurrency: usize,
    /// Seed of all texts; with a new seed, no cache has state from an earlier run.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Responses of a load, and the time that they took.
#[derive(Debug)]
pub struct Answers {
    /// Responses, each with the time from the start of the load to its end.
    answers: Vec<(Duration, Answer)>,
    took: Duration,
}

impl Answers {
    /// Returns hit ratio and latencies.
    pub fn summary(&self) -> Summary {
        Summary::of(self.answers.iter().map(|(_, answer)| answer))
    }

    /// Adds a sample of each figure of a fleet, and its responses for the plot.
    pub fn record(&self, fleet: &str, figures: &mut Figures) {
        let (row, summary) = (Row::new("", fleet), self.summary());
        let requests_per_s = self.answers.len() as f64 / self.took.as_secs_f64();
        let samples = [
            Measure::higher("requests/s", Unit::RequestsPerS).sample(requests_per_s),
            Measure::higher("prefix hit ratio", Unit::Share).sample(summary.prefix_hit_ratio),
            Measure::lower("TTFT p50", Unit::Ms).sample(summary.ttft_ms_p50),
            Measure::lower("TTFT p95", Unit::Ms).sample(summary.ttft_ms_p95),
            Measure::lower("TTFT p99", Unit::Ms).sample(summary.ttft_ms_p99),
            Measure::lower("TPOT p50", Unit::Ms).sample(summary.tpot_ms_p50),
        ];
        figures.add_samples(&row, samples);
        figures.answers.extend(self.answers.iter().map(|(at, answer)| Answered {
            fleet: fleet.to_owned(),
            at_s: at.as_secs_f64(),
            prompt_tokens: answer.prompt_tokens,
            cached_tokens: answer.cached_tokens,
        }));
    }
}

/// Runs every conversation, `concurrency` at a time, each turn through the next of `clients`.
///
/// Errors: the first request that fails; running conversations are aborted.
pub async fn drive(clients: &[ChatClient], shape: &Shape) -> anyhow::Result<Answers> {
    let start = Instant::now();
    let n_conversations = shape.tenants * shape.users;
    let corpus = shape.text.corpus()?;
    let bar = ProgressBar::new((n_conversations * shape.turns) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} requests, {elapsed}")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let answers = stream::iter(0..n_conversations)
        .map(|idx| {
            let (user, tenant) = (idx / shape.tenants, idx % shape.tenants);
            let (mut answers, bar) = (Vec::with_capacity(shape.turns), &bar);
            let corpus = &corpus;
            async move {
                let add = |answer| {
                    answers.push((start.elapsed(), answer));
                    bar.inc(1);
                };
                converse(shape, corpus, clients, tenant, user, add).await?;
                anyhow::Ok(answers)
            }
        })
        .buffer_unordered(shape.concurrency.max(1))
        .try_collect::<Vec<_>>()
        .await?;
    bar.finish_and_clear();
    Ok(Answers { answers: answers.concat(), took: start.elapsed() })
}

/// Holds the conversation of a user of a tenant, each turn through the next of `clients`; `add` gets each response.
///
/// Errors: the first request that fails.
pub(crate) async fn converse(
    shape: &Shape,
    corpus: &Corpus,
    clients: &[ChatClient],
    tenant: usize,
    user: usize,
    mut add: impl FnMut(Answer),
) -> anyhow::Result<()> {
    let seed = shape.seed * 1_000_000_000 + tenant as u64 * 10_000_000;
    let mut messages = vec![Message::new("system", corpus.words(seed, shape.system_words))];
    for turn in 0..shape.turns {
        let seed = seed + 1 + (user * shape.turns + turn) as u64;
        messages.push(Message::new("user", corpus.words(seed, shape.user_words)));
        let answer = clients[(user + tenant + turn) % clients.len()]
            .ask(&messages, shape.answer_tokens)
            .await
            .with_context(|| format!("tenant {tenant}, user {user}, turn {turn}"))?;
        messages.push(Message::new("assistant", answer.text.clone()));
        add(answer);
    }
    Ok(())
}
