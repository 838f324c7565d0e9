//! Widely used clients that take long to install, against a fleet: `make test-clients`.
//!
//! The official Python clients of OpenAI and Anthropic are in `python`, which `make test` runs.
//!
//! The tests here are `ignored` by a plain `cargo test`, because each downloads its packages from a registry; their
//! checks are in `tests/clients`.

use std::process::Output;

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::process::Command;
use tokio::sync::Mutex;
use warmpath_bench::model::Preset;
use warmpath_tests::rig::{MODEL_NAME, Rig, WorkerLine, made_model, root};

/// Lock of the folders of clients: two tests may need the same one, and install it from nothing.
static INSTALLATION: Mutex<()> = Mutex::const_new(());

/// Installs a client and its packages if that is not done yet.
async fn install(name: &str) -> anyhow::Result<()> {
    let _lock = INSTALLATION.lock().await;
    let status = Command::new(root().join("scripts/clients.sh")).arg(name).status().await?;
    ensure!(status.success(), "scripts/clients.sh {name} ended with {status}");
    Ok(())
}

/// Returns the output of a command that succeeds.
async fn said(command: &mut Command) -> anyhow::Result<String> {
    let Output { status, stdout, stderr } = command.kill_on_drop(true).output().await?;
    let said = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    ensure!(status.success(), "{command:?} ended with {status}:\n{said}");
    Ok(said)
}

/// Runs a client's tests in Python against a fleet.
async fn check_python(name: &str) -> anyhow::Result<()> {
    install(name).await?;
    let rig = Rig::start(2, &[]).await?;
    let python = root().join(format!("target/clients/{name}/bin/python"));
    let script = root().join(format!("tests/clients/test_{name}.py"));
    check_unittest(Command::new(python).arg(script).arg(rig.router_url())).await
}

/// Runs tests of Python's `unittest`, none of which may be skipped.
async fn check_unittest(command: &mut Command) -> anyhow::Result<()> {
    let said = said(command).await?;
    ensure!(said.contains("OK") && !said.contains("skipped"), "{said}");
    Ok(())
}

#[tokio::test]
#[ignore = "installs from PyPI: make test-clients"]
async fn langchain_works_through_the_router() -> anyhow::Result<()> {
    check_python("langchain").await
}

#[tokio::test]
#[ignore = "installs from PyPI: make test-clients"]
async fn litellm_works_through_the_router() -> anyhow::Result<()> {
    check_python("litellm").await
}

#[tokio::test]
#[ignore = "installs from PyPI: make test-clients"]
async fn the_official_ollama_client_for_python_works_through_the_router() -> anyhow::Result<()> {
    check_python("ollama").await
}

#[tokio::test]
#[ignore = "installs from PyPI: make test-clients"]
async fn openai_agents_and_pydantic_ai_work_through_the_router() -> anyhow::Result<()> {
    check_python("agents").await
}

#[tokio::test]
#[ignore = "installs from PyPI: make test-clients"]
async fn instructor_and_llama_index_work_through_the_router() -> anyhow::Result<()> {
    check_python("frameworks").await
}

#[tokio::test]
#[ignore = "installs from PyPI: make test-clients"]
async fn aider_works_through_the_router() -> anyhow::Result<()> {
    check_python("aider").await
}

/// Runs a client's tests in JavaScript, with the packages of a folder, against a fleet; so many must pass.
async fn check_node(folder: &str, name: &str, n_tests: usize) -> anyhow::Result<()> {
    install(folder).await?;
    let rig = Rig::start(2, &[]).await?;
    let dir = root().join("target/clients").join(folder);
    // Modules are resolved from the script's folder.
    let script = format!("test_{name}.mjs");
    std::fs::copy(root().join("tests/clients").join(&script), dir.join(&script))?;
    let mut command = Command::new("node");
    command.args(["--test", &script]).current_dir(dir).env("ROUTER_URL", rig.router_url());
    let said = said(&mut command).await?;
    ensure!(said.contains(&format!("pass {n_tests}\n")), "{said}");
    Ok(())
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn the_official_openai_client_for_node_works_through_the_router() -> anyhow::Result<()> {
    check_node("node", "openai", 9).await
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn the_official_ollama_client_for_node_works_through_the_router() -> anyhow::Result<()> {
    check_node("node", "ollama", 6).await
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn the_ai_sdk_works_through_the_router() -> anyhow::Result<()> {
    check_node("node", "ai_sdk", 13).await
}

/// Runs a coding agent in a folder of its own against a fleet, for two turns with calls of tools.
async fn check_coding_agent(name: &str) -> anyhow::Result<()> {
    install("coding").await?;
    // These prompts have tens of thousands of tokens, which take a recurrent model the least time.
    let flags = ["--slots", "1", "--ctx-size", "65536", "--override-kv", "mamba.context_length=int:65536"];
    let rig = Rig::start_file(made_model(Preset::TinyRecurrent, 1)?, 2, &flags, &[]).await?;
    let mut command = Command::new("python3");
    command.arg(root().join("tests/clients/test_coding_agents.py")).arg(name).arg(root().join("target/clients/coding"));
    check_unittest(command.arg(rig.router_url())).await
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn claude_code_works_through_the_router() -> anyhow::Result<()> {
    check_coding_agent("claude-code").await
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn claude_code_s_tool_search_keeps_its_prefix() -> anyhow::Result<()> {
    check_coding_agent("claude-code-tool-search").await
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn codex_works_through_the_router() -> anyhow::Result<()> {
    check_coding_agent("codex").await
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn codex_s_tool_search_keeps_its_prefix() -> anyhow::Result<()> {
    check_coding_agent("codex-tool-search").await
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn opencode_works_through_the_router() -> anyhow::Result<()> {
    check_coding_agent("opencode").await
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn qwen_code_works_through_the_router() -> anyhow::Result<()> {
    check_coding_agent("qwen-code").await
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn continue_cli_works_through_the_router() -> anyhow::Result<()> {
    check_coding_agent("continue").await
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn pi_works_through_the_router_as_through_llama_server() -> anyhow::Result<()> {
    check_coding_agent("pi").await
}

#[tokio::test]
#[ignore = "installs from npm: make test-clients"]
async fn pi_classifies_through_the_router_as_through_llama_server() -> anyhow::Result<()> {
    check_node("coding", "pi_classifier", 1).await
}

/// Sends the requests that schemathesis generates from a server's document.
async fn check_document(rig: &Rig, url: &str, selected: &str) -> anyhow::Result<()> {
    install("schemathesis").await?;
    let mut document = rig.get(&format!("{url}/openapi.json")).await?.json();
    // Otherwise nearly every request would ask for a model that does not exist.
    let schemas = document["components"]["schemas"].as_object_mut().context("the document has schemas")?;
    for (name, schema) in schemas.iter_mut().filter(|(name, _)| name.ends_with("Request")) {
        let model = match name.as_str() {
            "EmbeddingsRequest" | "OllamaEmbedRequest" | "OllamaEmbeddingsRequest" => "embed",
            "RerankRequest" => "rank",
            _ => MODEL_NAME,
        };
        if let Some(field) = schema.pointer_mut("/properties/model") {
            *field = json!({ "enum": [model] });
        }
    }
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("openapi.json"), document.to_string())?;
    let mut command = Command::new(root().join("target/clients/schemathesis/bin/schemathesis"));
    command.current_dir(folder.path()).args(["run", "openapi.json", "--url", url, selected]).args([
        "--generation-deterministic",
        "--max-examples=10",
        "--phases=coverage,fuzzing",
        "--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method",
        "--suppress-health-check=all",
        "--request-timeout=120",
        // CPython 3.11 sometimes fails if several threads compile (`AST constructor recursion depth mismatch`).
        "--workers=1",
        "--no-color",
    ]);
    let said = said(&mut command).await?;
    ensure!(said.contains(" passed"), "{said}");
    Ok(())
}

#[tokio::test]
#[ignore = "installs from PyPI: make test-clients"]
async fn a_router_s_responses_fit_its_document() -> anyhow::Result<()> {
    let generates = format!("--alias {MODEL_NAME} --slots 4 --ctx-size 8192");
    let workers: [WorkerLine<'_>; 3] = [
        ("chat", Preset::Tiny, 1, &generates),
        ("embed", Preset::TinyEmbed, 1, "--alias embed --embedding --slots 4"),
        ("rank", Preset::TinyRank, 1, "--alias rank --rerank --slots 4"),
    ];
    let rig = Rig::start_models(&workers).await?;
    check_document(&rig, &rig.router_url(), "--include-path-regex=.*").await
}

#[tokio::test]
#[ignore = "installs from PyPI: make test-clients"]
async fn a_worker_s_responses_fit_its_document() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let rig = Rig::start_with(1, &["--slot-save-path", &folder.path().display().to_string()], &[]).await?;
    let worker = rig.fleet.workers.first().context("there is one")?;
    // Endpoints that a router lacks, except the stream that ends when its reader leaves.
    let selected = "--include-path-regex=^/(slots|cache|props|metrics|internal/v1/(summary$|vocabulary))";
    check_document(&rig, &worker.base_url(), selected).await
}
