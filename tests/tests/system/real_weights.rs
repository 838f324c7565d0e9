//! The closed loop on real weights: the reuse that the router predicts is what workers reuse, with
//! SmolLM2-135M-Instruct and with Gemma 3 270M, which has a sliding window.
//!
//! Not here: the same with a model made by code, which answers many more requests in the time (`predictions`), the
//! answers themselves (the worker's `real_weights`). `make models` fetches the models.

use anyhow::Context as _;
use futures::future::try_join_all;
use serde_json::json;
use warmpath_bench::model::real::{gemma3, smollm2};
use warmpath_bench::prompts::words;
use warmpath_tests::rig::{BLOCK_SIZE_TOKENS, Rig};

const N_WORKERS: usize = 2;
const N_TENANTS: u64 = 2;
const N_SESSIONS: u64 = 9;
const N_AT_ONCE: usize = 3;
const N_TURNS: u64 = 5;

/// Lengths of the texts of one model's sessions.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    system_words: usize,
    question_words: usize,
    answer_tokens: u64,
}

/// A conversation, as the text of a completion.
struct Session {
    id: u64,
    text: String,
}

impl Session {
    fn new(id: u64, seed: u64, lengths: Lengths) -> Self {
        let tenant = seed * 100 + id % N_TENANTS;
        Self { id, text: words(tenant, lengths.system_words) }
    }

    /// Asks the next question; returns predicted and reused blocks if they differ. Units: blocks.
    async fn ask(&mut self, rig: &Rig, turn: u64, lengths: Lengths) -> anyhow::Result<Option<(u64, u64)>> {
        let question = words(10_000 + self.id * 100 + turn, lengths.question_words + (self.id + turn) as usize % 9);
        self.text.push_str(&format!("\nQuestion: {question}\nAnswer:"));
        let max_tokens = 1 + (self.id * 3 + turn * 5) % lengths.answer_tokens;
        let body = json!({"prompt": self.text, "temperature": 0, "max_tokens": max_tokens});
        let reply = rig.post(&format!("{}/v1/completions", rig.router_url()), &body).await?;
        anyhow::ensure!(reply.status == 200, "{}", reply.text);
        let blocks = |name: &str| -> anyhow::Result<u64> {
            Ok(reply.header(name).parse::<u64>().with_context(|| format!("header {name}"))? / BLOCK_SIZE_TOKENS)
        };
        self.text.push_str(reply.json()["choices"][0]["text"].as_str().context("a text")?);
        let (predicted, actual) = (blocks("x-warmpath-predicted-cached-tokens")?, blocks("x-warmpath-cached-tokens")?);
        Ok((predicted != actual).then_some((predicted, actual)))
    }
}

/// Holds sessions one request after the other; returns the wrong predictions.
async fn one_after_the_other(rig: &Rig, lengths: Lengths) -> anyhow::Result<Vec<(u64, u64)>> {
    let mut misses = Vec::new();
    let mut sessions: Vec<_> = (0..N_SESSIONS).map(|id| Session::new(id, 1, lengths)).collect();
    for turn in 0..N_TURNS {
        for session in &mut sessions {
            misses.extend(session.ask(rig, turn, lengths).await?);
        }
    }
    Ok(misses)
}

/// Holds other sessions, several at a time; returns the wrong predictions.
async fn several_at_once(rig: &Rig, lengths: Lengths) -> anyhow::Result<Vec<(u64, u64)>> {
    let mut misses = Vec::new();
    let mut sessions: Vec<_> = (0..N_SESSIONS).map(|id| Session::new(id, 2, lengths)).collect();
    for turn in 0..N_TURNS {
        for at_once in sessions.chunks_mut(N_AT_ONCE) {
            let asked = try_join_all(at_once.iter_mut().map(|session| session.ask(rig, turn, lengths)));
            misses.extend(asked.await?.into_iter().flatten());
        }
    }
    Ok(misses)
}

async fn check(rig: &Rig, misses: &[(u64, u64)]) -> anyhow::Result<()> {
    assert!(misses.is_empty(), "predicted and reused blocks: {misses:?}");
    assert!(rig.router_metric("warmpath_router_cached_tokens_total").await? > 0.0, "something was reused");
    Ok(())
}

#[tokio::test]
async fn predictions_are_right_with_real_weights() -> anyhow::Result<()> {
    let rig = Rig::start_file(smollm2()?, N_WORKERS, &[], &[]).await?;
    let lengths = Lengths { system_words: 150, question_words: 15, answer_tokens: 12 };
    let mut misses = one_after_the_other(&rig, lengths).await?;
    misses.extend(several_at_once(&rig, lengths).await?);
    check(&rig, &misses).await
}

#[tokio::test]
async fn predictions_are_right_with_real_weights_and_a_sliding_window() -> anyhow::Result<()> {
    let rig = Rig::start_file(gemma3()?, N_WORKERS, &[], &[]).await?;
    let lengths = Lengths { system_words: 480, question_words: 10, answer_tokens: 6 };
    let misses = one_after_the_other(&rig, lengths).await?;
    check(&rig, &misses).await
}
