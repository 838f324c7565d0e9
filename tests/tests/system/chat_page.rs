//! The chat page of a real router with a real worker, used in Chromium; and the picture of it in the documentation.
//!
//! The checks of the page are in `tests/python/test_chat_page.py`.

use anyhow::{Context as _, ensure};
use warmpath_tests::rig::{Rig, new_key, root};
use warmpath_tests::tools;

/// Name of the model that is markup, besides its usual one.
const HOSTILE: &str = "<img src=x onerror=window.harm=1>";

#[tokio::test(flavor = "multi_thread")]
async fn users_of_the_chat_page_ask_stop_and_see_the_reuse() -> anyhow::Result<()> {
    let Some(chromium) = tools::chromium()? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let keys = folder.path().join("keys.toml");
    let key = new_key("reader")?;
    std::fs::write(&keys, key.entry)?;
    let router_args = ["--ui", "--api-keys-file", keys.to_str().context("a path")?];
    let rig = Rig::start_with(1, &["--alias", HOSTILE], &router_args).await?;

    let args = [chromium.display().to_string(), rig.router_url(), key.key];
    let said = tools::python("tests/python/test_chat_page.py", &args).await?;
    ensure!(said.contains("OK") && !said.contains("skipped"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes docs/images/chat.png: make picture"]
async fn the_picture_of_the_chat_page() -> anyhow::Result<()> {
    let chromium = tools::chromium()?.context("no Chromium")?;
    let model = root().join("target/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    ensure!(model.exists(), "{} is missing: make models", model.display());
    let rig = Rig::start_file(model, 2, &[], &["--ui"]).await?;
    let picture = root().join("docs/images/chat.png").display().to_string();
    let args = [chromium.display().to_string(), rig.router_url(), picture];
    tools::python("tests/python/picture_chat.py", &args).await.map(drop)
}
