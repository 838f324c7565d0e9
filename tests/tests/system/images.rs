//! Images and audio through routers: a question about a medium that a worker has goes there, through any of eight
//! routers, and nothing is encoded or computed again.
//!
//! The routers have no projector: they ask a worker once which tokens stand for a medium of a size.

use serde_json::{Value, json};
use warmpath_bench::fleet::Server;
use warmpath_bench::pictures::{PictureServer, data_url, picture};
use warmpath_bench::prompts::words;
use warmpath_bench::sounds::audio_part;
use warmpath_tests::rig::{Reply, Rig, tiny_projector};

const N_ROUTERS: usize = 8;
const N_MEDIA: u64 = 8;

async fn rig() -> anyhow::Result<Rig> {
    let projector = tiny_projector()?;
    Rig::start_with(3, &["--mmproj", projector.to_str().unwrap_or_default()], &[]).await
}

/// Returns the part of a message with a medium: every second one is an image, the others are audio.
fn part(medium: u64) -> Value {
    if medium % 2 == 1 {
        return audio_part(medium, 40 + medium as usize);
    }
    let url = data_url(&picture(medium, 90 + medium as u32, 60));
    json!({"type": "image_url", "image_url": {"url": url}})
}

/// Returns a conversation about a medium: the question of each turn, with the answers between them.
fn chat(medium: u64, n_turns: u64) -> Value {
    let mut messages = vec![json!({"role": "user", "content": [
        part(medium), {"type": "text", "text": words(medium, 800)},
    ]})];
    for turn in 1..n_turns {
        messages.push(json!({"role": "assistant", "content": "I see."}));
        messages.push(json!({"role": "user", "content": format!("And what of {turn}?")}));
    }
    json!({"messages": messages, "max_tokens": 1, "temperature": 0})
}

async fn ask(rig: &Rig, router: &str, body: &Value) -> anyhow::Result<Reply> {
    let reply = rig.post(&format!("{router}/v1/chat/completions"), body).await?;
    anyhow::ensure!(reply.status == 200, "{}", reply.text);
    Ok(reply)
}

/// Returns the number of images and audio files that all workers have encoded.
async fn n_encoded(rig: &Rig) -> anyhow::Result<f64> {
    let mut n_encoded = 0.0;
    for worker in &rig.fleet.workers {
        let text = rig.get(&format!("{}/metrics", worker.base_url())).await?.text;
        for line in text.lines().filter(|line| line.starts_with("warmpath_worker_media_encoded_total{")) {
            n_encoded += line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?;
        }
    }
    Ok(n_encoded)
}

#[tokio::test]
async fn a_second_question_about_a_medium_reuses_the_first_through_any_of_eight_routers() -> anyhow::Result<()> {
    let rig = rig().await?;
    let mut replicas = Vec::new();
    while replicas.len() + 1 < N_ROUTERS {
        replicas.push(rig.fleet.replica().await?);
    }
    let routers: Vec<String> = std::iter::once(rig.router_url()).chain(replicas.iter().map(Server::base_url)).collect();
    for medium in 0..N_MEDIA {
        ask(&rig, &routers[medium as usize % N_ROUTERS], &chat(medium, 1)).await?;
        rig.settled().await?;
    }
    assert_eq!(n_encoded(&rig).await?, N_MEDIA as f64);
    let (mut n_prompt, mut n_cached) = (0, 0);
    for medium in 0..N_MEDIA {
        // Another router than the one that has seen the medium.
        let reply = ask(&rig, &routers[(medium as usize + 3) % N_ROUTERS], &chat(medium, 2)).await?;
        let usage = reply.json()["usage"].clone();
        n_prompt += usage["prompt_tokens"].as_u64().unwrap_or_default();
        n_cached += usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default();
        let predicted: u64 = reply.header("x-warmpath-predicted-cached-tokens").parse()?;
        assert!(predicted > 100, "the router hashes what stands behind the medium: {predicted}");
        rig.settled().await?;
    }
    assert_eq!(n_encoded(&rig).await?, N_MEDIA as f64, "nothing is encoded twice");
    let share = n_cached as f64 / n_prompt as f64;
    println!("{n_cached} of {n_prompt} prompt tokens reused: {share:.4}");
    assert!(share >= 0.97, "{share}");
    Ok(())
}

#[tokio::test]
async fn routers_send_raw_prompts_with_media_to_the_worker_that_has_them() -> anyhow::Result<()> {
    let rig = rig().await?;
    let replica = rig.fleet.replica().await?;
    let body = |medium: u64, more: &str| {
        let part = part(medium);
        let data = part["input_audio"]["data"].as_str().or_else(|| part["image_url"]["url"].as_str());
        let file = data.and_then(|data| data.rsplit(',').next());
        let prompt_string = format!("<__media__>{}{more}", words(medium, 800));
        let prompt = json!({"prompt_string": prompt_string, "multimodal_data": [file]});
        json!({"prompt": prompt, "max_tokens": 1, "temperature": 0})
    };
    let ask = async |router: &str, body: &Value| -> anyhow::Result<Reply> {
        let reply = rig.post(&format!("{router}/v1/completions"), body).await?;
        anyhow::ensure!(reply.status == 200, "{}", reply.text);
        rig.settled().await?;
        Ok(reply)
    };
    for medium in 0..N_MEDIA {
        ask(&rig.router_url(), &body(medium, "")).await?;
    }
    for medium in 0..N_MEDIA {
        let reply = ask(&replica.base_url(), &body(medium, " And what else?")).await?;
        let usage = reply.json()["usage"].clone();
        let n_cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default();
        let n_prompt = usage["prompt_tokens"].as_u64().unwrap_or(u64::MAX);
        assert!(n_cached as f64 >= 0.97 * n_prompt as f64, "{usage}");
        let predicted: u64 = reply.header("x-warmpath-predicted-cached-tokens").parse()?;
        assert!(predicted > 100, "{predicted}");
    }
    assert_eq!(n_encoded(&rig).await?, N_MEDIA as f64, "nothing is encoded twice");
    Ok(())
}

#[tokio::test]
async fn routers_fetch_images_for_workers_that_fetch_none() -> anyhow::Result<()> {
    let pictures = PictureServer::start(90, 60).await?;
    let projector = tiny_projector()?;
    let projector = ["--mmproj", projector.to_str().unwrap_or_default()];
    let rig = Rig::start_with(2, &projector, &["--image-url-host", &pictures.host]).await?;
    let text = words(1, 800);
    let content = |image: Value| json!([{"type": "text", "text": text}, image]);
    let image = |url: String| json!({"type": "image_url", "image_url": {"url": url}});
    let body = |content: Value| json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1});
    let first = rig.chat(&body(content(image(data_url(&picture(1, 90, 60)))))).await?;
    assert_eq!(first.status, 200, "{}", first.text);
    rig.settled().await?;
    let n_prompt = first.json()["usage"]["prompt_tokens"].as_u64().unwrap_or_default();
    let second = rig.chat(&body(content(image(pictures.url(1))))).await?;
    assert_eq!(second.status, 200, "{}", second.text);
    assert_eq!(second.json()["usage"]["prompt_tokens_details"]["cached_tokens"], n_prompt - 1, "{}", second.text);
    rig.settled().await?;
    let block = json!({"type": "image", "source": {"type": "url", "url": pictures.url(1)}});
    let third = rig.post(&format!("{}/v1/messages", rig.router_url()), &body(content(block))).await?;
    assert_eq!(third.status, 200, "{}", third.text);
    assert_eq!(third.json()["usage"]["cache_read_input_tokens"], n_prompt - 1, "{}", third.text);
    assert_eq!((pictures.n_served(), n_encoded(&rig).await?), (2, 1.0));
    let refused = rig.chat(&body(content(image("http://127.0.0.1:1/1".to_owned())))).await?;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("messages[0]")), "{}", refused.text);
    Ok(())
}

#[tokio::test]
async fn routers_refuse_what_workers_refuse_and_show_what_they_read() -> anyhow::Result<()> {
    let rig = rig().await?;
    let models = rig.get(&format!("{}/v1/models", rig.router_url())).await?.json();
    assert_eq!(models["data"][0]["modalities"], json!({"vision": true, "audio": true}), "{models}");
    let with = |url: &str| {
        let content = json!([{"type": "image_url", "image_url": {"url": url}}]);
        json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1})
    };
    for url in ["https://127.0.0.1/x.png", "data:image/png;base64,AAAA", "data:image/gif;base64,R0lGODlhAQABAA=="] {
        let refused = rig.chat(&with(url)).await?;
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (400, &json!("messages[0]")),
            "{}",
            refused.text
        );
    }
    let cut_off = json!({"type": "input_audio", "input_audio": {"data": "UklGRgAAAABXQVZF", "format": "wav"}});
    let refused = rig.chat(&json!({"messages": [{"role": "user", "content": [cut_off]}], "max_tokens": 1})).await?;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("messages[0]")), "{}", refused.text);
    let answered = rig.chat(&chat(1, 1)).await?;
    assert_eq!(answered.status, 200, "{}", answered.text);
    Ok(())
}
