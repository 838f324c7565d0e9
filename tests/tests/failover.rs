//! Streams whose worker is killed, frozen or told to stop in the middle: each ends as if nothing had happened.
//!
//! Every answer is compared with that of a worker that was left alone.

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::process::Command;
use warmpath_bench::prompts::words;
use warmpath_tests::rig::Rig;

/// Length of an answer, long enough that it is not over when its worker fails.
const MAX_TOKENS: u32 = 800;
/// Number of streams at a time.
const N_STREAMS: u64 = 5;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// Returns a request by its number, each of another kind, streamed or whole.
fn request(n: u64, stream: bool) -> (&'static str, Value) {
    let text = words(n, 40);
    let messages = json!([{"role": "user", "content": text}]);
    let (path, mut body) = match n % N_STREAMS {
        0 => (CHAT, json!({"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0})),
        1 => (COMPLETIONS, json!({"prompt": text, "max_tokens": MAX_TOKENS, "temperature": 0.9, "seed": n})),
        2 => (MESSAGES, json!({"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0})),
        3 => (RESPONSES, json!({"input": text, "max_output_tokens": MAX_TOKENS, "temperature": 0})),
        _ => (CHAT, json!({"messages": messages, "max_tokens": MAX_TOKENS / 2, "temperature": 0, "n": 2})),
    };
    body["ignore_eos"] = json!(true);
    body["stream"] = json!(stream);
    if stream && (path == CHAT || path == COMPLETIONS) {
        body["stream_options"] = json!({"include_usage": true});
    }
    (path, body)
}

/// The part of an answer that must be the same: its texts by choice, its length, its end.
#[derive(Debug, PartialEq, Default)]
struct Said {
    texts: [String; 2],
    output_tokens: u64,
    end: String,
}

fn of_whole(path: &str, answer: &Value) -> Said {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match path {
        CHAT | COMPLETIONS => {
            let texts = [0, 1].map(|idx| {
                let choice = &answer["choices"][idx];
                text(&choice["message"]["content"]) + &text(&choice["text"])
            });
            let output_tokens = answer["usage"]["completion_tokens"].as_u64().unwrap_or_default();
            Said { texts, output_tokens, end: text(&answer["choices"][0]["finish_reason"]) }
        }
        _ => {
            let content = if path == MESSAGES { &answer["content"] } else { &answer["output"][0]["content"] };
            Said {
                texts: [text(&content[0]["text"]), String::new()],
                output_tokens: answer["usage"]["output_tokens"].as_u64().unwrap_or_default(),
                end: text(&answer["stop_reason"]) + &text(&answer["incomplete_details"]["reason"]),
            }
        }
    }
}

/// Adds a stream's events up.
fn of_stream(path: &str, text: &str) -> anyhow::Result<Said> {
    let mut said = Said::default();
    let mut ids = std::collections::BTreeSet::new();
    let mut is_over = false;
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        ensure!(!is_over, "an event behind the end: {data}");
        if data == "[DONE]" {
            is_over = true;
            continue;
        }
        let event: Value = serde_json::from_str(data)?;
        ensure!(event["error"].is_null(), "{event}");
        for id in [&event["id"], &event["message"]["id"], &event["response"]["id"]] {
            ids.extend(id.as_str().map(str::to_owned));
        }
        for choice in event["choices"].as_array().into_iter().flatten() {
            let idx = usize::try_from(choice["index"].as_u64().unwrap_or_default())?;
            said.texts[idx] += choice["delta"]["content"].as_str().unwrap_or_default();
            said.texts[idx] += choice["text"].as_str().unwrap_or_default();
            said.end = choice["finish_reason"].as_str().unwrap_or(&said.end).to_owned();
        }
        let of_part = if path == RESPONSES { &event["delta"] } else { &event["delta"]["text"] };
        said.texts[0] += of_part.as_str().unwrap_or_default();
        let ends = [&event["delta"]["stop_reason"], &event["response"]["incomplete_details"]["reason"]];
        said.end += &ends.map(|end| end.as_str().unwrap_or_default()).concat();
        for usage in [&event["usage"], &event["response"]["usage"]] {
            let n_tokens = usage["completion_tokens"].as_u64().or(usage["output_tokens"].as_u64());
            said.output_tokens = n_tokens.unwrap_or(said.output_tokens);
        }
        is_over = ["message_stop", "response.incomplete"].iter().any(|last| event["type"] == **last);
    }
    ensure!(is_over, "the stream has no end: {text}");
    ensure!(ids.len() == 1, "the stream has the ids {ids:?}");
    Ok(said)
}

/// Starts streams, ends the worker that has most of them, and compares every answer.
async fn check(mut rig: Rig, fail: impl AsyncFn(&mut Rig, usize) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    let mut n_at = vec![0; rig.fleet.workers.len()];
    for n in 0..N_STREAMS {
        let (path, body) = request(n, true);
        let response = rig.http.post(format!("{}{path}", rig.router_url())).json(&body).send().await?;
        ensure!(response.status() == 200, "{path}: {}", response.status());
        let worker = response.headers()["x-warmpath-worker"].to_str()?.to_owned();
        n_at[rig.worker_idx(&worker).context(worker)?] += 1;
        let mut pieces = response.bytes_stream();
        let mut text = String::new();
        while text.matches("data: ").count() < 5 {
            text.push_str(std::str::from_utf8(&pieces.next().await.context("the stream goes on")??)?);
        }
        streams.push((n, text, pieces));
    }
    let victim = (0..n_at.len()).max_by_key(|idx| n_at[*idx]).context("there are workers")?;
    fail(&mut rig, victim).await?;
    let mut answers = Vec::new();
    for (n, mut text, mut pieces) in streams {
        while let Some(piece) = pieces.next().await {
            text.push_str(std::str::from_utf8(&piece?)?);
        }
        answers.push((n, text));
    }
    let n_continued = rig.router_metric("warmpath_router_failovers_total{result=\"continued\"}").await?;
    ensure!(n_continued >= f64::from(n_at[victim]), "{n_continued} of {} continued", n_at[victim]);
    for (n, text) in answers {
        ensure!(!text.contains(":wp"), "the journal reached a client: {text}");
        let (path, body) = request(n, false);
        let alone = rig.fleet.workers[(victim + 1) % n_at.len()].base_url();
        let whole = rig.post(&format!("{alone}{path}"), &body).await?;
        let said = of_stream(path, &text).with_context(|| format!("stream {n}"))?;
        assert_eq!(said, of_whole(path, &whole.json()), "stream {n}");
    }
    Ok(())
}

#[tokio::test]
async fn streams_of_a_killed_worker_end_as_if_nothing_had_happened() -> anyhow::Result<()> {
    check(Rig::start(2, &[]).await?, async |rig, victim| rig.fleet.workers[victim].kill().await).await
}

async fn signal(rig: &Rig, victim: usize, name: &str) -> anyhow::Result<()> {
    let pid = rig.fleet.workers[victim].pid().context("it runs")?;
    ensure!(Command::new("kill").args([name, &pid.to_string()]).status().await?.success(), "{name} is sent");
    Ok(())
}

#[tokio::test]
async fn streams_of_a_frozen_worker_end_as_if_nothing_had_happened() -> anyhow::Result<()> {
    check(Rig::start(2, &[]).await?, async |rig, victim| signal(rig, victim, "-STOP").await).await
}

#[tokio::test]
async fn streams_that_outlast_a_worker_s_drain_end_as_if_nothing_had_happened() -> anyhow::Result<()> {
    let rig = Rig::start_with(2, &["--drain-timeout", "0.1"], &[]).await?;
    check(rig, async |rig, victim| signal(rig, victim, "-TERM").await).await
}
