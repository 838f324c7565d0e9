//! Configuration files, checks, versions, completions and manual pages of the real programs.
//!
//! Not here: the settings of a file (`common/shell/src/process/command_line/tests.rs`), the flags of a fleet (`serve`).

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, ensure};
use warmpath_common::host::{MemoryProjection, RAM};
use warmpath_tests::rig::{bin_dir, tiny_model};

const PROGRAMS: [&str; 3] = ["warmpath", "warmpath-router", "warmpath-worker"];

fn run(program: &str, flags: &[&str], variables: &[(&str, &str)]) -> anyhow::Result<Output> {
    let mut command = Command::new(bin_dir()?.join(program));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WARMPATH_")) {
        command.env_remove(name);
    }
    Ok(command.args(flags).envs(variables.iter().copied()).output()?)
}

/// Returns what a program prints; it must succeed.
fn printed(program: &str, flags: &[&str], variables: &[(&str, &str)]) -> anyhow::Result<String> {
    let output = run(program, flags, variables)?;
    ensure!(output.status.success(), "{program} {flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path")
}

#[test]
fn flags_override_variables_and_these_override_the_file() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("router.toml");
    let file = text(&file)?;
    std::fs::write(file, "queue-max = 1\nattempts-max = 5\nwait = 9\nworker = ['http://a:1', 'http://b:2']\n")?;
    let variables = [("WARMPATH_QUEUE_MAX", "2"), ("WARMPATH_WAIT", "8"), ("WARMPATH_CONFIG", file)];
    let config = printed("warmpath-router", &["--wait", "3", "--print-config"], &variables)?;
    for line in [
        "queue-max = 2  # WARMPATH_QUEUE_MAX",
        "wait = 3  # --wait",
        &format!("attempts-max = 5  # {file}"),
        &format!("worker = [\"http://a:1\", \"http://b:2\"]  # {file}"),
        "# retry-budget = 0.2",
    ] {
        ensure!(config.lines().any(|printed| printed == line), "{line} is not in\n{config}");
    }
    std::fs::write(file, &config)?;
    let again = printed("warmpath-router", &["--config", file, "--print-config"], &[])?;
    ensure!(config.parse::<toml::Table>()? == again.parse::<toml::Table>()?, "{config}\n{again}");
    Ok(())
}

#[test]
fn a_worker_s_configuration_has_the_worker_s_names_for_llama_server_s_flags() -> anyhow::Result<()> {
    let config = printed("warmpath-worker", &["-m", "a.gguf", "-np", "2", "-fa", "on", "--print-config"], &[])?;
    for line in ["model = \"a.gguf\"  # --model", "slots = 2  # --slots", "flash-attn = \"on\"  # --flash-attn"] {
        ensure!(config.lines().any(|printed| printed == line), "{line} is not in\n{config}");
    }
    let secret = printed("warmpath-worker", &["--print-config"], &[("HF_TOKEN", "hf_abc")])?;
    ensure!(secret.contains("# hf-token is set by HF_TOKEN") && !secret.contains("hf_abc"), "{secret}");
    Ok(())
}

#[test]
fn a_check_reads_the_named_files_and_serves_nothing() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let listen = taken.local_addr()?.to_string();
    let model = tiny_model()?;
    let good = printed("warmpath-worker", &["-m", text(&model)?, "--listen", &listen, "--check"], &[])?;
    ensure!(good == "the configuration can be used\n", "{good}");
    let workers = dir.path().join("workers");
    std::fs::write(&workers, "http://127.0.0.1:1\n")?;
    let flags = ["--workers-file", text(&workers)?, "--listen", &listen, "--admin-listen", &listen, "--check"];
    ensure!(printed("warmpath-router", &flags, &[])? == good);

    let missing = dir.path().join("missing");
    let missing = text(&missing)?;
    let worker = ["--worker", "http://127.0.0.1:1", "--check"];
    for (program, flags) in [
        ("warmpath-worker", vec!["-m", missing, "--check"]),
        ("warmpath-worker", vec!["-m", text(&model)?, "--lora", missing, "--check"]),
        ("warmpath-worker", vec!["-m", text(&model)?, "--fleet-token-file", missing, "--check"]),
        ("warmpath-router", vec!["--workers-file", missing, "--check"]),
        ("warmpath-router", [&worker[..], &["--api-keys-file", missing]].concat()),
        ("warmpath-router", [&worker[..], &["--vocab", missing]].concat()),
        ("warmpath-router", [&worker[..], &["--tls-cert", missing, "--tls-key", missing]].concat()),
    ] {
        let output = run(program, &flags, &[])?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && said.contains(missing), "{program} {flags:?}: {said}");
    }
    Ok(())
}

#[test]
fn a_worker_s_memory_is_printed_without_loading_weights_and_a_missing_file_is_no_error() -> anyhow::Result<()> {
    let model = tiny_model()?;
    let memory = |flags: &[&str]| -> anyhow::Result<MemoryProjection> {
        let flags = [flags, &["--print-memory", "--offline"]].concat();
        Ok(serde_json::from_str(&printed("warmpath-worker", &flags, &[])?)?)
    };
    let ram = |ctx_size: &str| -> anyhow::Result<u64> {
        let projection = memory(&["-m", text(&model)?, "-c", ctx_size, "--cache-ram", "1"])?;
        let ram = projection.devices.iter().find(|device| device.device == RAM).context("the machine's memory")?;
        ensure!(projection.is_local && projection.ctx_size.is_none(), "{projection:?}");
        Ok(ram.bytes)
    };
    ensure!(ram("1024")? > std::fs::metadata(&model)?.len() && ram("65536")? > ram("1024")?);
    let dir = tempfile::tempdir()?;
    let variables = [("HF_HUB_CACHE", text(dir.path())?)];
    let missing = printed("warmpath-worker", &["-hf", "a/b", "--print-memory", "--offline"], &variables)?;
    ensure!(serde_json::from_str::<MemoryProjection>(&missing)? == MemoryProjection::default(), "{missing}");
    Ok(())
}

#[test]
fn a_worker_s_version_names_llama_cpp_and_the_features() -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    for program in PROGRAMS {
        ensure!(printed(program, &["-V"], &[])? == format!("{program} {version}\n"), "{program}");
    }
    let long = printed("warmpath-worker", &["--version"], &[])?;
    let lines: Vec<&str> = long.lines().collect();
    let [first, llama, features] = lines[..] else { anyhow::bail!("{long}") };
    ensure!(first == format!("warmpath-worker {version}") && features.starts_with("features: "), "{long}");
    let llama = llama.strip_prefix("llama.cpp: llama-cpp-sys-2 ").and_then(|rest| rest.split_once(", ggml "));
    let is_release =
        |text: &str| text.split('.').count() == 3 && text.starts_with(|first: char| first.is_ascii_digit());
    ensure!(llama.is_some_and(|(sys, ggml)| is_release(sys) && is_release(ggml)), "{long}");
    Ok(())
}

#[test]
fn every_program_has_completions_and_manual_pages() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    for program in PROGRAMS {
        for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
            let script = printed(program, &["--completions", shell], &[])?;
            ensure!(script.contains(program) && script.contains("man-pages"), "{program} {shell}: {script}");
        }
        printed(program, &["--man-pages", text(dir.path())?], &[])?;
    }
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(dir.path())? {
        pages.push(entry?.file_name().to_string_lossy().into_owned());
    }
    pages.sort();
    let commands = ["capacity", "host", "router-new-key", "router", "serve", "status", "worker"];
    let mut expected = commands.map(|command| format!("warmpath-{command}.1")).to_vec();
    expected.push("warmpath.1".to_owned());
    ensure!(pages == expected, "{pages:?}");
    Ok(())
}
