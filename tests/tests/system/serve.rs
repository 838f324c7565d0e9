//! `warmpath serve`, `warmpath status` and `warmpath capacity` with real workers and a real router.
//!
//! Not here: which flags they get (`cli/src/serve/plan.rs`).

use std::net::TcpListener;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use warmpath_tests::rig::{bin_dir, poll_until, tiny_model};

/// Longest time until a fleet reaches the state for which a test waits.
const DEADLINE: Duration = Duration::from_secs(60);
/// Workers of each fleet here.
const N_WORKERS: usize = 2;

/// A running `warmpath serve` and its addresses.
struct Serving {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    base: String,
    admin: String,
    http: reqwest::Client,
}

/// Returns the first of `n` consecutive ports that are free now.
fn free_ports(n: u16) -> anyhow::Result<u16> {
    for _ in 0..100 {
        let first = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let are_free =
            (0..n).all(|n| first.checked_add(n).is_some_and(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()));
        if are_free {
            return Ok(first);
        }
    }
    bail!("there are no {n} consecutive free ports")
}

fn warmpath() -> anyhow::Result<Command> {
    let mut command = Command::new(bin_dir()?.join("warmpath"));
    command.stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

impl Serving {
    async fn start(model: &Path, worker_flags: &[&str]) -> anyhow::Result<Self> {
        let port = free_ports(4)?;
        let address = |n: u16| format!("127.0.0.1:{}", port + n);
        let mut command = warmpath()?;
        command.args(["serve", "--workers", &N_WORKERS.to_string(), "-m"]).arg(model);
        command.args(["--listen", &address(0), "--admin-listen", &address(1), "--worker-listen", &address(2)]);
        command.args(worker_flags).args(["--ctx-size", "4096", "--", "--queue-max", "7"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("a stdout")?;
        let http = reqwest::Client::builder().no_proxy().timeout(DEADLINE).build()?;
        let (base, admin) = (format!("http://{}", address(0)), format!("http://{}", address(1)));
        Ok(Self { child, stdout: BufReader::new(stdout).lines(), base, admin, http })
    }

    /// Reads its output until it reports that it is ready.
    async fn greeting(&mut self) -> anyhow::Result<String> {
        let mut text = String::new();
        let reading = async {
            while !text.contains("Ctrl-C ends the fleet") {
                let line = self.stdout.next_line().await?;
                text += &(line.context("it ended before it was ready")? + "\n");
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(DEADLINE, reading).await.context("it never reported that it is ready")??;
        Ok(text)
    }

    async fn chat(&self) -> anyhow::Result<reqwest::StatusCode> {
        let body = json!({"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4});
        Ok(self.http.post(format!("{}/v1/chat/completions", self.base)).json(&body).send().await?.status())
    }

    async fn status(&self, flags: &[&str]) -> anyhow::Result<Output> {
        Ok(warmpath()?.args(["status", "--admin", &self.admin]).args(flags).output().await?)
    }

    /// Returns the processes that it has started.
    async fn children(&self) -> anyhow::Result<Vec<u32>> {
        let id = self.child.id().context("it has ended")?;
        let listed = Command::new("ps").args(["-o", "pid=", "--ppid", &id.to_string()]).output().await?;
        let pids = String::from_utf8(listed.stdout)?;
        pids.split_whitespace().map(|pid| Ok(pid.parse()?)).collect()
    }

    /// Returns the number of workers that the router reports as ready.
    async fn n_ready(&self) -> anyhow::Result<usize> {
        let fleet: Value = self.http.get(format!("{}/internal/v1/fleet", self.admin)).send().await?.json().await?;
        let workers = fleet["workers"].as_array().context("workers")?;
        Ok(workers.iter().filter(|worker| worker["state"] == "ready").count())
    }
}

/// Calls `look` until it returns a value.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let found = poll_until(DEADLINE, async || look().await.transpose()).await;
    found.with_context(|| format!("{what} never happened"))?
}

async fn signal(pid: u32, name: &str) -> anyhow::Result<()> {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().await?;
    ensure!(sent.success(), "kill -{name} {pid} ended with {sent}");
    Ok(())
}

/// Returns whether a process exists that has not ended.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[tokio::test]
async fn a_fleet_starts_by_one_command_restarts_dead_processes_and_ends_completely() -> anyhow::Result<()> {
    let mut serving = Serving::start(&tiny_model()?, &[]).await?;
    let greeting = serving.greeting().await?;
    ensure!(greeting.contains(&format!("curl {}/v1/chat/completions", serving.base)), "{greeting}");
    ensure!(greeting.contains(&format!("{}/fleet", serving.admin)), "{greeting}");
    ensure!(greeting.contains(&format!("chat page: {}/", serving.base)), "{greeting}");
    ensure!(serving.chat().await?.is_success(), "the curl line works");

    let shown = serving.status(&[]).await?;
    let text = String::from_utf8(shown.stdout)?;
    ensure!(shown.status.success() && text.contains("worker-0") && text.contains("worker-1"), "{text}");
    ensure!(text.contains("1 requests") && text.contains("| 200"), "{text}");
    let shown: Value = serde_json::from_slice(&serving.status(&["--json"]).await?.stdout)?;
    ensure!(shown["fleet"]["workers"].as_array().is_some_and(|workers| workers.len() == N_WORKERS), "{shown}");
    ensure!(shown["decisions"][0]["status"] == 200 && shown["history"]["sum"]["requests"] == 1, "{shown}");

    let rates = ["--answer-tokens", "4", "--prefill-rate", "1000", "--decode-rate", "100", "--json"];
    let sized = warmpath()?.args(["capacity", "--admin", &serving.admin]).args(rates).output().await?;
    let sized: Value = serde_json::from_slice(&sized.stdout).with_context(|| format!("{sized:?}"))?;
    let prompt = &sized["inputs"]["prompt_tokens"];
    ensure!(prompt["source"] == "fleet" && prompt["value"].as_f64() > Some(1.0), "{sized}");
    ensure!(sized["workers_ready"] == N_WORKERS && sized["loads"][0]["workers"] == 1.0, "{sized}");

    let page = serving.http.get(&serving.base).send().await?.error_for_status()?.text().await?;
    ensure!(page.starts_with("<!doctype html>"), "{page}");

    let before = serving.children().await?;
    ensure!(before.len() == N_WORKERS + 1, "{before:?}");
    signal(before[0], "KILL").await?;
    let replaced = async || {
        let now = serving.children().await?;
        let is_back = now.len() == before.len() && now != before && serving.n_ready().await? == N_WORKERS;
        Ok(is_back.then_some(now))
    };
    let after = until("the child that was killed", replaced).await?;
    ensure!(serving.chat().await?.is_success(), "the fleet still works");

    signal(serving.child.id().context("a process")?, "TERM").await?;
    let status = tokio::time::timeout(DEADLINE, serving.child.wait()).await??;
    ensure!(status.success(), "it ended with {status}");
    ensure!(!after.iter().any(|pid| is_alive(*pid)), "a child of {after:?} still runs");
    let nobody = serving.status(&[]).await?;
    let said = String::from_utf8(nobody.stderr)?;
    ensure!(!nobody.status.success() && said.contains("no router responds") && said.contains("--admin"), "{said}");
    Ok(())
}

#[tokio::test]
async fn each_worker_of_a_configuration_file_has_its_own_folder() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (file, disk) = (dir.path().join("worker.toml"), dir.path().join("kv"));
    std::fs::write(&file, format!("cache-disk = {disk:?}\nthreads = 1\nslots = 1\n"))?;
    let mut serving = Serving::start(&tiny_model()?, &["--config", file.to_str().context("a path")?]).await?;
    serving.greeting().await?;
    let mut folders =
        std::fs::read_dir(&disk)?.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
    folders.sort();
    ensure!(folders == ["worker-0", "worker-1"], "{folders:?}");
    let fleet: Value = serving.http.get(format!("{}/internal/v1/fleet", serving.admin)).send().await?.json().await?;
    ensure!(fleet["workers"][0]["model"]["n_slots"] == 1, "the file counts for the rest: {fleet}");
    Ok(())
}

#[tokio::test]
async fn flags_that_a_program_refuses_start_nothing() -> anyhow::Result<()> {
    let mut serving = Serving::start(&tiny_model()?, &["--slotz", "1"]).await?;
    let mut said = String::new();
    serving.child.stderr.take().context("a stderr")?.read_to_string(&mut said).await?;
    let status = serving.child.wait().await?;
    ensure!(status.code() == Some(1) && said.contains("warmpath-worker refuses its flags"), "{status}: {said}");
    ensure!(said.contains("--slots"), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_fleet_that_cannot_start_ends_with_the_reason() -> anyhow::Result<()> {
    let mut serving = Serving::start(Path::new("/nowhere/model.gguf"), &[]).await?;
    let mut said = String::new();
    serving.child.stderr.take().context("a stderr")?.read_to_string(&mut said).await?;
    let status = tokio::time::timeout(DEADLINE, serving.child.wait()).await??;
    ensure!(status.code() == Some(1), "it ended with {status}: {said}");
    ensure!(said.contains("/nowhere/model.gguf") && said.contains("ended before the fleet was ready"), "{said}");
    Ok(())
}

#[tokio::test]
async fn no_child_outlives_a_fleet_that_is_killed() -> anyhow::Result<()> {
    let mut serving = Serving::start(&tiny_model()?, &[]).await?;
    serving.greeting().await?;
    let children = serving.children().await?;
    serving.child.kill().await?;
    until("their end", async || Ok((!children.iter().any(|pid| is_alive(*pid))).then_some(()))).await
}
