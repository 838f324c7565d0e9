//! Images through routers: a question about an image that a worker has goes there, through any of eight routers, and
//! nothing is encoded or computed again.
//!
//! The routers have no projector: they ask a worker once which tokens stand for an image of a size.

use serde_json::{Value, json};
use warmpath_bench::fleet::Server;
use warmpath_bench::pictures::{PictureServer, data_url, picture};
use warmpath_bench::prompts::words;
use warmpath_tests::rig::{Reply, Rig, tiny_projector};

const N_ROUTERS: usize = 8;
const N_IMAGES: u64 = 8;

async fn rig() -> anyhow::Result<Rig> {
    let projector = tiny_projector()?;
    Rig::start_with(3, &["--mmproj", projector.to_str().unwrap_or_default()], &[]).await
}

/// Returns a conversation about an image: the question of each turn, with the answers between them.
fn chat(image: u64, n_turns: u64) -> Value {
    let url = data_url(&picture(image, (90 + image as u32, 60)));
    let mut messages = vec![json!({"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": words(image, 800)},
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

/// Returns the number of images that all workers have encoded.
async fn n_encoded(rig: &Rig) -> anyhow::Result<f64> {
    let mut n_encoded = 0.0;
    for worker in &rig.fleet.workers {
        let text = rig.get(&format!("{}/metrics", worker.base_url())).await?.text;
        let line = text.lines().find_map(|line| line.strip_prefix("warmpath_worker_images_encoded_total "));
        n_encoded += line.unwrap_or_default().parse::<f64>()?;
    }
    Ok(n_encoded)
}

#[tokio::test]
async fn a_second_question_about_an_image_reuses_the_first_through_any_of_eight_routers() -> anyhow::Result<()> {
    let rig = rig().await?;
    let mut replicas = Vec::new();
    while replicas.len() + 1 < N_ROUTERS {
        replicas.push(rig.fleet.replica().await?);
    }
    let routers: Vec<String> = std::iter::once(rig.router_url()).chain(replicas.iter().map(Server::base_url)).collect();
    for image in 0..N_IMAGES {
        ask(&rig, &routers[image as usize % N_ROUTERS], &chat(image, 1)).await?;
        rig.settled().await?;
    }
    assert_eq!(n_encoded(&rig).await?, N_IMAGES as f64);
    let (mut n_prompt, mut n_cached) = (0, 0);
    for image in 0..N_IMAGES {
        // Another router than the one that has seen the image.
        let reply = ask(&rig, &routers[(image as usize + 3) % N_ROUTERS], &chat(image, 2)).await?;
        let usage = reply.json()["usage"].clone();
        n_prompt += usage["prompt_tokens"].as_u64().unwrap_or_default();
        n_cached += usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default();
        let predicted: u64 = reply.header("x-warmpath-predicted-cached-tokens").parse()?;
        assert!(predicted > 100, "the router hashes what stands behind the image: {predicted}");
        rig.settled().await?;
    }
    assert_eq!(n_encoded(&rig).await?, N_IMAGES as f64, "nothing is encoded twice");
    let share = n_cached as f64 / n_prompt as f64;
    println!("{n_cached} of {n_prompt} prompt tokens reused: {share:.4}");
    assert!(share >= 0.97, "{share}");
    Ok(())
}

#[tokio::test]
async fn routers_send_raw_prompts_with_images_to_the_worker_that_has_them() -> anyhow::Result<()> {
    let rig = rig().await?;
    let replica = rig.fleet.replica().await?;
    let body = |image: u64, more: &str| {
        let url = data_url(&picture(image, (90, 60)));
        let file = url.split_once(";base64,").map(|(_, file)| file.to_owned());
        let prompt_string = format!("<__media__>{}{more}", words(image, 800));
        let prompt = json!({"prompt_string": prompt_string, "multimodal_data": [file]});
        json!({"prompt": prompt, "max_tokens": 1, "temperature": 0})
    };
    let ask = async |router: &str, body: &Value| -> anyhow::Result<Reply> {
        let reply = rig.post(&format!("{router}/v1/completions"), body).await?;
        anyhow::ensure!(reply.status == 200, "{}", reply.text);
        rig.settled().await?;
        Ok(reply)
    };
    for image in 0..N_IMAGES {
        ask(&rig.router_url(), &body(image, "")).await?;
    }
    for image in 0..N_IMAGES {
        let reply = ask(&replica.base_url(), &body(image, " And what else?")).await?;
        let usage = reply.json()["usage"].clone();
        let n_cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default();
        let n_prompt = usage["prompt_tokens"].as_u64().unwrap_or(u64::MAX);
        assert!(n_cached as f64 >= 0.97 * n_prompt as f64, "{usage}");
        let predicted: u64 = reply.header("x-warmpath-predicted-cached-tokens").parse()?;
        assert!(predicted > 100, "{predicted}");
    }
    assert_eq!(n_encoded(&rig).await?, N_IMAGES as f64, "nothing is encoded twice");
    Ok(())
}

#[tokio::test]
async fn routers_fetch_images_for_workers_that_fetch_none() -> anyhow::Result<()> {
    let pictures = PictureServer::start((90, 60)).await?;
    let projector = tiny_projector()?;
    let projector = ["--mmproj", projector.to_str().unwrap_or_default()];
    let rig = Rig::start_with(2, &projector, &["--image-url-host", &pictures.host]).await?;
    let text = words(1, 800);
    let content = |image: Value| json!([{"type": "text", "text": text}, image]);
    let image = |url: String| json!({"type": "image_url", "image_url": {"url": url}});
    let body = |content: Value| json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1});
    let first = rig.chat(&body(content(image(data_url(&picture(1, (90, 60))))))).await?;
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
    assert_eq!(models["data"][0]["modalities"], json!({"vision": true, "audio": false}), "{models}");
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
    let answered = rig.chat(&chat(1, 1)).await?;
    assert_eq!(answered.status, 200, "{}", answered.text);
    Ok(())
}
