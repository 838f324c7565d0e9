//! KV state that moves between real workers: a free worker fetches a prefix from a busy one, and the answer is the
//! uncached one.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use serde_json::{Value, json};
use warmpath_bench::prompts::words;
use warmpath_common::block_hash::BlockKey;
use warmpath_tests::rig::{N_SLOTS, Rig};

/// Returns a chat about a text, with another question each time.
fn chat(text: &str, question: u64) -> Value {
    let messages = json!([
        {"role": "system", "content": text},
        {"role": "user", "content": words(question, 12)},
    ]);
    json!({"messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": true})
}

/// Fills every slot of a worker with a stream; the streams end when they are dropped.
async fn occupy(rig: &Rig, worker: usize) -> anyhow::Result<Vec<impl futures::Stream + use<>>> {
    let mut streams = Vec::new();
    for n in 0..N_SLOTS as u64 {
        let body = json!({"prompt": words(100 + n, 40), "max_tokens": 3500, "ignore_eos": true, "stream": true});
        let url = format!("{}/v1/completions", rig.fleet.workers[worker].base_url());
        let response = rig.http.post(url).json(&body).send().await?;
        ensure!(response.status() == 200, "{}", response.status());
        let mut pieces = response.bytes_stream();
        pieces.next().await.context("the stream goes on")??;
        streams.push(pieces);
    }
    Ok(streams)
}

#[tokio::test]
async fn a_free_worker_fetches_the_state_of_a_busy_one_and_gives_the_same_answer() -> anyhow::Result<()> {
    let rig = Rig::start(2, &["--kv-gbits", "10"]).await?;
    let text = words(7, 700);
    let first = rig.chat(&chat(&text, 1)).await?;
    let holder = rig.worker_idx(first.header("x-warmpath-worker")).context("a worker answers")?;
    rig.settled().await?;
    let streams = occupy(&rig, holder).await?;
    rig.wait_for("the router sees the streams", || async {
        let page = rig.fleet_page().await.ok()?;
        let loads = page["workers"].as_array()?.iter().map(|worker| worker["load"]["busy_slots"].as_array());
        loads.flatten().any(|busy| busy.len() == N_SLOTS).then_some(())
    })
    .await?;
    let answer = rig.chat(&chat(&text, 2)).await?;
    let reused = |name: &str| answer.header(name).parse::<u64>().unwrap_or_default();
    ensure!(answer.header("x-warmpath-route") == "transfer", "{answer:?}");
    ensure!(rig.worker_idx(answer.header("x-warmpath-worker")) == Some(1 - holder), "{answer:?}");
    ensure!(reused("x-warmpath-cached-tokens") > 500, "{answer:?}");
    assert_eq!(reused("x-warmpath-cached-tokens"), reused("x-warmpath-predicted-cached-tokens"), "{answer:?}");
    assert_eq!(rig.router_metric("warmpath_router_kv_transfer_hints_total").await?, 1.0);
    drop(streams);
    let mut uncached = chat(&text, 2);
    uncached["cache_prompt"] = json!(false);
    let expected = rig.chat(&uncached).await?;
    let content = |value: &Value| value["choices"][0]["message"]["content"].clone();
    assert_eq!(content(&answer.json()), content(&expected.json()));
    Ok(())
}

/// Returns the keys of the blocks that a worker holds.
async fn held(rig: &Rig, worker: usize) -> anyhow::Result<BTreeSet<BlockKey>> {
    let snapshot = rig.snapshot(&rig.fleet.workers[worker].base_url()).await?;
    Ok(snapshot.runs.iter().flat_map(|run| run.keys.iter().copied()).collect())
}

/// Sends chats about these texts to one worker, and compares each answer with the uncached one.
///
/// Errors: a prompt is not reused, or an answer differs.
async fn all_are_warm(rig: &Rig, worker: usize, texts: &[String], question: u64) -> anyhow::Result<()> {
    let url = format!("{}/v1/chat/completions", rig.fleet.workers[worker].base_url());
    for text in texts {
        let mut body = chat(text, question);
        let warm = rig.post(&url, &body).await?;
        let n_cached = warm.header("x-warmpath-cached-tokens").parse::<u64>().unwrap_or_default();
        ensure!(n_cached > 500, "only {n_cached} tokens are reused: {warm:?}\n{}", rig.fleet.workers[worker].log());
        body["cache_prompt"] = json!(false);
        let expected = rig.post(&url, &body).await?;
        let content = |value: &Value| value["choices"][0]["message"]["content"].clone();
        assert_eq!(content(&warm.json()), content(&expected.json()));
    }
    Ok(())
}

#[tokio::test]
async fn a_leaving_worker_s_state_moves_to_others_and_a_joining_one_fetches_theirs() -> anyhow::Result<()> {
    let mut rig = Rig::start(2, &[]).await?;
    let texts: Vec<String> = (0..4).map(|seed| words(50 + seed, 700)).collect();
    for text in &texts {
        let url = format!("{}/v1/chat/completions", rig.fleet.workers[0].base_url());
        ensure!(rig.post(&url, &chat(text, 1)).await?.status == 200);
    }
    rig.settled().await?;
    let of_first = held(&rig, 0).await?;
    ensure!(held(&rig, 1).await?.is_empty());

    let status = rig.fleet.workers[0].terminate(Duration::from_secs(60)).await?;
    ensure!(status.success(), "{status}: {}", rig.fleet.workers[0].log());
    ensure!(of_first.is_subset(&held(&rig, 1).await?), "{}", rig.fleet.workers[1].log());
    all_are_warm(&rig, 1, &texts, 2).await?;

    rig.fleet.restart_worker(0).await?;
    rig.wait_for("the new worker holds the blocks of the other one", || async {
        of_first.is_subset(&held(&rig, 0).await.ok()?).then_some(())
    })
    .await?;
    all_are_warm(&rig, 0, &texts, 3).await?;
    assert_eq!(rig.router_metric("warmpath_router_kv_transfer_hints_total").await?, 0.0);
    Ok(())
}
