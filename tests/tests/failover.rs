//! Streams whose worker is killed, frozen or told to stop in the middle: each ends as if nothing had happened.
//!
//! Every answer is compared with that of a worker that was left alone.

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use serde_json::{Value, json};
use warmpath_bench::chaos::reply::{CHAT, MESSAGES, NATIVE, RESPONSES, Said, StreamReader};
use warmpath_bench::prompts::words;
use warmpath_tests::rig::Rig;

/// Length of an answer, long enough that it is not over when its worker fails.
const MAX_TOKENS: u32 = 800;
/// Number of streams at a time.
const N_STREAMS: u64 = 5;

/// Returns a request by its number, each of another kind, streamed or whole.
fn request(n: u64, stream: bool) -> (&'static str, Value) {
    let text = words(n, 40);
    let messages = json!([{"role": "user", "content": text}]);
    let (path, mut body) = match n % N_STREAMS {
        0 => (CHAT, json!({"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0})),
        1 => (NATIVE, json!({"prompt": text, "n_predict": MAX_TOKENS, "temperature": 0.9, "seed": n})),
        2 => (MESSAGES, json!({"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0})),
        3 => (RESPONSES, json!({"input": text, "max_output_tokens": MAX_TOKENS, "temperature": 0})),
        _ => (CHAT, json!({"messages": messages, "max_tokens": MAX_TOKENS / 2, "temperature": 0, "n": 2})),
    };
    body["ignore_eos"] = json!(true);
    body["stream"] = json!(stream);
    if stream && path == CHAT {
        body["stream_options"] = json!({"include_usage": true});
    }
    (path, body)
}

/// Reads a whole stream.
fn of_stream(path: &'static str, text: &str) -> anyhow::Result<Said> {
    let mut reader = StreamReader::new(path);
    reader.push(text.as_bytes())?;
    reader.finish()
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
        let (path, body) = request(n, false);
        let alone = rig.fleet.workers[(victim + 1) % n_at.len()].base_url();
        let whole = rig.post(&format!("{alone}{path}"), &body).await?;
        let said = of_stream(path, &text).with_context(|| format!("stream {n}"))?;
        assert_eq!(said, Said::of_whole(path, &whole.json()), "stream {n}");
    }
    Ok(())
}

#[tokio::test]
async fn streams_of_a_killed_worker_end_as_if_nothing_had_happened() -> anyhow::Result<()> {
    check(Rig::start(2, &[]).await?, async |rig, victim| rig.fleet.workers[victim].kill().await).await
}

#[tokio::test]
async fn streams_of_a_frozen_worker_end_as_if_nothing_had_happened() -> anyhow::Result<()> {
    check(Rig::start(2, &[]).await?, async |rig, victim| rig.fleet.workers[victim].signal("STOP").await).await
}

#[tokio::test]
async fn streams_that_outlast_a_worker_s_drain_end_as_if_nothing_had_happened() -> anyhow::Result<()> {
    let rig = Rig::start_with(2, &["--drain-timeout", "0.1"], &[]).await?;
    check(rig, async |rig, victim| rig.fleet.workers[victim].signal("TERM").await).await
}
