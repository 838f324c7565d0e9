//! The main promise of a fleet: conversations reuse the state of earlier requests, and their answers do not change.
//!
//! Failures are in `failures`, invalid requests in `bad_requests`.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use serde_json::{Value, json};
use warmpath_bench::client::Message;
use warmpath_bench::prompts::words;
use warmpath_tests::rig::{BLOCK_SIZE_TOKENS, Rig};

/// Length of an answer here. Units: tokens.
const ANSWER_TOKENS: u32 = 40;

fn opening(seed: u64) -> Vec<Message> {
    vec![Message::new("system", words(seed, 120)), Message::new("user", words(seed + 1, 20))]
}

#[tokio::test]
async fn a_second_turn_reuses_the_whole_first_turn() -> anyhow::Result<()> {
    let rig = Rig::start(3, &[]).await?;
    for seed in [100, 200, 300] {
        let mut messages = opening(seed);
        let first = rig.ask(&messages, ANSWER_TOKENS).await?;
        assert_eq!(first.cached_tokens, 0, "the prompt is new");
        rig.settled().await?;

        messages.push(Message::new("assistant", first.text.clone()));
        messages.push(Message::new("user", words(seed + 2, 20)));
        let second = rig.ask(&messages, ANSWER_TOKENS).await?;
        assert_eq!(second.worker, first.worker, "the worker that holds the first turn takes the second");
        assert_eq!(second.slot, first.slot);
        // The last token of an answer is never computed, so there is no KV state for it.
        let held = first.prompt_tokens + first.completion_tokens - 1;
        assert_eq!(second.cached_tokens, held, "of {} prompt tokens", second.prompt_tokens);
        assert_eq!(second.predicted_cached_tokens, Some(held / BLOCK_SIZE_TOKENS * BLOCK_SIZE_TOKENS));
    }
    Ok(())
}

#[tokio::test]
async fn a_router_that_has_just_started_loses_no_reuse() -> anyhow::Result<()> {
    let mut rig = Rig::start(3, &[]).await?;
    let mut conversations = Vec::new();
    for seed in (100..600).step_by(100) {
        let mut messages = opening(seed);
        let first = rig.ask(&messages, ANSWER_TOKENS).await?;
        messages.push(Message::new("assistant", first.text.clone()));
        messages.push(Message::new("user", words(seed + 2, 20)));
        conversations.push((messages, first));
    }
    rig.settled().await?;
    rig.fleet.replace_router().await?;
    let seconds = conversations.iter().map(|(messages, _)| rig.ask(messages, ANSWER_TOKENS));
    for (second, (_, first)) in try_join_all(seconds).await?.into_iter().zip(&conversations) {
        let held = first.prompt_tokens + first.completion_tokens - 1;
        assert_eq!(second.worker, first.worker);
        // Another conversation may have taken its slot; then whole blocks are restored.
        assert!(second.cached_tokens >= held / BLOCK_SIZE_TOKENS * BLOCK_SIZE_TOKENS, "{second:?}, {held} held");
    }
    Ok(())
}

#[tokio::test]
async fn tenants_with_different_salts_share_nothing() -> anyhow::Result<()> {
    let rig = Rig::start(1, &[]).await?;
    let ask = async |salt: Option<&str>| -> anyhow::Result<(u64, String, Value)> {
        let body = json!({
            "messages": opening(1), "max_tokens": 8, "temperature": 0, "cache_salt": salt,
        });
        let reply = rig.chat(&body).await?;
        assert_eq!(reply.status, 200, "{}", reply.text);
        rig.settled().await?;
        let cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        let predicted = reply.header("x-warmpath-predicted-cached-tokens").to_owned();
        Ok((cached, predicted, reply.json()["choices"][0]["message"]["content"].clone()))
    };
    let (cached, _, answer) = ask(Some("tenant-a")).await?;
    assert_eq!(cached, 0);
    assert_eq!(
        ask(Some("tenant-b")).await?,
        (0, "0".to_owned(), answer.clone()),
        "requests with another salt reuse nothing"
    );
    assert_eq!(ask(None).await?, (0, "0".to_owned(), answer.clone()), "requests without a salt reuse nothing either");
    let (cached, predicted, again) = ask(Some("tenant-a")).await?;
    assert!(
        cached > 100 && predicted != "0",
        "the same salt reuses its own state: {cached} cached, {predicted} predicted"
    );
    assert_eq!(again, answer);
    Ok(())
}

#[tokio::test]
async fn completions_reuse_their_own_state() -> anyhow::Result<()> {
    let rig = Rig::start(2, &[]).await?;
    let (before, behind) = (words(1, 120), words(2, 20));
    let bodies = [
        ("/completion", json!({"prompt": before})),
        ("/completion", json!({"prompt": [before, 70, behind]})),
        ("/completion", json!({"prompt": {"prompt_string": before}})),
        ("/infill", json!({"input_prefix": before, "input_suffix": behind, "input_extra": [{"text": words(3, 60)}]})),
        ("/v1/completions", json!({"prompt": before, "suffix": behind})),
    ];
    for (idx, (path, mut body)) in bodies.into_iter().enumerate() {
        (body["cache_salt"], body["max_tokens"]) = (json!(idx.to_string()), json!(4));
        let ask = async || {
            let reply = rig.post(&format!("{}{path}", rig.router_url()), &body).await?;
            anyhow::ensure!(reply.status == 200, "{path}: {}", reply.text);
            rig.settled().await?;
            let header = |name: &str| reply.header(name).parse::<u64>();
            anyhow::Ok((
                header("x-warmpath-predicted-cached-tokens")?,
                header("x-warmpath-cached-tokens")? / BLOCK_SIZE_TOKENS * BLOCK_SIZE_TOKENS,
            ))
        };
        assert_eq!(ask().await?, (0, 0), "{path} {body}");
        let (predicted, cached) = ask().await?;
        assert!(predicted == cached && cached > 100, "{path} {body}: {predicted} predicted, {cached} cached");
    }
    Ok(())
}

/// Returns the body of a conversation's request; equal arguments give equal bodies.
fn body(conversation: u64, turn: u64, cache_prompt: bool) -> Value {
    let mut messages = opening(conversation * 1000);
    for earlier in 0..turn {
        messages.push(Message::new("assistant", words(conversation * 1000 + earlier * 10 + 5, 30)));
        messages.push(Message::new("user", words(conversation * 1000 + earlier * 10 + 6, 20)));
    }
    json!({"messages": messages, "max_tokens": 24, "temperature": 0, "cache_prompt": cache_prompt})
}

#[tokio::test]
async fn answers_do_not_depend_on_the_worker_or_on_reuse() -> anyhow::Result<()> {
    let rig = Rig::start(2, &[]).await?;
    let requests: Vec<(u64, u64)> = (0..3).flat_map(|turn| (1..=6).map(move |id| (id, turn))).collect();
    let ask = async |url: String, id: u64, turn: u64, cache: bool| -> anyhow::Result<Value> {
        let reply = rig.post(&format!("{url}/v1/chat/completions"), &body(id, turn, cache)).await?;
        anyhow::ensure!(reply.status == 200, "{}", reply.text);
        Ok(reply.json()["choices"][0]["message"]["content"].clone())
    };
    // All requests at once, more than there are slots: sequences of every length share batches.
    let through_router = try_join_all(requests.iter().map(|&(id, turn)| ask(rig.router_url(), id, turn, true))).await?;
    rig.settled().await?;
    assert!(rig.router_metric("warmpath_router_cached_tokens_total").await? > 0.0, "something was reused");
    let mut different = BTreeSet::new();
    for (&(id, turn), answer) in requests.iter().zip(&through_router) {
        let text = answer.as_str().unwrap_or_default();
        assert!(!text.is_empty());
        different.insert(text.to_owned());
        for worker in &rig.fleet.workers {
            assert_eq!(&ask(worker.base_url(), id, turn, false).await?, answer, "cache off, conversation {id}.{turn}");
            assert_eq!(&ask(worker.base_url(), id, turn, true).await?, answer, "cache on, conversation {id}.{turn}");
        }
    }
    assert_eq!(different.len(), requests.len(), "different conversations get different answers");
    Ok(())
}
