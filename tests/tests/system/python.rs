//! Programs in Python: the official OpenAI and Anthropic clients against a fleet, the generator of the published test
//! vectors.
//!
//! Their checks are in `tests/python` and `common/tests/vectors`.

use std::path::PathBuf;

use anyhow::ensure;
use tokio::process::Command;
use warmpath_tests::rig::{Rig, root};

/// Returns the interpreter of the tests' Python environment, which is created if it is not up to date.
async fn python() -> anyhow::Result<PathBuf> {
    // Lets one test at a time create the environment.
    static MAKING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _making = MAKING.lock().await;
    let status = Command::new(root().join("scripts/python-venv.sh")).status().await?;
    ensure!(status.success(), "scripts/python-venv.sh ended with {status}");
    Ok(root().join("target/venv/bin/python"))
}

/// Runs a script to its end; the error contains its output if it fails.
async fn run(script: &str, args: &[String]) -> anyhow::Result<String> {
    let output = Command::new(python().await?).arg(root().join(script)).args(args).kill_on_drop(true).output().await?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    ensure!(output.status.success(), "{script} ended with {}:\n{said}", output.status);
    Ok(said)
}

/// Runs a client's tests against a fleet.
async fn check_client(script: &str) -> anyhow::Result<()> {
    let worker_args = ["--alias", "second-name", "--queue-max", "1"];
    let rig = Rig::start_with(2, &worker_args, &["--requests-max", "8"]).await?;
    let said = run(script, &[rig.router_url()]).await?;
    assert!(said.contains("OK") && !said.contains("skipped"), "{said}");
    Ok(())
}

#[tokio::test]
async fn the_official_openai_client_works_through_the_router() -> anyhow::Result<()> {
    check_client("tests/python/test_openai_client.py").await
}

#[tokio::test]
async fn responses_work_with_the_official_openai_client_through_the_router() -> anyhow::Result<()> {
    check_client("tests/python/test_openai_responses.py").await
}

#[tokio::test]
async fn the_official_anthropic_client_works_through_the_router() -> anyhow::Result<()> {
    check_client("tests/python/test_anthropic_client.py").await
}

#[tokio::test]
async fn every_field_and_member_of_the_official_clients_types_is_treated_as_the_page_says() -> anyhow::Result<()> {
    check_client("tests/python/test_dialects.py").await
}

#[tokio::test]
async fn the_published_vectors_match_their_script() -> anyhow::Result<()> {
    run("common/tests/vectors/make.py", &["--check".to_owned()]).await.map(drop)
}
