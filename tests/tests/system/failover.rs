//! Answers whose worker is killed, frozen or stopped in the middle: each continues at another worker without a
//! difference.
//!
//! Every answer is compared with that of an undisturbed worker.

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use futures::future::try_join_all;
use serde_json::{Value, json};
use warmpath_bench::chaos::reply::{CHAT, MESSAGES, NATIVE, RESPONSES, Said, StreamReader};
use warmpath_bench::model::real::smollm2;
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

/// Returns the number of tokens that a worker has generated.
async fn n_generated(rig: &Rig, idx: usize) -> anyhow::Result<u64> {
    let text = rig.get(&format!("{}/metrics", rig.fleet.workers[idx].base_url())).await?.text;
    let line = text.lines().find_map(|line| line.strip_prefix("llamacpp:tokens_predicted_total "));
    line.context(text.clone())?.parse().context("reading a metric")
}

/// Starts whole answers, ends the worker that has generated most, and compares every answer.
async fn check_whole(mut rig: Rig, fail: impl AsyncFn(&mut Rig, usize) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let url = rig.router_url();
    let asked: Vec<_> = (0..N_STREAMS)
        .map(|n| {
            let (path, body) = request(n, false);
            let sent = rig.http.post(format!("{url}{path}")).json(&body).send();
            tokio::spawn(async move {
                let response = sent.await?;
                let continued = response.headers().get("x-warmpath-failovers").cloned();
                anyhow::Ok((response.status().as_u16(), continued, response.text().await?))
            })
        })
        .collect();
    let victim = rig
        .wait_for("a worker has generated many tokens", || async {
            for idx in 0..rig.fleet.workers.len() {
                if n_generated(&rig, idx).await.ok()? > 200 {
                    return Some(idx);
                }
            }
            None
        })
        .await?;
    fail(&mut rig, victim).await?;
    let mut n_continued = 0;
    for (n, asked) in (0..).zip(asked) {
        let (path, body) = request(n, false);
        let (status, continued, text) = asked.await??;
        ensure!(status == 200, "answer {n}: {status} {text}");
        if let Some(continued) = continued {
            ensure!(continued == "1; exact", "answer {n}: {continued:?}");
            n_continued += 1;
        }
        let alone = rig.fleet.workers[(victim + 1) % rig.fleet.workers.len()].base_url();
        let whole = rig.post(&format!("{alone}{path}"), &body).await?;
        let said = Said::of_whole(path, &serde_json::from_str(&text)?);
        assert_eq!(said, Said::of_whole(path, &whole.json()), "answer {n}");
    }
    let counted = rig.router_metric("warmpath_router_failovers_total{result=\"continued\"}").await?;
    ensure!(n_continued > 0 && counted == f64::from(n_continued), "{n_continued} continued, {counted} counted");
    Ok(())
}

#[tokio::test]
async fn whole_answers_of_a_killed_worker_continue_elsewhere() -> anyhow::Result<()> {
    check_whole(Rig::start(2, &[]).await?, async |rig, victim| rig.fleet.workers[victim].kill().await).await
}

#[tokio::test]
async fn whole_answers_of_a_frozen_worker_continue_elsewhere() -> anyhow::Result<()> {
    check_whole(Rig::start(2, &[]).await?, async |rig, victim| rig.fleet.workers[victim].signal("STOP").await).await
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

#[tokio::test]
async fn workers_that_compute_long_prompts_on_every_processor_are_not_lost() -> anyhow::Result<()> {
    // More threads than there are processors, each of which computes all the time.
    let rig = Rig::start_file(smollm2()?, 2, &["--threads-batch", "8"], &[]).await?;
    let ask = async |n: u64| {
        let body = json!({"prompt": words(n, 1500), "max_tokens": 1, "temperature": 0});
        rig.post(&format!("{}/v1/completions", rig.router_url()), &body).await
    };
    let replies = try_join_all((0..4).map(ask)).await?;
    ensure!(replies.iter().all(|reply| reply.status == 200), "{}", replies[0].text);
    let metrics = rig.get(&format!("{}/metrics", rig.fleet.router.admin_url()?)).await?.text;
    let lost: Vec<&str> =
        metrics.lines().filter(|line| line.contains("stream_ends") && line.contains("idle")).collect();
    ensure!(lost.is_empty(), "{lost:?}");
    Ok(())
}
