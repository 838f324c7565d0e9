//! Tenants of a whole fleet: the reuse of one API key's conversations during the flood of another.
//!
//! A worker's shares alone are in `worker/tests/engine/tenants.rs`.
//!
//! The test counts tokens and measures no times. The same conversations run alone; then during a flood of the same key,
//! which shows that the flood is strong enough; then during one of another key at the highest priority with a salt for
//! each prompt.

use std::path::Path;

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use warmpath_bench::prompts::words;
use warmpath_common::headers::CACHE_SALT;
use warmpath_tests::rig::{N_SLOTS, NewKey, Rig, new_key};

const N_WORKERS: usize = 2;
const N_CONVERSATIONS: u64 = 2;
const N_ROUNDS: u64 = 4;
/// Prompts of a flood between two rounds: far more in total than the workers' caches hold.
const FLOOD_PROMPTS: u64 = 30;

/// A fleet with small caches and two keys.
struct Crowded {
    rig: Rig,
    innocent: NewKey,
    other: NewKey,
}

impl Crowded {
    async fn start(folder: &Path) -> anyhow::Result<Self> {
        let (innocent, other) = (new_key("innocent")?, new_key("other")?);
        let file = folder.join("keys.toml");
        std::fs::write(&file, format!("{}\n{}\n", innocent.entry, other.entry))?;
        let file = file.to_str().context("the folder's path is text")?;
        let rig = Rig::start_with(N_WORKERS, &["--cache-ram", "4"], &["--api-keys-file", file]).await?;
        Ok(Self { rig, innocent, other })
    }

    async fn ask(&self, (key, salt): (&NewKey, &str), body: &Value) -> anyhow::Result<Value> {
        let url = format!("{}/v1/chat/completions", self.rig.router_url());
        let reply = self.rig.http.post(url).bearer_auth(&key.key).header(CACHE_SALT, salt).json(body).send();
        let reply = reply.await?;
        let (status, text) = (reply.status(), reply.text().await?);
        ensure!(status == 200, "{status}: {text}");
        Ok(serde_json::from_str(&text)?)
    }

    async fn send_flood(&self, key: &NewKey, round: u64) -> anyhow::Result<()> {
        let ask = async |n: u64| {
            let messages = json!([{"role": "user", "content": words(10_000 + n, 120)}]);
            let body = json!({"messages": messages, "max_tokens": 1, "temperature": 0, "priority": 100});
            self.ask((key, &n.to_string()), &body).await
        };
        // As many at a time as there are slots: one by one, all might go to the worker that seems faster.
        for first in (0..FLOOD_PROMPTS).step_by(N_WORKERS * N_SLOTS) {
            let last = FLOOD_PROMPTS.min(first + (N_WORKERS * N_SLOTS) as u64);
            try_join_all((first..last).map(|n| ask(round * FLOOD_PROMPTS + n))).await?;
        }
        self.rig.settled().await
    }

    /// Returns the share of the conversations' prompt tokens that were reused.
    async fn reuse(&self, flood: Option<&NewKey>) -> anyhow::Result<f64> {
        let mut conversations: Vec<Vec<Value>> = (0..N_CONVERSATIONS)
            .map(|n| vec![json!({"role": "system", "content": words(1000 * (n + 1), 100)})])
            .collect();
        let (mut n_cached, mut n_prompt) = (0, 0);
        for round in 0..N_ROUNDS {
            for (n, conversation) in (0..).zip(&mut conversations) {
                let said = words(1000 * (n + 1) + 10 * (round + 1), 10);
                conversation.push(json!({"role": "user", "content": said}));
                let body = json!({"messages": conversation, "max_tokens": 4, "temperature": 0});
                let answer = self.ask((&self.innocent, "conversations"), &body).await?;
                let usage = &answer["usage"];
                n_cached += usage["prompt_tokens_details"]["cached_tokens"].as_u64().context("a count")?;
                n_prompt += usage["prompt_tokens"].as_u64().context("a count")?;
                conversation.push(json!({"role": "assistant", "content": answer["choices"][0]["message"]["content"]}));
            }
            self.rig.settled().await?;
            if let Some(key) = flood {
                self.send_flood(key, round).await?;
            }
        }
        Ok(n_cached as f64 / n_prompt as f64)
    }
}

#[tokio::test]
async fn a_flood_of_one_key_does_not_evict_another_key_s_conversations() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let alone = Crowded::start(folder.path()).await?.reuse(None).await?;
    let fleet = Crowded::start(folder.path()).await?;
    let own = fleet.reuse(Some(&fleet.innocent)).await?;
    println!("alone {alone:.2}, beside a flood of its own {own:.2}");
    assert!(alone >= 0.6 && own <= 0.3, "{alone} {own}");
    let fleet = Crowded::start(folder.path()).await?;
    let beside = fleet.reuse(Some(&fleet.other)).await?;
    assert!(beside >= alone - 0.1, "{beside}, alone {alone}");
    Ok(())
}
