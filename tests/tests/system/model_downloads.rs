//! Models that a host downloads and removes by an order, from a hub with one real file.
//!
//! Not here: faults of a download (the worker's tests), `POST` and `DELETE /models` of a router (its tests).

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use warmpath_bench::client::Message;
use warmpath_bench::model::Preset;
use warmpath_common::host::{DOWNLOAD_PATH, HostSummary, ModelName, ModelState, REMOVE_PATH, UNLOAD_PATH};
use warmpath_tests::rig::made_model;

use super::models::Host;

/// Commit of every repository.
const COMMIT: &str = "0123456789012345678901234567890123456789";
/// A model whose download takes no time.
const MODEL: &str = "org/tiny-GGUF:Q8_0";
/// A model whose download stops in the middle.
const ENDLESS: &str = "org/endless-GGUF:Q8_0";

/// Starts a hub; returns its URL.
async fn hub(file: Vec<u8>) -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let file = Arc::new(file);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, Arc::clone(&file)));
        }
    });
    Ok(url)
}

/// Answers one request.
async fn answer(stream: TcpStream, file: Arc<Vec<u8>>) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        ensure!(stream.read_line(&mut head).await? > 0, "the client has left");
    }
    let path = head.split_whitespace().nth(1).context("a path")?.split('?').next().unwrap_or_default().to_owned();
    let listed = json!([{"type": "file", "path": "m-Q8_0.gguf", "size": file.len(), "oid": COMMIT}]).to_string();
    let commit = json!({ "sha": COMMIT }).to_string();
    let repository = ["tiny", "endless"].into_iter().find(|name| path.contains(&format!("org/{name}-GGUF/")));
    let body = match repository {
        Some(_) if path.ends_with("/revision/main") => commit.into_bytes(),
        Some(_) if path.contains("/tree/") => listed.into_bytes(),
        Some(_) => file.to_vec(),
        None => {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await?;
            return Ok(());
        }
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await?;
    if repository == Some("endless") && path.contains("/resolve/") {
        stream.write_all(&body[..body.len() / 2]).await?;
        std::future::pending::<()>().await;
    }
    Ok(stream.write_all(&body).await?)
}

async fn ordered(host: &Host, path: &str, model: &str) -> anyhow::Result<Result<HostSummary, Value>> {
    let response = host.post(path, &json!(ModelName { model: model.to_owned() })).await?;
    Ok(if response.status().is_success() { Ok(response.json().await?) } else { Err(response.json().await?) })
}

async fn until_impossible(host: &Host, model: &str) -> anyhow::Result<String> {
    let reason = async |summary: &HostSummary| match &summary.model(model)?.state {
        ModelState::Impossible { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    host.until("the failure", reason).await
}

#[tokio::test]
async fn a_model_is_downloaded_by_an_order_answers_and_is_removed_with_its_files() -> anyhow::Result<()> {
    let (url, cache) = (hub(std::fs::read(made_model(Preset::Tiny, 1)?)?).await?, tempfile::tempdir()?);
    let folder = cache.path().to_string_lossy().into_owned();
    let host = Host::start_with(tempfile::tempdir()?, "", &[("HF_ENDPOINT", &url), ("HF_HUB_CACHE", &folder)]).await?;
    let summary = ordered(&host, DOWNLOAD_PATH, MODEL).await?.map_err(|error| anyhow::anyhow!("{error}"))?;
    let listed = summary.model(MODEL).context("it is listed at once")?;
    ensure!(listed.is_removable && matches!(listed.state, ModelState::Downloading(_)), "{listed:?}");
    let is_here = async |summary: &HostSummary| match summary.model(MODEL)?.state {
        ModelState::Loadable { is_local: true, memory_bytes, .. } => (memory_bytes > 0).then_some(()),
        _ => None,
    };
    host.until("the download", is_here).await?;
    let answer = host.ask(MODEL, &[Message::new("user", "Hello".to_owned())]).await?;
    ensure!(answer.prompt_tokens > 0, "{answer:?}");
    let refused = ordered(&host, DOWNLOAD_PATH, MODEL).await?.expect_err("it exists");
    ensure!(refused["error"]["message"] == format!("the model `{MODEL}` already exists"), "{refused}");
    for (name, reason) in [("a", "no order has downloaded it"), ("x", "is not in the catalogue")] {
        let refused = ordered(&host, REMOVE_PATH, name).await?.expect_err("it stays");
        ensure!(refused["error"]["message"].as_str().is_some_and(|text| text.contains(reason)), "{refused}");
    }
    let list = host.dir.path().join("kv/.downloads");
    ensure!(std::fs::read_to_string(&list)? == format!("{MODEL}\n"));
    let summary = ordered(&host, REMOVE_PATH, MODEL).await?.map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!(summary.model(MODEL).is_none() && std::fs::read_to_string(&list)?.is_empty());
    let blobs = cache.path().join("models--org--tiny-GGUF/blobs");
    ensure!(std::fs::read_dir(&blobs)?.next().is_none(), "no file is left in {}", blobs.display());
    host.end().await?;
    Ok(())
}

#[tokio::test]
async fn a_download_that_fails_or_is_cancelled_says_why_and_is_tried_again_by_another_order() -> anyhow::Result<()> {
    let (url, cache) = (hub(std::fs::read(made_model(Preset::Tiny, 1)?)?).await?, tempfile::tempdir()?);
    let folder = cache.path().to_string_lossy().into_owned();
    let host = Host::start_with(tempfile::tempdir()?, "", &[("HF_ENDPOINT", &url), ("HF_HUB_CACHE", &folder)]).await?;
    let refused = ordered(&host, DOWNLOAD_PATH, "tiny").await?.expect_err("no repository");
    ensure!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("OWNER/NAME")), "{refused}");
    for _ in 0..2 {
        ensure!(ordered(&host, DOWNLOAD_PATH, "org/missing").await?.is_ok());
        let reason = until_impossible(&host, "org/missing").await?;
        ensure!(reason.contains("404"), "{reason}");
    }
    ensure!(ordered(&host, DOWNLOAD_PATH, ENDLESS).await?.is_ok());
    let has_half = async |summary: &HostSummary| match summary.model(ENDLESS)?.state {
        ModelState::Downloading(bytes) => (bytes.done_bytes * 3 > bytes.total_bytes).then_some(()),
        _ => None,
    };
    host.until("half of the file", has_half).await?;
    let unloaded = host.post(UNLOAD_PATH, &json!(ModelName { model: ENDLESS.to_owned() })).await?;
    ensure!(unloaded.status().is_success(), "{unloaded:?}");
    let reason = until_impossible(&host, ENDLESS).await?;
    ensure!(reason == "its download was cancelled", "{reason}");
    ensure!(ordered(&host, REMOVE_PATH, ENDLESS).await?.is_ok());
    ensure!(!host.dir.path().join("kv/.downloads").exists(), "nothing was finished");
    host.end().await?;
    Ok(())
}
