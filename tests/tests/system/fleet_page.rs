//! The fleet page of a real router with real workers, opened in Chromium; and the picture of it in the documentation.
//!
//! The checks of the page are in `tests/python/test_fleet_page.py`, those of the data that it reads in
//! `router/tests/http/fleet_page.rs`.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use warmpath_bench::chat_load::{Shape, drive};
use warmpath_bench::client::ChatClient;
use warmpath_bench::corpora::TextKind;
use warmpath_bench::model::Preset;
use warmpath_tests::rig::{Rig, WorkerLine, root};
use warmpath_tests::tools;

/// Workers: two of one model, and one whose model's name is markup.
const WORKERS: &[WorkerLine<'_>] = &[
    ("one", Preset::Tiny, 1, "--alias tiny --slots 3 --ctx-size 12288"),
    ("two", Preset::Tiny, 1, "--alias tiny --slots 3 --ctx-size 12288"),
    ("three", Preset::Tiny, 2, "--alias <script>window.harm=1</script> --slots 2 --ctx-size 8192"),
];

/// Workers of the picture.
const PICTURED: &[WorkerLine<'_>] = &[
    ("one", Preset::Bench, 1, "--alias bench --slots 4 --ctx-size 16384"),
    ("two", Preset::Bench, 1, "--alias bench --slots 4 --ctx-size 16384"),
    ("three", Preset::Bench, 1, "--alias bench --slots 4 --ctx-size 16384"),
];
/// Time under load before the picture of the fleet is taken: the page's default range.
const PICTURED_FOR: Duration = Duration::from_secs(300);

fn shape(seed: u64) -> Shape {
    Shape {
        tenants: 2,
        users: 2,
        turns: 3,
        text: TextKind::Made,
        system_words: 60,
        user_words: 10,
        answer_tokens: 4,
        concurrency: 2,
        seed,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_the_fleet_and_is_accessible() -> anyhow::Result<()> {
    let Some(chromium) = tools::chromium()? else { return Ok(()) };
    let rig = Rig::start_models(WORKERS).await?;
    drive(&[ChatClient::new(&rig.router_url(), Some("tiny".to_owned()))?], &shape(1)).await?;
    let body = json!({
        "model": "<script>window.harm=1</script>",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 2,
    });
    let url = format!("{}/v1/chat/completions", rig.router_url());
    let request = rig.http.post(url).json(&body).header("x-request-id", "<img/src=x/onerror=window.harm=1>");
    ensure!(request.send().await?.status().is_success(), "the worker whose name is markup answers");

    let args = [chromium.display().to_string(), rig.router_url(), rig.fleet.router.admin_url()?];
    let said = tools::python("tests/python/test_fleet_page.py", &args).await?;
    assert!(said.contains("OK") && !said.contains("skipped"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes docs/images/fleet.png, in some minutes: make picture"]
async fn the_picture_of_the_page() -> anyhow::Result<()> {
    let chromium = tools::chromium()?.context("no Chromium")?;
    let rig = Rig::start_models(PICTURED).await?;
    let clients = [ChatClient::new(&rig.router_url(), None)?];
    let picture = root().join("docs/images/fleet.png").display().to_string();
    let args = [chromium.display().to_string(), format!("{}/fleet", rig.fleet.router.admin_url()?), picture];
    // The load continues while the picture is taken.
    let load = async {
        for seed in 1.. {
            let shape = Shape {
                tenants: 3,
                users: 4,
                turns: 4,
                system_words: 300,
                answer_tokens: 16,
                concurrency: 4,
                ..shape(seed)
            };
            drive(&clients, &shape).await?;
        }
        anyhow::Ok(())
    };
    let pictured = async {
        tokio::time::sleep(PICTURED_FOR).await;
        tools::python("tests/python/browser.py", &args).await.map(drop)
    };
    tokio::select! {
        loaded = load => loaded,
        pictured = pictured => pictured,
    }
}
