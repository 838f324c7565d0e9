//! The closed loop: the reuse that the router predicts is what workers reuse, in whole blocks, on a fleet without
//! failures.
//!
//! What follows from a difference is in `warmpath_router_core::ledger::stale_blocks`; answers are in `conversations`.
//!
//! Sessions of several tenants run one request after the other and then many at once. Every request is compared, and a
//! difference is reported with all that is known about it.

use anyhow::Context as _;
use futures::future::try_join_all;
use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_bench::prompts::words;
use warmpath_tests::rig::{BLOCK_SIZE_TOKENS, Rig, made_model};

const N_WORKERS: usize = 3;
const N_TENANTS: u64 = 3;
const N_TURNS: u64 = 5;
const N_SESSIONS: u64 = 60;
const N_AT_ONCE: u64 = 6;
/// Most requests of a test whose worker may have reused another number of blocks: on a machine that does other work
/// too, it may find that computing a block is cheaper than moving its state (docs/decisions/0018-closed-loop.md).
const MISSES_MAX: usize = 3;

/// A conversation.
struct Session {
    id: u64,
    messages: Vec<Value>,
}

/// A request whose reuse differs from the prediction.
#[derive(Debug)]
#[allow(dead_code, reason = "read by people, in the message of a failure")]
struct Miss {
    session: u64,
    turn: u64,
    worker: String,
    route: String,
    predicted_blocks: u64,
    actual_blocks: u64,
    prompt_tokens: u64,
    /// Tiers from which the reused tokens came.
    tiers: Value,
}

impl Session {
    fn new(id: u64) -> Self {
        let tenant = id % N_TENANTS;
        Self::about(id, words(1000 + tenant, 150))
    }

    /// Returns a session whose first message is `text`.
    fn about(id: u64, text: String) -> Self {
        Self { id, messages: vec![json!({"role": "system", "content": text})] }
    }

    /// Asks the next question; returns the miss, if it was one.
    async fn ask(&mut self, rig: &Rig, turn: u64) -> anyhow::Result<Option<Miss>> {
        let question = words(self.id * 100 + turn, 10 + (self.id * 7 + turn * 13) as usize % 50);
        self.messages.push(json!({"role": "user", "content": question}));
        let max_tokens = 1 + (self.id * 3 + turn * 5) % 24;
        let reply = rig.chat(&json!({"messages": self.messages, "temperature": 0, "max_tokens": max_tokens})).await?;
        anyhow::ensure!(reply.status == 200, "{}", reply.text);
        let body = reply.json();
        self.messages.push(json!({"role": "assistant", "content": body["choices"][0]["message"]["content"]}));
        let blocks = |name: &str| -> anyhow::Result<u64> {
            Ok(reply.header(name).parse::<u64>().with_context(|| format!("header {name}"))? / BLOCK_SIZE_TOKENS)
        };
        let (predicted_blocks, actual_blocks) =
            (blocks("x-warmpath-predicted-cached-tokens")?, blocks("x-warmpath-cached-tokens")?);
        Ok((predicted_blocks != actual_blocks).then(|| Miss {
            session: self.id,
            turn,
            worker: reply.header("x-warmpath-worker").to_owned(),
            route: reply.header("x-warmpath-route").to_owned(),
            predicted_blocks,
            actual_blocks,
            prompt_tokens: body["usage"]["prompt_tokens"].as_u64().unwrap_or_default(),
            tiers: body["timings"]["prefix_cache_tokens"].clone(),
        }))
    }
}

/// Checks the misses against the limits, and the router's own count against them.
async fn check(rig: &Rig, n_requests: u64, misses: &[Miss]) -> anyhow::Result<()> {
    let n_right = n_requests - misses.len() as u64;
    assert!(misses.len() <= MISSES_MAX, "{} of {n_requests}: {misses:#?}", misses.len());
    for miss in misses {
        assert!(miss.actual_blocks + 1 >= miss.predicted_blocks, "more than one block fewer than predicted: {miss:#?}");
    }
    let counted = rig.router_metric("warmpath_router_predictions_total{outcome=\"exact\"}").await?;
    assert_eq!(counted, n_right as f64);
    assert!(rig.router_metric("warmpath_router_cached_tokens_total").await? > 0.0, "something was reused");
    Ok(())
}

async fn one_after_the_other(rig: &Rig) -> anyhow::Result<()> {
    let mut sessions: Vec<_> = (0..N_SESSIONS).map(Session::new).collect();
    let mut misses = Vec::new();
    for turn in 0..N_TURNS {
        for session in &mut sessions {
            misses.extend(session.ask(rig, turn).await?);
        }
    }
    check(rig, N_SESSIONS * N_TURNS, &misses).await
}

async fn many_at_once(rig: &Rig) -> anyhow::Result<()> {
    let lane = |lane| (0..N_SESSIONS / N_AT_ONCE).map(|id| Session::new(id * N_AT_ONCE + lane)).collect();
    let mut sessions: Vec<Vec<Session>> = (0..N_AT_ONCE).map(lane).collect();
    let lanes = sessions.iter_mut().map(|lane| async move {
        let mut misses = Vec::new();
        for turn in 0..N_TURNS {
            for session in &mut *lane {
                misses.extend(session.ask(rig, turn).await?);
            }
        }
        anyhow::Ok(misses)
    });
    let misses: Vec<Miss> = try_join_all(lanes).await?.into_iter().flatten().collect();
    check(rig, N_SESSIONS * N_TURNS, &misses).await
}

/// Starts workers with a model whose state cannot be cut back everywhere.
async fn start_of(preset: Preset) -> anyhow::Result<Rig> {
    Rig::start_file(made_model(preset, 1)?, N_WORKERS, &[], &[]).await
}

#[tokio::test]
async fn predictions_are_right_one_request_after_the_other() -> anyhow::Result<()> {
    one_after_the_other(&Rig::start(N_WORKERS, &[]).await?).await
}

#[tokio::test]
async fn predictions_are_right_with_many_requests_at_once() -> anyhow::Result<()> {
    many_at_once(&Rig::start(N_WORKERS, &[]).await?).await
}

#[tokio::test]
async fn predictions_are_right_with_a_sliding_window() -> anyhow::Result<()> {
    one_after_the_other(&start_of(Preset::TinySwa).await?).await
}

#[tokio::test]
async fn predictions_are_right_with_recurrent_layers_beside_others() -> anyhow::Result<()> {
    one_after_the_other(&start_of(Preset::TinyHybrid).await?).await
}

#[tokio::test]
async fn predictions_are_right_with_recurrent_layers_alone() -> anyhow::Result<()> {
    one_after_the_other(&start_of(Preset::TinyRecurrent).await?).await
}

/// New documents, longer than what is tokenized at once, with several questions that arrive together.
#[tokio::test]
async fn predictions_are_right_for_questions_about_new_documents() -> anyhow::Result<()> {
    const N_DOCUMENTS: u64 = 10;
    let rig = Rig::start(N_WORKERS, &[]).await?;
    let mut misses = Vec::new();
    for document in 0..N_DOCUMENTS {
        let text = words(5000 + document, 750);
        let mut sessions: Vec<_> =
            (0..N_AT_ONCE).map(|idx| Session::about(document * N_AT_ONCE + idx, text.clone())).collect();
        for turn in 0..2 {
            let found = try_join_all(sessions.iter_mut().map(|session| session.ask(&rig, turn))).await?;
            misses.extend(found.into_iter().flatten());
        }
    }
    check(&rig, N_DOCUMENTS * N_AT_ONCE * 2, &misses).await
}

#[tokio::test]
async fn the_tools_of_a_second_project_are_reused_if_they_come_first() -> anyhow::Result<()> {
    let rig = Rig::start_with(N_WORKERS, &["--tools-first"], &[]).await?;
    let tool = |idx: u64| {
        let function = json!({"name": format!("tool_{idx}"), "description": words(3000 + idx, 40), "parameters": {}});
        json!({"type": "function", "function": function})
    };
    let tools: Vec<Value> = (0..6).map(tool).collect();
    for project in 0..4 {
        let system = json!({"role": "system", "content": words(4000 + project, 60)});
        let messages = json!([system, {"role": "user", "content": words(5000 + project, 10)}]);
        let body = json!({"messages": messages, "tools": tools, "temperature": 0, "max_tokens": 8});
        let reply = rig.chat(&body).await?;
        anyhow::ensure!(reply.status == 200, "{}", reply.text);
        rig.settled().await?;
        let tokens = |name: &str| reply.header(name).parse::<u64>().with_context(|| format!("header {name}"));
        let (predicted, cached) = (tokens("x-warmpath-predicted-cached-tokens")?, tokens("x-warmpath-cached-tokens")?);
        let prompt = tokens("x-warmpath-prompt-tokens")?;
        assert_eq!(predicted / BLOCK_SIZE_TOKENS, cached / BLOCK_SIZE_TOKENS, "project {project}");
        assert_eq!(cached > prompt * 6 / 10, project > 0, "project {project}: {cached} of {prompt}");
    }
    Ok(())
}
