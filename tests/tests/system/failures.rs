//! A fleet whose parts are missing, die, come back or get a broken model.
//!
//! Invalid requests are in `bad_requests`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::StreamExt as _;
use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::process::Command;
use warmpath_bench::client::Message;
use warmpath_bench::fleet::Server;
use warmpath_bench::prompts::words;
use warmpath_tests::rig::{Rig, bin_dir, tiny_model};

/// Longest time until a worker that came back gets requests again.
const BACK_MAX: Duration = Duration::from_secs(5);

fn messages(seed: u64) -> Vec<Message> {
    vec![Message::new("user", words(seed, 40))]
}

/// Reads the rest of an event stream; returns the texts between `data: ` and the empty line.
async fn events(response: reqwest::Response) -> Vec<String> {
    let mut text = String::new();
    let mut pieces = response.bytes_stream();
    while let Some(Ok(piece)) = pieces.next().await {
        text.push_str(&String::from_utf8_lossy(&piece));
    }
    text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_killed_worker_breaks_only_its_own_streams() -> anyhow::Result<()> {
    let mut rig = Rig::start(3, &["--failover-max", "0"]).await?;
    // Long streams on several workers: the worker with the block that starts every chat may get the first ones, up to
    // its slots.
    let url = format!("{}/v1/chat/completions", rig.router_url());
    let mut streams: Vec<(usize, reqwest::Response)> = Vec::new();
    while streams.len() < 3 || streams.iter().all(|(worker_idx, _)| *worker_idx == streams[0].0) {
        let seed = streams.len() as u64 + 1;
        let body = json!({
            "messages": messages(seed), "stream": true, "temperature": 0, "ignore_eos": true, "max_tokens": 1500,
        });
        let response = rig.http.post(&url).json(&body).send().await?;
        assert_eq!(response.status(), 200);
        let worker = response.headers()["x-warmpath-worker"].to_str()?.to_owned();
        streams.push((rig.worker_idx(&worker).with_context(|| worker.clone())?, response));
    }
    let victim = streams[0].0;
    rig.fleet.workers[victim].kill().await?;

    let (hit, spared): (Vec<_>, Vec<_>) = streams.into_iter().partition(|(worker_idx, _)| *worker_idx == victim);
    for (_, response) in hit {
        let events = events(response).await;
        let last: Value = serde_json::from_str(events.last().context("no event")?)?;
        assert_eq!(last["error"]["code"], "worker_failed", "{last}");
        assert!(
            last["error"]["message"].as_str().is_some_and(|text| text.contains("ended its response early")),
            "{last}"
        );
    }
    for seed in 10..30 {
        let answer = rig.ask(&messages(seed), 4).await.context("after the worker's death")?;
        assert_ne!(rig.worker_idx(&answer.worker.unwrap_or_default()), Some(victim));
    }
    assert!(!spared.is_empty(), "the streams are spread over the workers");
    for (_, response) in spared {
        assert_eq!(
            events(response).await.last().map(String::as_str),
            Some("[DONE]"),
            "streams of other workers continue"
        );
    }

    rig.fleet.restart_worker(victim).await?;
    let returned = Instant::now();
    rig.wait_for("the returned worker is ready for the router", || async {
        let page = rig.fleet_page().await.ok()?;
        (page["workers"].as_array()?.iter().all(|worker| worker["state"] == "ready")).then_some(())
    })
    .await?;
    let ready = returned.elapsed();
    let (mut served, mut seed) = (false, 100);
    while !served && returned.elapsed() < BACK_MAX {
        // Several at once: the other workers have the block that starts every chat, and would get single requests.
        let asked: Vec<Vec<Message>> = (seed..seed + 6).map(messages).collect();
        for answer in try_join_all(asked.iter().map(|messages| rig.ask(messages, 4))).await? {
            served |= rig.worker_idx(&answer.worker.unwrap_or_default()) == Some(victim);
        }
        seed += 6;
    }
    assert!(served, "the worker got no request within {BACK_MAX:?} of its return");
    println!("back in the fleet after {} ms, served after {} ms", ready.as_millis(), returned.elapsed().as_millis());
    Ok(())
}

#[tokio::test]
async fn a_request_that_waits_for_a_frozen_worker_is_sent_to_another() -> anyhow::Result<()> {
    let rig = Rig::start(2, &[]).await?;
    let url = format!("{}/v1/chat/completions", rig.router_url());
    let body = json!({"messages": messages(1), "temperature": 0, "ignore_eos": true, "max_tokens": 3900});
    let asked = tokio::spawn(rig.http.post(&url).json(&body).send());
    let victim = rig
        .wait_for("a worker has the request", || async {
            let page = rig.fleet_page().await.ok()?;
            page["workers"].as_array()?.iter().position(|worker| worker["in_flight"] == 1)
        })
        .await?;
    let pid = rig.fleet.workers[victim].pid().context("it runs")?;
    let signal = async |name: &str| Command::new("kill").args([name, &pid.to_string()]).status().await;
    assert!(signal("-STOP").await?.success());
    let stopped = Instant::now();
    let response = asked.await??;
    assert!(signal("-CONT").await?.success());
    assert_eq!(response.status(), 200);
    let worker = response.headers()["x-warmpath-worker"].to_str()?.to_owned();
    assert_eq!(rig.worker_idx(&worker), Some(1 - victim), "the other worker has answered");
    println!("answered {} ms after the worker had stopped", stopped.elapsed().as_millis());
    Ok(())
}

#[tokio::test]
async fn errors_of_a_router_without_workers_say_so() -> anyhow::Result<()> {
    // Port 1 of loopback: nothing listens there.
    let args = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--worker", "http://127.0.0.1:1"];
    let router = Server::start("router", &bin_dir()?.join("warmpath-router"), &args.map(str::to_owned)).await?;
    let http = reqwest::Client::builder().no_proxy().build()?;

    let ready = http.get(format!("{}/readyz", router.base_url())).send().await?;
    assert_eq!(ready.status(), 503);
    let ready: Value = ready.json().await?;
    assert!(ready["reason"].as_str().is_some_and(|reason| reason.contains("worker")), "{ready}");
    assert_eq!(http.get(format!("{}/livez", router.base_url())).send().await?.status(), 200);

    let url = format!("{}/v1/chat/completions", router.base_url());
    let refused = http.post(url).json(&json!({"messages": messages(1)})).send().await?;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let refused: Value = refused.json().await?;
    assert_eq!(refused["error"]["code"], "no_worker", "{refused}");
    Ok(())
}

/// Runs a worker that cannot start to its end; returns its exit status and its output.
fn refused_start(model: &Path) -> anyhow::Result<(Option<i32>, String)> {
    let output = std::process::Command::new(bin_dir()?.join("warmpath-worker"))
        .args(["--listen", "127.0.0.1:0", "--model"])
        .arg(model)
        .output()?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Returns a GGUF file whose one tensor has 64-bit floats, which no model uses: llama.cpp refuses it as well.
fn f64_model() -> Vec<u8> {
    const STRING: u32 = 8;
    const F64: u32 = 28;
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let header = [&b"GGUF"[..], &3_u32.to_le_bytes(), &1_u64.to_le_bytes(), &1_u64.to_le_bytes()].concat();
    let architecture = [text("general.architecture"), STRING.to_le_bytes().to_vec(), text("llama")].concat();
    let shape = [&1_u32.to_le_bytes()[..], &32_u64.to_le_bytes()].concat();
    let at = [&F64.to_le_bytes()[..], &0_u64.to_le_bytes()].concat();
    let mut bytes = [header, architecture, text("unused"), shape, at].concat();
    bytes.resize(bytes.len().next_multiple_of(32) + 32 * 8, 0);
    bytes
}

#[test]
fn a_worker_refuses_models_that_it_cannot_run_with_the_reason() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let whole = std::fs::read(tiny_model()?)?;
    let truncated = folder.path().join("truncated.gguf");
    std::fs::write(&truncated, &whole[..whole.len() - 4096])?;
    let text = folder.path().join("text.gguf");
    std::fs::write(&text, "this is no model")?;
    let doubles = folder.path().join("doubles.gguf");
    std::fs::write(&doubles, f64_model())?;
    let missing = folder.path().join("missing.gguf");

    for (path, why) in [(missing, "No such file"), (truncated, "truncated"), (text, "GGUF"), (doubles, "f64")] {
        let (code, said) = refused_start(&path)?;
        assert!(code.is_some_and(|code| code != 0), "{} ended with {code:?}: {said}", path.display());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        assert!(said.contains(&*name), "which file? {said}");
        assert!(said.to_lowercase().contains(&why.to_lowercase()), "why not {why}? {said}");
    }
    Ok(())
}
